// Whether data-parallel replicas hold the same weights, bit for bit: silent data corruption shows as a
// checksum that differs from the others'.
#ifndef FORESHOCK_AGENT_REPLICAS_H_
#define FORESHOCK_AGENT_REPLICAS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock {

// Frameworks say which tensors they keep equal over ranks: these bear one name on all of them. Any other
// tensor of a job has its rank in its name ("rank1.head.weight"). Where such tensors are the same on all
// ranks at several looks, although they change, the training keeps them equal by hand, and they are replicas
// from then on.
class Replicas {
 public:
  static constexpr size_t kMostOpen = 64;  // steps that wait for a rank; then they are compared without it
  static constexpr size_t kMostOpenInAll = 1 << 20;  // checksums

  // What one rank holds of one tensor at one step. `ranks_here`: ranks of the run that live on this node.
  // Returns the ranks that differ, once the comparison is complete: those that are not with the majority, or
  // all of them where there is none.
  std::vector<int32_t> add(const segment::TensorRecord& record, const segment::Identity& identity,
                           size_t ranks_here);

  // The ranks have been started again: steps may repeat.
  void begin_anew();

  // One number for all that a rank holds, over a whole interval, that ranks of other nodes can be compared
  // by: a metric cannot carry 64 bits for each tensor.
  struct OfRank {
    int64_t step = -1;    // that the interval began with
    double checksum = 0;  // 52 bits
    std::string group;    // the same for ranks that hold the same parts of the same tensors
  };
  // The last complete interval of a rank: it has shown all that it holds, or, if some of it is never shown,
  // as much as in the interval before. Null when there is none, or its place in the job is not known.
  const OfRank* of(int32_t rank) const;

  // Of the tensors that may have replicas. Looks at all of them: for the summary, not for every page.
  struct Coverage {
    std::vector<std::string> never;  // names of those that were shown and never compared
    size_t by_hand = 0;              // of those compared, kept equal by hand
    size_t maybe = 0;  // of any rank: the same on several ranks so far, at too few looks to say more
    size_t alone = 0;  // tensors of a rank of which no other rank holds the same; the most of any rank
  };
  Coverage coverage() const;

  uint64_t mismatches(int32_t rank) const;
  size_t most_ranks() const { return most_ranks_; }  // that held the same part of a tensor; 0: never two
  uint64_t compared() const { return compared_; }    // pairs of replicas of a tensor, so far
  size_t tensors_compared() const { return tensors_compared_; }  // at least once

 private:
  using Checksums = std::map<int32_t, uint64_t>;  // by rank
  struct Compared {
    int64_t closed = -1;                // steps up to here have been compared
    std::map<int64_t, Checksums> open;  // by step: the agent reads one rank after the other
    std::set<int32_t> holders;          // ranks that have shown it so far
    bool is_settled = false;            // a step was closed since the last of them came
    // Of a tensor that has its rank in its name:
    bool is_replica = true;    // false until it was the same on all ranks at kEqualLooks looks
    bool is_apart = false;     // it once differed before that
    uint64_t last_equal = 0;   // checksum
    uint32_t equal_looks = 0;  // with different checksums: what does not train is the same by chance
  };
  static constexpr uint32_t kEqualLooks = 3;
  struct Tensor {
    bool is_compared = false, is_by_hand = false;
  };
  struct Rank {
    int64_t window = -1;
    uint64_t interval = 0;
    std::set<uint64_t> seen;  // parts, in this window
    uint64_t sum = 0, group = 0;
    uint64_t last_group = 0;  // of the window before
    OfRank last;
    uint64_t mismatches = 0;
  };
  bool is_complete(const Compared& compared, int64_t step, const Checksums& here, size_t ranks_here) const;
  void close(Compared* compared, const std::string& name, std::vector<int32_t>* odd);
  static bool is_replica(const Checksums& checksums, Compared* compared);
  void add_to_rank(const segment::TensorRecord& record, uint64_t part, Rank* rank);
  static void end_interval(Rank* rank);

  std::map<uint64_t, Compared> parts_;  // by the hash of name, place and coordinates
  std::map<int32_t, Rank> ranks_;
  std::map<std::string, Tensor> tensors_;  // that may have replicas
  std::map<int32_t, int64_t> reached_;     // the last step that a rank has shown anything of
  size_t open_ = 0;                        // checksums that wait
  uint64_t compared_ = 0;
  size_t most_ranks_ = 0, tensors_compared_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_REPLICAS_H_
