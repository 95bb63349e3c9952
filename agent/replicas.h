// Compares the checksums of data-parallel replicas of weight tensors (the same part of a tensor on several
// ranks). Replicas must be equal bit for bit, so silent data corruption shows as a checksum that differs. A
// part is what one rank holds of a tensor: all of it, or a shard.
#ifndef FORESHOCK_AGENT_REPLICAS_H_
#define FORESHOCK_AGENT_REPLICAS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock {

// A tensor that a framework (DDP, FSDP) keeps equal over ranks has one name on all of them. The trainer puts
// its rank into the name of any other tensor ("rank1.head.weight"), which the training script itself may keep
// equal ("by hand"). If such a tensor is equal on all ranks at kEqualSteps measurements, and changes between
// them, it is treated as a replica from then on.
class Replicas {
 public:
  static constexpr size_t kMostOpen = 64;            // steps of one part of a tensor that may wait for a rank
  static constexpr size_t kMostOpenInAll = 1 << 20;  // checksums that may wait, over all parts

  // Adds the checksum of one rank's part of a tensor at one step. `ranks_here` is the number of ranks of the
  // run on this node. Compares the checksums of each step for which no other rank will report the part any
  // more. Returns the ranks that differ from the majority; without a majority, all ranks of the comparison.
  std::vector<int32_t> add(const segment::TensorRecord& record, const segment::Identity& identity,
                           size_t ranks_here);

  // Drops the checksums. Forgets which tensors have proved to be replicas. Called when ranks were restarted.
  void restart();

  // One checksum of all parts that a rank has reported in an interval, the steps between two measurements of
  // a tensor. It is exported as a metric, with which Prometheus compares ranks of different nodes; one metric
  // per tensor would be too many.
  struct RankChecksum {
    int64_t step = -1;    // first step of the interval; -1: no interval is complete
    double checksum = 0;  // a whole number of 52 bits, which a double holds exactly
    std::string group;    // equal for ranks with the same parts, tensors and length of the interval
  };
  // Returns the last complete interval of a rank. An interval is complete when the rank has reported all
  // parts that it holds, or the same parts as in the previous interval (some parts may never be reported).
  // Null if no interval is complete, or if this rank's tensor-, pipeline- or expert-parallel rank is unknown.
  const RankChecksum* checksum_of(int32_t rank) const;

  // Numbers of tensors that may have replicas. Slow: iterates over all tensors.
  struct Coverage {
    std::vector<std::string> never;  // tensors that were reported but never compared
    size_t by_hand = 0;              // compared tensors that the training script keeps equal
    std::vector<std::string> own;    // tensors of which each rank has its own values, or may have
    // Numbers of parts that have their rank in their name and are not treated as replicas. most_on_a_rank:
    // the largest number on one rank. maybe_replicas: parts on several ranks that have never differed.
    size_t most_on_a_rank = 0, maybe_replicas = 0;
  };
  Coverage coverage() const;

  uint64_t mismatches(int32_t rank) const;  // how often add() has returned this rank
  // Returns the largest number of ranks that hold the same part of a tensor; 0: each part is on one rank.
  size_t most_ranks() const { return most_ranks_; }
  uint64_t comparisons() const { return comparisons_; }          // comparisons of one replica with another
  size_t tensors_compared() const { return tensors_compared_; }  // tensors compared at least once

 private:
  using Checksums = std::map<int32_t, uint64_t>;  // by rank
  // One part of a tensor, on all ranks that hold it.
  struct ComparedPart {
    int64_t closed = -1;                // the last step that close() has compared or skipped
    std::map<int64_t, Checksums> open;  // by step: checksums that wait for those of other ranks
    std::set<int32_t> holders;          // ranks that have reported this part so far
    bool has_all_holders = false;       // assumed once a step was closed, until a holder is added
    // False for a tensor with its rank in its name, until kEqualSteps equal steps show that it is a replica.
    bool is_replica = true;
    // The members below are used only for a tensor that has its rank in its name. has_differed: the tensor
    // differed between ranks while is_replica was false. It then never becomes a replica.
    bool has_differed = false;
    uint64_t last_equal = 0;   // checksum of the last step at which all ranks were equal
    uint32_t equal_steps = 0;  // equal steps with another checksum than the equal step before
  };
  static constexpr uint32_t kEqualSteps = 3;
  struct Tensor {
    bool is_compared = false, is_by_hand = false;
  };
  struct Rank {
    int64_t interval_number = -1;  // step / interval; -1: before the first record
    uint64_t interval = 0;         // length of an interval in steps
    std::set<uint64_t> seen;       // parts reported in this interval
    // Sums over the parts in `seen`. sum: of a hash of part and checksum. group: of a hash of the part alone.
    uint64_t sum = 0, group = 0;
    uint64_t last_group = 0;  // `group` of the previous interval
    RankChecksum last;        // the last complete interval
    uint64_t mismatches = 0;
  };
  // Whether no other rank will report the part at `step`. `arrived`: the checksums that were reported.
  bool is_complete(const ComparedPart& compared, int64_t step, const Checksums& arrived,
                   size_t ranks_here) const;
  // Compares the oldest open step of a part. Adds the ranks that differ to *outliers.
  void close(ComparedPart* compared, const std::string& name, std::vector<int32_t>* outliers);
  // Updates ComparedPart::is_replica and returns it.
  static bool update_is_replica(const Checksums& checksums, ComparedPart* compared);
  void add_to_rank(const segment::TensorRecord& record, uint64_t part, Rank* rank);
  static void end_interval(Rank* rank);

  std::map<uint64_t, ComparedPart> parts_;  // by hash_of_part()
  std::map<int32_t, Rank> ranks_;
  std::map<std::string, Tensor> tensors_;  // tensors that may have replicas
  std::set<std::string> own_;              // tensors that had their rank in their name; some of these
  std::map<int32_t, int64_t> reached_;     // by rank: step of its latest record
  size_t open_ = 0;                        // checksums in all ComparedPart::open
  uint64_t comparisons_ = 0;
  size_t most_ranks_ = 0, tensors_compared_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_REPLICAS_H_
