// Finds the segments of a run directory as they appear.
#ifndef FORESHOCK_AGENT_DISCOVERY_H_
#define FORESHOCK_AGENT_DISCOVERY_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "segment/reader.h"

namespace foreshock {

class Discovery {
 public:
  explicit Discovery(std::string directory) : directory_(std::move(directory)) {}

  struct Refusal {
    std::string name;
    std::string why;
  };

  // Segments not handed out before. What cannot be followed is added to `refused`, once.
  std::vector<std::unique_ptr<segment::SegmentReader>> look(std::vector<Refusal>* refused);

 private:
  std::string directory_;
  std::set<std::string> known_;
};

// Names in `directory` that begin and end as given, sorted.
std::vector<std::string> names_in(const std::string& directory, const std::string& begin,
                                  const std::string& end);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DISCOVERY_H_
