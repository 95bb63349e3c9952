// Draws the inputs of each family of algorithms (attention, convolution, ...) from a distribution, the law.
#include "lab/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "lab/rounding.h"

namespace foreshock::lab {
namespace {

using Kind = InputLaw::Kind;

// The streams of random numbers, one for each input. Families other than attention draw their first input
// from kQuery and their second from kKey.
enum Stream : uint64_t { kQuery = 1, kKey, kValue, kGradOut, kOutliers, kTiePositions, kLabel };

// The key of a stream. normal() and uniform() with this key and a counter i give the stream's i-th number.
uint64_t stream_key_of(uint64_t seed, Stream stream) { return mix(seed) ^ mix(stream); }

double draw(Kind kind, uint64_t seed, Stream stream, uint64_t i) {
  const uint64_t stream_key = stream_key_of(seed, stream);
  switch (kind) {
    case Kind::kUniform:
      return uniform(stream_key, i);
    case Kind::kShifted:
      return 32 + normal(stream_key, i);
    case Kind::kOutlier: {  // one number in 1000 has a large term added
      const uint64_t spikes = stream_key_of(stream_key, kOutliers);
      const bool spike = uniform(spikes, 3 * i) < 0.001;  // 3 * i: any counter that is different for each i
      return normal(stream_key, i) + (spike ? 10 * normal(mix(spikes), i) : 0);
    }
    default:
      return normal(stream_key, i);
  }
}

Tensor drawn(int rows, int cols, Kind kind, uint64_t seed, Stream stream) {
  Tensor x(rows, cols);
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = draw(kind, seed, stream, i);
  return x;
}

// Whether all elements of value have one sign, and all of grad_out.
bool is_one_signed(Kind kind) { return kind == Kind::kOneSigned || kind == Kind::kTies; }

// Softmax weight of all keys that are not tied, together. It is far below the roundoff of bf16, 2^-9.
constexpr double kResidue = 2e-4;

// Makes query and key of the law "ties". Row i has the query sqrt(d) * e_c with c = i % d, so that its scores
// (with the usual factor 1 / sqrt(d)) are column c of the keys. In each column, law.ties random keys get the
// largest score, `top`. With law.gap > 0 only one of them gets it, and the rest of them get top - law.gap.
void plant_ties(Tensors& inputs, const InputLaw& law, uint64_t seed) {
  Tensor &query = inputs.at("query"), &key = inputs.at("key");
  const int n = key.rows, d = key.cols;
  std::fill(query.data.begin(), query.data.end(), 0.0);
  for (int i = 0; i < query.rows; ++i) query.at(i, i % d) = std::sqrt(d);
  // With a gap the largest score is 0, since a low-precision format resolves small gaps only near 0.
  const double top = law.gap > 0 ? 0 : 1;
  // n keys at top - fall have, together, the weight kResidue; a spread of 0.25 changes it by a few percent.
  const double fall = std::log(n / kResidue);
  for (int c = 0; c < d; ++c) {
    for (int j = 0; j < n; ++j)
      key.at(j, c) = top - fall + 0.25 * normal(stream_key_of(seed, kKey), uint64_t(c) * n + j);
    uint64_t counter = uint64_t(c) << 32;  // each column has random numbers of its own
    for (int planted = 0; planted < std::min(law.ties, n);) {
      const int j = static_cast<int>(uniform(stream_key_of(seed, kTiePositions), counter) * n);
      ++counter;
      if (key.at(j, c) >= top - law.gap) continue;  // this key was chosen already
      key.at(j, c) = planted == 0 ? top : top - law.gap;
      ++planted;
    }
  }
}

Tensors attention_inputs(const Shape& shape, const InputLaw& law, uint64_t seed) {
  Tensors x;
  x["query"] = drawn(shape.rows, shape.d, law.kind, seed, kQuery);
  x["key"] = drawn(shape.n, shape.d, law.kind, seed, kKey);
  x["value"] = drawn(shape.n, shape.d, law.kind, seed, kValue);
  x["grad_out"] = drawn(shape.rows, shape.d, Kind::kNormal, seed, kGradOut);
  if (law.kind == Kind::kFlat)
    for (double& q : x["query"].data) q *= 3e-4;  // all scores nearly equal
  if (is_one_signed(law.kind)) {
    x["value"] = drawn(shape.n, shape.d, Kind::kUniform, seed, kValue);
    for (double& v : x["value"].data) v = -0.5 - v;  // in (-1.5, -0.5]
    for (double& g : x["grad_out"].data) g = -std::fabs(g);
  }
  if (law.kind == Kind::kTies) plant_ties(x, law, seed);
  return x;
}

// The inputs of all families except attention. The last part is for kCrossEntropy.
Tensors other_inputs(const Shape& shape, const InputLaw& law, uint64_t seed) {
  switch (shape.family) {
    case Family::kConvolution:
      return {{"image", drawn(shape.d, shape.n * shape.n, law.kind, seed, kQuery)},
              {"filter", drawn(shape.rows, shape.d * 9, Kind::kNormal, seed, kKey)}};
    case Family::kSoftmax:
      return {{"logits", drawn(shape.rows, shape.n, law.kind, seed, kQuery)}};
    case Family::kLayerNorm:
      return {{"input", drawn(shape.rows, shape.n, law.kind, seed, kQuery)}};
    case Family::kMatrixProduct:
      return {{"left", drawn(shape.rows, shape.d, law.kind, seed, kQuery)},
              {"right", drawn(shape.d, shape.n, law.kind, seed, kKey)}};
    default:
      break;
  }
  Tensors x{{"hidden", drawn(shape.rows, shape.d, law.kind, seed, kQuery)},
            {"classes", drawn(shape.n, shape.d, Kind::kNormal, seed, kKey)},
            {"label", Tensor(shape.rows, 1)}};
  // Unit class vectors and normal hidden states give logits of standard deviation 1, as in a new training.
  for (double& w : x["classes"].data) w /= std::sqrt(shape.d);
  for (int i = 0; i < shape.rows; ++i)
    x["label"].at(i, 0) = std::floor(uniform(stream_key_of(seed, kLabel), i) * shape.n);
  return x;
}

// Returns the name of the input that `query_scale` multiplies.
const char* scaled_input(Family family) {
  constexpr const char* kNames[] = {"query", "image", "logits", "input", "hidden", "left"};  // as in Family
  return kNames[static_cast<size_t>(family)];
}

}  // namespace

std::optional<InputLaw> parse_input_law(std::string_view text) {
  constexpr std::pair<const char*, Kind> kNamed[] = {
      {"normal", Kind::kNormal},        {"uniform", Kind::kUniform}, {"outlier", Kind::kOutlier},
      {"one_signed", Kind::kOneSigned}, {"flat", Kind::kFlat},       {"shifted", Kind::kShifted}};
  for (const auto& [name, kind] : kNamed)
    if (text == name) return InputLaw{kind, 0, 0, name};
  const std::string whole(text);
  InputLaw law{Kind::kTies, 0, 0, whole};
  int used = 0;  // number of characters that sscanf() has read
  if (std::sscanf(whole.c_str(), "ties:%d%n", &law.ties, &used) != 1 || law.ties < 1) return std::nullopt;
  if (used == static_cast<int>(whole.size())) return law;
  int used_by_gap = 0;
  if (std::sscanf(whole.c_str() + used, ":%lf%n", &law.gap, &used_by_gap) != 1) return std::nullopt;
  if (used + used_by_gap != static_cast<int>(whole.size())) return std::nullopt;
  return law.gap > 0 && law.gap < 1 ? std::optional(law) : std::nullopt;
}

Tensors make_inputs(const Shape& shape, const InputLaw& law, double query_scale, uint64_t seed,
                    const NumberFormat& storage) {
  Tensors inputs = shape.family == Family::kAttention ? attention_inputs(shape, law, seed)
                                                      : other_inputs(shape, law, seed);
  for (double& x : inputs.at(scaled_input(shape.family)).data) x *= query_scale;
  for (auto& [name, tensor] : inputs)
    if (name != "label") round_to(storage, Rounding::kNearestEven, tensor.data.data(), tensor.data.size());
  return inputs;
}

}  // namespace foreshock::lab
