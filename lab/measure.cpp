// Runs the algorithms on random inputs and summarises their deviations from the fp64 reference over the seeds
// of the inputs. A point is one choice of algorithm, format, inputs and tiles. A family has the algorithms of
// one operation. Its plain algorithm (unfused attention, for example) computes the reference, in fp64.
#include "lab/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

namespace foreshock::lab {
namespace {

double ratio(double a, double b) { return a == 0 ? 0 : a / b; }  // 0 for 0 / 0

// 97.5 % quantile of Student's t: up to 30 degrees of freedom a table, then an expansion exact to 0.5 %.
double student_t(size_t degrees) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                               2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return degrees <= std::size(kTable) ? kTable[degrees - 1] : 1.960 + 2.5 / static_cast<double>(degrees);
}

struct MeanAndError {
  double mean = 0, standard_error = 0;  // standard error of the mean; 0 for a single value
};

MeanAndError mean_and_error_of(std::span<const double> values) {
  const double count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (double v : values) sum += v;
  const double mean = sum / count;
  for (double v : values) squares += (v - mean) * (v - mean);
  return {mean, values.size() < 2 ? 0 : std::sqrt(squares / (count - 1) / count)};
}

}  // namespace

Deviation deviation_of(const Tensor& result, const Tensor& reference, const NumberFormat& format) {
  Deviation deviation;
  const double count = static_cast<double>(result.data.size());
  double sum = 0, reference_squares = 0, largest = 0;
  for (size_t i = 0; i < result.data.size(); ++i) {
    const double expected = reference.data[i], difference = result.data[i] - expected;
    if (!std::isfinite(difference)) {
      ++deviation.non_finite;
      continue;
    }
    const double magnitude = std::fabs(difference);
    deviation.max_abs = std::max(deviation.max_abs, magnitude);
    deviation.signed_sum += difference;
    sum += magnitude;
    deviation.squares += magnitude * magnitude;
    reference_squares += expected * expected;
    deviation.outward += expected < 0 ? -difference : difference;  // > 0: away from zero
    deviation.ulps += format.ulp(expected);
    largest = std::max(largest, std::fabs(expected));
  }
  if (deviation.non_finite > 0) {
    const double nan = std::numeric_limits<double>::quiet_NaN();  // for all figures but non_finite
    return {nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, deviation.non_finite};
  }
  deviation.mean_abs = sum / count;
  deviation.std_abs =
      std::sqrt(std::max(0.0, deviation.squares / count - deviation.mean_abs * deviation.mean_abs));
  deviation.relative_l2 = ratio(std::sqrt(deviation.squares), std::sqrt(reference_squares));
  deviation.bias_ulp = ratio(deviation.outward, deviation.ulps);
  deviation.over_roundoff = ratio(deviation.max_abs, format.unit_roundoff() * largest);
  return deviation;
}

Interval interval_of(std::span<const double> values) {
  if (values.empty()) return {};
  const MeanAndError found = mean_and_error_of(values);
  if (values.size() < 2) return {found.mean, found.mean, found.mean};
  const double half = student_t(values.size() - 1) * found.standard_error;
  return {found.mean, found.mean - half, found.mean + half};
}

double z_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const MeanAndError found = mean_and_error_of(values);
  return ratio(found.mean, found.standard_error);
}

namespace {

// Points of a family that differ at most in algorithm, tiles and source of delta (a term of the backward
// pass). They have the same inputs, fp64 reference and plain result, computed once per group and seed.
struct Group {
  std::vector<size_t> points;  // indexes in measure()'s list of points
  int seeds = 0;
};

// The result of one point with one seed: the deviations of its algorithm and of the plain algorithm.
struct Result {
  std::map<std::string, Deviation> own, plain;  // deviation from the reference, by tensor
  std::map<std::string, double> from_plain;     // largest |own result - plain result|, by tensor
};

NumberFormat format_of(const Point& point) { return *parse_format(point.format); }

Accumulator accumulator_of(const Point& point) {
  return point.accumulator.empty() ? natural_accumulator(format_of(point))
                                   : *parse_accumulator(point.accumulator);
}

Arithmetic arithmetic_of(const Point& point, uint64_t seed) {
  return Arithmetic(format_of(point), accumulator_of(point), *parse_rounding(point.rounding), seed);
}

Settings settings_of(const Point& point) {
  Settings settings;
  settings.tiling = {point.block_q, point.block_k, point.splits, point.reverse};
  settings.scale = 1 / std::sqrt(point.d);
  settings.backward = point.backward;
  settings.delta = point.delta == "out" ? DeltaSource::kOut : DeltaSource::kProbabilities;
  return settings;
}

std::vector<Group> groups_of(std::span<const Point> points) {
  using Key = std::tuple<Family, std::string, std::string, std::string, std::string, std::string, int, int,
                         int, bool, double, uint64_t, int>;
  std::map<Key, size_t> index;
  std::vector<Group> groups;
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    const Key key(find_algorithm(p.algorithm)->family, p.format, p.accumulator, p.input, p.rounding,
                  p.reference, p.n, p.d, p.rows, p.backward, p.scale, p.first_seed, p.seeds);
    const auto [entry, is_new] = index.try_emplace(key, groups.size());
    if (is_new) groups.push_back({{}, p.seeds});
    groups[entry->second].points.push_back(i);
  }
  return groups;
}

