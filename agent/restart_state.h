// Saves and restores the data with which an agent continues the run of a killed agent: facts about each rank
// (its alarms and events), the state of the detectors, and which lines of the record (JSON lines) are written
// already. Other places keep data over a restart too. The .ctl file of a segment (segment/layout.h, Control)
// has what was consumed and judged, the interval and the burst. The spool has the lines that are not in the
// record's file yet, and record.incomplete says whether lines were lost (exporters/record.h). Lost are the
// statistics of the last slices and steps, the histories of the page, queued alerts, and the first snapshots
// of weights, so distances from these are then unknown.
#ifndef FORESHOCK_AGENT_RESTART_STATE_H_
#define FORESHOCK_AGENT_RESTART_STATE_H_

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

#include "agent/detection.h"
#include "agent/directory.h"
#include "agent/rank_state.h"
#include "exporters/record.h"

namespace foreshock {

// Return the parts "past_alarms" and "events" of the summary (docs/summary.md).
nlohmann::json past_alarms_json(const RankStatistics& rank);
nlohmann::json events_json(const RankStatistics& rank);

// Stores the alarms, events and counts of non-finite slices of the ranks of a run in a file in the run's
// directory. A rank's process is identified by the name of its segment (its shared-memory file). One thread.
class RankFacts {
 public:
  static constexpr const char* kFile = "facts.json";
  static constexpr size_t kMostBytes = 16 << 20;  // a larger file is ignored
  // Reads the facts that an earlier agent has saved. An invalid file is ignored.
  void restore(const Directory& directory);
  // Sets the facts in `rank`, a new object, to those saved for the process with this segment.
  void restore_rank(const std::string& segment, RankStatistics* rank) const;
  // Stores the facts about `rank` for the next save().
  void note(const std::string& segment, const RankStatistics& rank);
  void forget(const std::string& segment);  // drops the facts about a segment that has been removed
  // Replaces the file if anything has changed. Returns false if it cannot be written, which harms no run.
  bool save(const Directory& directory);

 private:
  nlohmann::json known_ = nlohmann::json::object();  // by segment
  bool has_unsaved_changes_ = false;
};

// Recognizes lines that a killed agent has already written to the record. If an agent is killed after it has
// written the line of a step or a slice, and before it has marked the step or slice as consumed, the next
// agent reads the same data from the segment again. One thread.
class WrittenLines {
 public:
  // Limit of the lines that are kept, the newest ones. At most so many lines are written before their data is
  // marked as consumed, so earlier lines cannot be repeated.
  static constexpr size_t kMost = 1 << 16;

  void note(const StepLine& line) { note(key_of(line)); }
  void note(const SampleLine& line) { note(key_of(line)); }
  template <class Line>
  void note(const Line&) {}

  // Whether the record has this line already. If so, removes the line here: it cannot occur a third time.
  template <class Line>
  bool erase(const Line& line) {
    return !lines_.empty() && lines_.erase(key_of(line)) > 0;
  }

 private:
  // The key includes the time: a later process of the rank counts slices (tickets), and maybe steps, from 1.
  using Key = std::tuple<std::string, int64_t, std::string, int64_t, double>;
  static Key key_of(const StepLine& line) {
    return {line.run, line.rank.value_or(-1), "step", line.step.value_or(-1), line.time.value_or(0)};
  }
  static Key key_of(const SampleLine& line) {
    return {line.run, line.rank.value_or(-1), "sample " + line.tensor,
            static_cast<int64_t>(line.ticket.value_or(0)), line.time.value_or(0)};
  }
  void note(const Key& key) {
    if (!lines_.insert(key).second) return;
    order_.push_back(key);
    if (order_.size() <= kMost) return;
    lines_.erase(order_.front());
    order_.pop_front();
  }

  std::set<Key> lines_;
  std::deque<Key> order_;  // the noted lines, oldest first
};

// Saves the state of a run's detectors in a file in the run's directory, so that a restarted agent continues
// with them. They need no second learning period and find the same events as without the restart. One thread.
class WatchState {
 public:
  static constexpr const char* kFile = "detectors.state";
  static constexpr size_t kMostBytes = 64 << 20;  // a larger file is ignored

  // Must be called before the detectors receive a line. Restores the state that an earlier agent has saved.
  // The lines that the earlier agent wrote to the record after its last save are passed to the detectors and
  // added to `already_written`. If these lines cause events that the record lacks, the events are written to
  // the record. If there is a record but no readable state, writes the event kDetectorsBeginAnew. `record`
  // may be null (the run has no record). `path`: the record's file.
  void restore(const Directory& directory, const std::string& run, const std::string& path,
               RecordWriter* record, Watches* watches, WrittenLines* already_written);

  // Replaces the file if a detector has received a line since the last save, and always the first time. A
  // large file is replaced less often, at a mean rate of kBytesPerSecond, but always if `is_last`. The record
  // must have been flushed before, since the file stores the record's size. Returns false if the file cannot
  // be written; the run continues without it.
  bool save(const Directory& directory, const RecordWriter* record, const Watches& watches,
            bool is_last = false);

 private:
  static constexpr double kBytesPerSecond = 1 << 20;
  using Clock = std::chrono::steady_clock;

  uint64_t saved_lines_ = UINT64_MAX;  // Watches::lines() at the last save; UINT64_MAX: not saved yet
  Clock::time_point next_save_ = {};   // earliest time of the next save
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RESTART_STATE_H_
