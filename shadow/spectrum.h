// What training does to the scores of each layer's heads, from the rows of query and key projections that a
// trainer shows now and then: the spectrum of the increment between two such looks.
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

// Rows of some heads of one layer, as they were after `step`.
struct ProjectionRows {
  int64_t step = 0;
  uint64_t interval = 0;  // steps between two looks; another one begins anew
  uint32_t head_dim = 0, width = 0;
  std::vector<uint32_t> kv_heads;  // which of them
  DType dtype = DType::kNone;
  // kv_heads.size() x head_dim x width values each, packed; empty: not of this tensor. Of the query heads
  // that read a kv-head the first one is there.
  std::span<const std::byte> queries, keys;
};

// Over the heads that were looked at.
struct LayerSpectrum {
  int64_t step = 0;                    // of the later look
  int64_t steps = 0;                   // between the two looks
  uint32_t heads = 0;                  // with a spectrum
  double norm_mean = 0, norm_max = 0;  // Frobenius norm of the increment
  double stable_rank_mean = 0, stable_rank_min = 0;
  double effective_rank_mean = 0, effective_rank_min = 0;
};

class LayerSpectra {
 public:
  // `most_bytes`: of rows kept; a layer beyond is not followed.
  explicit LayerSpectra(uint64_t most_bytes = uint64_t{64} << 20) : most_bytes_(most_bytes) {}

  // A value when these rows complete a second look at queries and keys of `layer`, over equally many steps.
  // Where queries and keys come from two tensors, they may have been looked at some steps apart, less than an
  // interval. Rows of another shape or interval begin anew; those of a
  // step that is known already, as of a replica, are left out. Rows of fp32, bf16 or fp16; what has the wrong
  // size is left out.
  std::optional<LayerSpectrum> take(const std::string& layer, const ProjectionRows& rows);

  uint64_t layers_refused() const { return layers_refused_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Look {
    int64_t step = -1;
    std::vector<float> values;  // exact: formats are fp32 or narrower
  };
  struct Side {
    Look before, after;
    bool is_new = false;  // `after` has not been used
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

// The spectrum of what training does to the scores of one attention head: of the first-order increment of
// W_Q W_K^T (arXiv 2606.28116). Its effective rank moves long before a loss does, and only beside that of a
// healthy run does it mean anything.

// Of a matrix with singular values s1 >= s2 >= ...
struct Spectrum {
  double frobenius;       // sqrt(sum s^2)
  double stable_rank;     // sum s^2 / s1^2
  double effective_rank;  // exp(-sum p ln p), p = s^2 / sum s^2
};

// One head's rows of a query and a key projection at two times: head dimension x model dimension, row-major,
// as torch's Linear keeps them.
struct HeadProjections {
  std::span<const double> query_before, query_after, key_before, key_after;
  size_t head_dim = 0, width = 0;
};

// Of D2 = dWq^T Wk + Wq^T dWk (width x width, Wq and Wk as before, d the change of each), by thin QR of [dWq,
// Wq] and [Wk, dWk], so that no matrix larger than width x 2 head_dim is made. Nothing when sizes do not fit,
// a value is not finite, or nothing changed. Any thread; about 16 width head_dim^2 + 300 head_dim^3
// operations.
std::optional<Spectrum> update_spectrum(const HeadProjections& head);

// The same of singular values, in any order: nothing when all are 0 or one is not finite.
std::optional<Spectrum> spectrum_of(std::span<const double> singular_values);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_SPECTRUM_H_
