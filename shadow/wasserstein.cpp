#include "shadow/wasserstein.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "kernels/histogram.h"

namespace foreshock {
namespace {

__extension__ using Wide = __int128;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Wide kUnits = 1 << kBinResidualBits;  // areas are in 1/4096 of a bin's width

// The sum of terms of one sign, rounded about once (Neumaier).
class Sum {
 public:
  void add(double term) {
    const double next = sum_ + term;
    lost_ += std::fabs(sum_) >= std::fabs(term) ? (sum_ - next) + term : (term - next) + sum_;
    sum_ = next;
  }
  double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0, lost_ = 0;
};

// Two histograms side by side: visits the bins that either has, ascending.
template <class Visit>
void side_by_side(const Histogram& a, const Histogram& b, Visit visit) {
  constexpr HistogramBin kNone;
  auto in_a = a.bins.begin(), in_b = b.bins.begin();
  while (in_a != a.bins.end() || in_b != b.bins.end()) {
    const uint32_t next = std::min(in_a != a.bins.end() ? in_a->index : UINT32_MAX,
                                   in_b != b.bins.end() ? in_b->index : UINT32_MAX);
    const bool has_a = in_a != a.bins.end() && in_a->index == next;
    const bool has_b = in_b != b.bins.end() && in_b->index == next;
    visit(next, has_a ? *in_a++ : kNone, has_b ? *in_b++ : kNone);
  }
}

// The integral over the bin of what has entered from it, in 1/4096 of its width: each value counts from where
// it lies to the upper edge.
Wide area_of(const HistogramBin& bin) {
  const Wide residual = static_cast<Wide>(bin.residual);
  const bool negative = bin.index < kBins / 2;
  return negative ? residual : static_cast<Wide>(bin.count) * kUnits - residual;
}

// F - G inside one bin of width 1, where only its start, the masses that enter and the integrals of what has
// entered are known. Integers of one unit, so that no difference loses anything.
struct Inside {
  Wide start = 0;               // F - G at the lower edge
  Wide mass_a = 0, mass_b = 0;  // what enters
  Wide area_a = 0, area_b = 0;  // the integral of what has entered: at most the mass
  Wide end() const { return start + mass_a - mass_b; }
  Wide integral() const { return start + area_a - area_b; }
};

double to_double(Wide x) { return static_cast<double>(x); }

// The largest integral of max(0, entered - level) when `mass` enters somewhere and its integral is `area`: by
// convexity the one where it enters all at once.
double excess(Wide area, Wide mass, Wide level) {
  return mass > level ? to_double(area) * (to_double(mass - level) / to_double(mass)) : 0;
}

// At most this is the integral of |F - G|. |x| = x + 2 max(0, -x), and F - G can be negative only as far as
// what has entered of G exceeds the start, or what has yet to enter of F exceeds the end.
double upper_bound(const Inside& in) {
  const Wide rest_a = in.mass_a - in.area_a, rest_b = in.mass_b - in.area_b, end = in.end();
  const double integral = to_double(in.integral());
  const double by_range =
      std::max(std::fabs(to_double(in.start + in.mass_a)), std::fabs(to_double(in.start - in.mass_b)));
  const double by_start = in.start >= 0 ? integral + 2 * excess(in.area_b, in.mass_b, in.start)
                                        : -integral + 2 * excess(in.area_a, in.mass_a, -in.start);
  const double by_end = end >= 0 ? integral + 2 * excess(rest_a, in.mass_a, end)
                                 : -integral + 2 * excess(rest_b, in.mass_b, -end);
  return std::max(std::fabs(integral), std::min({by_range, by_start, by_end}));
}

// The estimate: F - G inside the bin as the parabola with its ends and its integral, start + linear t +
// square t^2.
struct Parabola {
  explicit Parabola(const Inside& in)
      : start(to_double(in.start)),
        square(3 * to_double(in.start + in.end() - 2 * in.integral())),
        linear(to_double(in.end() - in.start) - square) {}

  double integral_to(double t) const { return t * (start + t * (linear / 2 + t * square / 3)); }

  // Where it crosses 0 inside the bin, ascending; elsewhere 1. A root that rounding misplaces by little
  // changes the integral of the magnitude by its square.
  std::pair<double, double> crossings() const {
    const auto inside = [](double t) { return t > 0 && t < 1 ? t : 1; };  // false for a NaN too
    const double discriminant = linear * linear - 4 * square * start;
    if (discriminant <= 0) return {1, 1};
    const double q = -(linear + std::copysign(std::sqrt(discriminant), linear)) / 2;
    return std::minmax({inside(q / square), inside(start / q)});
  }

