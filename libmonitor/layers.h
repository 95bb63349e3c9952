// Stores which layer each parameter of the model belongs to, and publishes the gradient norm of each layer.
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
// label ("003") and a name, that of its module ("blocks.3"). Only find(), has_names() and mark() may be
// called while another thread uses the table. Its hash table has a fixed size and is mapped when first
// needed.
class LayerTable {
 public:
  // From now on publishes layers in `published`, the kMaxLayers entries of the image of a new segment. Keeps
  // the layers that were named after use_early_layers(), and forgets all others.
  void attach(segment::Layer* published);
  // Called before name() while this process has no segment of its own (also in a forked child). Forgets the
  // layers of an earlier segment. The layers that are named afterwards are kept for the next attach().
  void use_early_layers();
  // Returns the index of the layer `label`, which is added if it is new, or -1 if kMaxLayers layers exist.
  // `name`: name of one of its parameters, or null. The layer's name is the leading components that all these
  // parameter names share.
  int index_of(const char* label, const char* name);
  // Stores the layer of a parameter. A later call with the same identity replaces it. Returns false if the
  // parameter cannot be stored. If the hash table has no space, the parameter's layer publishes no more
  // norms, since they would lack this parameter's part.
  bool name(const foreshock_parameter& parameter);

  // Marks the layers of the attention modules in `mixers`, instead of those of an earlier call, and counts
  // all mixers. `coverage`: where the counts are stored too; null while there is no segment.
  void name_mixers(const foreshock_mixer* mixers, size_t count, segment::Coverage* coverage);
  // Stores the counts of the last name_mixers(), if there was one, in a segment.
  void store_inventory(segment::Coverage* coverage) const;
  // Adds bits to the layer's Layer::attention, and to Layer::skipped of the pass.
  void mark(int layer, uint32_t attention, uint32_t pass, uint32_t skipped);

  void forget_names();  // forgets all identities. The layers stay, and parameters may be named again.
  int find(const void* identity) const;  // returns the layer of a parameter, or -1 if unknown
  bool has_names() const { return named_.load(std::memory_order_relaxed) > 0; }
  // add_gradient() adds the sum of squares of one parameter's gradient to its layer's sum for the present
  // step, add_gradient_of() to the sum of `layer` (-1: no layer). begin_gradients() discards these sums.
  void begin_gradients();
  void add_gradient(const void* identity, double sum_of_squares);
  void add_gradient_of(int layer, double sum_of_squares) { gradients_.add(layer, sum_of_squares); }
  // Publishes the norm of each layer's added gradients as the norm at `step`, and discards the sums. Sets
  // *total_norm to the norm over all added gradients. Returns false if no gradient was added.
  bool publish_gradients(int64_t step, double* total_norm);
  // Does the same for an earlier step whose gradients were on a device until now; keeps the present sums.
  bool publish_late(const PendingGradient* gradients, uint32_t count, int64_t step, double* total_norm);

 private:
  struct Sums {
    double of_squares[segment::kMaxLayers + 1];  // by layer; the last entry: parameters without a layer
    bool is_set[segment::kMaxLayers + 1];        // false: the same entry of of_squares is not valid
    bool has_any;                                // an entry of is_set is true
    void add(int layer, double square);          // layer -1: without a layer
  };
  bool publish(const Sums& sums, int64_t step, double* total_norm);
  void forget();                              // forgets names, layers, inventory and gradients
  int find_label(const char* label);          // returns the index of the layer, or -1
  bool add(const void* identity, int layer);  // to the hash table; false: it has no space
  void shorten(uint32_t layer, const char* name);
  void publish_names(uint32_t layer);
  void publish_attention(uint32_t layer);
  enum class Phase { kNone, kEarly, kAttached };  // before, after use_early_layers(), after attach()

  // Most parameters; buckets of the hash table, at least half of which stay free.
  static constexpr uint32_t kMostNamed = 1u << 16, kBuckets = 2 * kMostNamed;
  struct Entry {  // of a hash table with open addressing
    std::atomic<const void*> identity;
    std::atomic<int32_t> layer;
  };
  MmapBuffer table_memory_;
  std::atomic<Entry*> entries_{nullptr};  // array of kBuckets in table_memory_
  Phase phase_ = Phase::kNone;
  segment::Layer records_[segment::kMaxLayers] = {};        // the present layers
  segment::Layer* published_ = nullptr;                     // their copies in the image of the segment
  std::atomic<bool> is_partial_[segment::kMaxLayers] = {};  // the table had no space for a parameter of it
  uint32_t layers_ = 0;                                     // number of layers
  uint32_t last_found_ = 0;  // the layer found last; find_label() tries it first, as names come by layer
  std::atomic<uint32_t> named_{0};  // number of parameters in entries_
  Sums gradients_ = {};
  struct {
    bool is_known = false;
    uint32_t attention_layers = 0, other_mixers = 0;
    char names[sizeof(segment::Coverage::mixer_names)] = {};  // classes of the other mixers
  } inventory_;                                               // the fields of segment::Coverage
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LAYERS_H_
