// Checks that gradients are conserved: the gradient that an optimizer uses is, up to a factor that all
// parameters of a step share, the sum of what the backward passes have contributed, over the ranks and the
// micro-batches. Finds parameters that stand apart from the others.
#ifndef FORESHOCK_DETECT_GRADIENT_RULES_H_
#define FORESHOCK_DETECT_GRADIENT_RULES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "detect/condition_rules.h"
#include "detect/tensor_conditions.h"

namespace foreshock {

inline constexpr size_t kSketchNumbers = 4;
inline constexpr double kSketchedElements = 1 << 14;  // that a sketch reads at most (kernels/sketch.h)

// Inner products of a tensor with vectors of signs. `norm`: its norm, or the sum of the norms of the tensors
// of which it is the sum. NaN: unknown.
struct Sketch {
  std::array<double, kSketchNumbers> products = {};
  double norm = 0;
};

// One look at the gradient of a parameter in one step of one rank.
struct GradientFacts {
  std::string tensor;
  std::string shape;        // as text, only compared
  std::string part;         // that the rank holds, as text, only compared; the same text: the whole tensor
  uint64_t mesh = 0;        // ranks with the same number, other than 0, hold copies of the same parts; 1: all
  double elements = 0;      // of the part; 0: unknown
  std::string coordinates;  // of the rank in tensor, pipeline and expert parallelism: "0 0 0 "; "": unknown
  int64_t step = 0, rank = 0, world_size = 1;
  uint64_t parameters = 0;     // of the look
  uint64_t contributions = 0;  // how often backward passes have added to the gradient
  bool is_whole = false;       // all contributions were seen
  double unit = 0;             // unit roundoff of the gradient's format
  double tiny = 0;             // largest rounding error of numbers near 0 in this format
  Sketch local, last, before, used, value;
};

// What the gradient of a parameter was, other than the sum of all contributions. kOther: nothing of this
// list, which is not reported: trainings may change gradients in many ways.
enum class GradientFate : int {
  kSound,
  kOther,
  kOwnRank,
  kLastPass,
  kLacksLast,
  kDropped,
  kMultiplied,
  kPiledUp,
  kRounded,
  kCopiesDiffer,
  kCopiesApart,
  kCount
};

// Looks at a parameter in one step, over all its ranks: how many were compared with the sum of the
// contributions, and why the others were not.
struct GradientCounts {
  uint64_t judged = 0;
  uint64_t without_ranks = 0;  // a rank has not looked, for example one of another node
  uint64_t not_whole = 0;      // contributions were not seen
  uint64_t without_law = 0;    // most gradients are no sums of their contributions

  template <class State>
  void fields(State& state) {
    for (uint64_t* number : {&judged, &without_ranks, &not_whole, &without_law}) state(*number);
  }
};

class GradientRule {
 public:
  void observe(const GradientFacts& facts, ConditionBoard* board);
  // A process of the rank was found. If it has replaced another one, the ranks repeat steps, and looks of
  // before must not be joined with those that follow.
  void begin_process(int64_t rank, int64_t pid);

  // Whether at the last two looks each rank, all with the same coordinates, had the same gradients before
  // they were summed: bit for bit, of all parameters. Their batches are then the same.
  bool have_ranks_equal_gradients() const { return equal_looks_ >= 2; }

  const GradientCounts& counts() const { return counts_; }
  // Parameters of which contributions were not seen, at most kMostNamed.
  const std::set<std::string>& not_whole() const { return not_whole_; }

  template <class State>
  void fields(State& state) {
    map_fields(state, fates_, kMostParameters);
    map_fields(state, copies_, kMostParameters);
    counts_.fields(state);
    state(equal_looks_);
  }

 private:
  static constexpr size_t kMostParameters = 1 << 16;
  static constexpr size_t kMostNamed = 1024;
  static constexpr size_t kMostOpen = 8;       // looks that wait for ranks; older ones are dropped
  static constexpr int64_t kMostRanks = 1024;  // jobs with more ranks are not judged

  // The looks of all ranks in one step, by parameter and rank. A name "rank<N>.x" of rank N is stored as x.
  struct Look {
    std::map<std::string, std::map<int64_t, GradientFacts>> parameters;
    std::map<int64_t, uint64_t> of_rank;  // number of parameters that the rank has reported
  };
  struct Fate {
    int fate = 0;
    int64_t since = 0;
    uint64_t looks = 0;  // in a row with this fate
    double factor = 1;   // of kMultiplied; of copies: by how much they differ, as a share
    std::string ranks;   // of copies: "the tensor-parallel ranks 0 and 1"

    template <class State>
    void fields(State& state) {
      state(fate);
      state(since);
      state(looks);
      state(factor);
      state(ranks);
    }
  };

  // The values of one part of a parameter, on the ranks that hold it.
  struct Copies {
    std::array<double, kSketchNumbers> first = {}, last = {};  // products of the values when they were equal
    uint64_t equal = 0;  // looks at which all ranks had equal values, other than at the equal look before
    bool are_unlike = false;  // the ranks have differed before they counted as copies

    template <class State>
    void fields(State& state) {
      for (double& number : first) state(number);
      for (double& number : last) state(number);
      state(equal);
      state(are_unlike);
    }
  };

  void judge(int64_t step, const Look& look, ConditionBoard* board);
  void judge_values(const std::string& name, const std::map<int64_t, GradientFacts>& by_rank, int64_t step);
  void keep(const std::string& key, GradientFate fate, int64_t step, double factor, const std::string& ranks);
  void report(ConditionId id, GradientFate fate, int64_t step, ConditionBoard* board) const;

  std::map<int64_t, Look> open_;          // by step; not saved
  std::map<int64_t, int64_t> pids_;       // by rank; not saved
  std::map<std::string, Fate> fates_;     // by key_of(): parameters whose last look was not sound
  std::map<std::string, Copies> copies_;  // by key_of(), with the part: parameters that several ranks have
  GradientCounts counts_;
  uint64_t equal_looks_ = 0;         // in a row, see have_ranks_equal_gradients()
  std::set<std::string> not_whole_;  // not saved
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_GRADIENT_RULES_H_