  double magnitude() const {
    const auto [first, second] = crossings();
    return std::fabs(integral_to(first)) + std::fabs(integral_to(second) - integral_to(first)) +
           std::fabs(integral_to(1) - integral_to(second));
  }

  double start, square, linear;
};

// Walks up the line. Masses are counts times 4096 times the weight that gives both sides one unit, so they
// are integers: below 2^93 for 2^40 values a side.
class Walk {
 public:
  Walk(const Histogram& a, const Histogram& b) {
    const uint64_t divisor = std::gcd(a.finite, b.finite);
    weight_a_ = static_cast<Wide>(b.finite / divisor);
    weight_b_ = static_cast<Wide>(a.finite / divisor);
    one_ = to_double(static_cast<Wide>(a.finite) * weight_a_ * kUnits);
  }

  void visit(uint32_t index, const HistogramBin& a, const HistogramBin& b) {
    const double low = lower_edge(index), width = upper_edge(index) - low;
    add_gap(std::fabs(to_double(difference_)) * (low - position_));
    add_bin(a, b, width);
    position_ = low + width;
  }

  Wasserstein result() const {
    // A term is rounded at most 8 times, and where two parts of it cancel (by_start, by_end) what is left is
    // a third of them or more: 24 * 2^-53; their sum and the division 4 times more. 28 * 2^-53 < 16 epsilon.
    constexpr double kRounding = 16 * std::numeric_limits<double>::epsilon();
    Wasserstein result{value_.value() / one_, low_.value() / one_, high_.value() / one_};
    result.low *= 1 - kRounding;
    result.high *= 1 + kRounding;
    return result;
  }

 private:
  void add_gap(double term) {
    if (difference_ == 0) return;
    low_.add(term);
    value_.add(term);
    high_.add(term);
  }

  void add_bin(const HistogramBin& a, const HistogramBin& b, double width) {
    const Inside in{difference_, static_cast<Wide>(a.count) * weight_a_ * kUnits,
                    static_cast<Wide>(b.count) * weight_b_ * kUnits, area_of(a) * weight_a_,
                    area_of(b) * weight_b_};
    const double low = std::fabs(to_double(in.integral())), high = upper_bound(in);
    low_.add(low * width);
    value_.add(std::clamp(Parabola(in).magnitude(), low, high) * width);
    high_.add(high * width);
    difference_ = in.end();
  }

  Wide weight_a_ = 1, weight_b_ = 1, difference_ = 0;  // F - G, in 1 / one_
  double one_ = 1, position_ = 0;
  Sum low_, value_, high_;
};

}  // namespace

Wasserstein wasserstein(const Histogram& a, const Histogram& b) {
  if (a.finite == 0 || b.finite == 0) return {kNaN, kNaN, kNaN};
  Walk walk(a, b);
  side_by_side(a, b, [&](uint32_t index, const HistogramBin& in_a, const HistogramBin& in_b) {
    walk.visit(index, in_a, in_b);
  });
  return walk.result();
}

double sampling_noise_floor(const Histogram& a, const Histogram& b) {
  if (a.finite == 0 || b.finite == 0) return kNaN;
  const double n = static_cast<double>(a.finite), m = static_cast<double>(b.finite);
  double below = 0, position = 0;  // F of the mixture, and where the last bin ended
  Sum integral;
  const auto spread = [](double f) { return std::sqrt(std::max(0.0, f * (1 - f))); };
  side_by_side(a, b, [&](uint32_t index, const HistogramBin& in_a, const HistogramBin& in_b) {
    const double low = lower_edge(index), high = upper_edge(index);
    const double mass = (static_cast<double>(in_a.count) / n + static_cast<double>(in_b.count) / m) / 2;
    const double area = (to_double(area_of(in_a)) / n + to_double(area_of(in_b)) / m) / 2 / to_double(kUnits);
    integral.add(spread(below) * (low - position));
    integral.add(spread(below + area) * (high - low));
    below += mass;
    position = high;
  });
  return std::sqrt(2 / std::numbers::pi) * std::sqrt(1 / n + 1 / m) * integral.value();
}

}  // namespace foreshock
