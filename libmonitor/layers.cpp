// Maps parameters to layers with a hash table that other threads read without a lock, and publishes the
// gradient norm of each layer. A layer has a label ("003") and a name ("blocks.3"). The image of the segment
// gets a copy of each value (SegmentWriter::publish_facts() writes it into the file).
#include "libmonitor/layers.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "foreshock/hook.h"
#include "libmonitor/process.h"

namespace foreshock {
namespace {

// Multiplicative hash (by 2^64 / golden ratio) of an address without its low bits, which are equal in most
// addresses. `buckets` is a power of 2.
uint32_t bucket_of(const void* identity, uint32_t buckets) {
  const uint64_t mixed = (reinterpret_cast<uintptr_t>(identity) >> 4) * 0x9e3779b97f4a7c15u;
  return static_cast<uint32_t>(mixed >> (64 - std::countr_zero(buckets)));
}

template <class T>
void store(T& word, T value) {  // atomically, since publish_facts() may load them at the same time
  std::atomic_ref<T>(word).store(value, std::memory_order_relaxed);
}

// Adds the name of a class to a list "A, B", unless the list has it or has no room for it.
template <size_t N>
void add_class(const char* name, char (&list)[N]) {
  if (name == nullptr || *name == '\0') return;
  const size_t length = std::strlen(name), used = std::strlen(list);
  for (const char* found = std::strstr(list, name); found != nullptr; found = std::strstr(found + 1, name))
    if ((found == list || found[-1] == ' ') && (found[length] == '\0' || found[length] == ',')) return;
  if (used + length + 3 > N) return;
  std::snprintf(list + used, N - used, "%s%s", used > 0 ? ", " : "", name);
}

}  // namespace

void LayerTable::forget_names() {
  for (std::atomic<bool>& partial : is_partial_) partial.store(false, std::memory_order_relaxed);
  if (!has_names()) return;
  Entry* const entries = entries_;
  for (Entry* entry = entries; entry < entries + kBuckets; ++entry) {
    if (entry->identity.load(std::memory_order_relaxed) == nullptr) continue;  // unused pages stay unwritten
    entry->identity.store(nullptr, std::memory_order_relaxed);
    entry->layer.store(-1, std::memory_order_relaxed);
  }
  named_ = 0;
}

void LayerTable::forget() {
  forget_names();
  layers_ = 0;
  inventory_ = {};
  begin_gradients();
}

void LayerTable::attach(segment::Layer* published) {
  if (phase_ != Phase::kEarly) forget();  // the layers are those of an earlier segment
  phase_ = Phase::kAttached;
  published_ = published;
  for (uint32_t n = 0; n < layers_; ++n) publish_names(n);
}

void LayerTable::use_early_layers() {
  if (phase_ == Phase::kEarly) return;  // this function was called before
  forget();
  phase_ = Phase::kEarly;
  published_ = nullptr;
}

void LayerTable::publish_names(uint32_t layer) {
  if (published_ == nullptr) return;
  segment::Layer& to = published_[layer];
  std::memcpy(to.label, records_[layer].label, sizeof to.label);
  std::memcpy(to.name, records_[layer].name, sizeof to.name);
  publish_attention(layer);
  std::atomic_ref<uint32_t>(to.ready).store(1, std::memory_order_release);
}

// Reduces the layer's name to the leading components ("blocks.3") that it shares with `name`.
void LayerTable::shorten(uint32_t layer, const char* name) {
  char(&kept)[sizeof(segment::Layer::name)] = records_[layer].name;
  size_t common = 0;
  for (size_t n = 0; kept[n] != '\0' && kept[n] == name[n]; ++n) {
    const char next = kept[n + 1], next_of_name = name[n + 1];
    if ((next == '.' || next == '\0') && (next_of_name == '.' || next_of_name == '\0')) common = n + 1;
  }
  kept[common] = '\0';
  if (published_ != nullptr) store(published_[layer].name[common], '\0');
}

// Compares labels without the last byte of the field, where index_of() puts the terminating 0 of a label that
// it has cut. Tries the layer found last first, since parameters come layer by layer.
int LayerTable::find_label(const char* label) {
  for (uint32_t tried = 0; tried < layers_; ++tried) {
    const uint32_t n = (last_found_ + tried) % layers_;
    if (std::strncmp(records_[n].label, label, sizeof records_[n].label - 1) != 0) continue;
    last_found_ = n;
    return static_cast<int>(n);
  }
  return -1;
}

int LayerTable::index_of(const char* label, const char* name) {
  if (const int known = find_label(label); known >= 0) {
    if (name != nullptr) shorten(static_cast<uint32_t>(known), name);
    return known;
  }
  if (layers_ == segment::kMaxLayers) return -1;
  segment::Layer& record = records_[layers_] = {};
  std::snprintf(record.label, sizeof record.label, "%s", label);
  std::snprintf(record.name, sizeof record.name, "%s", name != nullptr ? name : label);
  publish_names(layers_);
  return static_cast<int>(layers_++);
}

bool LayerTable::name(const foreshock_parameter& parameter) {
  if (phase_ == Phase::kNone || parameter.identity == nullptr || parameter.layer == nullptr) return false;
  const int layer = index_of(parameter.layer, parameter.name);
  if (layer < 0) return false;
  if (add(parameter.identity, layer)) return true;
  is_partial_[layer].store(true, std::memory_order_relaxed);  // publish() then skips the layer
  return false;
}

void LayerTable::name_mixers(const foreshock_mixer* mixers, size_t count, segment::Coverage* coverage) {
  if (phase_ == Phase::kNone) return;
  constexpr uint32_t kFromInventory = segment::kHasAttention | segment::kTrainsAttention;
  for (uint32_t n = 0; n < layers_; ++n)
    std::atomic_ref<uint32_t>(records_[n].attention).fetch_and(~kFromInventory, std::memory_order_relaxed);
  inventory_ = {.is_known = true};
  for (size_t n = 0; n < count; ++n) {
    const foreshock_mixer& mixer = mixers[n];
    if (mixer.kind != FORESHOCK_MIXER_ATTENTION) {
      ++inventory_.other_mixers;
      add_class(mixer.name, inventory_.names);
      continue;
    }
    const int layer = mixer.layer != nullptr ? index_of(mixer.layer, nullptr) : -1;
    if (layer < 0) {
      ++inventory_.attention_layers;
      continue;
    }
    const uint32_t bits =
        segment::kHasAttention | (mixer.is_trained != 0 ? uint32_t{segment::kTrainsAttention} : 0);
    const uint32_t before =
        std::atomic_ref<uint32_t>(records_[layer].attention).fetch_or(bits, std::memory_order_relaxed);
    // The heads of a hand-written attention may be modules of their own: several modules, one layer.
    inventory_.attention_layers += (before & segment::kHasAttention) == 0;
  }
  for (uint32_t n = 0; n < layers_; ++n) publish_attention(n);
  if (coverage != nullptr) store_inventory(coverage);
}

void LayerTable::store_inventory(segment::Coverage* coverage) const {
  if (!inventory_.is_known) return;
  store(coverage->attention_layers, inventory_.attention_layers);
  store(coverage->other_mixers, inventory_.other_mixers);
  for (size_t n = 0; n < sizeof inventory_.names; ++n) store(coverage->mixer_names[n], inventory_.names[n]);
  std::atomic_ref<uint32_t>(coverage->inventory_is_known).store(1, std::memory_order_release);
}

void LayerTable::mark(int layer, uint32_t attention, uint32_t pass, uint32_t skipped) {
  segment::Layer& record = records_[layer];
  const auto add = [](uint32_t& word, uint32_t bits) {  // whether a bit is new
    std::atomic_ref<uint32_t> own(word);
    return (own.load(std::memory_order_relaxed) & bits) != bits && (own.fetch_or(bits) & bits) != bits;
  };
  const bool is_new = add(record.attention, attention);
  if (add(record.skipped[pass], skipped) || is_new) publish_attention(static_cast<uint32_t>(layer));
}

// Stores the bits of a layer in the segment. If another thread changes a word meanwhile, stores it again, so
// that the last store has all bits.
void LayerTable::publish_attention(uint32_t layer) {
  if (published_ == nullptr) return;
  const auto publish_word = [](uint32_t& own, uint32_t& published) {
    const std::atomic_ref<uint32_t> from(own), to(published);
    uint32_t bits;
    do to.store(bits = from.load());
    while (from.load() != bits);
  };
  segment::Layer &from = records_[layer], &to = published_[layer];
  publish_word(from.attention, to.attention);
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) publish_word(from.skipped[pass], to.skipped[pass]);
}

