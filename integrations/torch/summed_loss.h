// Cross-entropies that a forward pass sums over their targets, until its backward pass begins: an evaluation
// never has one. They may be pieces of one loss, which are told together. By the thread that calls both
// passes; no lock, no allocation, no wait.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_SUMMED_LOSS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_SUMMED_LOSS_H_

#include "device_numbers.h"
#include "dispatch.h"

namespace foreshock::adapter {

class SummedLoss {
 public:
  void Add(const at::Tensor& sum, const at::Tensor& weight) noexcept {
    const auto value = ScalarOnCpu(sum), targets = ScalarOnCpu(weight);
    if (value && targets) {
      sum_ += *value;
      weight_ += *targets;
      is_on_host_ = true;
      return;
    }
    uint64_t numbers[2] = {};
    if (!Fetch({&sum, &weight}, FORESHOCK_FETCH_LOSS, numbers)) return;
    Watching().Watch(sum, WatchedNumbers::Kind::kLoss, numbers[0]);
    if (fetched_ < kMostFetched) on_device_[fetched_] = {numbers[0], numbers[1]};
    ++fetched_;
  }

  // True when there were some. Of more than there is room for none is told: a part has another mean.
  bool Tell() noexcept {
    const bool has_room = fetched_ <= kMostFetched;
    if (is_on_host_ && has_room) foreshock_observe_loss_sum(sum_, weight_);
    for (uint32_t n = 0; n < fetched_ && has_room; ++n)
      foreshock_observe_fetched_loss_sum(on_device_[n].sum, on_device_[n].weight);
    return Forget() && has_room;
  }

  bool Forget() noexcept {
    const bool had_some = is_on_host_ || fetched_ > 0;
    sum_ = weight_ = 0;
    is_on_host_ = false;
    fetched_ = 0;
    return had_some;
  }

 private:
  static constexpr uint32_t kMostFetched = 64;
  struct Numbers {
    uint64_t sum, weight;  // of foreshock_fetch
  };

  double sum_ = 0, weight_ = 0;
  bool is_on_host_ = false;
  uint32_t fetched_ = 0;
  Numbers on_device_[kMostFetched] = {};
};

inline thread_local constinit SummedLoss pending_sums;

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_SUMMED_LOSS_H_
