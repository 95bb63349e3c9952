// The data path of the agent: reads slices (copied parts of attention calls), steps and weight tensors from
// segments (the shared-memory files of trainers), checks them, and updates the statistics of the ranks and
// the record (JSON lines). A segment holds slices in slots; to consume data means to free its space there.
#ifndef FORESHOCK_AGENT_PIPELINE_H_
#define FORESHOCK_AGENT_PIPELINE_H_

#include <cstdint>
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
#include "shadow/key_columns.h"
#include "shadow/slice.h"

namespace foreshock {

// Returns the slice of query rows (a few rows with all keys) in a slot. Its arrays are those of the view.
AttentionSlice slice_of(const segment::SlotView& view);
// Does the same for a slice of key positions (a few keys with all query rows).
KeyColumns columns_of(const segment::SlotView& view);

// Decides for which snapshots of weights the record gets a histogram of the values, within a fixed number of
// bytes for a run of any length. Each tensor has one snapshot per interval of steps. Until 1/16 of the bytes
// is used, the histograms of every interval are written; until 2/16, of every 2nd interval; until 3/16, of
// every 4th, and so on. An interval is written or omitted for all tensors together. The rule depends only on
// bytes, so all nodes of a job write the same intervals, except near the change to the next sixteenth.
class HistogramQuota {
 public:
  // Size of the largest histogram that fits into a line of the record, in bytes.
  static constexpr uint64_t kLongest = uint64_t{3} << 20;

  explicit HistogramQuota(uint64_t bytes) : bytes_(bytes) {}
  // Returns whether the histogram of `snapshot` is to be written. If so, counts its bytes.
  bool takes(const TensorSnapshot& snapshot);

  bool is_on() const { return bytes_ > 0; }        // otherwise no histogram is written
  uint64_t left_out() const { return left_out_; }  // histograms that were not written

 private:
  static constexpr uint64_t kParts = 16;

  const uint64_t bytes_;
  uint64_t spent_ = 0, left_out_ = 0;
  int64_t window_ = -1;  // number of the interval of the last snapshot: step / interval
  uint64_t stride_ = 1;  // intervals from one that is written to the next
};

class Pipeline {
 public:
  // `record` and `alerts` may be null and must outlive the pipeline. `histogram_bytes`: see HistogramQuota.
  explicit Pipeline(RecordWriter* record, uint64_t histogram_bytes = 0, AlertCommand* alerts = nullptr)
      : record_(record), alerts_(alerts), histograms_(histogram_bytes) {}

  // Saves unusual slices in `flagged`, which must outlive the pipeline. Null: none are saved.
  void set_flagged(FlaggedSlices* flagged) { flagged_ = flagged; }
  // The detectors of all ranks. Their state may be restored only before the first poll().
  Watches& watches() { return watches_; }
  // Lines that a killed agent has already written to the record. May be added only before the first poll().
  WrittenLines& written_lines() { return written_lines_; }
  // Must be called if an earlier agent has followed the run, as it may have read the first weight snapshots.
  void set_followed_before() { weights_.set_followed_before(); }
  // Sets the number of the run's ranks on this node. Each may hold a part or a replica of a tensor.
  void set_ranks_here(size_t ranks) { ranks_here_ = ranks; }
  const Weights& weights() const { return weights_; }
  const HistogramQuota& histograms() const { return histograms_; }

  // Whether the level of any detector has changed, and whether any has become watch or warn, since the last
  // take_changes().
  struct Changes {
    bool any = false, warns = false;
  };
  Changes take_changes() { return std::exchange(changes_, {}); }
  Adviser& adviser() { return adviser_; }  // has the highest detector level of the run's ranks
  // Processes new data in a segment. Returns whether there was any.
  bool poll(segment::SegmentReader& segment, RankStatistics* rank);

  // If an earlier agent has read steps of the segment, initializes `rank` from the last of them and from the
  // restored detectors. Must be called after the first refresh() and before the first poll() of the segment.
  void resume_from(const segment::SegmentReader& segment, RankStatistics* rank);
  // Copies counters, names and identity from a segment to `rank`, and whether its trainer is alive and how it
  // has ended. Called before they are published.
  void refresh(const segment::SegmentReader& segment, RankStatistics* rank);
  // Writes the "started" line of a process to the record once, and passes it to the conditions. poll() calls
  // it before the first step, so that no step of a new process counts as one of the process before it.
  void announce(RankStatistics* rank);
  // Writes that a process was found (state "started") or has ended ("ended").
  void record_process(const RankStatistics& rank, const char* state);
  // Processes the rest of a segment after its trainer has ended. Incomplete slices are counted as lost.
  void finish(segment::SegmentReader& segment, RankStatistics* rank);
  // Records the start of a burst: from `step` on, one step in `interval` is sampled for a while.
  void note_burst(RankStatistics* rank, int64_t step, uint64_t interval);

 private:
  // Checks a slice and consumes it, so that the trainer can reuse its slot.
  void judge_slot(segment::SegmentReader& segment, const segment::SegmentReader::Ready& ready,
                  RankStatistics* rank);
  // Passes one checked tensor of a slice to statistics, record and detectors. `seconds`: its CPU time.
  void observe(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
               double seconds, RankStatistics* rank);
  // Adds an event to the rank's list of events and, if `is_new`, to the record.
  void record_event(RankStatistics* rank, const char* event, int64_t step, const std::string& layer,
                    std::optional<double> value, bool is_new = true);

  void record_skips(RankStatistics* rank);
  void record_backward_calls(RankStatistics* rank);
  // Points rank->watch to the detectors of this rank, and rank->conditions to the conditions of its run.
  void set_watch(RankStatistics* rank) const;
  // Makes sure that written lines reach the record even if the agent is killed. Must be called before the
  // data from which the lines were made is consumed, since it cannot be read again.
  void flush_record();
  // Passes a change of a detector's level to the adviser, and records it in changes_.
  void note_level(const EventLine& event);
  // Writes the line to the record and passes it to the detectors; writes and reports the events they return.
  template <class Line>
  void detect(const Line& line, RankStatistics* rank);
  // Reads, compares and consumes the new weight tensors of a segment. Returns whether there were any.
  bool take_tensors(segment::SegmentReader& segment, RankStatistics* rank);
  // Writes the lines of the snapshots, and of the layers whose tensors are now all measured.
  void record_weights(const std::vector<TensorSnapshot>& done, RankStatistics* rank);

  RecordWriter* record_;
  AlertCommand* alerts_;
  FlaggedSlices* flagged_ = nullptr;
  Watches watches_;
  WrittenLines written_lines_;
  Adviser adviser_;
  Changes changes_;
  HistogramQuota histograms_;
  Weights weights_;  // of all ranks of the run
  size_t ranks_here_ = 1;
  DeviationWorkspace workspace_;      // memory for checking slices of query rows
  ColumnReference column_reference_;  // memory for checking slices of key positions
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PIPELINE_H_
