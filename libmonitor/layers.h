// Which layer a parameter belongs to, and the norm of its gradient.
#ifndef FORESHOCK_LIBMONITOR_LAYERS_H_
#define FORESHOCK_LIBMONITOR_LAYERS_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/base.h"
#include "libmonitor/step_numbers.h"
#include "segment/layout.h"

namespace foreshock {

// Names come once and late, from one thread; lookups may come from any. Fixed room, from the kernel when the
// first name comes: what does not fit is unknown.
class LayerTable {
 public:
  // Stores into `records` (kMaxLayers of them) from now on: what was named ahead, else nothing yet.
  void attach(segment::Layer* records);

  // There is no segment, or it is a parent's: what is named from now on is for the one to come.
  void name_ahead();

  // The index of the layer called `label`, added when it is new; -1 when there is no room. `name` may be
  // null; of several names the layer keeps the components they begin with in common.
  int index_of(const char* label, const char* name);

  // Returns false when there is no room: its layer then has no norm, which would be that of a part. A later
  // entry of the same identity wins.
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
  bool publish_late(const PendingGradient* norms, uint32_t count, int64_t step, double* total_norm);

 private:
  struct Sums {
    double of_squares[segment::kMaxLayers + 1];  // the last: parameters of no layer
    bool seen[segment::kMaxLayers + 1];
    bool has_any;
    void add(int layer, double square);
  };
  bool publish(const Sums& sums, int64_t step, double* total_norm);
  void forget();
  int find_label(const char* label);
  bool add(const void* identity, int layer);
  static void shorten(segment::Layer* record, const char* name);

  static constexpr uint32_t kMostNamed = 1u << 16, kBuckets = 2 * kMostNamed;
  struct Entry {
    std::atomic<const void*> identity;
    std::atomic<int32_t> layer;
  };
  MmapBuffer room_;
  std::atomic<Entry*> entries_{nullptr};  // kBuckets in room_
  segment::Layer ahead_[segment::kMaxLayers] = {};
  segment::Layer* records_ = nullptr;
  std::atomic<bool> is_partial_[segment::kMaxLayers] = {};  // parameters of it have no name
  uint32_t layers_ = 0;
  uint32_t last_found_ = 0;  // layers come with all their parameters, one after the other
  std::atomic<uint32_t> named_{0};
  Sums gradients_ = {};
};

// Names of attention that runs past every hook, kept from before there is a segment.

// Any thread; who finds it taken by another one goes without. Fixed room, no heap.
class UnhookedAttention {
 public:
  // Copies what is known into `records` (kMaxUnseen of them), and stores there too from now on.
  void attach(segment::UnseenName* records);

  // `evidence`: FORESHOCK_UNSEEN_...; of several the smallest one stays. What is no name, or has no room, is
  // dropped. `has_segment`: the process still has the one that was attached; a forked child has not.
  void note(const char* name, uint32_t evidence, bool has_segment);

 private:
  void store(uint32_t index);

  std::atomic_flag busy_;
  segment::UnseenName names_[segment::kMaxUnseen] = {};
  uint32_t known_ = 0;
  segment::UnseenName* records_ = nullptr;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LAYERS_H_
