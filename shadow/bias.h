// The signed bias of attention's result: whether its errors point away from zero or towards it more often
// than rounding explains. One slice (a sampled part of a call) is too small to show it; BiasPool pools many.
#ifndef FORESHOCK_SHADOW_BIAS_H_
#define FORESHOCK_SHADOW_BIAS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace foreshock {

// Numerator and denominator of the signed bias (BiasPool) of a result x against its exact value x*. Sums over
// the elements for which x and x* are finite and fused attention has at least three correct bits.
struct BiasSums {
  double numerator = 0;    // sum of (x - x*) sign(x*); positive: away from zero
  double denominator = 0;  // sum of ulp(x*) in the storage format
};

// Returns the bias of a result minus that of `floor`, a correct algorithm on the same elements. Empty (all
// sums 0) if one of them is empty.
BiasSums excess_bias(const BiasSums& result, const BiasSums& floor);

// Returns the part of the bias, in ulp, that no control explains: its distance from the interval that 0 and
// the biases of the controls span, positive above it and negative below it. 0 inside of it, or if the slice
// has no bias. Controls without elements are left out.
double unexplained_bias(const BiasSums& result, std::initializer_list<BiasSums> controls);

// Where a slice comes from. Slices with equal clusters may share keys and values: they are not independent.
struct BiasCluster {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t step = 0;
  int32_t rank = 0;

  bool operator==(const BiasCluster&) const = default;
};

// The signed bias of a pool of slices.
struct Bias {
  double ulp;  // in units in the last place; positive: away from zero
  // Standard score of the bias, from the spread between clusters. Absent with fewer than kMinClusters
  // clusters, with fewer than kLeastEffective effective ones, or without any spread.
  std::optional<double> z;
  int slices;
  int clusters;
};

// Pools the bias of the last 64 slices of one layer and pass, of one rank or of several. The kernel's result,
// its excess over the floor and the rounded reference need separate pools. Plain data: can be saved as bytes.
//
// The bias is a ratio of sums, b = sum S / sum D (BiasSums), because elements near zero would dominate a mean
// of per-element ratios. With the sums S_g and D_g of G clusters g, the error of b is to first order
//   b - E b = sum_g e_g / sum D,   e_g = S_g - b D_g,
// where the clusters are independent and the e_g sum to zero by the choice of b. Hence
//   var b = G / (G - 1) * sum_g e_g^2 / (sum D)^2,   z = b / sqrt(var b),
// and z has about Student's distribution with G - 1 degrees of freedom if there is no bias. Rows of one slice
// share keys and values: if they counted as independent, |z| of a rounded reference would be in the hundreds.
//
// A single cluster must not decide: in a run that diverges, one slice can have a million times the gradient
// of all others. So the weight D_g of a cluster is limited to kMostWeight times the median weight (S_g is
// scaled by the same factor). Each e_g is divided by 1 - D_g / sum D, since a cluster that dominates b would
// otherwise have no residual; the factor G / (G - 1) of var b then becomes (G - 1) / G. z needs
// kLeastEffective effective clusters: (sum D_g)^2 / sum D_g^2.
class BiasPool {
 public:
  static constexpr size_t kSlices = 64;
  static constexpr int kMinClusters = 16;
  static constexpr double kMostWeight = 4, kLeastEffective = 8;
  // A slice whose denominator is below this share of the usual one (usual_octave_) is ignored: its gradient
  // has vanished, and only the rounding errors of cancelled terms are left.
  static constexpr double kNegligible = 0x1p-7;

  // Adds the sums of one slice; ignores sums that are empty or not finite.
  void add(const BiasCluster& cluster, const BiasSums& sums);

  std::optional<Bias> bias() const;  // the pooled bias; nothing while the pool is empty

 private:
  struct Entry {
    BiasCluster cluster;
    BiasSums sums;
  };
  // Sums the slices of each cluster. Returns the number of clusters.
  size_t add_up(std::array<BiasSums, kSlices>* clusters) const;

  // Base-2 logarithm of the usual denominator. Follows about the 90th percentile of more than 100 slices.
  double usual_octave_ = 0;
  bool has_usual_ = false;
  std::array<Entry, kSlices> entries_ = {};
  size_t size_ = 0;
  size_t next_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_BIAS_H_