std::map<std::string, Deviation> deviations(const Tensors& results, const Tensors& reference,
                                            const Arithmetic& arithmetic) {
  std::map<std::string, Deviation> all;
  for (const auto& [name, tensor] : results)
    all[name] = deviation_of(tensor, reference.at(name), arithmetic.storage());
  return all;
}

double largest_difference(const Tensor& a, const Tensor& b) {  // NaN if any difference is NaN
  double largest = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double difference = std::fabs(a.data[i] - b.data[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

// Runs one group with one of its seeds, and sets results[point][seed_index] for its points.
void run_group(std::span<const Point> points, const Group& group, int seed_index,
               std::vector<std::vector<Result>>& results) {
  const Point& first = points[group.points[0]];  // stands for all points of the group
  const Algorithm& plain = plain_of(find_algorithm(first.algorithm)->family);
  const uint64_t seed = first.first_seed + seed_index;
  const auto inputs_in = [&](const NumberFormat& format) {
    return make_inputs({plain.family, first.rows, first.n, first.d}, *parse_input_law(first.input),
                       first.scale, seed, format);
  };
  Arithmetic plain_arithmetic = arithmetic_of(first, seed);
  // The operands of a matrix product are in the format itself, other inputs in storage format (fp8: bf16).
  const bool in_format = plain.family == Family::kMatrixProduct;
  const Tensors inputs = inputs_in(in_format ? plain_arithmetic.format() : plain_arithmetic.storage());
  // The plain algorithm takes the first point's tiles, and kOut as the source of delta.
  Settings settings = settings_of(first);
  settings.delta = DeltaSource::kOut;
  const NumberFormat fp64 = *parse_format("fp64");
  Arithmetic exact(fp64, *parse_accumulator("fp64"));
  // The reference has the rounded inputs ("stored"), or the inputs before rounding ("original").
  const Tensors reference =
      plain.run(first.reference == "stored" ? inputs : inputs_in(fp64), settings, exact);
  const Tensors plain_results = plain.run(inputs, settings, plain_arithmetic);
  const auto plain_deviation = deviations(plain_results, reference, plain_arithmetic);
  for (size_t index : group.points) {
    const Point& point = points[index];
    Arithmetic arithmetic = arithmetic_of(point, seed);
    const Tensors own = find_algorithm(point.algorithm)->run(inputs, settings_of(point), arithmetic);
    Result& result = results[index][seed_index];
    result = {deviations(own, reference, arithmetic), plain_deviation, {}};
    for (const auto& [name, tensor] : own)
      result.from_plain[name] = largest_difference(tensor, plain_results.at(name));
  }
}

// Unlike ratio(), this is 1 for 0 / 0: two exact results are equally good.
double error_ratio(double own, double plain) { return own == 0 && plain == 0 ? 1 : own / plain; }

// Summarises one output tensor of a point; `results` has the result of each seed.
Measurement summary_of(const Point& point, const std::string& tensor, const std::vector<Result>& results) {
  Measurement m;
  m.point = point;
  m.tensor = tensor;
  const auto over_seeds = [&](auto value_of) {
    std::vector<double> values;
    for (const Result& r : results) values.push_back(value_of(r.own.at(tensor), r.plain.at(tensor)));
    return values;
  };
  using D = const Deviation&;
  m.max_abs = interval_of(over_seeds([](D own, D) { return own.max_abs; }));
  m.mean_abs = interval_of(over_seeds([](D own, D) { return own.mean_abs; }));
  m.std_abs = interval_of(over_seeds([](D own, D) { return own.std_abs; }));
  m.relative_l2 = interval_of(over_seeds([](D own, D) { return own.relative_l2; }));
  const std::vector<double> bias = over_seeds([](D own, D) { return own.bias_ulp; });
  m.bias_ulp = interval_of(bias);
  m.bias_z = z_of(bias);
  m.signed_sum = interval_of(over_seeds([](D own, D) { return own.signed_sum; }));
  m.over_roundoff = interval_of(over_seeds([](D own, D) { return own.over_roundoff; }));
  m.ratio_to_plain =
      interval_of(over_seeds([](D own, D plain) { return error_ratio(own.relative_l2, plain.relative_l2); }));
  m.max_ratio_to_plain =
      interval_of(over_seeds([](D own, D plain) { return error_ratio(own.max_abs, plain.max_abs); }));
  std::vector<double> from_plain;
  for (const Result& result : results) {
    m.non_finite += result.own.at(tensor).non_finite;
    from_plain.push_back(result.from_plain.at(tensor));
  }
  m.max_from_plain = interval_of(from_plain);
  return m;
}

}  // namespace

std::string why_not(const Point& p) {  // later checks use names that earlier checks accepted
  const auto algorithm = find_algorithm(p.algorithm);
  if (!algorithm) return "unknown algorithm '" + p.algorithm + "'; see foreshock lab --help";
  const auto format = parse_format(p.format);
  if (!format)
    return "unknown format '" + p.format + "'; use fp64, fp32, tf32, bf16, fp16, e4m3, e5m2 or p5e-14:15";
  if (!p.accumulator.empty() && !parse_accumulator(p.accumulator))
    return "unknown accumulator '" + p.accumulator + "'; see foreshock lab --help";
  if (!accepts(accumulator_of(p), *format))
    return "no such unit: accumulator " + p.accumulator + " does not take " + p.format;
  const auto law = parse_input_law(p.input);
  if (!law)
    return "unknown input law '" + p.input +
           "'; use normal, uniform, outlier, one_signed, flat, shifted or ties:2";
  if (!parse_rounding(p.rounding)) return "unknown rounding '" + p.rounding + "'; use rne, rtz or stochastic";
  if (p.delta != "out" && p.delta != "probabilities") return "delta is 'out' or 'probabilities'";
  if (p.reference != "stored" && p.reference != "original") return "reference is 'stored' or 'original'";
  if (p.n < 1 || p.d < 1 || p.rows < 1) return "n, d and rows must be at least 1";
  if (p.block_q < 1 || p.block_k < 1 || p.splits < 1) return "block-q, block-k and splits must be at least 1";
  if (p.seeds < 1) return "seeds must be at least 1";
  if (!std::isfinite(p.scale)) return "scale must be a finite number";
  if (law->ties > p.n) return "input " + p.input + " needs n of at least " + std::to_string(law->ties);
  if (p.backward && (algorithm->family != Family::kAttention || format->is_fp8()))
    return "the backward exists for attention in formats wider than fp8";
  if (algorithm->family == Family::kConvolution && p.n < 3)
    return "a 3 x 3 convolution needs n of at least 3";
  if (format->is_fp64() && p.rounding != "rne")
    return "fp64 is the lab's own arithmetic: it rounds to nearest only";
  return "";
}

double bytes_needed(const Point& p) {
  const double n = p.n, d = p.d, rows = p.rows;
  const Family family = find_algorithm(p.algorithm)->family;
  // Numbers of elements, estimated to be too large rather than too small. `tensors`: of inputs, results and
  // transposes. `scores`: of all matrices of size rows x keys.
  const double tensors =
      family == Family::kConvolution ? 40 * d * n * n + rows * (n * n + d * 9) : 6 * (rows + 2 * n) * d;
  const double scores = family == Family::kConvolution ? 0 : (p.backward ? 10 : 5) * rows * n;
  return sizeof(double) * (tensors + scores);
}

std::vector<Measurement> measure(std::span<const Point> points, int threads, const Progress& progress) {
  const std::vector<Group> groups = groups_of(points);
  std::vector<std::pair<const Group*, int>> tasks;
  for (const Group& group : groups)
    for (int seed_index = 0; seed_index < group.seeds; ++seed_index) tasks.emplace_back(&group, seed_index);
  std::vector<std::vector<Result>> results(points.size());
  for (size_t i = 0; i < points.size(); ++i) results[i].resize(points[i].seeds);

  std::mutex report;
  size_t done = 0;
  parallel_for(tasks.size(), threads, [&](size_t i) {
    run_group(points, *tasks[i].first, tasks[i].second, results);
    const std::lock_guard lock(report);
    ++done;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(tasks.size()));
  });

  std::vector<Measurement> measurements;
  for (size_t i = 0; i < points.size(); ++i)
    for (const auto& [tensor, deviation] : results[i][0].own)
      measurements.push_back(summary_of(points[i], tensor, results[i]));
  return measurements;
}

}  // namespace foreshock::lab
