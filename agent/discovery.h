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
    bool is_waiting;  // only for now
  };

  // Segments not handed out before, at most `most`. What cannot be followed is added to `refused`, once; once
  // more, when what had to wait cannot be followed either.
  std::vector<std::unique_ptr<segment::SegmentReader>> look(size_t most, std::vector<Refusal>* refused);

  // Segments that the last look had no descriptors for: each look tries them again.
  size_t waiting() const { return waiting_.size(); }

 private:
  std::unique_ptr<segment::SegmentReader> open(const std::string& name, bool* is_short,
                                               std::string* why) const;

  const Directory& directory_;
  std::set<std::string> known_;    // of those that are still there
  std::set<std::string> waiting_;  // none of those
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DISCOVERY_H_
