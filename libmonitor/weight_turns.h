// Which tensors have their turn in a step, and that every turn is accounted for: those that nobody has shown
// by the next step were left out.
//
// Which step of an interval is a tensor's follows from its place in the table alone, so it is the same on
// every rank and in every rerun.
#ifndef FORESHOCK_LIBMONITOR_WEIGHT_TURNS_H_
#define FORESHOCK_LIBMONITOR_WEIGHT_TURNS_H_

#include <cstddef>
#include <cstdint>

#include "libmonitor/private_memory.h"

namespace foreshock {

// One caller at a time.
class WeightTurns {
 public:
  // What became of turns since the last call.
  struct Count {
    uint64_t due = 0;   // new ones
    uint64_t lost = 0;  // that nobody has shown
  };

  // Set-up: room for `count` tensors, all of them forgotten. False: there is none.
  bool reserve(uint32_t count);
  // The next tensor begins at this share of the model, from 0 to 1. One that is not here has no turns.
  void add(double begins_at, bool is_here);
  uint32_t count() const { return count_; }

  // Whose turn it is in `step`, without those that were shown in it: numbers in ascending order, as many as
  // there is room for. Asked again in the same step it is the same turns. Where `steps` from `step` on are
  // told as one they are the turns of all of them.
  size_t due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room, Count* count);
  // Nobody could ask in `step`.
  Count unasked(int64_t step, int64_t steps, uint64_t interval);
  // Tensor `number` was shown in `step`, or is left out for a reason of its own. Returns the turns that were
  // not asked for.
  uint64_t end(uint32_t number, int64_t step);
  // No turn is waited for any more. Returns those that were.
  uint64_t give_up();

 private:
  struct State {
    uint64_t asked, ended;  // rounds
    bool is_here;
  };
  void find(int64_t step, int64_t steps, uint64_t interval, const auto& take);
  // Of an interval of 2^32; of any other one modulo it. By themselves, since all are read at every step.
  uint32_t* turns() const { return reinterpret_cast<uint32_t*>(turns_.data()); }
  State* states() const { return reinterpret_cast<State*>(states_.data()); }

  PrivateMemory turns_, states_;
  uint32_t count_ = 0;
  uint64_t round_ = 1;  // new with every step that is asked about: steps may go back, or be told twice
  int64_t step_ = -1;
  uint64_t open_ = 0;  // turns of this round
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_TURNS_H_
