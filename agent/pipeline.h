// The data path of the agent: segment -> slices judged, steps followed -> statistics of a rank and the
// record.
#ifndef FORESHOCK_AGENT_PIPELINE_H_
#define FORESHOCK_AGENT_PIPELINE_H_

#include <memory>
#include <utility>

#include "agent/adviser.h"
#include "agent/alert_command.h"
#include "agent/flagged.h"
#include "agent/head_spectra.h"
#include "agent/histogram_quota.h"
#include "agent/rank.h"
#include "agent/told_lines.h"
#include "agent/watches.h"
#include "agent/weights.h"
#include "exporters/record.h"
#include "segment/reader.h"
#include "shadow/deviation.h"

namespace foreshock {

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
  // `is_new`: the record does not have it.
  void tell(RankStatistics* rank, const char* event, int64_t step, const std::string& layer,
            std::optional<double> value, bool is_new = true);

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
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PIPELINE_H_
