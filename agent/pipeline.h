// The data path of the agent: segment -> slices judged, steps followed -> statistics of a rank and the record.
#ifndef FORESHOCK_AGENT_PIPELINE_H_
#define FORESHOCK_AGENT_PIPELINE_H_

#include <memory>

#include "agent/rank.h"
#include "exporters/record.h"
#include "segment/reader.h"
#include "shadow/deviation.h"

namespace foreshock {

class Pipeline {
 public:
  // `record` may be null; it outlives the pipeline.
  Pipeline(std::string run, RecordWriter* record) : run_(std::move(run)), record_(record) {}

  // Takes what is new in a segment. Returns whether there was anything.
  bool poll(segment::SegmentReader& segment, RankStatistics* rank);

  // Counters, names and identity: read when somebody is to see them.
  void refresh(const segment::SegmentReader& segment, RankStatistics* rank);

  // After the trainer is gone: what is left half-written is lost.
  void finish(segment::SegmentReader& segment, RankStatistics* rank);

 private:
  void follow_step(const segment::StepRecord& step, RankStatistics* rank);
  void judge_slot(segment::SegmentReader& segment, const segment::SegmentReader::Ready& ready, RankStatistics* rank);
  void record_event(const RankStatistics& rank, const char* event, int64_t step, const std::string& layer,
                    std::optional<double> value);

  std::string run_;
  RecordWriter* record_;
  DeviationWorkspace workspace_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PIPELINE_H_
