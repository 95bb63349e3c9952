// Computes how training changes the attention scores of each head: properties of the singular values of the
// change of W_Q W_K^T, the product of the head's query and key projection, between two measurements.
#ifndef FORESHOCK_SHADOW_SPECTRUM_H_
#define FORESHOCK_SHADOW_SPECTRUM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace foreshock {

// Rows of the query and key projections (weight matrices W_Q and W_K) of some heads of a layer after `step`.
struct ProjectionRows {
  int64_t step = 0;
  uint64_t interval = 0;  // steps between two measurements; if it changes, earlier measurements are dropped
  uint32_t head_dim = 0, width = 0;  // width: the model dimension, the length of a row
  std::vector<uint32_t> kv_heads;    // numbers of the kv-heads whose rows are here
  DType dtype = DType::kNone;
  // kv_heads.size() x head_dim x width packed values each. One of the two is empty if the weight tensor has
  // only the other projection. Of the query heads that share a kv-head, `queries` has the rows of the first.
  std::span<const std::byte> queries, keys;
};

// Statistics over the measured heads of a layer. A head's increment is the change of its W_Q W_K^T; norm,
// stable rank and effective rank are properties of its singular values (struct Spectrum below).
struct LayerSpectrum {
  int64_t step = 0;                    // step of the later measurement
  int64_t steps = 0;                   // steps between the two measurements
  uint32_t heads = 0;                  // number of heads with a spectrum
  double norm_mean = 0, norm_max = 0;  // Frobenius norm of the increment
  double stable_rank_mean = 0, stable_rank_min = 0;
  double effective_rank_mean = 0, effective_rank_min = 0;
};

// Stores the rows of every layer, and computes a LayerSpectrum from each pair of successive measurements.
class LayerSpectra {
 public:
  // `most_bytes` limits the memory for rows. Layers beyond the limit are ignored.
  explicit LayerSpectra(uint64_t most_bytes = uint64_t{64} << 20) : most_bytes_(most_bytes) {}

  // Adds rows of fp32, bf16 or fp16. `layer` names one shard of a layer: label, parallel coordinates and
  // rank. Returns a spectrum once queries and keys each have a new measurement and an earlier one, equally
  // many steps apart for queries and keys. If queries and keys are two tensors, the queries may be measured
  // some steps before or after the keys, but less than an interval. Rows of another shape or interval drop
  // the layer's earlier measurements. Rows of a step that was already added (by a replica, the same shard on
  // another rank) and rows of a wrong size are ignored.
  std::optional<LayerSpectrum> take(const std::string& layer, const ProjectionRows& rows);

  uint64_t layers_refused() const { return layers_refused_; }
  uint64_t bytes() const { return bytes_; }

 private:
  // The rows of a projection after one step.
  struct Measurement {
    int64_t step = -1;
    std::vector<float> values;  // the rows, converted without rounding, since formats are fp32 or narrower
  };
  // The last two measurements of the query or of the key projection.
  struct Side {
    Measurement before, after;
    bool is_new = false;  // no spectrum has been computed with `after`
    bool is_complete() const { return is_new && before.step >= 0; }
    int64_t steps() const { return after.step - before.step; }
  };
  struct Layer {
    uint64_t interval = 0, bytes = 0;
    uint32_t head_dim = 0, width = 0;
    std::vector<uint32_t> kv_heads;
    Side query, key;
  };
  Layer* layer_for(const std::string& name, const ProjectionRows& rows);
  static std::optional<LayerSpectrum> spectrum_of(const Layer& layer);

  uint64_t most_bytes_, bytes_ = 0, layers_refused_ = 0;
  std::map<std::string, Layer> layers_;
};

// Properties of a matrix with singular values s1 >= s2 >= ... The matrix is the first-order increment of one
// head's W_Q W_K^T (arXiv 2606.28116). With the rows of torch's layout as matrices Wq and Wk (head dimension
// x model dimension), the product is Wq^T Wk. The effective rank of the increment changes long before the
// loss does, but must be compared with that of a healthy run.
struct Spectrum {
  double frobenius;       // sqrt(sum s^2)
  double stable_rank;     // sum s^2 / s1^2
  double effective_rank;  // exp(-sum p ln p), p = s^2 / sum s^2
};

// One head's rows of a query and a key projection at two times: head dimension x model dimension, row-major,
// the layout of torch's Linear.
struct HeadProjections {
  std::span<const double> query_before, query_after, key_before, key_after;
  size_t head_dim = 0, width = 0;
};

// Computes the spectrum of the first-order increment D2 = dWq^T Wk + Wq^T dWk (width x width). Wq and Wk are
// the earlier weights, dWq and dWk their changes. Thin QR decompositions of the stacked pairs (dWq, Wq) and
// (Wk, dWk) keep every matrix at most width x 2 head_dim. Returns nullopt if sizes do not fit, a value is not
// finite, or nothing changed. Any thread; about 16 width head_dim^2 + 300 head_dim^3 operations.
std::optional<Spectrum> update_spectrum(const HeadProjections& head);

// The spectrum from singular values in any order. nullopt if all are 0, or if one is not finite.
std::optional<Spectrum> spectrum_of(std::span<const double> singular_values);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_SPECTRUM_H_
