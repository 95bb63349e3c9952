// The data of a report on a run: its loss events, the detectors that left level quiet before them, the
// circumstances, and possible explanations. Also the classes that collect this data from record lines.
#ifndef FORESHOCK_CLI_REPORT_MODEL_H_
#define FORESHOCK_CLI_REPORT_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/rank_state.h"
#include "detect/watch.h"
#include "exporters/http_routes.h"
#include "exporters/record_line.h"

namespace foreshock::cli {

struct SignalPoint {
  int64_t step = 0;
  double value = 0, score = 0;
};

// Stores the input values of each detector, by place (WatchReading). Memory is bounded. Thread-compatible.
class Signals {
 public:
  static constexpr size_t kMostPoints = 512;  // newest points that are kept per series
  // Limit for series of tensors, and for other series; more are ignored.
  static constexpr size_t kMostSeries = 8192;

  // Adds the readings from one line of the record. `layer`: the layer of the line; "": none.
  void take(const std::string& layer, const std::vector<WatchReading>& readings);

  // Selects the series of `detector` in `layer` that has the highest score in the steps from `first` to
  // `event`, and returns its finite values from `first` to `last`. Empty if no series has a
  // score in the steps from `first` to `event`.
  std::vector<SignalPoint> around(DetectorId detector, const std::string& layer, int64_t first, int64_t event,
                                  int64_t last) const;

  // Layers for which `detector` has had a value during the run.
  const std::set<std::string>& layers(DetectorId detector) const;
  // Layers for which any detector has had a value during the run.
  std::set<std::string> layers() const;

  // Must be called when another attempt begins, because its step numbers repeat those of the stored points.
  void forget_points() {
    series_.clear();
    tensors_ = others_ = 0;
  }

 private:
  struct Series {
    std::string layer;
    std::deque<SignalPoint> points;
  };
  std::map<std::pair<int, std::string>, Series> series_;  // by detector and place (WatchReading)
  size_t tensors_ = 0, others_ = 0;                       // series per tensor; other series
  std::set<std::string> layers_[kDetectors];
};

// A layer and tensor whose attention errors exceeded the alarm limit in several of its recent slices.
struct AttentionFault {
  std::string layer;    // "": unknown
  std::string tensor;   // out, grad_query, grad_key or grad_value
  double most = 0;      // largest error, divided by the alarm limit
  int64_t at_step = 0;  // step of `most`
  int64_t first_step = 0, last_step = 0;
  uint64_t beyond = 0, slices = 0;  // number of slices beyond the limit; number of all slices
};

// Collects the attention errors of all ranks of a run. Each error is divided by its alarm limit, so 1 is the
// limit. Thread-compatible.
class AttentionErrors {
 public:
  static constexpr size_t kMostLayers = 512;  // further layers are missing in layers()
  static constexpr size_t kPoints = 256, kLayerPoints = 64;

  AttentionErrors();
  void take(const SampleLine& line);

  // A table with columns forward, backward (dQ) and keys (dK and dV). Each value is the largest error in the
  // steps of its point.
  HistoryTable curve() const;
  // One table per layer. Its column "error" is the largest error of any tensor.
  std::vector<HistoryTable> layers() const;
  // Sorted by error, the largest first.
  std::vector<AttentionFault> faults() const;
  // The largest error of the run. `slices` is the number of all slices whose error is known. If all errors
  // are 0, or none is known, the other fields are not set.
  const AttentionFault& largest() const { return largest_; }

 private:
  struct Series {
    AttentionFault so_far;
    std::deque<uint64_t> last_beyond;  // so_far.slices at the last slices beyond the limit
    bool is_fault = false;
  };
  History curve_;
  std::map<std::string, History> layers_;
  std::map<std::pair<std::string, std::string>, Series> series_;  // by layer and tensor
  AttentionFault largest_;
};

// The record's data on one step. An absent value is unknown; a known loss or norm may be NaN.
struct TrailStep {
  int64_t step = 0;
  std::optional<double> loss, gradient_norm, learning_rate;
  std::optional<uint64_t> batch_id, skipped_steps, interval;
};

// Returns b - a, saturated, since a record may contain any integers as steps.
int64_t steps_between(int64_t a, int64_t b);

// Stores the newest steps of one rank, and the first and last step of each attempt. Thread-compatible.
class Trail {
 public:
  static constexpr size_t kMostRecent = 512;
  static constexpr size_t kMostAttempts = 4096;

  // A series of steps that do not go back, from `first` to `last`. A step that goes back begins another
  // attempt.
  struct Attempt {
    int64_t first = 0, last = 0;
  };

