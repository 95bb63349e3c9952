#include "kernels/key_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace foreshock {
namespace {

// As ColumnSum, side by side: loops over columns without branches become vector instructions. Wide, so that a
// row is read once.
constexpr int64_t kTile = 128;
struct Tile {
  double sum[kTile] = {}, ulp_squares[kTile] = {};
  uint32_t nonfinite[kTile] = {};
};

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
float widen(Bf16 x) { return bf16_to_float(x.bits); }
float widen(Fp16 x) { return fp16_to_float(x.bits); }
float widen(float x) { return x; }

template <class Element>
Element load(const char* at) {
  Element element;
  std::memcpy(&element, at, sizeof element);
  return element;
}

// One row of at most kTile columns, for formats that fp32 holds.
template <class Element>
void add_row(const char* row, int64_t stride, int64_t columns, const Format& format, Tile* tile) {
  constexpr uint32_t kExponent = 0x7f800000;
  float x[kTile];
  if (stride == sizeof(Element)) {
    for (int64_t c = 0; c < columns; ++c)
      x[c] = widen(load<Element>(row + c * static_cast<int64_t>(sizeof(Element))));
  } else {
    for (int64_t c = 0; c < columns; ++c) x[c] = widen(load<Element>(row + c * stride));
  }
  const auto smallest = static_cast<int32_t>(format.min_exponent + 127) << 23;
  const double unit = 2 / static_cast<double>(uint64_t{1} << format.precision);
  for (int64_t c = 0; c < columns; ++c) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[c]), exponent = bits & kExponent;
    const uint32_t keep = exponent == kExponent ? 0 : ~uint32_t{0};
    const int32_t at_least = std::max(static_cast<int32_t>(exponent), smallest);
    const double ulp = double{std::bit_cast<float>(static_cast<uint32_t>(at_least) & keep)} * unit;
    tile->sum[c] += double{std::bit_cast<float>(bits & keep)};
    tile->ulp_squares[c] += ulp * ulp;
    tile->nonfinite[c] += ~keep & 1;
  }
}

// Of fp64, which no training of note stores: one element at a time.
template <>
void add_row<double>(const char* row, int64_t stride, int64_t columns, const Format& format, Tile* tile) {
  for (int64_t c = 0; c < columns; ++c) {
    ColumnSum one;
    one.add(load<double>(row + c * stride), format);
    tile->sum[c] += one.sum;
    tile->ulp_squares[c] += one.ulp_squares;
    tile->nonfinite[c] += static_cast<uint32_t>(one.nonfinite);
  }
}

template <class Element>
void sum_rows(const TensorView& view, int64_t batch, int64_t head, ColumnSum* to) {
  const Format format = format_of(view.dtype);
  const int64_t stride = view.stride[3] * static_cast<int64_t>(sizeof(Element));
  for (int64_t first = 0; first < view.shape[3]; first += kTile) {
    const int64_t columns = std::min(kTile, view.shape[3] - first);
    Tile tile;
    for (int64_t row = 0; row < view.shape[2]; ++row)
      add_row<Element>(view.row(batch, head, row) + first * stride, stride, columns, format, &tile);
    for (int64_t c = 0; c < columns; ++c)
      to[first + c] = {tile.sum[c], tile.ulp_squares[c], tile.nonfinite[c]};
  }
}

void sum_rows(const TensorView& view, int64_t batch, int64_t head, ColumnSum* to) {
  switch (view.dtype) {
    case DType::kFp64:
      return sum_rows<double>(view, batch, head, to);
    case DType::kFp32:
      return sum_rows<float>(view, batch, head, to);
    case DType::kBf16:
      return sum_rows<Bf16>(view, batch, head, to);
    case DType::kFp16:
      return sum_rows<Fp16>(view, batch, head, to);
    default:
      return;
  }
}

// All exponent bits are set. The tensor's rows may have any stride.
template <class Bits>
uint64_t nonfinite_in(const TensorView& view, int64_t batch, int64_t head, Bits exponent) {
  const int64_t stride = view.stride[3] * static_cast<int64_t>(sizeof(Bits));
  uint64_t count = 0;
  for (int64_t n = 0; n < view.shape[2]; ++n) {
    const char* row = view.row(batch, head, n);
    Bits of_row = 0;
    const auto add = [&](int64_t step) {
      for (int64_t c = 0; c < view.shape[3]; ++c)
        of_row = static_cast<Bits>(of_row + ((load<Bits>(row + c * step) & exponent) == exponent));
    };
    if (view.stride[3] == 1) {
      add(sizeof(Bits));
    } else {
      add(stride);
    }
    count += of_row;
  }
  return count;
}

}  // namespace

uint64_t count_nonfinite(const TensorView& view, int64_t batch, int64_t head) {
  switch (view.dtype) {
    case DType::kFp64:
      return nonfinite_in(view, batch, head, uint64_t{0x7ff} << 52);
    case DType::kFp32:
      return nonfinite_in(view, batch, head, uint32_t{0xff} << 23);
    case DType::kBf16:
      return nonfinite_in(view, batch, head, uint16_t{0x7f80});
    case DType::kFp16:
      return nonfinite_in(view, batch, head, uint16_t{0x7c00});
    default:
      return 0;
  }
}

void sum_over_keys(const TensorView& grad_query, const TensorView& grad_key, const TensorView& grad_value,
                   int64_t batch, int64_t kv_head, ColumnSum* to) {
  sum_rows(grad_key, batch, kv_head, to);
  sum_rows(grad_value, batch, kv_head, to + grad_key.shape[3]);
  const int64_t group = grad_query.shape[1] / grad_key.shape[1];
  ColumnSum of_query;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    of_query.nonfinite += count_nonfinite(grad_query, batch, head);
  to[grad_key.shape[3] + grad_value.shape[3]] = of_query;
}

}  // namespace foreshock
