// In which context of a device something was set up, and what came of it: the same for all that a device is
// given. A device that was reset has another context: what was set up in the old one went with it, and is set
// up anew.
#ifndef FORESHOCK_LIBMONITOR_CONTEXT_SETTING_H_
#define FORESHOCK_LIBMONITOR_CONTEXT_SETTING_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"

namespace foreshock {

// Thread-compatible. For those that are set up to derive from; nothing here is virtual.
class ContextSetting {
 public:
  // Of so many contexts in turn: a trainer that resets its device does so once or twice. One that goes to and
  // fro between two that are both found would lose what is had in each of them again each time.
  static constexpr int kMostSetUps = 4;

  bool is_of(uint64_t context_id) const { return is_settled_ && context_id_ == context_id; }

  // Why nothing can be given to it, FORESHOCK_SKIP_..., or -1.
  int failed() const { return failed_; }

  // Nothing will be had in this context: nobody knows a handle of it that is good outside of a call (a green
  // one, which is current only while a part of the step is run in it). What is had in another one stays.
  void refuse(uint64_t context_id) { refused_ = context_id; }
  // Whether it is the last one of these.
  bool is_refused(uint64_t context_id) const { return refused_ == context_id; }

 protected:
  // In the context that is current, by try_set_up(), which returns what failed() is to.
  template <class TrySetUp>
  void set_up_in(uint64_t context_id, const TrySetUp& try_set_up) {
    if (set_ups_ == kMostSetUps) return refuse(context_id);
    ++set_ups_;
    context_id_ = context_id;
    is_settled_ = true;
    is_ready_ = false;
    failed_ = FORESHOCK_SKIP_DEVICE;
    failed_ = try_set_up();
  }

  // For good, in this context.
  int fail() { return failed_ = FORESHOCK_SKIP_DEVICE; }

  // What the stream of it is told to write when it has done what set-up gave it, and whether it has.
  uint64_t marker() const { return uint64_t{1} << 63 | context_id_; }
  bool has_written_marker(uint64_t& word) {
    if (!is_ready_) is_ready_ = std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire) == marker();
    return is_ready_;
  }

  uint64_t context_id() const { return context_id_; }

 private:
  int failed_ = -1;
  bool is_settled_ = false;  // failed_ is about context_id_
  bool is_ready_ = false;
  int set_ups_ = 0;
  uint64_t context_id_ = 0;
  uint64_t refused_ = ~uint64_t{0};  // of no context
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CONTEXT_SETTING_H_
