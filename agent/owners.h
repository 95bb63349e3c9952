// Which ranks show series of their layers. Data-parallel replicas compute the same layers: a series of each
// would say the same many times over, and 8 ranks of 96 layers are more than a node's budget.
#ifndef FORESHOCK_AGENT_OWNERS_H_
#define FORESHOCK_AGENT_OWNERS_H_

#include <map>
#include <string>
#include <vector>

#include "agent/rank.h"

namespace foreshock {

// Rank 0 of the data-parallel dimension owns its layers; kUnknown where no coordinate is known.
enum class Ownership { kUnknown, kReplica, kOwner };
Ownership ownership_of(const segment::Identity& identity);
const char* name_of(Ownership ownership);  // "unknown", "0", "1"

class LayerOwners {
 public:
  // `ranks`: those of the run that are exported now.
  explicit LayerOwners(const std::vector<const RankStatistics*>& ranks);

  // Owners show all their layers, replicas none. Of ranks whose ownership is unknown the lowest one that
  // lives shows a layer, so that no layer is without series whatever the parallelism.
  bool shows(const RankStatistics& rank, const std::string& label) const;

 private:
  std::map<std::string, int> lowest_;  // of unknown ownership, by label
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_OWNERS_H_
