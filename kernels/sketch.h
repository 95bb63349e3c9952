// Computes linear sketches of tensors in host memory: inner products with vectors of pseudo-random signs. The
// sketch of a sum is the sum of the sketches, so sums of gradients are compared by a few numbers. A
// difference d of two tensors changes each product by a random amount with the standard deviation |d|. Uses
// no heap and no static data.
#ifndef FORESHOCK_KERNELS_SKETCH_H_
#define FORESHOCK_KERNELS_SKETCH_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

inline constexpr int kSketchProducts = 4;

// At most so many elements of a tensor are read, in blocks of kSketchBlock that are spread evenly. Which ones
// depends only on the number of elements. This limits the time of a sketch to some 30 us.
inline constexpr int64_t kMostSketched = 16384;
inline constexpr int64_t kSketchBlock = 256;

// Adds the products of the tensor to `products`, and the norm of the elements that were read to `*norm`. The
// signs depend on `seed` and on the index of each element in row-major order, whatever the strides. Returns
// false, and changes nothing, if the format is not floating.
// The tensor may be a part of one with `whole` elements, which begins at the element `first` of it (`whole`
// 0: it is the whole). What is read, and the signs, are those of the whole tensor, so that sketches of parts
// add up to the sketch of the whole.
bool add_sketch(const TensorView& tensor, uint64_t seed, double (&products)[kSketchProducts], double* norm,
                int64_t first = 0, int64_t whole = 0);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_SKETCH_H_
