// Passes the lines of the record (steps, checked slices, weights) to the detectors of each rank, when the
// agent writes a line or when a command reads a record. A detector warns if a series of numbers, such as the
// gradient norms, becomes unusual. Detectors have no other input, so the same lines give the same events.
#ifndef FORESHOCK_AGENT_DETECTION_H_
#define FORESHOCK_AGENT_DETECTION_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/conditions.h"
#include "detect/watch.h"
#include "exporters/record.h"

namespace foreshock {

// Name of the event in the record that reports the optimizer steps that a gradient scaler has skipped since
// the last step; `value` is their number.
inline constexpr const char* kScalerSkips = "scaler_skips";
inline constexpr const char* kBackwardWithoutStep = "backward_without_step";

// Name of the event in the record that marks where the detectors of a run start from an empty state.
inline constexpr const char* kDetectorsBeginAnew = "detectors_begin_anew";

// The detectors of all ranks of all runs; a RankWatch has those of one rank. Not thread-safe.
class Watches {
 public:
  // Processes one line; the caller passes lines in the order of the record. Returns the events that the line
  // causes, as lines without a time, valid until the next call. A line without a rank or a step is ignored.
  const std::vector<EventLine>& observe(const StepLine& line);
  const std::vector<EventLine>& observe(const SampleLine& line);
  // Tensor and optimizer lines have no rank. They go to the detectors of the lowest rank that the run has so
  // far, and are ignored before the run has a rank.
  const std::vector<EventLine>& observe(const TensorLine& line);
  const std::vector<EventLine>& observe(const OptimizerLine& line);
  const std::vector<EventLine>& observe(const GradientLine& line);
  // At the event kDetectorsBeginAnew, removes the detectors and conditions of its run. Passes kScalerSkips
  // and kBackwardWithoutStep to the conditions. Ignores all other events.
  const std::vector<EventLine>& observe(const EventLine& line);
  // Reports to the conditions which process a rank has; causes no events.
  const std::vector<EventLine>& observe(const RunLine& line);
  // Lines of other kinds cause no events.
  template <class Line>
  const std::vector<EventLine>& observe(const Line&) {
    begin();
    return lines_found_;
  }

  // Returns the detectors of a rank, or null if it had no line. Valid until they are restored or removed.
  const RankWatch* watch_of(const std::string& run, int64_t rank) const;
  const std::map<std::pair<std::string, int64_t>, RankWatch>& all() const { return watches_; }
  // Returns the conditions of a run, or null if it had no line. Valid until they are restored or removed.
  const RunConditions* conditions_of(const std::string& run) const;
  const std::map<std::string, RunConditions>& conditions() const { return conditions_; }

  // From now on each observe() sets *readings to the values that it gave to detectors, each with the score
  // and level that the detector computed. Null ends this.
  void collect(std::vector<WatchReading>* readings) { readings_ = readings; }
  // Number of lines accepted so far, also samples of dK and dV, which no detector reads.
  uint64_t lines() const { return lines_; }
  // Number of lines ignored because there are too many ranks (limit: 4096) or the run's name is too long.
  uint64_t lines_left_out() const { return lines_left_out_; }
  int64_t last_rank() const { return last_rank_; }  // the rank of the last accepted line
  // Serializes the state of all detectors, together with a number that restore() returns in *note: the agent
  // passes the size of the record, so that the next agent reads only the lines after it.
  std::string save(uint64_t note) const;
  // Restores the state that save() has written. The bytes are untrusted: returns false and changes nothing if
  // save() did not write them, or wrote them with other detectors or thresholds. Never changes lines().
  bool restore(std::string_view bytes, uint64_t* note);

 private:
  void begin();  // clears the events and readings of the previous observe()
  // Returns the detectors of a rank, created if missing, for one line, and counts the line in lines_. If
  // there are too many ranks or the run's name is too long, counts it in lines_left_out_ and returns null.
  RankWatch* watch_for(const std::string& run, int64_t rank);
  std::optional<int64_t> lowest_rank(const std::string& run) const;         // absent: the run has no rank yet
  const std::vector<EventLine>& end(const std::string& run, int64_t rank);  // fills lines_found_ from found_
  // The conditions of a run that has detectors or a run line; null if there are too many runs.
  RunConditions* conditions_for(const std::string& run);

  std::map<std::pair<std::string, int64_t>, RankWatch> watches_;
  std::map<std::string, RunConditions> conditions_;  // by run
  std::vector<WatchEvent> found_;                    // events of the present observe()
  std::vector<Condition> begun_;                     // conditions that are new in the present observe()
  std::vector<EventLine> lines_found_;               // the same as lines of the record
  std::vector<WatchReading>* readings_ = nullptr;
  uint64_t lines_ = 0, lines_left_out_ = 0;
  int64_t last_rank_ = 0;
};

// Returns a sentence per detector with too many series: "weight_shift has no room for 918 of its series".
std::vector<std::string> series_left_out(const RankWatch& watch);
// Returns series_left_out() of all ranks, with "rank 3: " if there are several, and reports ignored lines.
std::vector<std::string> left_out(const Watches& watches);

// Results of the benchmark of detectors (docs/detectors.md) for one detector, over all trainings of the
// benchmark. They are copied from bench/precursors/results.json at build time. NaN is unknown.
struct Measured {
  double events, hits;   // loss events, and loss events that an alarm preceded
  double alarms, right;  // alarms, and alarms that an event followed
  double lift;           // how many times more often an event follows an alarm than an arbitrary step
  double lead_median;    // steps from the alarm to the event
  double false_per_10k;  // alarms per 10 000 steps of healthy trainings
  bool proven;           // few false alarms and enough true ones; the other detectors are experimental
  std::optional<double> precision() const {  // share of the alarms that an event followed
    return alarms > 0 ? std::optional<double>(right / alarms) : std::nullopt;
  }
  bool is_proven() const { return proven; }
};

// Returns null if the benchmark has no result for this detector.
const Measured* measured_of(std::string_view detector);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DETECTION_H_
