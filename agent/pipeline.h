// The data path of the agent: segment -> slices judged, steps followed -> statistics of a rank and the
// record.
#ifndef FORESHOCK_AGENT_PIPELINE_H_
#define FORESHOCK_AGENT_PIPELINE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "agent/alerts.h"
#include "agent/detection.h"
#include "agent/flagged.h"
#include "agent/rank_state.h"
#include "agent/restart_state.h"
#include "agent/tensor.h"
#include "agent/weights.h"
#include "exporters/record.h"
#include "segment/reader.h"
#include "shadow/judgement.h"

namespace foreshock {

// Which snapshots of weights have their histogram in the record: as many as fit into so many bytes, however
// long the run is. The bytes are spent in sixteen equal parts, each on every second of the intervals that the
// part before took from: of the first snapshots every one is there, and a run 2^15 times as long still has
// its end in it. What is left out at one interval is left out of all tensors, and on every node alike but for
// where a part ends.
class HistogramQuota {
 public:
  // A histogram that is longer than this, stored, fits into no line of a record.
  static constexpr uint64_t kLongest = uint64_t{3} << 20;

  explicit HistogramQuota(uint64_t bytes) : bytes_(bytes) {}

  // Whether this one is written; then its bytes are spent.
  bool takes(const TensorSnapshot& snapshot);

  bool is_on() const { return bytes_ > 0; }
  uint64_t left_out() const { return left_out_; }

 private:
  static constexpr uint64_t kParts = 16;

  const uint64_t bytes_;
  uint64_t spent_ = 0, left_out_ = 0;
  int64_t window_ = -1;
  uint64_t stride_ = 1;  // of intervals, in force
};

class Pipeline {
 public:
  // `record` and `alerts` may be null; they outlive the pipeline. `histogram_bytes` of histograms go into the
  // record.
  explicit Pipeline(RecordWriter* record, uint64_t histogram_bytes = 0, AlertCommand* alerts = nullptr)
      : record_(record), alerts_(alerts), histograms_(histogram_bytes) {}

  // Where slices that are out of the ordinary are kept; null: nowhere. It outlives the pipeline.
  void set_flagged(FlaggedSlices* flagged) { flagged_ = flagged; }

  // The detectors of all ranks. What they know may be restored before the first poll only.
  Watches& watches() { return watches_; }
  // What the record has of an agent that was killed before it could say so to the trainer; likewise.
  ToldLines& told() { return told_; }
  void set_followed_before() { weights_.set_followed_before(); }

  // Ranks of the run that live on this node: so many have a part of each tensor, or a replica.
  void set_ranks_here(size_t ranks) { ranks_here_ = ranks; }
  const Weights& weights() const { return weights_; }
  const HistogramQuota& histograms() const { return histograms_; }
  const HeadSpectra& spectra() const { return spectra_; }

  // What the detectors have to say, and whether the level of one has changed, or risen, since it was asked.
  struct Changes {
    bool any = false, rise = false;
  };
  Changes take_changes() { return std::exchange(changes_, {}); }
  Adviser& adviser() { return adviser_; }

  // Takes what is new in a segment. Returns whether there was anything.
  bool poll(segment::SegmentReader& segment, RankStatistics* rank);

  // What an agent before this one has taken of it, before anything else is.
  void take_up(const segment::SegmentReader& segment, RankStatistics* rank);

  // Counters, names and identity: read when somebody is to see them.
  void refresh(const segment::SegmentReader& segment, RankStatistics* rank);

  // After the trainer is gone: what is left half-written is lost.
  void finish(segment::SegmentReader& segment, RankStatistics* rank);

  // One step in `interval` will be sampled for a while, from `step` on.
  void note_burst(RankStatistics* rank, int64_t step, uint64_t interval);

 private:
  void judge_slot(segment::SegmentReader& segment, const segment::SegmentReader::Ready& ready,
                  RankStatistics* rank);
  // One judged tensor of a slice: statistics, record, detectors. `seconds`: what judging took.
  void observe(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
               double seconds, RankStatistics* rank);
  // `is_new`: the record does not have it.
  void tell(RankStatistics* rank, const char* event, int64_t step, const std::string& layer,
            std::optional<double> value, bool is_new = true);

  void find_watch(RankStatistics* rank) const;
  void hand_over();
  void note_level(const EventLine& event);
  template <class Line>
  void detect(const Line& line, RankStatistics* rank);
  bool take_tensors(segment::SegmentReader& segment, RankStatistics* rank);
  void take_heads(const segment::TensorView& tensor, RankStatistics* rank);

  void record_weights(const std::vector<TensorSnapshot>& done, RankStatistics* rank);

  RecordWriter* record_;
  AlertCommand* alerts_;
  FlaggedSlices* flagged_ = nullptr;
  Watches watches_;
  ToldLines told_;
  Adviser adviser_;
  Changes changes_;
  HistogramQuota histograms_;
  Weights weights_;  // of all ranks of the run, as the next one
  HeadSpectra spectra_;
  size_t ranks_here_ = 1;
  DeviationWorkspace workspace_;
  ColumnReference columns_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PIPELINE_H_
