#include "agent/owners.h"

#include <algorithm>

namespace foreshock {

Ownership ownership_of(const segment::Identity& identity) {
  if (identity.late_ready != 1 || identity.data_parallel < 0) return Ownership::kUnknown;
  return identity.data_parallel == 0 ? Ownership::kOwner : Ownership::kReplica;
}

const char* name_of(Ownership ownership) {
  switch (ownership) {
    case Ownership::kOwner:
      return "1";
    case Ownership::kReplica:
      return "0";
    default:
      return "unknown";
  }
}

LayerOwners::LayerOwners(const std::vector<const RankStatistics*>& ranks) {
  for (bool alive : {true, false})  // the dead ones only where no living rank has the layer
    for (const RankStatistics* rank : ranks) {
      if (rank->alive != alive || ownership_of(rank->identity) != Ownership::kUnknown) continue;
      for (const auto& layer : rank->layers) {
        const auto [lowest, is_new] = lowest_.emplace(layer.first, rank->identity.rank);
        if (!is_new && alive) lowest->second = std::min(lowest->second, rank->identity.rank);
      }
    }
}

bool LayerOwners::shows(const RankStatistics& rank, const std::string& label) const {
  const Ownership ownership = ownership_of(rank.identity);
  if (ownership != Ownership::kUnknown) return ownership == Ownership::kOwner;
  const auto lowest = lowest_.find(label);
  return lowest != lowest_.end() && lowest->second == rank.identity.rank;
}

}  // namespace foreshock
