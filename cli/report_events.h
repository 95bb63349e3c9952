// The loss events of a run, as `foreshock report` shows them. A loss event is a spike, a divergence or a slow
// rise of the loss; its signs are the episodes of detectors (times above level quiet) before it.
#ifndef FORESHOCK_CLI_REPORT_EVENTS_H_
#define FORESHOCK_CLI_REPORT_EVENTS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "cli/report_model.h"
#include "detect/watch.h"
#include "exporters/record.h"

namespace foreshock::cli {

// Collects the events of a run, either those that the agent wrote into the record, or those of the detectors
// that the report runs over the record. Keeps loss events, signs and episodes. Thread-compatible.
class EventCollector {
 public:
  static constexpr size_t kMostEvents = 1000;    // further loss events are only counted
  static constexpr size_t kMostDetailed = 40;    // only the first loss events get their steps and curves
  static constexpr size_t kMostEpisodes = 2000;  // further episodes are ignored
  static constexpr int64_t kSameEvent = 8;  // loss events at most this many steps apart (onsets) are joined

  // Adds a loss event, a change of a detector's level, or a rank's return to an earlier step. Ignores other
  // events. `attempt`: index of the rank's present attempt. `declared`: the last step of the rank so far, at
  // which the event was recognized. event.step, its onset, may be earlier.
  void take(const EventLine& event, size_t attempt, int64_t declared);

  // Fills in the steps and curves of the loss events whose first rank is `rank`, once the rank has made
  // ReportEvent::kAfter steps since the onset, or at once if `no_more_steps` (the rank's attempt is over).
  void close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals, bool no_more_steps);

  // Must be called when the detectors have lost their state, e.g. in a restarted agent. Earlier episodes then
  // no longer count as signs of later loss events.
  void reset_detectors() { first_ = episodes_.size(); }

  static bool takes(const EventLine& event);       // whether take() does not ignore it
  bool has_any() const { return taken_ > 0; }      // whether take() has added an event
  uint64_t warnings() const { return warnings_; }  // how often a detector has risen to level warn
  uint64_t left_out() const { return left_out_; }  // number of loss events beyond kMostEvents
  std::vector<ReportEvent>& events() { return events_; }
  const std::vector<RankEpisode>& episodes() const { return episodes_; }

 private:
  void take_level(const EventLine& event, size_t attempt);
  // As Precursors::before(), of the episodes of a rank in an attempt.
  std::vector<Episode> before(int64_t rank, size_t attempt, int64_t onset) const;
  void take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt, int64_t declared);

  std::vector<ReportEvent> events_;
  std::vector<size_t> open_;  // indexes of the events whose steps close() has yet to fill in
  std::vector<RankEpisode> episodes_;
  size_t first_ = 0;     // index of the first episode since reset_detectors()
  size_t detailed_ = 0;  // number of events that get their steps, at most kMostDetailed
  uint64_t taken_ = 0, warnings_ = 0, left_out_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_EVENTS_H_
