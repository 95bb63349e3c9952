// Finds the segments of a run directory as they appear.
#ifndef FORESHOCK_AGENT_DISCOVERY_H_
#define FORESHOCK_AGENT_DISCOVERY_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/directory.h"
#include "segment/reader.h"

namespace foreshock {

class Discovery {
 public:
  // The directory outlives this.
  explicit Discovery(const Directory& directory) : directory_(directory) {}

  struct Refusal {
    std::string name;  // fit to be printed
    std::string why;
  };

  // Segments not handed out before, at most `most`. What cannot be followed is added to `refused`, once.
  std::vector<std::unique_ptr<segment::SegmentReader>> look(size_t most, std::vector<Refusal>* refused);

 private:
  const Directory& directory_;
  std::set<std::string> known_;  // of those that are still there
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DISCOVERY_H_
