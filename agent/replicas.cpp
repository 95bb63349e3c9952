// Compares checksums of weight tensors between ranks that must hold equal values (data-parallel replicas).
// Also sums them by rank, so that Prometheus can compare ranks of different nodes. A tensor may be divided
// among ranks; a part is a piece of it that one or several ranks hold.
#include "agent/replicas.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "agent/tensor.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

// The numbers of parts are limited, since a trainer may use new names without end.
constexpr size_t kMostParts = 1 << 18;
constexpr size_t kMostSeen = 1 << 16;  // parts of one rank in an interval
constexpr size_t kMostOwn = 256;       // names of tensors of which each rank has its own values
// Checksums are exported as doubles, which hold whole numbers of 52 bits exactly. This mask keeps 52 bits.
constexpr uint64_t kExportedBits = (uint64_t{1} << 52) - 1;

// The finaliser of splitmix64. It mixes checksums before they are summed, since their changes might cancel.
uint64_t mixed(uint64_t word) {
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
  word = (word ^ word >> 27) * 0x94d049bb133111ebu;
  return word ^ word >> 31;
}

std::string_view name_of(const segment::TensorRecord& record) {
  return {record.name, strnlen(record.name, sizeof record.name)};
}

// The name of a tensor that no framework keeps equal on all ranks begins with "rank<number>.". Returns such a
// name without this prefix; nullopt for other names.
std::optional<std::string_view> name_without_rank(std::string_view name, int32_t rank) {
  const std::string prefix = "rank" + std::to_string(rank) + ".";
  if (!name.starts_with(prefix)) return std::nullopt;
  return name.substr(prefix.size());
}

// Returns a hash of everything that two ranks must have in common for their checksums to be comparable.
uint64_t hash_of_part(std::string_view name, const segment::TensorRecord& record,
                      const segment::Identity& identity) {
  uint64_t hash = fnv1a(name);
  const auto add = [&hash](int64_t word) {
    hash = mixed(hash + static_cast<uint64_t>(word) + 0x9e3779b97f4a7c15u);  // the increment of splitmix64
  };
  for (uint32_t n = 0; n < segment::kTensorDims; ++n) {
    add(record.shape[n]);
    add(record.offset[n]);
    add(record.part[n]);
  }
  add(record.dtype);
  // Ranks that count steps differently report different states with the same step number.
  add(record.step_source);
  add(identity.tensor_parallel);
  add(identity.pipeline_parallel);
  add(identity.expert_parallel);
  return hash;
}

}  // namespace

// Adds the checksum of one rank's part. Returns the ranks whose part has been found to differ.
std::vector<int32_t> Replicas::add(const segment::TensorRecord& record, const segment::Identity& identity,
                                   size_t ranks_here) {
  reached_[identity.rank] = record.step;
  const auto stripped = name_without_rank(name_of(record), identity.rank);  // nullopt: the name has no rank
  if (has_coordinates(identity))  // the tensor-, pipeline- and expert-parallel ranks are known
    add_to_rank(record, hash_of_part(name_of(record), record, identity), &ranks_[identity.rank]);
  else if (!stripped)
    return {};  // ranks with other, unknown parallel coordinates may hold another tensor of this name
  const std::string name(stripped.value_or(name_of(record)));
  // + 1: a tensor with its rank in its name and one with the same name but without rank are different parts.
  const uint64_t part = hash_of_part(name, record, identity) + (stripped ? 1 : 0);
  if (parts_.size() >= kMostParts && !parts_.contains(part)) return {};
  const auto [found, is_new] = parts_.try_emplace(part);
  ComparedPart& compared = found->second;
  if (is_new) compared.is_replica = !stripped;
  if (is_new && stripped && own_.size() < kMostOwn) own_.insert(name);
  if (!stripped) tensors_.try_emplace(name);  // close() adds the others, once they are replicas
  if (compared.holders.insert(identity.rank).second) compared.has_all_holders = false;
  std::vector<int32_t> outliers;
  if (record.step <= compared.closed) return outliers;  // too late: this step has been compared
  // If a rank reports a part twice in a step, only the first checksum counts, which it computed directly
  // after the step.
  open_ += compared.open[record.step].emplace(identity.rank, record.checksum).second;
  // To close a step means to compare its checksums. Closes steps that are complete, and the oldest ones if
  // too many are open. If the record's step is complete, the earlier steps are closed too, to keep the order.
  const bool closes_record = is_complete(compared, record.step, compared.open[record.step], ranks_here);
  while (!compared.open.empty()) {
    const auto& [step, checksums] = *compared.open.begin();
    if (compared.open.size() <= kMostOpen && open_ <= kMostOpenInAll &&
        !(closes_record && step <= record.step) && !is_complete(compared, step, checksums, ranks_here))
      break;
    close(&compared, name, &outliers);
  }
  return outliers;
}

// Whether `arrived` has all checksums that will arrive for a step: all ranks that hold a replica have
// reported it (with hybrid sharding not all ranks hold one), or the other ranks have reported a later step.
// A single known holder does not suffice: a step that is closed at its report is never compared with others.
bool Replicas::is_complete(const ComparedPart& compared, int64_t step, const Checksums& arrived,
                           size_t ranks_here) const {
  if (arrived.size() >= ranks_here ||
      (compared.has_all_holders && compared.holders.size() > 1 && arrived.size() >= compared.holders.size()))
    return true;
  const auto is_done = [&](const auto& rank) { return rank.second > step || arrived.contains(rank.first); };
  return reached_.size() >= ranks_here && std::all_of(reached_.begin(), reached_.end(), is_done);
}

