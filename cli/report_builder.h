// Builds the data of a report (Story, report_model.h) from the lines of the records of a run.
#ifndef FORESHOCK_CLI_REPORT_BUILDER_H_
#define FORESHOCK_CLI_REPORT_BUILDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/detection.h"
#include "agent/rank_state.h"
#include "cli/report_model.h"
#include "cli/report_text.h"
#include "detect/watch.h"
#include "exporters/record_reader.h"

namespace foreshock::cli {

// An event of the record that comes from the agent and not from a detector: nonfinite, nonfinite_gradient,
// nonfinite_gradient_norm or weight_mismatch.
struct Notable {
  std::string what, layer;
  int64_t rank = 0, step = 0;  // rank -1: a mismatch between nodes has no rank
  size_t attempt = 0;
};

// What the records say about the run as a whole.
struct RunSeen {
  std::map<int64_t, Trail> trails;     // by rank
  std::map<int64_t, Signals> signals;  // by rank
  std::vector<Notable> notables;
  size_t records = 1;
  uint64_t tensors = 0;                              // snapshots of weights
  uint64_t replicas_compared = 0;                    // snapshots of tensors with replicas
  uint64_t attention_calls = 0, slices[2] = {0, 0};  // forward, backward
};

// Returns the facts of `event` and appends their clues to `*clues`. Names and order of the facts are the same
// for every event. `events` are all events of the run.
std::vector<StoryFact> facts_of(const StoryEvent& event, const std::vector<StoryEvent>& events,
                                const RunSeen& run, std::vector<Clue>* clues);

// Fills in `consistent_with`, `not_excluded` and `to_try` of the event. The texts come from its clues, from
// the detectors that left level quiet before it, and from its kind. No sentence is repeated.
void explain(const std::vector<Clue>& clues, StoryEvent* event);

// Collects the events of a run from one source: either the agent, which wrote them into the record, or
// detectors that the report runs over the record. Keeps loss events with the signs before them, and the
// episodes of each detector. Thread-compatible.
class Strand {
 public:
  static constexpr size_t kMostEvents = 1000;    // further events are only counted
  static constexpr size_t kMostDetailed = 40;    // only the first events get their steps and curves
  static constexpr size_t kMostEpisodes = 2000;  // further episodes are ignored
  static constexpr int64_t kSameEvent =
      8;  // loss events whose onsets are at most this many steps apart are one

  // Adds a detector event or a loss event; other events are ignored. `attempt`: index of the rank's present
  // attempt. `declared`: the last step of the rank so far, at which the event was
  // detected.
  void take(const EventLine& event, size_t attempt, int64_t declared);

  // Fills in the steps and curves of the events whose first rank is `rank` and whose onset is at least kAfter
  // steps ago. `no_more_steps`: the attempt is over, so later events are filled in too.
  void close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals, bool no_more_steps);

  // Forgets open episodes, because the detectors lost their state.
  void begin_anew() { precursors_.clear(); }

  bool has_any() const { return taken_ > 0; }
  // Number of distinct loss events. An event on several ranks counts once. A spike that becomes a divergence
  // counts once.
  uint64_t loss_events() const { return loss_events_; }
  uint64_t warnings() const { return warnings_; }
  // Number of loss events beyond kMostEvents.
  uint64_t left_out() const { return left_out_; }
  std::vector<StoryEvent>& events() { return events_; }
  const std::vector<StoryEpisode>& episodes() const { return episodes_; }

 private:
  void take_level(const EventLine& event);
  void take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt, int64_t declared);

  std::map<int64_t, Precursors> precursors_;  // by rank
  std::vector<StoryEvent> events_;
  std::vector<size_t> open_;  // indexes of the events whose steps are not filled in yet
  std::vector<StoryEpisode> episodes_;
  size_t detailed_ = 0;  // number of events that get their steps, at most kMostDetailed
  uint64_t taken_ = 0, loss_events_ = 0, warnings_ = 0, left_out_ = 0;
};

// Builds the story of a run from the lines of its records. The story depends only on the lines. Memory does
// not grow with the records. Thread-compatible.
class Storyteller {
 public:
  Storyteller();

  // Must be called before the lines of a further record of the same run, e.g. from another node.
  void begin_record();

  // Adds a line, in the order of the record. Returns "" or, in one line, why the record does not belong to
  // this run.
  std::string take(const RecordLine& line);

  // Returns the story. Must be called once, after all lines.
  Story finish();

 private:
  // Ends one record: closes its events, adds its detectors' counts to totals_, and deletes the detectors.
  void end_record();
  void observe(const RunLine& line);
  void observe(const StepLine& line);
  void observe(const SampleLine& line);
  void observe(const TensorLine& line);
  void observe(const EventLine& line);
  template <class Line>
  void observe(const Line&) {}

  template <class Line>
  void detect(const Line& line);
  void take_event(const EventLine& event, Strand* strand);
  void close_events(int64_t rank, bool no_more_steps);
  void add_to_timeline(const StepLine& line);
  std::vector<StoryFact> facts() const;
  std::vector<StoryFact> coverage() const;
  std::vector<StoryDetector> detectors() const;
  std::string events_note(const Strand& chosen) const;

  RunSeen run_;
  Strand recorded_, found_;           // events of the agent; events of the detectors in watches_
  std::unique_ptr<Watches> watches_;  // detectors for the present record
  std::vector<WatchReading> readings_;
  std::map<int64_t, size_t> record_of_;  // by rank: number of the record that has its lines
  size_t records_ = 0;
  AttentionErrors attention_;
  History timeline_;
  int64_t timeline_rank_ = -1;
  StoryDetector totals_[kDetectors];
  std::string run_id_, version_, framework_, executable_, loss_source_, step_source_;
  std::map<int64_t, RunLine> last_run_line_;  // by rank: its last run line
  int64_t world_size_ = 0;
  double first_time_ = 0, last_time_ = 0;
  uint64_t losses_ = 0, other_runs_ = 0;
  std::vector<std::string> not_watched_;  // notes on series that the detectors did not follow
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_BUILDER_H_
