// The data path of the agent: segment -> slices judged, steps followed -> statistics of a rank and the
// record.
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
  explicit Pipeline(RecordWriter* record) : record_(record) {}

  // Takes what is new in a segment. Returns whether there was anything.
  bool poll(segment::SegmentReader& segment, RankStatistics* rank);

  // Counters, names and identity: read when somebody is to see them.
  void refresh(const segment::SegmentReader& segment, RankStatistics* rank);

  // After the trainer is gone: what is left half-written is lost.
  void finish(segment::SegmentReader& segment, RankStatistics* rank);

 private:
  void judge_slot(segment::SegmentReader& segment, const segment::SegmentReader::Ready& ready,
                  RankStatistics* rank);
  void tell(RankStatistics* rank, const char* event, int64_t step, const std::string& layer,
            std::optional<double> value);

  RecordWriter* record_;
  DeviationWorkspace workspace_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PIPELINE_H_
