// Which layer a parameter belongs to, and the norm of its gradient.
#ifndef FORESHOCK_LIBMONITOR_LAYERS_H_
#define FORESHOCK_LIBMONITOR_LAYERS_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/late_steps.h"
#include "segment/layout.h"

namespace foreshock {

// Names come once and late, from one thread; lookups may come from any. Fixed room, no heap: what does not
// fit is unknown.
class LayerTable {
 public:
  // Stores into `records` (kMaxLayers of them) from now on: what was named ahead, else nothing yet.
  void attach(segment::Layer* records);

  // There is no segment, or it is a parent's: what is named from now on is for the one to come.
  void name_ahead();

  // The index of the layer called `label`, added when it is new; -1 when there is no room. `name` may be
  // null; of several names the layer keeps the components they begin with in common.
  int index_of(const char* label, const char* name);

  // Returns false when there is no room. A later entry of the same identity wins.
  bool name(const foreshock_parameter& parameter);

  // Nobody is known by an identity any more; the layers stay, and may be named again.
  void forget_names();

  // -1: not known.
  int find(const void* identity) const;

  // Whether any parameter has been named. Any thread.
  bool has_names() const { return named_.load(std::memory_order_relaxed) > 0; }

  // Gradients of one step, as sums of squares: those of another one are forgotten where it begins.
  void begin_gradients();
  void add_gradient(const void* identity, double sum_of_squares);
  void add_gradient_of(int layer, double sum_of_squares) { gradients_.add(layer, sum_of_squares); }

  // Stores what was added as of `step`, and forgets it. False when nothing was added.
  bool publish_gradients(int64_t step, double* total_norm);

  // The same for a step that has ended: `norms` of it are all there; what is added for another one stays.
  bool publish_late(const LateGradient* norms, uint32_t count, int64_t step, double* total_norm);

 private:
  struct Sums {
    double of_squares[segment::kMaxLayers + 1];  // the last: parameters of no layer
    bool seen[segment::kMaxLayers + 1];
    void add(int layer, double square);
  };
  bool publish(const Sums& sums, int64_t step, double* total_norm);
  void forget();
  static void shorten(segment::Layer* record, const char* name);

  static constexpr uint32_t kBuckets = 1u << 14;
  struct Entry {
    std::atomic<const void*> identity;
    std::atomic<int32_t> layer;
  };
  Entry entries_[kBuckets] = {};
  segment::Layer ahead_[segment::kMaxLayers] = {};
  segment::Layer* records_ = nullptr;
  uint32_t layers_ = 0;
  std::atomic<uint32_t> named_{0};
  Sums gradients_ = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LAYERS_H_
