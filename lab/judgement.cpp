// Reads a stored call, splits it into slices (one batch element and one kv-head each), compares each slice
// with the reference and with plain attention, and pools the slices into verdicts.
#include "lab/judgement.h"

#include <algorithm>
#include <cmath>

#include "lab/measure.h"
#include "lab/number_format.h"

namespace foreshock::lab {
namespace {

// Limits of a result, close to those of the agent's alarms (docs/attention-error.md). The noise floor is the
// error of plain, unfused attention in the call's format.
constexpr double kForwardGate = 2, kBackwardGate = 3;  // of the error, in noise floors
constexpr double kBiasGate = 0.05, kBiasZ = 6;         // of the bias, in ulp and as z: mean / standard error
constexpr size_t kBiasSlices = 16;                     // with fewer slices the bias is not judged

// Upper bound of the relative error of the fp64 reference. shadow/reference.h states it for the output of its
// own reference; here it is assumed. Used as a floor for fp64 calls only: for other formats it is negligible.
constexpr double kReferenceError = 1e-13;

struct Field {  // a result of the call
  const char* name_in_file;
  const char* name_in_lab;  // of the same output (algorithm.h)
  bool per_query;           // true: the result has a row per query; false: a row per key
};
constexpr Field kResults[] = {{"out", "out", true},
                              {"lse", "log_sum_exp", true},
                              {"dq", "grad_query", true},
                              {"dk", "grad_key", false},
                              {"dv", "grad_value", false}};

bool is_backward(const std::string& stored_name) { return stored_name[0] == 'd'; }  // dq, dk, dv

// Returns the rows of a stored tensor for batch element b and kv-head h. A tensor with a row per query has
// the rows of all query heads that the kv-head serves; these heads follow each other in the file.
Tensor slice_of(const StoredCall& call, const char* name, bool per_query, int b, int h) {
  const DType type = call.file.tensors().at(name).dtype;
  const char* data = call.data.at(name).data();
  const int group = per_query ? call.heads / call.kv_heads : 1;
  const int rows = group * (per_query ? call.queries : call.keys);
  const int cols = std::string_view(name) == "lse" ? 1 : call.d;
  Tensor x(rows, cols);
  const size_t first = (static_cast<size_t>(b) * call.kv_heads + h) * x.data.size();
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = load_as_double(data, type, first + i);
  return x;
}

// Returns the number of keys that each row of a slice sees. Row i belongs to query i % call.queries.
Tensor visible_keys(const StoredCall& call) {
  const int group = call.heads / call.kv_heads;
  Tensor visible(group * call.queries, 1, call.keys);
  if (call.causal == Causal::kNone) return visible;
  const int shift = call.causal == Causal::kBottomRight ? call.keys - call.queries : 0;
  for (int i = 0; i < visible.rows; ++i)
    visible.at(i, 0) = std::clamp(i % call.queries + 1 + shift, 0, call.keys);
  return visible;
}

// With a single key the softmax weight is 1 for every score, so the gradients of query and key are exactly
// zero: the difference of two equal values dout . v. A correct kernel may subtract rounded values.
bool is_zero_gradient(const StoredCall& call, const std::string& name) {
  return call.keys == 1 && (name == "dq" || name == "dk");
}

struct Part {                             // the contribution of one slice to one verdict
  Deviation own, plain, rounded;          // of the result, of plain attention, and of the rounded reference
  double squares = 0;                     // of the reference; if is_zero_gradient(), of the terms that cancel
  uint64_t values = 0, not_compared = 0;  // not_compared: values for which the reference is not finite
};

double squares_of(const Tensor& x) {
  double sum = 0;
  for (double v : x.data)
    if (std::isfinite(v)) sum += v * v;
  return sum;
}

uint64_t not_finite(const Tensor& x) {
  return static_cast<uint64_t>(
      std::count_if(x.data.begin(), x.data.end(), [](double v) { return !std::isfinite(v); }));
}

void zero_where_undefined(const Tensor& reference, Tensor* result) {
  for (size_t i = 0; i < reference.data.size(); ++i)
    if (!std::isfinite(reference.data[i])) result->data[i] = 0;
}

// Compares the results of one slice with the reference. Elements without a finite reference are set to 0 in
// all tensors, and so ignored: in the reference last, since it shows which they are. Such elements come from
// NaN or Inf in the inputs; elements of lse also from rows without keys, where out is 0.
Part part_of(Tensor own, Tensor plain, Tensor reference, const NumberFormat& format) {
  zero_where_undefined(reference, &own);
  zero_where_undefined(reference, &plain);
  const uint64_t not_compared = not_finite(reference);
  zero_where_undefined(reference, &reference);
  Tensor rounded = reference;
  round_to(format, Rounding::kNearestEven, rounded.data.data(), rounded.data.size());
  return {deviation_of(own, reference, format),
          deviation_of(plain, reference, format),
          deviation_of(rounded, reference, format),
          squares_of(reference),
          reference.data.size(),
          not_compared};
}

struct Pooled {            // errors over all slices
  double l2 = 0;           // relative L2 error; absolute if the reference is 0
  double bias = 0, z = 0;  // the bias in ulp, and as a standard score over the slices
};

Pooled pooled(const std::vector<Part>& parts, Deviation Part::*deviation) {
  double error = 0, norm = 0, outward = 0, ulps = 0;
  std::vector<double> slices;
  for (const Part& part : parts) {
    const Deviation& d = part.*deviation;
    error += d.squares;
    norm += part.squares;
    outward += d.outward;  // the sum of the errors, positive away from zero
    ulps += d.ulps;        // the sum of the ulps of the reference
    slices.push_back(d.outward);
  }
  return {norm > 0 ? std::sqrt(error / norm) : std::sqrt(error), ulps > 0 ? outward / ulps : 0, z_of(slices)};
}

// Returns why the result fails, or "". If the reference of lse is nowhere finite, lse does not fail: in rows
// without keys lse is -Inf. If the reason is NaN in the inputs, out fails.
std::string failure_of(const Verdict& v, size_t slices, bool is_fp64) {
  const double gate = is_backward(v.name) ? kBackwardGate : kForwardGate;
  const auto is_beyond = [](double ulp, double z) {
    return std::fabs(ulp) > kBiasGate && std::fabs(z) > kBiasZ;
  };
  char text[160] = "";
  if (v.non_finite > 0)
    std::snprintf(text, sizeof text, "%lld elements are not finite", static_cast<long long>(v.non_finite));
  else if (v.not_compared == v.values && v.name != "lse")
    std::snprintf(text, sizeof text, "nothing to compare: the reference is nowhere finite");
  else if (!(v.ratio <= gate))  // true also if the ratio is NaN
    std::snprintf(text, sizeof text, "error %.3g times the noise floor (gate %.0f)", v.ratio, gate);
  else if (!is_fp64 && slices >= kBiasSlices && is_beyond(v.bias_ulp, v.bias_z) &&
           !is_beyond(v.rounded_bias_ulp, v.rounded_bias_z))
    std::snprintf(text, sizeof text, "biased by %+.3f ulp, z %.0f (gate %.2f)", v.bias_ulp, v.bias_z,
                  kBiasGate);
  return text;
}

Verdict verdict_of(const StoredCall& call, const std::string& name, const std::vector<Part>& parts,
                   bool judged) {  // false: `name` is a model, an algorithm of the lab
  const bool is_fp64 = call.dtype == DType::kFp64;
  const Pooled own = pooled(parts, &Part::own), plain = pooled(parts, &Part::plain),
               rounded = pooled(parts, &Part::rounded);
  Verdict v;
  v.name = name;
  v.judged = judged;
  v.relative_l2 = own.l2;
  v.floor_l2 = std::max({plain.l2, rounded.l2, is_fp64 ? kReferenceError : 0});
  if (is_zero_gradient(call, name))
    v.floor_l2 = std::max(v.floor_l2, parse_format(name_of(call.dtype))->unit_roundoff());
  v.ratio = v.relative_l2 == 0 ? 0 : v.relative_l2 / v.floor_l2;
  // A bias is a mean error away from zero. For a gradient that is zero this direction is undefined.
  v.bias_ulp = is_zero_gradient(call, name) ? 0 : own.bias;
  v.bias_z = is_zero_gradient(call, name) ? 0 : own.z;
  v.rounded_bias_ulp = rounded.bias;
  v.rounded_bias_z = rounded.z;
  for (const Part& part : parts) {
    v.non_finite += part.own.non_finite;
    v.values += part.values;
    v.not_compared += part.not_compared;
    v.max_abs = std::max(v.max_abs, part.own.max_abs);
  }
  if (judged) v.failure = failure_of(v, parts.size(), is_fp64);
  return v;
}

// Whether a tensor of the file is absent or has this shape.
bool shape_is(const StoredCall& call, const char* name, std::vector<int64_t> shape) {
  const auto found = call.file.tensors().find(name);
  return found == call.file.tensors().end() || found->second.shape == shape;
}

std::string read_metadata(StoredCall* call) {
  call->scale = 1 / std::sqrt(call->d);
  if (const auto scale = call->file.metadata().find("scale"); scale != call->file.metadata().end()) {
    const std::string& text = scale->second;
    if (!read_number(text, &call->scale)) return "metadata scale '" + text + "' is not a number";
  }
  const auto causal = call->file.metadata().find("causal");
  const std::string text = causal == call->file.metadata().end() ? "false" : causal->second;
  if (text == "true" || text == "True" || text == "1" || text == "top-left")
    call->causal = Causal::kTopLeft;
  else if (text == "bottom-right")
    call->causal = Causal::kBottomRight;
  else if (text != "false" && text != "False" && text != "0")
    return "metadata causal '" + text + "' is not one of true, false, top-left, bottom-right";
  return "";
}

// Reads the tensors of the call; other tensors of the file are ignored.
std::string read_data(StoredCall* call) {
  for (const char* name : {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"}) {
    const auto found = call->file.tensors().find(name);
    if (found == call->file.tensors().end()) continue;
    if (found->second.dtype == DType::kNone)
      return std::string(name) + " has type " + printable(found->second.type) +
             ": F64, F32, BF16 and F16 are judged";
    std::vector<char>& bytes = call->data[name];
    bytes.resize(found->second.bytes);
    if (const std::string problem = call->file.read(found->second, 0, bytes.size(), bytes.data());
        !problem.empty())
      return problem;
  }
  return "";
}

}  // namespace

std::string read_call(const std::string& path, StoredCall* call) {
  if (const std::string problem = call->file.open(path); !problem.empty()) return problem;
  const auto& tensors = call->file.tensors();
  for (const char* name : {"q", "k", "v", "out"})
    if (!tensors.contains(name) || tensors.at(name).shape.size() != 4)
      return path + " needs q, k, v, out as [batch, heads, length, d] in fp64, fp32, bf16 or fp16";
  const StoredTensor &q = tensors.at("q"), &k = tensors.at("k");
  for (int64_t extent : {q.shape[0], q.shape[1], q.shape[2], q.shape[3], k.shape[1], k.shape[2]})
    if (extent < 1 || extent > 1 << 20)  // a larger extent is taken for an error of the file
      return path + " has an empty or impossible shape";
  call->dtype = q.dtype;
  call->batch = static_cast<int>(q.shape[0]);
  call->heads = static_cast<int>(q.shape[1]);
  call->queries = static_cast<int>(q.shape[2]);
  call->d = static_cast<int>(q.shape[3]);
  call->kv_heads = static_cast<int>(k.shape[1]);
  call->keys = static_cast<int>(k.shape[2]);
  const std::vector<int64_t> per_key{q.shape[0], k.shape[1], k.shape[2], q.shape[3]};
  for (const char* name : {"out", "dout", "dq"})
    if (!shape_is(*call, name, q.shape)) return std::string(name) + " has not the shape of q";
  for (const char* name : {"k", "v", "dk", "dv"})
    if (!shape_is(*call, name, per_key)) return std::string(name) + " has not the shape of k";
  if (!shape_is(*call, "lse", {q.shape[0], q.shape[1], q.shape[2]}))
    return "lse is not [batch, heads, length]";
  if (call->heads % call->kv_heads != 0) return "the heads of q are no multiple of those of k";
  call->backward = tensors.contains("dout") &&
                   (tensors.contains("dq") || tensors.contains("dk") || tensors.contains("dv"));
  const std::string problem = read_metadata(call);
  return problem.empty() ? read_data(call) : problem;
}

std::vector<Verdict> judge(const StoredCall& call, const std::vector<Algorithm>& models, const Tiling& tiling,
                           int threads) {
  const NumberFormat format = *parse_format(name_of(call.dtype)), fp64 = *parse_format("fp64");
  Settings settings;
  settings.scale = call.scale;
  settings.tiling = tiling;
  settings.backward = call.backward;
  const size_t slices = static_cast<size_t>(call.batch) * call.kv_heads;
  std::vector<const Field*> fields;
  for (const Field& field : kResults)
    if (call.file.tensors().contains(field.name_in_file) &&
        (call.backward || !is_backward(field.name_in_file)))
      fields.push_back(&field);
  std::vector<std::vector<Part>> parts(fields.size() + models.size(), std::vector<Part>(slices));

  const Tensor visible = visible_keys(call);
  parallel_for(slices, threads, [&](size_t slice) {
    // b: batch element, h: kv-head.
    const int b = static_cast<int>(slice) / call.kv_heads, h = static_cast<int>(slice) % call.kv_heads;
    Tensors inputs{{"query", slice_of(call, "q", true, b, h)},
                   {"key", slice_of(call, "k", false, b, h)},
                   {"value", slice_of(call, "v", false, b, h)},
                   {"visible", visible}};
    if (call.backward) inputs["grad_out"] = slice_of(call, "dout", true, b, h);
    const auto run = [&](Run algorithm, const NumberFormat& run_format) {
      Arithmetic arithmetic(run_format, natural_accumulator(run_format));
      return algorithm(inputs, settings, arithmetic);
    };
    const Run unfused = plain_of(Family::kAttention).run;
    const Tensors reference = run(unfused, fp64), plain = run(unfused, format);
    for (size_t f = 0; f < fields.size(); ++f) {
      const char* name = fields[f]->name_in_lab;
      // The log-sum-exp may have another type than the call's other tensors, usually fp32.
      const NumberFormat stored =
          *parse_format(name_of(call.file.tensors().at(fields[f]->name_in_file).dtype));
      parts[f][slice] = part_of(slice_of(call, fields[f]->name_in_file, fields[f]->per_query, b, h),
                                plain.at(name), reference.at(name), stored);
      // An upper bound of the squares of the two terms whose difference is dq. In dk the query replaces k.
      if (is_zero_gradient(call, fields[f]->name_in_file))
        parts[f][slice].squares = call.scale * call.scale * squares_of(inputs["grad_out"]) *
                                  squares_of(inputs["value"]) *
                                  squares_of(inputs[fields[f]->per_query ? "key" : "query"]);
    }
    for (size_t m = 0; m < models.size(); ++m)
      parts[fields.size() + m][slice] =
          part_of(run(models[m].run, format).at("out"), plain.at("out"), reference.at("out"), format);
  });

  std::vector<Verdict> verdicts;
  for (size_t f = 0; f < fields.size(); ++f)
    verdicts.push_back(verdict_of(call, fields[f]->name_in_file, parts[f], true));
  for (size_t m = 0; m < models.size(); ++m)
    verdicts.push_back(verdict_of(call, std::string(models[m].name), parts[fields.size() + m], false));
  return verdicts;
}

}  // namespace foreshock::lab
