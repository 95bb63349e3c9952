// The data of `foreshock report`: the loss events of a run, the detectors that left level quiet (for level
// watch or warn) before each event, the circumstances, and possible explanations. Also classes that collect
// this data from the lines of a record: a StepLine is about a step, a SampleLine about a slice, which is the
// sampled part of an attention call. A HistoryTable has the points of a chart. An "attempt" is a series of
// steps that ends when the run goes back to a checkpoint. A loss event begins at its "onset".
#ifndef FORESHOCK_CLI_REPORT_MODEL_H_
#define FORESHOCK_CLI_REPORT_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/rank_state.h"
#include "detect/conditions.h"
#include "detect/watch.h"
#include "exporters/http_routes.h"
#include "exporters/record.h"

namespace foreshock::cli {

// An input value of a detector, and the detector's score for it. A score of 1 is a warning.
struct SignalPoint {
  int64_t step = 0;
  double value = 0, score = 0;
};

// Stores the input values of all detectors of one rank. A detector has one series per place: a layer, a
// tensor (which may have a layer), or "" for the whole rank. Memory is bounded. Thread-compatible.
class Signals {
 public:
  static constexpr size_t kMostPoints = 512;  // newest points that are kept per series
  // At most this many series of tensors are kept, and at most this many other series. Further series are
  // ignored.
  static constexpr size_t kMostSeries = 8192;

  // Adds the values that detectors computed from one line of the record. `layer`: the line's layer; "": none.
  void take(const std::string& layer, const std::vector<WatchReading>& readings);

  // Selects the detector's series in `layer` that has the highest score from step `first` to step `onset`.
  // Returns the series' finite values from `first` to `last`; empty without such a series.
  std::vector<SignalPoint> around(DetectorId detector, const std::string& layer, int64_t first, int64_t onset,
                                  int64_t last) const;

  const std::set<std::string>& layers(DetectorId detector) const;  // layers for which `detector` had a value
  std::set<std::string> layers() const;                            // layers for which any detector had one

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
  std::map<std::pair<int, std::string>, Series> series_;  // by detector and place
  size_t tensors_ = 0, others_ = 0;                       // series whose place is a tensor; other series
  std::set<std::string> layers_[kDetectors];              // by detector
};

// The largest attention error of a run, which need not be a fault.
struct LargestError {
  std::string layer;   // "": unknown
  std::string tensor;  // out, grad_query, grad_key or grad_value
  double value = 0;    // divided by the alarm limit, so 1 is the limit
  int64_t at_step = 0;
  uint64_t slices = 0;  // number of all slices whose error is known
};

// Collects the attention errors of a run, each divided by its alarm limit. Thread-compatible.
class AttentionErrors {
 public:
  static constexpr size_t kMostLayers = 512;                 // further layers are missing in layers()
  static constexpr size_t kPoints = 256, kLayerPoints = 64;  // points of curve(), and of a table of layers()

  AttentionErrors();
  void take(const SampleLine& line);

  // A table by step with columns forward, backward (dQ) and keys (dK and dV), over all layers. A point covers
  // several steps; its value is the largest error in them.
  HistoryTable curve() const;
  std::vector<HistoryTable> layers() const;  // one per layer; column "error": the largest of any tensor
  const LargestError& largest() const { return largest_; }

 private:
  History curve_;
  std::map<std::string, History> layers_;
  LargestError largest_;
};

// The record's data on one step. An absent value is unknown; a known loss or norm may be NaN.
struct TrailStep {
  int64_t step = 0;
  std::optional<double> loss, gradient_norm, learning_rate;
  std::optional<uint64_t> batch_id;       // as the training reports it
  std::optional<uint64_t> skipped_steps;  // optimizer steps that the gradient scaler has skipped so far
  std::optional<uint64_t> interval;       // attention is sampled in one of so many steps
};

// Returns b - a, limited to the range of int64_t, since a record may contain any integers as steps.
int64_t steps_between(int64_t a, int64_t b);

// Stores the newest steps of one rank, and the first and last step of each attempt. Thread-compatible.
class Trail {
 public:
  static constexpr size_t kMostRecent = 512;     // newest steps that are kept
  static constexpr size_t kMostAttempts = 4096;  // further attempts count as part of the last one

  struct Attempt {
    int64_t first = 0, last = 0;
  };

  bool goes_back(const StepLine& line) const;       // whether the step of `line` would begin another attempt
  void add(const StepLine& line);                   // adds a step; a line without a step is ignored
  void begin_process() { process_begins_ = true; }  // the next added step is the first of another process

