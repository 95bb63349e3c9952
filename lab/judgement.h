// Judges one stored attention call: every row of it against fp64, beside plain attention in the same format.
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

// q, out, dout, dq are [batch][heads][queries][d], k, v, dk, dv [batch][kv_heads][keys][d], lse
// [batch][heads][queries]. heads is a multiple of kv_heads; a kv-head serves neighbouring heads.
struct StoredCall {
  Safetensors file;
  std::map<std::string, std::vector<char>> data;  // of the tensors above
  DType dtype = DType::kNone;
  int batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, d = 0;
  double scale = 0;
  Causal causal = Causal::kNone;
  bool backward = false;  // dout and at least one gradient are there
};

// Metadata: "scale" (1 / sqrt(d) when absent), "causal" ("true" and "top-left": query i sees keys 0..i;
// "bottom-right": the last query sees all keys). An empty string, or what is wrong.
std::string read_call(const std::string& path, StoredCall* call);

// One tensor of the call, or the output of a model of the lab on the call's inputs.
struct Verdict {
  std::string name;
  double max_abs = 0, relative_l2 = 0, plain_l2 = 0;
  // The largest of plain's error, that of the reference rounded once, and of fp64 the reference's own.
  double floor_l2 = 0;
  double ratio = 0;                                 // relative_l2 / floor_l2
  double bias_ulp = 0, bias_z = 0;                  // pooled over slices (batch x kv-head); z between slices
  double rounded_bias_ulp = 0, rounded_bias_z = 0;  // the same of the rounded reference
  int64_t non_finite = 0;
  // Number of values, and how many of them were not compared because NaN or Inf among the inputs leave the
  // reference undefined.
  uint64_t values = 0, not_compared = 0;
  bool judged = true;   // false: a model, shown but not judged
  std::string failure;  // empty: within the gates
};

// Gates: error at most 2 (forward) or 3 (backward) times the floor, nothing non-finite that the reference is
// not, and no bias: |bias| > 0.05 ulp with |z| > 6 over at least 16 slices where the rounded reference has
// none; none is sought in fp64, where the reference may have it. Where there is one key the gradients of
// query and key are zero: what is left of them is measured against what cancels, beside one rounding of that.
std::vector<Verdict> judge(const StoredCall& call, const std::vector<Algorithm>& models, const Tiling& tiling,
                           int threads);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_JUDGEMENT_H_
