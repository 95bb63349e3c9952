// The story of a run, as `foreshock report` tells it: each loss event, what moved before it and where, what
// is known of the circumstances, what that is consistent with and what it does not exclude.
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

// Thread-compatible.
class Signals {
 public:
  static constexpr size_t kMostPoints = 512;   // of a series; the oldest go
  static constexpr size_t kMostSeries = 8192;  // of tensors, and of all else; further ones are left out

  // Adds the readings that one line of the record gave; `layer` is the layer of the line, "" if it has none.
  void take(const std::string& layer, const std::vector<WatchReading>& readings);

  // The series of `detector` in `layer` with the highest score in the steps from `first` to `event`: its
  // finite values from `first` to `last`. Empty if no series has a value there.
  std::vector<SignalPoint> around(DetectorId detector, const std::string& layer, int64_t first, int64_t event,
                                  int64_t last) const;

  // Layers of which `detector` has had a value in the whole run.
  const std::set<std::string>& layers(DetectorId detector) const;
  // The same of any detector.
  std::set<std::string> layers() const;

  // Another attempt begins.
  void forget_points() {
    series_.clear();
    tensors_ = others_ = 0;
  }

 private:
  struct Series {
    std::string layer;
    std::deque<SignalPoint> points;
  };
  std::map<std::pair<int, std::string>, Series> series_;  // by detector and place
  size_t tensors_ = 0, others_ = 0;                       // of series_
  std::set<std::string> layers_[kDetectors];
};

// A layer whose attention had errors beyond the alarm limit in several of its last slices.
struct AttentionFault {
  std::string layer;    // "": not known
  std::string tensor;   // out, grad_query, grad_key or grad_value
  double most = 0;      // largest error over the alarm limit
  int64_t at_step = 0;  // of `most`
  int64_t first_step = 0, last_step = 0;
  uint64_t beyond = 0, slices = 0;
};

// Errors of attention in a run, all ranks together, each over its alarm limit: 1 is the limit.
// Thread-compatible.
class AttentionErrors {
 public:
  static constexpr size_t kMostLayers = 512;  // further ones are left out of the map
  static constexpr size_t kPoints = 256, kLayerPoints = 64;

  AttentionErrors();
  void take(const SampleLine& line);

  // Columns forward, backward (dQ), keys (dK and dV): the largest of each point.
  HistoryTable curve() const;
  // Column error: the largest of all tensors.
  std::vector<HistoryTable> layers() const;
  // The one with the largest error first.
  std::vector<AttentionFault> faults() const;
  // `slices` counts those that have an error; `most` is the largest error, if there is one.
  const AttentionFault& largest() const { return largest_; }

 private:
  struct Series {
    AttentionFault so_far;
    std::deque<uint64_t> last_beyond;  // numbers of slices
    bool is_fault = false;
  };
  History curve_;
  std::map<std::string, History> layers_;
  std::map<std::pair<std::string, std::string>, Series> series_;  // by layer and tensor
  AttentionFault largest_;
};

// The steps of one rank as a record tells them: the last ones, and in which attempts they were made.

// What the record says about one step; absent: not known. A known loss or norm may be NaN.
struct TrailStep {
  int64_t step = 0;
  std::optional<double> loss, gradient_norm, learning_rate;
  std::optional<uint64_t> batch_id, skipped_steps, interval;
};

// b - a, or the nearest that there is: steps of a record may be anything.
int64_t steps_between(int64_t a, int64_t b);

// Thread-compatible.
class Trail {
 public:
  static constexpr size_t kMostRecent = 512;
  static constexpr size_t kMostAttempts = 4096;

  // Steps in one go, `first` to `last`: a step that goes back begins another attempt.
  struct Attempt {
    int64_t first = 0, last = 0;
  };

  // Whether the step of `line` would begin another attempt.
  bool goes_back(const StepLine& line) const;
  // A line without a step says nothing.
  void add(const StepLine& line);
  // What is added next is of another process of this rank.
  void begin_process() { process_begins_ = true; }