bool LayerTable::add(const void* identity, int layer) {
  if (!table_memory_.reserve(kBuckets * sizeof(Entry))) return false;
  Entry* const entries = reinterpret_cast<Entry*>(table_memory_.data());
  entries_.store(entries, std::memory_order_release);
  for (uint32_t n = bucket_of(identity, kBuckets);; n = (n + 1) % kBuckets) {
    Entry& entry = entries[n];
    const void* stored = entry.identity.load(std::memory_order_relaxed);
    if (stored != nullptr && stored != identity) continue;
    if (stored == nullptr && named_ == kMostNamed) return false;  // half of the buckets are used
    entry.layer.store(layer, std::memory_order_relaxed);
    if (stored == nullptr) ++named_;
    entry.identity.store(identity, std::memory_order_release);  // last: find() then sees the layer too
    return true;
  }
}

int LayerTable::find(const void* identity) const {
  const Entry* const entries = entries_.load(std::memory_order_acquire);
  if (identity == nullptr || entries == nullptr) return -1;
  for (uint32_t n = bucket_of(identity, kBuckets);; n = (n + 1) % kBuckets) {
    const void* stored = entries[n].identity.load(std::memory_order_acquire);
    if (stored == identity) return entries[n].layer.load(std::memory_order_relaxed);
    if (stored == nullptr) return -1;
  }
}

