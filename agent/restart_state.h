// What an agent leaves behind for the next one of the same run: facts of each rank, the detectors' state, and
// the lines of the record that the trainers were not told of.
#ifndef FORESHOCK_AGENT_RESTART_STATE_H_
#define FORESHOCK_AGENT_RESTART_STATE_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

#include "agent/detection.h"
#include "agent/directory.h"
#include "agent/rank_state.h"
#include "exporters/record.h"
#include "exporters/record_line.h"

namespace foreshock {

// As in the summary: docs/summary.md.
nlohmann::json past_alarms_json(const RankStatistics& rank);
nlohmann::json events_json(const RankStatistics& rank);

// Of all segments of a run. One thread. The file goes with the directory of the run.
class RankFacts {
 public:
  static constexpr const char* kFile = "facts.json";
  static constexpr size_t kMostBytes = 16 << 20;  // what is larger is not read

  // What an agent before this one has saved. What is no such file is nothing.
  void restore(const Directory& directory);

  // Adds what is known of the process with this segment to its rank, of which nothing is known yet.
  void take_up(const std::string& segment, RankStatistics* rank) const;

  // For the next save().
  void note(const std::string& segment, const RankStatistics& rank);
  // Its segment is removed: nobody will ask for it again.
  void forget(const std::string& segment);
  // Replaces the file if anything is new. False when it cannot be written: the run goes on without.
  bool save(const Directory& directory);

 private:
  nlohmann::json known_ = nlohmann::json::object();  // by segment
  bool is_new_ = false;
};

// What the end of a record says already of steps and slices that the trainer was not told to be taken: an
// agent that is killed in between has written lines, and the next one finds the same steps and slices again.

// One thread.
class ToldLines {
 public:
  // Lines of the record since its state was saved, in any order. More than kMost are none of one poll.
  static constexpr size_t kMost = 1 << 16;

  void note(const StepLine& line) { note(key_of(line)); }
  void note(const SampleLine& line) { note(key_of(line)); }
  template <class Line>
  void note(const Line&) {}

  // Whether the record has this line; then it is forgotten, since no second one is to come.
  template <class Line>
  bool take(const Line& line) {
    return !told_.empty() && told_.erase(key_of(line)) > 0;
  }

 private:
  // A process that follows on another one counts its tickets, and maybe its steps, from 1 again: the time of
  // its own clock tells them apart.
  using Key = std::tuple<std::string, int64_t, std::string, int64_t, double>;
  static Key key_of(const StepLine& line) {
    return {line.run, line.rank.value_or(-1), "step", line.step.value_or(-1), line.time.value_or(0)};
  }
  static Key key_of(const SampleLine& line) {
    return {line.run, line.rank.value_or(-1), "sample " + line.tensor,
            static_cast<int64_t>(line.ticket.value_or(0)), line.time.value_or(0)};
  }
  void note(Key key) {
    if (told_.size() < kMost) told_.insert(std::move(key));
  }

  std::set<Key> told_;
};

// What the detectors of a run know, kept beside its segments, so that an agent that is started again in the
// middle of it goes on: without a second period of learning, and with the events that the record will say.

// One thread. The file goes with the directory of the run.
class WatchState {
 public:
  static constexpr const char* kFile = "detectors.state";
  static constexpr size_t kMostBytes = 64 << 20;  // of the file; what is larger is not read

  // To be called before anything is observed. Restores what an agent before this one has saved, and what its
  // record says beyond that: an agent that is killed has written lines after its last save. Events that are
  // missing there are added. Where there is no state but a record, the record is told that the detectors
  // begin anew. `record` may be null; `path` is its file. What the record says beyond the state is noted in
  // `told`.
  void restore(const Directory& directory, const std::string& run, const std::string& path,
               RecordWriter* record, Watches* watches, ToldLines* told);

  // Replaces the file, if there is anything new; the first time always. A large one is replaced less often,
  // at a mean rate of kBytesPerSecond, unless it `is_last`. What is in the record's buffer must have been
  // written before. False when it cannot be written: the run goes on without.
  bool save(const Directory& directory, const RecordWriter* record, const Watches& watches,
            bool is_last = false);

 private:
  static constexpr double kBytesPerSecond = 1 << 20;
  using Clock = std::chrono::steady_clock;

  uint64_t saved_lines_ = UINT64_MAX;  // nothing was saved yet
  Clock::time_point next_ = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RESTART_STATE_H_
