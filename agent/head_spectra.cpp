#include "agent/head_spectra.h"

#include <algorithm>

#include "agent/place.h"
#include "segment/layout.h"
#include "segment/parser.h"

namespace foreshock {
namespace {

// Adds the heads of another layer.
void pool(const LayerSpectrum& one, LayerSpectrum* all) {
  all->heads += one.heads;
  const double share = static_cast<double>(one.heads) / all->heads;
  all->step = std::max(all->step, one.step);
  all->norm_mean += (one.norm_mean - all->norm_mean) * share;
  all->stable_rank_mean += (one.stable_rank_mean - all->stable_rank_mean) * share;
  all->effective_rank_mean += (one.effective_rank_mean - all->effective_rank_mean) * share;
  all->norm_max = std::max(all->norm_max, one.norm_max);
  all->stable_rank_min = std::min(all->stable_rank_min, one.stable_rank_min);
  all->effective_rank_min = std::min(all->effective_rank_min, one.effective_rank_min);
}

TensorKey key_of(const std::string& layer, const segment::Identity& identity) {
  TensorKey key;
  key.name = layer;
  place(identity, &key);
  return key;
}

}  // namespace

std::optional<LayerSpectrum> HeadSpectra::take(const segment::TensorView& tensor,
                                               const segment::Identity& identity, const char** why) {
  const segment::TensorRecord& of = tensor.record;
  const segment::Bytes payload = tensor.payload[segment::kTensorHeadRows];
  const std::string label = segment::text_of(of.layer);
  const auto dtype = static_cast<DType>(of.dtype);
  segment::TensorHeadsView heads;
  *why = nullptr;
  if (attempt_.is_new(of, identity)) {
    rows_ = LayerSpectra(kMostBytes);
    spectra_.clear();
  }
  if (payload.empty() || label.empty()) return std::nullopt;
  *why = segment::parse_tensor_heads(payload, size_of(dtype), &heads);
  if (*why != nullptr) return std::nullopt;
  const TensorKey key = key_of(label, identity);
  const std::string place = label + '/' + std::to_string(key.tensor_parallel) + '/' +
                            std::to_string(key.pipeline_parallel) + '/' +
                            std::to_string(key.expert_parallel) + '/' + std::to_string(key.rank);
  const auto spectrum = rows_.take(place, {.step = of.step,
                                           .interval = of.interval,
                                           .head_dim = heads.head.head_dim,
                                           .width = heads.head.width,
                                           .kv_heads = heads.numbers,
                                           .dtype = dtype,
                                           .queries = heads.queries,
                                           .keys = heads.keys});
  if (spectrum) spectra_[key] = *spectrum;
  return spectrum;
}

std::optional<LayerSpectrum> HeadSpectra::all_layers() const {
  std::optional<LayerSpectrum> all;
  for (const auto& [key, spectrum] : spectra_) {
    if (all)
      pool(spectrum, &*all);
    else
      all = spectrum;
  }
  return all;
}

std::map<std::string, double> HeadSpectra::smallest_effective_ranks() const {
  std::map<std::string, double> smallest;
  for (const auto& [key, spectrum] : spectra_) {
    const auto [layer, is_new] = smallest.emplace(key.name, spectrum.effective_rank_min);
    if (!is_new) layer->second = std::min(layer->second, spectrum.effective_rank_min);
  }
  return smallest;
}

}  // namespace foreshock