void LayerTable::begin_gradients() {
  if (!gradients_.has_any) return;
  gradients_.has_any = false;
  std::memset(gradients_.is_set, 0, sizeof gradients_.is_set);
}

void LayerTable::Sums::add(int layer, double square) {
  const uint32_t entry = layer < 0 ? segment::kMaxLayers : static_cast<uint32_t>(layer);  // -1: no layer
  of_squares[entry] = (is_set[entry] ? of_squares[entry] : 0) + square;
  is_set[entry] = has_any = true;
}

void LayerTable::add_gradient(const void* identity, double sum_of_squares) {
  gradients_.add(find(identity), sum_of_squares);
}

bool LayerTable::publish_gradients(int64_t step, double* total_norm) {
  const bool any = publish(gradients_, step, total_norm);
  begin_gradients();
  return any;
}

// Publishes the norms of an earlier step, whose gradients were on a device until now.
bool LayerTable::publish_late(const PendingGradient* gradients, uint32_t count, int64_t step,
                              double* total_norm) {
  Sums sums = {};
  for (uint32_t n = 0; n < count; ++n) sums.add(gradients[n].layer, gradients[n].square());
  return publish(sums, step, total_norm);
}

// Stores the norm of each layer with a sum into the layer's record, and counts steps with NaN or Inf.
bool LayerTable::publish(const Sums& sums, int64_t step, double* total_norm) {
  if (!sums.has_any) return false;
  double total = 0;
  for (uint32_t n = 0; n <= segment::kMaxLayers; ++n) {  // the last one: parameters without a layer
    if (!sums.is_set[n]) continue;
    total += sums.of_squares[n];
    if (n == segment::kMaxLayers || is_partial_[n].load(std::memory_order_relaxed)) continue;
    if (published_ == nullptr) continue;
    segment::Layer& layer = published_[n];
    store(layer.gradient_norm, std::sqrt(sums.of_squares[n]));
    store(layer.gradient_step, static_cast<uint64_t>(step));
    if (!std::isfinite(sums.of_squares[n])) {
      store(layer.nonfinite_steps, ++records_[n].nonfinite_steps);
      store(layer.last_nonfinite_step, static_cast<uint64_t>(step));
    }
  }
  *total_norm = std::sqrt(total);
  return true;
}

}  // namespace foreshock
