// What the trainers of a node are advised: the loudest detector of any of their ranks.
#ifndef FORESHOCK_AGENT_ADVISER_H_
#define FORESHOCK_AGENT_ADVISER_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "detect/watch.h"
#include "exporters/record_line.h"

namespace foreshock {

// A detector above quiet. `since_step`: it has been at this level from then on.
struct Signal {
  Level level = Level::kQuiet;
  int64_t rank = -1, since_step = 0;
  std::string detector, layer;  // both "" when all is quiet
  double score = 0;

  bool operator==(const Signal&) const = default;
};

// One thread.
class Adviser {
 public:
  // An event that the detectors of a rank have made, and what they are at after it.
  void note(int64_t rank, const EventLine& event, const std::array<DetectorState, kDetectors>& states);

  // What an agent before this one has left; since when is known of warnings only.
  void restore(int64_t rank, const std::array<DetectorState, kDetectors>& states);

  // Of these ranks: the highest level, of equal ones the earliest.
  Signal loudest(const std::set<int64_t>& ranks) const;

 private:
  std::map<int64_t, std::array<Signal, kDetectors>> signals_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_ADVISER_H_
