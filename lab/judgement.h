// Judges a stored attention call for `foreshock judge`. Compares every result with attention computed in fp64
// (the reference), and its error with that of plain attention in the same format (the noise floor).
#ifndef FORESHOCK_LAB_JUDGEMENT_H_
#define FORESHOCK_LAB_JUDGEMENT_H_

#include <map>
#include <string>
#include <vector>

#include "lab/algorithm.h"
#include "lab/checkpoint.h"
#include "lab/tensor.h"

namespace foreshock::lab {

enum class Causal { kNone, kTopLeft, kBottomRight };

// A call and its results, as stored in a file. q, out, dout, dq are [batch][heads][queries][d], k, v, dk, dv
// [batch][kv_heads][keys][d], lse (log-sum-exp) [batch][heads][queries]. dx is the gradient of x. heads is a
// multiple of kv_heads; each kv-head serves heads / kv_heads consecutive heads.
struct StoredCall {
  Safetensors file;
  std::map<std::string, std::vector<char>> data;  // bytes of the tensors above, by name
  DType dtype = DType::kNone;
  int batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, d = 0;
  double scale = 0;
  Causal causal = Causal::kNone;
  bool backward = false;  // the file has dout and at least one gradient
};

// Reads a call. Metadata: "scale" (1 / sqrt(d) if absent) and "causal" ("true" and "top-left": query i sees
// keys 0..i; "bottom-right": the last query sees all keys). Returns "" or an error.
std::string read_call(const std::string& path, StoredCall* call);

// The verdict on one result of the call, or on one model (an algorithm of the lab, run on the call's inputs).
struct Verdict {
  std::string name;
  double max_abs = 0, relative_l2 = 0;  // errors: largest absolute one; L2 norm divided by the reference's
  // The noise floor: the larger of the error of plain attention and that of the reference rounded to the
  // format. For fp64 it is at least the bound of the error of the reference itself.
  double floor_l2 = 0;
  double ratio = 0;  // relative_l2 / floor_l2
  // Signed error in ulp (spacings of the format), positive away from zero, pooled over slices: a slice is one
  // batch element and kv-head. z: mean of the slices' signed errors / its standard error.
  double bias_ulp = 0, bias_z = 0;
  double rounded_bias_ulp = 0, rounded_bias_z = 0;  // the same for the reference rounded to the format
  int64_t non_finite = 0;                           // values that are not finite although the reference is
  // Number of values, and how many of them were not compared because the reference is not finite
  // (NaN or Inf in the inputs, rows without keys).
  uint64_t values = 0, not_compared = 0;
  bool judged = true;   // false: the verdict is on a model, which cannot fail
  std::string failure;  // the reason why the result fails; "": it passes
};

// Returns a verdict on each result of the call, then one on each model. Models use `tiling`.
// A result fails in three cases: its error exceeds 2 (forward) or 3 (backward) times the floor; it is not
// finite where the reference is finite; or it is biased. Biased means |bias| > 0.05 ulp with |z| > 6 over at
// least 16 slices, while the rounded reference is not biased. fp64 results are not tested for bias, since the
// reference itself may be biased. With a single key, equal terms cancel in the gradients of query and key, so
// both are zero. Their error is then relative to these terms, and the floor is at least one rounding of them.
std::vector<Verdict> judge(const StoredCall& call, const std::vector<Algorithm>& models, const Tiling& tiling,
                           int threads);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_JUDGEMENT_H_