  // Whether the step of `line` would begin another attempt.
  bool goes_back(const StepLine& line) const;
  // Adds a step; a line without a step is ignored.
  void add(const StepLine& line);
  // Marks the next added step as the first one of another process of this rank.
  void begin_process() { process_begins_ = true; }

  // The last steps of the present attempt, in order.
  const std::deque<TrailStep>& recent() const { return recent_; }
  const std::vector<Attempt>& attempts() const { return attempts_; }
  // First steps of processes that continued the attempt of an earlier process.
  const std::vector<int64_t>& went_on() const { return went_on_; }
  uint64_t steps() const { return steps_; }
  // Number of steps that are missing in the record between steps of the same attempt.
  uint64_t missed() const { return missed_; }

 private:
  std::deque<TrailStep> recent_;
  std::vector<Attempt> attempts_;
  std::vector<int64_t> went_on_;
  bool process_begins_ = false;
  uint64_t steps_ = 0, missed_ = 0;
};

// A detector that left level quiet before a loss event. If it has several such episodes, those that ended at
// most kNear steps before the onset, or later, are joined. If all ended earlier, the last one is kept.
struct StorySign {
  static constexpr int64_t kNear = 64;  // steps; the horizon of the benchmark (bench/precursors)
  static constexpr int64_t kLongUnseen =
      8;  // a gap of more than this many steps between two values is reported

  DetectorId detector = DetectorId::kBias;
  std::string layer;  // "": the detector has no layer
  int64_t rank = 0;
  Level most = Level::kWatch;
  int64_t since_step = 0, warn_step = -1,
          end_step = -1;            // warn_step -1: it did not warn; end_step -1: it had not ended
  std::vector<SignalPoint> points;  // the detector's input around the event
};

// One circumstance of an event.
struct StoryFact {
  enum class Mark { kQuiet, kNotable, kUnknown };
  std::string name, text;
  Mark mark = Mark::kQuiet;
  // A possible cause, as the end of the sentence "Loss diverged at step 222, ...". "": no suspect.
  std::string suspect = {};
  int64_t lead = 0;  // steps from the suspect to the onset
};

struct StoryEvent {
  static constexpr int64_t kBefore = 256, kAfter = 96;  // steps around the onset that are reported

  WatchEventKind kind = WatchEventKind::kLossSpike;
  int64_t onset_step = 0, declared_step = 0;
  size_t attempt = 0;          // index in Trail::attempts()
  std::vector<int64_t> ranks;  // ranks that had the event, in the order of the record
  std::set<int64_t> diverged;  // the members of `ranks` whose loss diverged
  std::vector<StorySign> before;
  // Steps of the first rank, from kBefore steps before the onset to kAfter steps after it. Empty for events
  // after the first Strand::kMostDetailed (report_builder.h).
  std::vector<TrailStep> steps;
  std::string title, text;
  std::vector<StoryFact> facts;
  std::vector<std::string> consistent_with, not_excluded, to_try;
};

// A period in which a detector was above level quiet in a layer.
struct StoryEpisode {
  DetectorId detector = DetectorId::kBias;
  std::string layer;
  int64_t rank = 0;
  Level most = Level::kWatch;
  int64_t since_step = 0, warn_step = -1,
          end_step = -1;  // warn_step -1: it did not warn; end_step -1: it has not ended
};

// Totals of one detector over the whole run and all ranks.
struct StoryDetector {
  DetectorId detector = DetectorId::kBias;
  uint64_t values = 0, watches = 0, warnings = 0;
  size_t layers = 0;
  int64_t last_warn_step = -1;
};

struct Story {
  std::string run, version;       // run id and version of foreshock in the record
  std::string headline, verdict;  // one sentence each
  std::vector<StoryFact> facts;   // facts of the whole run
  bool from_record = false;  // true: the agent wrote the events; false: the report's detectors found them
  std::string events_note;
  HistoryTable timeline;           // loss and loss_max of one rank
  int64_t timeline_last_step = 0;  // last step of that rank, with or without a loss
  std::string attention_text;      // one or two sentences
  HistoryTable attention;          // as AttentionErrors::curve()
  std::vector<HistoryTable> attention_layers;
  std::vector<AttentionFault> attention_faults;
  std::vector<StoryEpisode> episodes;
  std::vector<StoryEvent> events;  // sorted by attempt, then by onset
  std::vector<StoryDetector> detectors;
  std::vector<StoryFact> coverage;  // which parts of the training were seen
  std::vector<std::string> notes;   // defects of the records
  std::vector<std::string> limits;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_MODEL_H_
