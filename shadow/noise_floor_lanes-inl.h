// Vector functions of the computations with the roundings of the trainer's precision: noise_floor.cpp and
// key_columns.cpp. hwy/foreach_target.h includes this file once per instruction set, which needs the toggled
// include guard.
#if defined(FORESHOCK_SHADOW_NOISE_FLOOR_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FORESHOCK_SHADOW_NOISE_FLOOR_LANES_INL_H_
#undef FORESHOCK_SHADOW_NOISE_FLOOR_LANES_INL_H_
#else
#define FORESHOCK_SHADOW_NOISE_FLOOR_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/dtype.h"
#include "shadow/rows_in_lanes-inl.h"
#include "shadow/slice.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {

// Rounds float lanes to the nearest value of fp16 or bf16, ties to even. Other formats and double lanes stay
// unchanged. fp16: `power` is 2^e for |x| in [2^e, 2^(e + 1)), but at least 2^-14, below which the spacing of
// fp16 stays the same. A quantum (the spacing at x) is power / 2^10. Adding and subtracting 1.5 * 2^23 quanta
// (`shift`) leaves exactly the bits from the quantum up. bf16: integer arithmetic on the bits also overflows
// to infinity as required.
template <class V>
HWY_INLINE V round_lanes(DType type, V x) {
  const hn::DFromV<V> d;
  if constexpr (sizeof(hn::TFromV<V>) == sizeof(float)) {
    const hn::RebindToUnsigned<hn::DFromV<V>> bits;
    if (type == DType::kBf16) {
      const auto raw = hn::BitCast(bits, x);
      const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(bits, 1u));
      const auto up = hn::Add(raw, hn::Add(odd, hn::Set(bits, 0x7fffu)));
      return hn::IfThenElse(hn::IsNaN(x), x, hn::BitCast(d, hn::And(up, hn::Set(bits, 0xffff0000u))));
    }
    if (type == DType::kFp16) {
      const auto exponent = hn::And(hn::BitCast(bits, x), hn::Set(bits, 0x7f800000u));
      const V power = hn::Min(hn::Max(hn::BitCast(d, exponent), hn::Set(d, 0x1p-14f)), hn::Set(d, 0x1p16f));
      const V shift = hn::Mul(power, hn::Set(d, 0x1.8p13f));
      const V rounded = hn::Sub(hn::Add(x, shift), shift);
      const V infinite = hn::CopySign(hn::Set(d, std::numeric_limits<float>::infinity()), x);
      return hn::IfThenElse(hn::Ge(hn::Abs(rounded), hn::Set(d, 0x1p16f)), infinite, rounded);
    }
  }
  return x;
}

// Rounds the tanh of a soft cap as fused attention does. Kernels for devices (flash-attn, in 16-bit formats)
// compute it by tanh.approx.f32, whose relative error is at most 2^-11: that of the 11 bits of fp16.
template <class V>
HWY_INLINE V fused_tanh_lanes(DType type, V tanh) {
  return size_of(type) == 2 ? round_lanes(DType::kFp16, tanh) : tanh;
}

// Allocates arrays of T, each aligned to 64 bytes, in one vector of doubles that only grows.
template <class T>
class ArraysIn {
 public:
  // Reserves room for `arrays` arrays with `total` elements in all. For the alignment to 64 bytes (8
  // doubles), adds 8 doubles for each array and 8 for the first address; 1 more, since the division rounds
  // down.
  ArraysIn(std::vector<double>* scratch, size_t total, size_t arrays) {
    resize_up(scratch, total * sizeof(T) / sizeof(double) + 8 * arrays + 9);
    next_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch->data()) + 63) & ~uintptr_t{63});
  }

  T* take(size_t count) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ += (count * sizeof(T) + 63) / 64 * 64;
    return taken;
  }

 private:
  char* next_;
};

// Sets values[i] = change(values[i]), a vector at a time. `count` must be a multiple of the lanes.
template <class T, class F>
HWY_INLINE void for_lanes(T* values, size_t count, F change) {
  const LanesTag<T> d;
  for (size_t i = 0; i < count; i += lanes_of<T>()) hn::Store(change(hn::Load(d, values + i)), d, values + i);
}

// Adds to total[column][row] the sum over i < count of weights[i][row] * matrix[i][column]. The sum is first
// formed in `partial` (as large as `total`), as in a matrix product that works in blocks.
template <class T>
HWY_INLINE void add_product(const T* weights, int stride, const T* matrix, int count, int columns, T* partial,
                            T* total) {
  const LanesTag<T> d;
  multiply<T>({weights, stride, matrix, /*inner_step=*/static_cast<size_t>(columns), /*outer_step=*/1, count,
               /*accumulate=*/false},
              columns, partial);
  for (int i = 0; i < columns * stride; i += lanes_of<T>())
    hn::Store(hn::Add(hn::Load(d, total + i), hn::Load(d, partial + i)), d, total + i);
}

// Sets to[row][column] = lanes[column][row] * factor, without the padding rows.
template <class T>
void store_rows(const T* lanes, int stride, int rows, int columns, double factor, std::vector<double>* to) {
  resize_up(to, static_cast<size_t>(rows) * columns);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      (*to)[static_cast<size_t>(r) * columns + c] = lanes[c * stride + r] * factor;
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
