// Keeps the layers of parameters, the gradient norms of layers, and the names of attention that hooks do not
// see.
#ifndef FORESHOCK_LIBMONITOR_LAYERS_H_
#define FORESHOCK_LIBMONITOR_LAYERS_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/base.h"
#include "libmonitor/step_numbers.h"
#include "segment/layout.h"

namespace foreshock {

// Maps parameters to layers. Names come late, usually once, and from one thread; lookups may come from any
// thread. The memory is fixed and taken from the kernel when the first name comes; parameters beyond it have
// no layer.
class LayerTable {
 public:
  // Stores layers into `records` (kMaxLayers of them) from now on, beginning with those named by
  // name_ahead().
  void attach(segment::Layer* records);

  // There is no segment yet, or it belongs to a parent process: later names are for the next segment.
  void name_ahead();

  // The index of the layer `label`, which is added if it is new; -1 if there is no room. `name` may be null;
  // the layer keeps the leading components that all its names share.
  int index_of(const char* label, const char* name);

  // Names a parameter; a later entry with the same identity replaces it. False if there is no room: the
  // parameter's layer then has no norm, since the norm would lack a part.
  bool name(const foreshock_parameter& parameter);

  // Forgets all identities. The layers stay and may be named again.
  void forget_names();

  // The layer of a parameter; -1: unknown.
  int find(const void* identity) const;

  // Whether any parameter has been named. Any thread.
  bool has_names() const { return named_.load(std::memory_order_relaxed) > 0; }

  // Collects the gradients of one step as sums of squares. begin_gradients() forgets those added before.
  void begin_gradients();
  void add_gradient(const void* identity, double sum_of_squares);
  void add_gradient_of(int layer, double sum_of_squares) { gradients_.add(layer, sum_of_squares); }

  // Publishes the norms of the added gradients as those of `step`, and forgets them. False if nothing was
  // added.
  bool publish_gradients(int64_t step, double* total_norm);

  // As publish_gradients(), for a step that has already ended, from its complete `norms`. Gradients added for
  // another step stay.
  bool publish_late(const PendingGradient* norms, uint32_t count, int64_t step, double* total_norm);

 private:
  struct Sums {
    double of_squares[segment::kMaxLayers + 1];  // the last entry: parameters without a layer
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
  std::atomic<bool> is_partial_[segment::kMaxLayers] = {};  // some parameters of the layer could not be named
  uint32_t layers_ = 0;
  uint32_t last_found_ = 0;  // tried first, since the parameters of a layer follow each other
  std::atomic<uint32_t> named_{0};
  Sums gradients_ = {};
};

// Keeps the names of attention that no hook sees, also before there is a segment. Any thread; a call is
// dropped if another thread holds the table. Fixed memory, no heap.
class UnhookedAttention {
 public:
  // Copies the known names into `records` (kMaxUnseen of them), and stores later ones there too.
  void attach(segment::UnseenName* records);

  // Adds a name. `evidence`: FORESHOCK_UNSEEN_...; the smallest one of a name is kept. An invalid name, or
  // one for which there is no room, is dropped. `has_segment`: whether the attached records belong to this
  // process (false in a forked child).
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
