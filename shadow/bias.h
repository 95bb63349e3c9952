// The signed bias of a stream of slices, in units in the last place, and how sure it is.
#ifndef FORESHOCK_SHADOW_BIAS_H_
#define FORESHOCK_SHADOW_BIAS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "shadow/deviation.h"

namespace foreshock {

// Slices of one cluster are not independent: they may share keys, values and the batch they come from.
struct BiasCluster {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t step = 0;
  int32_t rank = 0;

  bool operator==(const BiasCluster&) const = default;
};

struct Bias {
  double ulp;               // pooled; positive: away from zero
  std::optional<double> z;  // between clusters; absent below kMinClusters, or without any spread
  int slices;
  int clusters;
};

// The last 64 slices of one layer and pass (or of many ranks' such). The kernel's result and the rounded
// reference each have a pool of their own. Copyable plain data: its state can be saved as it is.
//
// The bias is a ratio of sums, b = sum S / sum D, since a mean of per-element ratios is ruled by elements
// near zero. With S_g and D_g the sums of cluster g of G, the error of b is to first order
//   b - E b = sum_g e_g / sum D,   e_g = S_g - b D_g,
// the clusters being independent and the e_g summing to zero by the choice of b. Hence
//   var b = G / (G - 1) * sum_g e_g^2 / (sum D)^2,   z = b / sqrt(var b),
// about Student with G - 1 degrees of freedom when there is no bias. Treating the rows of one slice as
// independent instead would give |z| in the hundreds for a reference rounded once: they share keys and
// values.
class BiasPool {
 public:
  static constexpr size_t kSlices = 64;
  static constexpr int kMinClusters = 16;

  // Sums that are not finite, or with nothing in them, are left out.
  void add(const BiasCluster& cluster, const BiasSums& sums);

  // Absent while the pool is empty.
  std::optional<Bias> bias() const;

 private:
  struct Entry {
    BiasCluster cluster;
    BiasSums sums;
  };
  std::array<Entry, kSlices> entries_ = {};
  size_t size_ = 0;
  size_t next_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_BIAS_H_