  const std::deque<TrailStep>& recent() const { return recent_; }  // the last steps of the present attempt
  const std::vector<Attempt>& attempts() const { return attempts_; }
  // First steps of restarted processes that did not go back but continued the attempt of an earlier process.
  const std::vector<int64_t>& continued_at() const { return continued_at_; }
  uint64_t steps() const { return steps_; }    // number of added steps, over all attempts
  uint64_t missed() const { return missed_; }  // missing steps between recorded steps of the same attempt

 private:
  std::deque<TrailStep> recent_;
  std::vector<Attempt> attempts_;
  std::vector<int64_t> continued_at_;
  bool process_begins_ = false;  // the next step is the first one of another process
  uint64_t steps_ = 0, missed_ = 0;
};

struct RankEpisode : Episode {  // lines of the record name the layer only, which is the place too
  int64_t rank = 0;
  size_t attempt = 0;  // index in Trail::attempts()
};

// An episode of a detector before a loss event. Of several episodes of a detector in a layer, those that
// ended after the onset or at most kNear steps before it are joined into one sign. If all episodes ended
// earlier, only the last one is a sign.
struct ReportSign : RankEpisode {
  static constexpr int64_t kNear = 64;  // steps; the same as HORIZON of bench/precursors/scoring.py
  // If a detector had no value for more than this many steps, its sign may have started in the gap.
  static constexpr int64_t kLongUnseen = 8;

  std::vector<SignalPoint> points;  // the detector's input around the event
};

// One circumstance of an event, or one property of a run.
struct ReportFact {
  enum class Mark { kQuiet, kNotable, kUnknown };  // kQuiet: nothing unusual
  std::string name, text;
  Mark mark = Mark::kQuiet;
};

struct ReportEvent {
  static constexpr int64_t kBefore = 256, kAfter = 96;  // steps around the onset that are reported

  WatchEventKind kind = WatchEventKind::kLossSpike;
  int64_t onset_step = 0, declared_step = 0;  // declared: when a rule recognized the event
  size_t attempt = 0;                         // index in Trail::attempts()
  std::vector<int64_t> ranks;     // ranks that had the event, in the order of the record; never empty
  std::set<int64_t> diverged;     // the members of `ranks` whose loss diverged
  std::vector<ReportSign> signs;  // the most reliable detector first
  // Steps of ranks[0], from kBefore steps before the onset to kAfter steps after it. Only the first 40
  // events of a run have steps (EventCollector::kMostDetailed); the others have no facts and no explanations.
  std::vector<TrailStep> steps;
  std::string title, text;
  std::vector<ReportFact> facts;
  std::vector<std::string> consistent_with, not_excluded, to_try;

  bool has_rank(int64_t rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
};

struct ReportDetector {  // totals of one detector over the whole run and all ranks
  DetectorId detector = DetectorId::kBias;
  uint64_t values = 0;                 // input values
  uint64_t watches = 0, warnings = 0;  // how often its level has risen to watch; how often to warn
  size_t layers = 0;                   // layers for which it had a value
  int64_t last_warn_step = -1;         // -1: never
};

// Everything that the page, the Markdown text and the JSON of a report are made from.
struct Report {
  std::string run, version;       // run id and version of foreshock in the record
  std::string headline, verdict;  // "Run <id>"; a few sentences
  // The verdicts of the agents that wrote the records, and their findings. Several nodes, or several commands
  // of one run, have a verdict each. Without a verdict, the findings are derived from the other lines.
  std::vector<FindingLine> findings;
  std::set<std::string> agent_verdicts;
  bool is_healthy = false;            // an agent has said so, and no agent another thing
  std::vector<Condition> conditions;  // found in the records by the rules of this version; faults first
  std::vector<ReportFact> facts;      // facts of the whole run
  bool from_record = false;  // true: the agent wrote the events; false: the report's detectors found them
  std::string events_note;   // one or two sentences on the source of the events
  HistoryTable timeline;     // columns loss and loss_max of one rank, by step
  int64_t timeline_last_step = 0;  // last step of that rank, with or without a loss
  std::string attention_text;      // a few sentences
  HistoryTable attention;          // as AttentionErrors::curve()
  std::vector<HistoryTable> attention_layers;
  std::vector<RankEpisode> episodes;  // in the order in which they began
  std::vector<ReportEvent> events;    // sorted by attempt, then by onset
  std::vector<ReportDetector> detectors;
  std::vector<ReportFact> coverage;  // which parts of the training were seen
  std::vector<std::string> notes;    // defects of the records
  std::vector<std::string> limits;   // sentences on what no report can show
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_MODEL_H_