  // The last steps of the present attempt, in order.
  const std::deque<TrailStep>& recent() const { return recent_; }
  const std::vector<Attempt>& attempts() const { return attempts_; }
  // First steps of processes that went on where the one before had stopped: no other attempt.
  const std::vector<int64_t>& went_on() const { return went_on_; }
  uint64_t steps() const { return steps_; }
  // Step numbers that were passed over.
  uint64_t missed() const { return missed_; }

 private:
  std::deque<TrailStep> recent_;
  std::vector<Attempt> attempts_;
  std::vector<int64_t> went_on_;
  bool process_begins_ = false;
  uint64_t steps_ = 0, missed_ = 0;
};

// The story of a run, as `foreshock report` tells it: each loss event, what moved before it and where, what
// is known of the circumstances, what that is consistent with and what it does not exclude.

// A detector that spoke before a loss event. If it did so several times: all that reached to kNear steps
// before the onset, else the last one.
struct StorySign {
  static constexpr int64_t kNear = 64;       // the horizon of the benchmark
  static constexpr int64_t kLongUnseen = 8;  // steps without a look that are told

  DetectorId detector = DetectorId::kBias;
  std::string layer;  // "": of none
  int64_t rank = 0;
  Level most = Level::kWatch;
  int64_t since_step = 0, warn_step = -1, end_step = -1;  // -1: it did not warn; it lasted
  std::vector<SignalPoint> points;                        // what it was given, around the event
};

// One circumstance of an event.
struct StoryFact {
  enum class Mark { kQuiet, kNotable, kUnknown };
  std::string name, text;
  Mark mark = Mark::kQuiet;
  // What may have caused the event, as the end of "Loss diverged at step 222, ...". "": no suspect.
  std::string suspect = {};
  int64_t lead = 0;  // of the suspect: steps before the onset
};

struct StoryEvent {
  static constexpr int64_t kBefore = 256, kAfter = 96;  // steps that are told of

  WatchEventKind kind = WatchEventKind::kLossSpike;
  int64_t onset_step = 0, declared_step = 0;
  size_t attempt = 0;          // how often the steps had gone back before
  std::vector<int64_t> ranks;  // that had it, the first one to be read first
  std::set<int64_t> diverged;  // those of `ranks` whose loss diverged
  std::vector<StorySign> before;
  // Steps of the first rank, from kBefore before the onset to kAfter behind it. Empty if they were not kept,
  // because there are too many events.
  std::vector<TrailStep> steps;
  std::string title, text;
  std::vector<StoryFact> facts;
  std::vector<std::string> consistent_with, not_excluded, to_try;
};

// A time of a detector in a layer above quiet.
struct StoryEpisode {
  DetectorId detector = DetectorId::kBias;
  std::string layer;
  int64_t rank = 0;
  Level most = Level::kWatch;
  int64_t since_step = 0, warn_step = -1, end_step = -1;  // -1: never; it lasts
};

// One detector over the whole run, all ranks.
struct StoryDetector {
  DetectorId detector = DetectorId::kBias;
  uint64_t values = 0, watches = 0, warnings = 0;
  size_t layers = 0;
  int64_t last_warn_step = -1;
};

struct Story {
  std::string run, version;       // of the agent that wrote the record
  std::string headline, verdict;  // one sentence each
  std::vector<StoryFact> facts;   // of the run
  bool from_record = false;       // the events are those that the agent wrote; else found now
  std::string events_note;
  HistoryTable timeline;           // loss and loss_max of one rank
  int64_t timeline_last_step = 0;  // of that rank, whether its loss is known or not
  std::string attention_text;      // one or two sentences
  HistoryTable attention;          // as AttentionErrors::curve()
  std::vector<HistoryTable> attention_layers;
  std::vector<AttentionFault> attention_faults;
  std::vector<StoryEpisode> episodes;
  std::vector<StoryEvent> events;  // by step within an attempt
  std::vector<StoryDetector> detectors;
  std::vector<StoryFact> coverage;  // what was seen of the training
  std::vector<std::string> notes;   // what is wrong with the record
  std::vector<std::string> limits;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_MODEL_H_
