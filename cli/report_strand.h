// The events of a run from one source, the agent that wrote the record or the detectors run over it now: loss
// events with what came before them, and when each detector spoke.
#ifndef FORESHOCK_CLI_REPORT_STRAND_H_
#define FORESHOCK_CLI_REPORT_STRAND_H_

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/report_story.h"
#include "detect/watch.h"

namespace foreshock::cli {

// Thread-compatible.
class Strand {
 public:
  static constexpr size_t kMostEvents = 1000;    // further ones are counted
  static constexpr size_t kMostDetailed = 40;    // whose steps are kept
  static constexpr size_t kMostEpisodes = 2000;  // further ones are left out
  static constexpr int64_t kSameEvent = 8;       // steps that ranks may be apart

  // An event of a detector or of the loss; others are left alone. `declared`: the last step of the rank so
  // far. `attempt`: its number.
  void take(const EventLine& event, size_t attempt, int64_t declared);

  // Fills in the steps and curves of the events that rank `rank` is the first of and that have come far
  // enough: `last` steps of the attempt are all there will be.
  void close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals, bool last);

  // What a detector had learned is lost.
  void begin_anew() { precursors_.clear(); }

  bool has_any() const { return taken_ > 0; }
  uint64_t loss_events() const { return loss_events_; }
  uint64_t warnings() const { return warnings_; }
  // Those beyond kMostEvents.
  uint64_t left_out() const { return left_out_; }
  std::vector<StoryEvent>& events() { return events_; }
  const std::vector<StoryEpisode>& episodes() const { return episodes_; }

 private:
  void take_level(const EventLine& event);
  void take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt, int64_t declared);

  std::map<int64_t, Precursors> precursors_;  // by rank
  std::vector<StoryEvent> events_;
  std::vector<size_t> open_;  // of events_
  std::vector<StoryEpisode> episodes_;
  size_t detailed_ = 0;
  uint64_t taken_ = 0, loss_events_ = 0, warnings_ = 0, left_out_ = 0;
};

// Nothing: no kind of that name.
std::optional<WatchEventKind> event_kind_of(std::string_view name);
bool is_loss_event(WatchEventKind kind);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_STRAND_H_
