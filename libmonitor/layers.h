// Stores which layer each parameter of the model belongs to, and the gradient norm of each layer.
#ifndef FORESHOCK_LIBMONITOR_LAYERS_H_
#define FORESHOCK_LIBMONITOR_LAYERS_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/base.h"
#include "libmonitor/step_numbers.h"
#include "segment/layout.h"

namespace foreshock {

// Maps parameters to layers. A parameter is identified by an opaque pointer, its identity; a layer has a
// label ("003") and a name (its module). One thread at a time may name; any thread may call find() and
// has_names(). The memory is fixed and mapped at the first name. Parameters beyond its size have no layer.
class LayerTable {
 public:
  // From now on stores layers in a new segment, in `records` (kMaxLayers of them). Keeps the layers that were
  // named after name_ahead(), and forgets all others.
  void attach(segment::Layer* records);

  // Called while this process has no segment of its own. Later names are kept for the next attach().
  void name_ahead();

  // Returns the index of the layer `label`, which is added if it is new, or -1 if the table is full. `name`:
  // full name of one of its parameters, or null. The layer's name is the leading components that these share.
  int index_of(const char* label, const char* name);

  // Names a parameter. A later entry with the same identity replaces it. Returns false if the table is full;
  // the parameter's layer then has no norm, since the norm would lack a part.
  bool name(const foreshock_parameter& parameter);

  // Forgets all identities. The layers stay and may be named again.
  void forget_names();

  // Returns the layer of a parameter, or -1 if unknown.
  int find(const void* identity) const;

  // Whether any parameter has been named. Any thread.
  bool has_names() const { return named_.load(std::memory_order_relaxed) > 0; }

  // Collects the gradients of one step as sums of squares. begin_gradients() discards those added before.
  void begin_gradients();
  void add_gradient(const void* identity, double sum_of_squares);
  void add_gradient_of(int layer, double sum_of_squares) { gradients_.add(layer, sum_of_squares); }

  // Publishes the layers' norms of the added gradients as those of `step`, and discards the gradients. Sets
  // *total_norm to the norm over all of them. Returns false if none was added.
  bool publish_gradients(int64_t step, double* total_norm);

  // Does the same as publish_gradients() for a step that has already ended, from its complete `norms`.
  // Gradients that were added for the present step stay.
  bool publish_late(const PendingGradient* norms, uint32_t count, int64_t step, double* total_norm);

 private:
  struct Sums {
    double of_squares[segment::kMaxLayers + 1];  // the last entry: parameters without a layer
    bool seen[segment::kMaxLayers + 1];          // false: of_squares is not valid
    bool has_any;
    void add(int layer, double square);
  };
  bool publish(const Sums& sums, int64_t step, double* total_norm);
  void forget();
  int find_label(const char* label);
  bool add(const void* identity, int layer);
  static void shorten(segment::Layer* record, const char* name);

  static constexpr uint32_t kMostNamed = 1u << 16, kBuckets = 2 * kMostNamed;
  struct Entry {  // of a hash table with open addressing
    std::atomic<const void*> identity;
    std::atomic<int32_t> layer;
  };
  MmapBuffer table_memory_;
  std::atomic<Entry*> entries_{nullptr};  // array of kBuckets in table_memory_
  segment::Layer early_layers_[segment::kMaxLayers] = {};
  segment::Layer* records_ = nullptr;  // in the segment, or early_layers_ after name_ahead()
  std::atomic<bool> is_partial_[segment::kMaxLayers] = {};  // some parameters of the layer could not be named
  uint32_t layers_ = 0;
  uint32_t last_found_ = 0;  // tried first: parameters of one layer are consecutive
  std::atomic<uint32_t> named_{0};
  Sums gradients_ = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LAYERS_H_
