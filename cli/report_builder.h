// Makes the story of a run from the lines of its record.
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

// Something that the agent told of beside the detectors' events: nonfinite, nonfinite_gradient,
// nonfinite_gradient_norm, weight_mismatch.
struct Notable {
  std::string what, layer;
  int64_t rank = 0, step = 0;  // rank -1: of no single one, as found between nodes
  size_t attempt = 0;
};

// What is known of the run as a whole.
struct RunSeen {
  std::map<int64_t, Trail> trails;     // by rank
  std::map<int64_t, Signals> signals;  // by rank
  std::vector<Notable> notables;
  size_t records = 1;
  uint64_t tensors = 0;                              // snapshots of weights
  uint64_t replicas_compared = 0;                    // those that several ranks hold alike
  uint64_t attention_calls = 0, slices[2] = {0, 0};  // forward, backward
};

// The facts of `event`, always the same names in the same order; the clues that they give are appended.
// `events`: all of the run.
std::vector<StoryFact> facts_of(const StoryEvent& event, const std::vector<StoryEvent>& events,
                                const RunSeen& run, std::vector<Clue>* clues);

// Fills in what the event is consistent with, what is not excluded and what to try: of its kind, of the
// detectors before it, of its clues. No sentence twice.
void explain(const std::vector<Clue>& clues, StoryEvent* event);

// The events of a run from one source, the agent that wrote the record or the detectors run over it now: loss
// events with what came before them, and when each detector spoke.

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
  // Incidents: what several ranks have together is one, and so are a spike and the divergence it becomes.
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

// Reads records of one run line by line and tells their story.

// Pure: the story follows from the lines. In bounded memory, however long the record. Thread-compatible.
class Storyteller {
 public:
  Storyteller();

  // Lines that follow are of another record of the same run: another node's.
  void begin_record();

  // In the order of the record. "" or one line that says why this is no record of the run.
  std::string take(const RecordLine& line);

  // Once, after all lines.
  Story finish();

 private:
  // Ends one record: closes its events, adds up what its detectors counted, and forgets the detectors.
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
  void close_events(int64_t rank, bool last);
  void draw(const StepLine& line);
  std::vector<StoryFact> facts() const;
  std::vector<StoryFact> coverage() const;
  std::vector<StoryDetector> detectors() const;
  std::string events_note(const Strand& told) const;

  RunSeen run_;
  Strand recorded_, found_;
  std::unique_ptr<Watches> watches_;  // of this record
  std::vector<WatchReading> readings_;
  std::map<int64_t, size_t> record_of_;  // by rank
  size_t records_ = 0;
  AttentionErrors attention_;
  History timeline_;
  int64_t timeline_rank_ = -1;
  StoryDetector totals_[kDetectors];
  std::string run_id_, version_, framework_, executable_, loss_source_, step_source_;
  std::map<int64_t, RunLine> lives_;  // of each rank, as told last
  int64_t world_size_ = 0;
  double first_time_ = 0, last_time_ = 0;
  uint64_t losses_ = 0, other_runs_ = 0;
  std::vector<std::string> not_watched_;  // notes
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_BUILDER_H_
