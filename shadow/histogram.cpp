// Makes histograms from counters and from values, stores them as bytes, and computes their Wasserstein
// distance W1. A bin has the fp32 values with the same upper 20 bits; the residual of a value is its lower 12
// bits. A pattern is a 16-bit value. The arrays `words` have one counter for each bin (with the sum of the
// residuals in the lower bits of the word) or for each pattern (kernels/histogram.h).
#include "shadow/histogram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>

#include "kernels/histogram.h"

namespace foreshock {
namespace {

// In a Histogram, the index of the bin that begins at +0. In the index of a counter, the bit of the sign.
constexpr uint32_t kZero = 1u << 19;
// A "magnitude" is the upper 20 bits of an fp32 without the sign; it numbers the bins of one sign.
constexpr uint32_t kInfinite = 0x7f800u;    // least magnitude of values that are not finite
constexpr uint32_t kMagnitude = kZero - 1;  // mask of a magnitude
constexpr uint32_t kSignOfFp32 = 1u << 31, kInfinityOfFp32 = 0x7f800000u;

// Returns the edge nearer to 0 of the bin with this magnitude, as a positive number.
double edge(uint32_t magnitude) {
  if (magnitude == kInfinite) return 0x1p128;
  return std::bit_cast<float>(magnitude << kBinResidualBits);
}

// Returns the index of a bin in a Histogram, where bins are in the order of their values.
uint32_t index_of(bool negative, uint32_t magnitude) {
  return negative ? kZero - 1 - magnitude : kZero + magnitude;
}

// Calls visit(bits) for all indexes of counters in ascending order of the values that they count. The highest
// bit of an index is the sign; each sign has `half` indexes, in the order of the magnitude. If any_in(first)
// is false, skips the kCounterRun counters from `first` on.
template <class AnyIn, class Visit>
void ascending(uint32_t half, AnyIn any_in, Visit visit) {
  for (uint32_t end = 2 * half; end > half; end -= kCounterRun) {
    if (!any_in(end - kCounterRun)) continue;
    for (uint32_t bits = end; bits-- > end - kCounterRun;) visit(bits);
  }
  for (uint32_t first = 0; first < half; first += kCounterRun) {
    if (!any_in(first)) continue;
    for (uint32_t bits = first; bits < first + kCounterRun; ++bits) visit(bits);
  }
}

uint64_t take(uint64_t* word) {
  const uint64_t value = *word;
  *word = 0;
  return value;
}

// Adds `count` values with the fp32 bits `bits` to `fresh`. Finite values must come in ascending order. Their
// residual is 0, since they come from 16-bit formats.
void add_value(uint32_t bits, uint64_t count, Histogram* fresh) {
  const uint32_t magnitude = bits & ~kSignOfFp32;
  if (magnitude > kInfinityOfFp32) {
    fresh->not_a_number += count;
  } else if (magnitude == kInfinityOfFp32) {
    (bits == magnitude ? fresh->plus_infinity : fresh->minus_infinity) += count;
  } else {
    fresh->finite += count;
    if (bits == kSignOfFp32) fresh->minus_zero += count;
    const bool negative = bits > kSignOfFp32;  // -0 is 0
    const uint32_t index = index_of(negative, magnitude >> kBinResidualBits);
    if (!fresh->bins.empty() && fresh->bins.back().index == index)
      fresh->bins.back().count += count;
    else
      fresh->bins.push_back({index, count, 0});
  }
}

// Returns the sum of the kPatternSets counters of a pattern, and zeroes them.
uint64_t take_pattern(uint32_t* words, uint32_t pattern) {
  uint64_t count = 0;
  for (size_t set = 0; set < kPatternSets; ++set) {
    count += words[set * kPatterns + pattern];
    words[set * kPatterns + pattern] = 0;
  }
  return count;
}

// Counts and zeroes the words of values that are not finite. A bin can hold infinities and NaN, so infinities
// are also counted in separate words.
void take_non_finite(uint64_t* words, Histogram* fresh) {
  uint64_t all = 0;
  for (uint32_t sign : {0u, kZero}) {
    for (uint32_t m = kInfinite; m <= kMagnitude; ++m) all += take(words + (sign | m)) >> kBinCountShift;
  }
  fresh->plus_infinity = take(words + kPlusInfinityWord);
  fresh->minus_infinity = take(words + kMinusInfinityWord);
  fresh->not_a_number = all - fresh->plus_infinity - fresh->minus_infinity;
}

}  // namespace

double lower_edge(uint32_t index) { return index >= kZero ? edge(index - kZero) : -edge(kZero - index); }

double upper_edge(uint32_t index) {
  return index >= kZero ? edge(index - kZero + 1) : -edge(kZero - 1 - index);
}

void take_patterns(uint32_t* words, DType type, Histogram* histogram) {
  Histogram fresh;
  const auto any_in = [words](uint32_t first) {
    const uint32_t* run = words + first;
    return any_in_run(run) || any_in_run(run + kPatterns) || any_in_run(run + 2 * kPatterns) ||
           any_in_run(run + 3 * kPatterns);
  };
  static_assert(kPatternSets == 4);
  ascending(kPatterns / 2, any_in, [&](uint32_t pattern) {
    const uint64_t count = take_pattern(words, pattern);
    if (count > 0) add_value(fp32_bits(static_cast<uint16_t>(pattern), type), count, &fresh);
  });
  merge(fresh, histogram);
}

void take_bins(uint64_t* words, Histogram* histogram) {
  Histogram fresh;
  take_non_finite(words, &fresh);
  fresh.minus_zero = take(words + kMinusZeroWord);
  // -0 is counted in the bin of the smallest negative values; it is moved to the bin of +0.
  words[kZero] -= fresh.minus_zero << kBinCountShift;
  words[0] += fresh.minus_zero << kBinCountShift;
  const auto any_in = [words](uint32_t first) { return any_in_run(words + first); };
  ascending(kZero, any_in, [&](uint32_t bits) {
    const uint64_t word = words[bits];
    if (word == 0) return;
    words[bits] = 0;
    const uint64_t count = word >> kBinCountShift;
    fresh.bins.push_back(
        {index_of(bits & kZero, bits & kMagnitude), count, word & ((uint64_t{1} << kBinCountShift) - 1)});
    fresh.finite += count;
  });
  merge(fresh, histogram);
}

void merge(const Histogram& other, Histogram* histogram) {
  std::vector<HistogramBin> bins;
  bins.reserve(std::max(histogram->bins.size(), other.bins.size()));
  auto mine = histogram->bins.begin();
  for (const HistogramBin& bin : other.bins) {
    while (mine != histogram->bins.end() && mine->index < bin.index) bins.push_back(*mine++);
    bins.push_back(bin);
    if (mine == histogram->bins.end() || mine->index != bin.index) continue;
    bins.back().count += mine->count;
    bins.back().residual += mine->residual;
    ++mine;
  }
  bins.insert(bins.end(), mine, histogram->bins.end());
  histogram->bins = std::move(bins);
  histogram->finite += other.finite;
  histogram->minus_zero += other.minus_zero;
  histogram->not_a_number += other.not_a_number;
  histogram->plus_infinity += other.plus_infinity;
  histogram->minus_infinity += other.minus_infinity;
}

double mean_magnitude(const Histogram& histogram) {
  if (histogram.finite == 0) return std::numeric_limits<double>::quiet_NaN();
  constexpr double kUnit = 1.0 / (1 << kBinResidualBits);
  double sum = 0, lost = 0;  // Neumaier's sum: with terms >= 0 its error does not grow with their number
  for (const HistogramBin& bin : histogram.bins) {
    const double low = lower_edge(bin.index), high = upper_edge(bin.index);
    const double term = static_cast<double>(bin.count) * std::min(std::fabs(low), std::fabs(high)) +
                        static_cast<double>(bin.residual) * ((high - low) * kUnit);
    const double next = sum + term;
    lost += sum >= term ? (sum - next) + term : (term - next) + sum;
    sum = next;
  }
  return (sum + lost) / static_cast<double>(histogram.finite);
}

namespace {

// Up to this number of values, sorting them is faster than scanning a million counters.
constexpr uint64_t kFew = 1 << 15;

// A trainer sends the counters of a large tensor as one or more packed sets. A set is full if its counters
// can count no more values. In addition to full sets, two that are not full are allowed.
constexpr uint64_t kSpareSets = 2;

// The bits of an fp32, equal to kSignOfFp32 and kInfinityOfFp32 above.
constexpr uint32_t kSign = 1u << 31, kInfinity = 0x7f800000u;

uint64_t values_in(const Histogram& histogram) { return histogram.finite + histogram.non_finite(); }

uint32_t bits_as_fp32(const std::byte* at, DType type) {
  if (type == DType::kFp32) {
    uint32_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return fp32_bits(bits, type);
}

// Radix sort by the index of the bin (the upper 20 bits), in two passes of 10 bits each. place[n] becomes the
// number of keys whose 10 bits are less than n, i.e. the position of the next key with the bits n.
void sort_by_bin(std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  other->resize(keys->size());
  for (int shift : {kBinResidualBits, kBinResidualBits + 10}) {
    std::array<uint32_t, 1025> place{};
    for (uint32_t key : *keys) ++place[(key >> shift & 1023) + 1];
    for (size_t n = 1; n < place.size(); ++n) place[n] += place[n - 1];
    for (uint32_t key : *keys) (*other)[place[key >> shift & 1023]++] = key;
    keys->swap(*other);
  }
}

}  // namespace

bool HistogramReader::read_values(std::span<const std::byte> bytes, DType type, uint64_t elements,
                                  Histogram* histogram) {
  *histogram = {};
  if (elements > kMostBinned || bytes.size() != elements * size_of(type)) return false;
  if (elements <= kFew) {
    count_few(bytes, type, histogram);
    return true;
  }
  bins_.resize(kBinWords);
  patterns_.resize(kPatternWords);
  if (type == DType::kFp32) {
    count_bins(bytes.data(), elements, bins_.data());
    take_bins(bins_.data(), histogram);
  } else {
    count_patterns(bytes.data(), elements, patterns_.data());
    take_patterns(patterns_.data(), type, histogram);
  }
  return true;
}

bool HistogramReader::read_counters(std::span<const std::byte> bytes, DType type, uint64_t elements,
                                    Histogram* histogram) {
  *histogram = {};
  bins_.resize(kBinWords);
  patterns_.resize(kPatternWords);
  if (unpack(bytes, type, elements, histogram) && values_in(*histogram) == elements) return true;
  std::fill(bins_.begin(), bins_.end(), 0);  // invalid bytes may have left counts
  std::fill(patterns_.begin(), patterns_.end(), 0);
  return false;
}

// Counts a small number of values by sorting keys. A key is the index of the value's bin (20 bits), followed
// by the residual (12 bits). The index of a negative value is the complement of its upper bits.
void HistogramReader::count_few(std::span<const std::byte> bytes, DType type, Histogram* histogram) {
  keys_.clear();
  for (size_t at = 0; at < bytes.size(); at += size_of(type)) {
    uint32_t bits = bits_as_fp32(bytes.data() + at, type);
    const uint32_t magnitude = bits & ~kSign;
    if (magnitude > kInfinity) {
      ++histogram->not_a_number;
    } else if (magnitude == kInfinity) {
      ++(bits == magnitude ? histogram->plus_infinity : histogram->minus_infinity);
    } else {
      histogram->minus_zero += bits == kSign;
      if (bits == kSign) bits = 0;
      constexpr uint32_t kResidual = (1u << kBinResidualBits) - 1;
      keys_.push_back((((bits & kSign) != 0 ? ~bits : bits | kSign) & ~kResidual) | (bits & kResidual));
    }
  }
  sort_by_bin(&keys_, &sorted_);
  for (uint32_t key : keys_) {
    const uint32_t index = key >> kBinResidualBits;
    if (histogram->bins.empty() || histogram->bins.back().index != index)
      histogram->bins.push_back({index, 0, 0});
    ++histogram->bins.back().count;
    histogram->bins.back().residual += key & ((1u << kBinResidualBits) - 1);
  }
  histogram->finite = keys_.size();
}

// Unpacks sets of counters and adds them up. Every set costs a scan of all counters even if it has few bytes,
// so invalid bytes must not contain many: the number of sets is limited by the number of values.
bool HistogramReader::unpack(std::span<const std::byte> bytes, DType type, uint64_t elements,
                             Histogram* histogram) {
  const bool is_fp32 = type == DType::kFp32;
  uint64_t sets_left = kSpareSets + elements / (is_fp32 ? kMostBinned : kMostPatterns);
  while (!bytes.empty()) {
    const uint64_t before = values_in(*histogram);
    if (sets_left-- == 0) return false;
    if (is_fp32) {
      if (!unpack_bins(&bytes, elements, bins_.data())) return false;
      take_bins(bins_.data(), histogram);
    } else {
      if (!unpack_patterns(&bytes, elements, patterns_.data())) return false;
      take_patterns(patterns_.data(), type, histogram);
    }
    if (values_in(*histogram) == before || values_in(*histogram) > elements) return false;
  }
  return true;
}

namespace {

constexpr uint64_t kVersion = 1;
constexpr uint64_t kMostValues = uint64_t{1} << 48;  // products of two counts fit into 128 bits (Wide)

using Bytes = std::span<const std::byte>;

void put(uint64_t number, std::string* bytes) {
  char text[kLongestVarint];
  bytes->append(text, put_varint(number, text));
}

// Reads a bin of a stored histogram. *index: index of the last bin read, plus 1; 0 before the first bin.
// *left: number of values not yet read. Both are updated. Returns false if the bin is not one of finite
// values ([kFirst, kEnd)), if its count exceeds *left, or if its residual is too large for its count. The
// first and the last 0x800 bins are those of NaN and infinity.
bool get_bin(Bytes* bytes, uint64_t* index, uint64_t* left, HistogramBin* bin) {
  constexpr uint64_t kMost = (1u << kBinResidualBits) - 1, kFirst = 0x800, kEnd = kBins - kFirst;
  uint64_t distance = 0;
  if (!get_varint(bytes, &distance) || !get_varint(bytes, &bin->count) || !get_varint(bytes, &bin->residual))
    return false;
  if (distance == 0 || distance > kBins || bin->count == 0 || bin->count > *left) return false;
  *index += distance;
  *left -= bin->count;
  bin->index = static_cast<uint32_t>(*index - 1);
  return *index > kFirst && *index <= kEnd && bin->residual <= bin->count * kMost;
}

}  // namespace

std::string store(const Histogram& histogram) {
  std::string bytes;
  for (uint64_t number : {kVersion, histogram.finite, histogram.minus_zero, histogram.not_a_number,
                          histogram.plus_infinity, histogram.minus_infinity, uint64_t{histogram.bins.size()}})
    put(number, &bytes);
  uint32_t before = 0;
  for (const HistogramBin& bin : histogram.bins) {
    put(bin.index + 1 - before, &bytes);
    put(bin.count, &bytes);
    put(bin.residual, &bytes);
    before = bin.index + 1;
  }
  return bytes;
}

bool restore(std::string_view stored, Histogram* histogram) {
  Bytes bytes = std::as_bytes(std::span(stored));
  Histogram read;
  uint64_t version = 0, bins = 0, index = 0;
  for (uint64_t* number : {&version, &read.finite, &read.minus_zero, &read.not_a_number, &read.plus_infinity,
                           &read.minus_infinity, &bins})
    if (!get_varint(&bytes, number)) return false;
  uint64_t left = read.finite;
  if (version != kVersion || bins > bytes.size() / 3) return false;  // a bin has three numbers
  if (read.finite > kMostValues || read.minus_zero > read.finite) return false;
  read.bins.resize(bins);
  for (HistogramBin& bin : read.bins)
    if (!get_bin(&bytes, &index, &left, &bin)) return false;
  if (left != 0 || !bytes.empty()) return false;
  *histogram = std::move(read);
  return true;
}

namespace {

__extension__ using Wide = __int128;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Wide kUnits = 1 << kBinResidualBits;  // areas are in units of 1/4096 of a bin's width

// Neumaier's sum: for terms of one sign the error is about one rounding.
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

// Calls visit(index, bin of a, bin of b) for all bins of a or b, in order. A missing bin is passed as empty.
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

// Returns the integral over x, from one edge of the bin to the other, of the number of the bin's values below
// x, in units of 1/4096 of the bin's width. Each value contributes its distance to the upper edge. A residual
// is the distance to the edge nearer to 0, which is the upper edge of a negative bin.
Wide area_of(const HistogramBin& bin) {
  const Wide residual = static_cast<Wide>(bin.residual);
  const bool negative = bin.index < kBins / 2;
  return negative ? residual : static_cast<Wide>(bin.count) * kUnits - residual;
}

// F - G inside one bin of width 1, with F and G the distribution functions of a and b. Known are F - G at the
// lower edge, the masses of a and b, and the integrals of F and G. All are integers in one unit.
struct Inside {
  Wide start = 0;               // F - G at the lower edge
  Wide mass_a = 0, mass_b = 0;  // mass inside the bin
  Wide area_a = 0, area_b = 0;  // integral over x of the mass in the bin below x; at most the mass
  Wide end() const { return start + mass_a - mass_b; }
  Wide integral() const { return start + area_a - area_b; }
};

double to_double(Wide x) { return static_cast<double>(x); }

// Let m(x) be the mass in the bin below x, rising to `mass`, with integral `area`. Returns the largest
// possible integral of max(0, m - level). By convexity it is reached if all mass is at one point.
double excess(Wide area, Wide mass, Wide level) {
  return mass > level ? to_double(area) * (to_double(mass - level) / to_double(mass)) : 0;
}

// Returns an upper bound of the integral of |F - G| over the bin: the least of three bounds, raised to the
// lower bound |integral of F - G| if rounding has put it below. by_range is the largest |F - G| that the
// masses allow. by_start and by_end use |y| = y + 2 max(0, -y) with y = F - G. If `start` is not negative, -y
// is at most the mass of b below x minus `start`; if `end` is not, at most the mass of a above x minus `end`.
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

// Estimates F - G in the bin by the parabola start + linear t + square t^2 with the same ends and integral.
struct Parabola {
  explicit Parabola(const Inside& in)
      : start(to_double(in.start)),
        square(3 * to_double(in.start + in.end() - 2 * in.integral())),
        linear(to_double(in.end() - in.start) - square) {}

