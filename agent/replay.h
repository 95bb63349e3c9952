// Rebuilds the state of the ranks of one record from its lines, so that the findings of a record are those
// that its agent would have written. Counters of calls and of coverage are not in the lines and stay 0.
#ifndef FORESHOCK_AGENT_REPLAY_H_
#define FORESHOCK_AGENT_REPLAY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "agent/detection.h"
#include "agent/findings.h"
#include "agent/rank_state.h"
#include "exporters/record.h"

namespace foreshock {

// Thread-compatible. Memory is bounded: a layer takes about 60 KiB, a process 80 KiB.
class ReplayedRanks {
 public:
  static constexpr size_t kMostReplayedLayers = 4096;  // of all processes; lines of further ones are ignored
  static constexpr size_t kMostReplayedProcesses = 4096;  // a further one counts as the one before it

  // Takes a line in the order of the record, and the events that the detectors found in it.
  template <class Line>
  void take(const Line& line, const std::vector<EventLine>& found) {
    observe(line);
    for (const EventLine& event : found)
      if (event.rank) observe_event(event, &rank_of(event.run, *event.rank));
  }

  // Returns the findings, the most severe first. `watches`: the detectors that have taken the same lines.
  std::vector<Finding> findings(const Watches& watches);

 private:
  void observe(const RunLine& line);
  void observe(const StepLine& line);
  void observe(const SampleLine& line);
  void observe(const TensorLine& line);
  void observe(const EventLine& line);
  template <class Line>
  void observe(const Line&) {}
  RankStatistics& rank_of(const std::string& run, int64_t rank);

  std::deque<RankStatistics> processes_;  // replaced ones too
  Mismatches mismatches_;
  std::map<int64_t, RankStatistics*> current_;  // by rank: its last process
  size_t layers_ = 0;                           // of all processes
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_REPLAY_H_
