// What the benchmark has measured of each detector as it ships: bench/precursors/results.json, read when this
// was built.
#ifndef FORESHOCK_AGENT_MEASURED_H_
#define FORESHOCK_AGENT_MEASURED_H_

#include <optional>
#include <string_view>

namespace foreshock {

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

#endif  // FORESHOCK_AGENT_MEASURED_H_
