// The detectors of every rank of a run, fed with the lines of the record: live, and from a file that was
// recorded. What a line says is all they get to know, so the same lines give the same events.
#ifndef FORESHOCK_AGENT_DETECTION_H_
#define FORESHOCK_AGENT_DETECTION_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/watch.h"
#include "exporters/record_line.h"

namespace foreshock {

// The event of the record with which the detectors of a run begin anew in the middle of it.
inline constexpr const char* kDetectorsBeginAnew = "detectors_begin_anew";

// One thread.
class Watches {
 public:
  // Lines in the order of the record. The events that a line brings about, as lines of the record themselves
  // (without a time), in their order; valid until the next call. Lines without a rank or a step say nothing.
  const std::vector<EventLine>& observe(const StepLine& line);
  const std::vector<EventLine>& observe(const SampleLine& line);
  const std::vector<EventLine>& observe(const SpectrumLine& line);
  // Of no rank, but of the run: they go to its lowest rank so far.
  const std::vector<EventLine>& observe(const TensorLine& line);
  const std::vector<EventLine>& observe(const OptimizerLine& line);
  // Of event lines only kDetectorsBeginAnew matters.
  const std::vector<EventLine>& observe(const EventLine& line);
  template <class Line>
  const std::vector<EventLine>& observe(const Line&) {
    begin();
    return lines_found_;
  }

  // Null: no line of that rank has come. Valid as long as this.
  const RankWatch* watch_of(const std::string& run, int64_t rank) const;
  const std::map<std::pair<std::string, int64_t>, RankWatch>& all() const { return watches_; }

  // Every reading of a line is in `*readings`, which is emptied first; null: none.
  void collect(std::vector<WatchReading>* readings) { readings_ = readings; }

  // Lines with a value for a detector so far; of this process.
  uint64_t lines() const { return lines_; }
  // Lines of ranks beyond those that there is room for.
  uint64_t lines_left_out() const { return lines_left_out_; }
  // To which the last of them went.
  int64_t last_rank() const { return last_rank_; }

  // The state of all as bytes, together with `note`, a number of the caller's.
  std::string save(uint64_t note) const;
  // False, and nothing is changed, for bytes that save() has not written, or one of another version or with
  // other thresholds. Any bytes may be given.
  bool restore(std::string_view bytes, uint64_t* note);

 private:
  void begin();
  // Null: there are too many ranks.
  RankWatch* watch_for(const std::string& run, int64_t rank);
  // Of the lowest rank of a run.
  const std::vector<EventLine>& observe_of_run(const std::string& run, DetectorId detector,
                                               const std::string& place, const std::string& layer,
                                               int64_t step, double value, int64_t span = 0);
  const std::vector<EventLine>& end(const std::string& run, int64_t rank);

  std::map<std::pair<std::string, int64_t>, RankWatch> watches_;
  std::vector<WatchEvent> found_;
  std::vector<EventLine> lines_found_;
  std::vector<WatchReading>* readings_ = nullptr;
  uint64_t lines_ = 0, lines_left_out_ = 0;
  int64_t last_rank_ = 0;
};

// "rms_staleness has no room for 91808 of its series": of each detector that left out any.
std::vector<std::string> series_left_out(const RankWatch& watch);
// The same of all ranks, "rank 3: " before it where there are several, and of the ranks that are left out.
std::vector<std::string> left_out(const Watches& watches);

// What the benchmark has measured of each detector as it ships: bench/precursors/results.json, read when this
// was built.

// Over all trainings of the benchmark; the protocol stands in docs/precursors.md. NaN: not known.
struct Measured {
  double events, hits;    // loss events, and those that an alarm came before
  double alarms, right;   // alarms, and those that an event followed
  double lift, lift_low;  // how much oftener that is than by chance; lower end of its 95 % interval
  double lead_median;     // steps from the alarm to the event
  double false_per_10k;   // alarms in 10 000 steps of trainings that are well
  bool proven;            // among the default ones of docs/detectors.md

  // Share of its alarms that an event followed.
  std::optional<double> precision() const {
    return alarms > 0 ? std::optional<double>(right / alarms) : std::nullopt;
  }
  // By these figures quiet where nothing is wrong and of use where something is; what is not is experimental.
  bool is_proven() const { return proven; }
};

// Null: the benchmark says nothing of it.
const Measured* measured_of(std::string_view detector);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DETECTION_H_
