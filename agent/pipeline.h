// The data path of the agent: segment -> slices judged, steps followed -> statistics of a rank and the
// record.
#ifndef FORESHOCK_AGENT_PIPELINE_H_
#define FORESHOCK_AGENT_PIPELINE_H_

#include <memory>

#include "agent/rank.h"
#include "agent/watches.h"
#include "exporters/record.h"
#include "segment/reader.h"
#include "shadow/deviation.h"

namespace foreshock {

class Pipeline {
 public:
  // `record` may be null; it outlives the pipeline.
  explicit Pipeline(RecordWriter* record) : record_(record) {}

  // The detectors of all ranks. What they know may be restored before the first poll only.
  Watches& watches() { return watches_; }

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

  template <class Line>
  void detect(const Line& line, RankStatistics* rank);

  RecordWriter* record_;
  Watches watches_;
  DeviationWorkspace workspace_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PIPELINE_H_