  double integral_to(double t) const { return t * (start + t * (linear / 2 + t * square / 3)); }

  // Returns the zeros inside the bin in ascending order; 1 replaces a missing zero. A small rounding error of
  // a zero changes the integral of the magnitude only by its square.
  std::pair<double, double> crossings() const {
    const auto inside = [](double t) { return t > 0 && t < 1 ? t : 1; };  // 1 for NaN too
    const double discriminant = linear * linear - 4 * square * start;
    if (discriminant <= 0) return {1, 1};
    // The zeros are q / square and start / q. In q, both terms have the same sign, so nothing cancels.
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

// Computes W1, the integral of |F - G|, over bins and the gaps between them, in ascending order. Masses are
// counts times 4096, times a weight that gives a and b equal totals. For kMostValues values in each of a and
// b, they are at most 2^108.
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
    // A term has at most 8 roundings. Where two parts of it cancel (by_start, by_end), at least a third of
    // their sum remains, so its relative error is at most 24 * 2^-53. The sum and the division add 4 * 2^-53.
    // The total, 28 * 2^-53, is below 16 epsilon.
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

  // difference_: (F - G) * one_. one_: the mass of all values of a, which is also that of b. position_: upper
  // edge of the last bin.
  Wide weight_a_ = 1, weight_b_ = 1, difference_ = 0;
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

// Computes the formula of histogram.h: sqrt(2 / pi) * sqrt(1 / n + 1 / m) * integral of sqrt(F (1 - F)).
double sampling_noise_floor(const Histogram& a, const Histogram& b) {
  if (a.finite == 0 || b.finite == 0) return kNaN;
  const double n = static_cast<double>(a.finite), m = static_cast<double>(b.finite);
  double below = 0, position = 0;  // F of the mixture of a and b at the end of the last bin, and this end
  Sum integral;
  const auto spread = [](double f) { return std::sqrt(std::max(0.0, f * (1 - f))); };
  side_by_side(a, b, [&](uint32_t index, const HistogramBin& in_a, const HistogramBin& in_b) {
    const double low = lower_edge(index), high = upper_edge(index);
    const double mass = (static_cast<double>(in_a.count) / n + static_cast<double>(in_b.count) / m) / 2;
    const double area = (to_double(area_of(in_a)) / n + to_double(area_of(in_b)) / m) / 2 / to_double(kUnits);
    integral.add(spread(below) * (low - position));
    integral.add(spread(below + area) * (high - low));  // below + area: the mean of F in the bin
    below += mass;
    position = high;
  });
  return std::sqrt(2 / std::numbers::pi) * std::sqrt(1 / n + 1 / m) * integral.value();
}

}  // namespace foreshock