// Sets and returns is_replica. A tensor with its rank in its name must have been equal at kEqualSteps steps.
bool Replicas::update_is_replica(const Checksums& checksums, ComparedPart* compared) {
  if (compared->is_replica) return true;
  const uint64_t first = checksums.begin()->second;
  compared->has_differed |= !std::all_of(checksums.begin(), checksums.end(),
                                         [first](const auto& by_rank) { return by_rank.second == first; });
  if (compared->has_differed) return false;  // once the ranks have differed, it never becomes a replica
  // Only steps with a new checksum count, since constant tensors are equal without being replicas.
  if (compared->equal_steps == 0 || first != compared->last_equal) ++compared->equal_steps;
  compared->last_equal = first;
  compared->is_replica = compared->equal_steps >= kEqualSteps;
  return compared->is_replica;
}

// Compares the checksums of the oldest open step. Adds to *outliers the ranks that differ from the majority;
// without a majority, all ranks.
void Replicas::close(ComparedPart* compared, const std::string& name, std::vector<int32_t>* outliers) {
  const auto node = compared->open.extract(compared->open.begin());
  const Checksums& checksums = node.mapped();
  compared->closed = node.key();
  open_ -= checksums.size();
  compared->has_all_holders = true;  // until another rank reports the part
  if (checksums.size() < 2) return;
  // Whether the tensor's name contains the rank: only then does is_replica begin as false, and equal_steps
  // count. Only the training script can keep such a tensor equal.
  const bool is_by_hand = compared->equal_steps > 0 || !compared->is_replica;
  if (!update_is_replica(checksums, compared)) return;
  Tensor& tensor = tensors_[name];
  tensors_compared_ += !tensor.is_compared;
  tensor.is_compared = true;
  tensor.is_by_hand |= is_by_hand;
  comparisons_ += checksums.size() - 1;
  most_ranks_ = std::max(most_ranks_, checksums.size());
  std::map<uint64_t, size_t> votes;
  for (const auto& [rank, checksum] : checksums) ++votes[checksum];
  if (votes.size() == 1) return;
  const auto most = std::max_element(votes.begin(), votes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool is_majority = 2 * most->second > checksums.size();
  for (const auto& [rank, checksum] : checksums) {
    if (is_majority && checksum == most->first) continue;
    outliers->push_back(rank);
    ++ranks_[rank].mismatches;
  }
}

// Adds the checksum of a part to the sum over all parts of the rank in the record's interval of steps.
// `group` is the sum of the hashes of these parts: equal sums mean the same parts. 0: no part yet.
void Replicas::add_to_rank(const segment::TensorRecord& record, uint64_t part, Rank* rank) {
  const auto interval = static_cast<int64_t>(record.interval);
  const int64_t interval_number = record.step / interval;
  if (interval_number != rank->interval_number || record.interval != rank->interval) {
    // The interval before the new one is complete if it has parts, and the same parts as its predecessor.
    if (rank->group != 0 && rank->group == rank->last_group) end_interval(rank);
    rank->last_group = rank->interval == record.interval ? rank->group : 0;  // 0: other length of interval
    rank->interval_number = interval_number;
    rank->interval = record.interval;
    rank->sum = rank->group = 0;
    rank->seen.clear();
  }
  if (rank->seen.size() >= kMostSeen || !rank->seen.insert(part).second) return;
  rank->sum += mixed(mixed(part) + record.checksum);
  rank->group += mixed(part);
  if (rank->seen.size() == record.tensors) end_interval(rank);  // the rank has reported all its parts
}

void Replicas::end_interval(Rank* rank) {
  rank->last = {rank->interval_number * static_cast<int64_t>(rank->interval),
                static_cast<double>(mixed(rank->sum) & kExportedBits),
                hexadecimal(mixed(rank->group + rank->interval))};
}

void Replicas::restart() {
  parts_.clear();
  reached_.clear();
  open_ = 0;
  for (auto& [number, rank] : ranks_) {
    rank.interval_number = -1;
    rank.last_group = rank.group = 0;
  }
}

const Replicas::RankChecksum* Replicas::checksum_of(int32_t rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() || found->second.last.step < 0 ? nullptr : &found->second.last;
}

Replicas::Coverage Replicas::coverage() const {
  Coverage coverage;
  for (const auto& [name, tensor] : tensors_) {
    coverage.by_hand += tensor.is_compared && tensor.is_by_hand;
    if (!tensor.is_compared) coverage.never.push_back(name);
  }
  for (const std::string& name : own_)
    if (!tensors_.contains(name)) coverage.own.push_back(name);
  std::map<int32_t, size_t> on_rank;  // by rank: parts that are not treated as replicas
  for (const auto& [part, compared] : parts_) {
    if (compared.is_replica) continue;
    coverage.maybe_replicas += !compared.has_differed && compared.holders.size() > 1;
    for (const int32_t rank : compared.holders) ++on_rank[rank];
  }
  for (const auto& [rank, n] : on_rank) coverage.most_on_a_rank = std::max(coverage.most_on_a_rank, n);
  return coverage;
}

uint64_t Replicas::mismatches(int32_t rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? 0 : found->second.mismatches;
}

}  // namespace foreshock
