// Sums the columns of dK and dV over the rows (keys) of a kv-head, on the host, and counts NaN and Inf. A
// ColumnSum has, for one column, the sum of its elements, the sum of their squared ulps, and the number of
// NaN and Inf. Vectorized loops sum rows of adjacent finite bf16, fp16 or fp32 elements; add_elements() sums
// all other formats, layouts and values.
#include "kernels/key_sums.h"

#include <algorithm>
#include <bit>

#include "kernels/gather.h"

namespace foreshock {
namespace {

// A block has at most kRowsOfABlock rows and kTile columns. 16-bit elements are summed in fp32 over a block,
// with an error of at most kRowsOfABlock * 2^-24 of the sum of magnitudes. This is small beside the error of
// each element, which was rounded to 2^-8 (bf16) or 2^-11 (fp16) of its magnitude.
constexpr int64_t kRowsOfABlock = 32, kTile = 128;

// kExponent: mask of the exponent bits of a format. kLeast: the exponent bits that also stand for all smaller
// exponents. kMost: the largest exponent bits that BlockSums accepts. BlockSums sums the squares of
// 2^exponent over up to 2^5 rows in fp32, whose largest power of two is 2^127. So 5 + 2 * exponent <= 127:
// the exponent is at most 61 (that of fp16 is at most 15). widen() converts a word's upper 16 bits to fp32.
// For fp16 it shifts by 3, since fp32 has 3 exponent bits more. A subnormal fp16 is read with the exponent of
// 2^-14 and the hidden bit, whose value 2^-14 is then subtracted.
struct Bf16 {
  static constexpr uint16_t kExponent = 0x7f80, kLeast = (127 + ColumnSum::kLeastExponent) << 7,
                            kMost = (127 + 61) << 7;
  static_assert(kRowsOfABlock <= 1 << 5);
  static float widen(uint32_t bits) { return std::bit_cast<float>(bits); }
};
struct Fp16 {
  static constexpr uint16_t kExponent = 0x7c00, kLeast = 1 << 10, kMost = 30 << 10;
  static float widen(uint32_t bits) {
    const uint32_t magnitude = (bits & 0x7fffffff) >> 3;
    const float normal = std::bit_cast<float>(magnitude + (112u << 23));  // 112: difference of the biases
    const float subnormal = std::bit_cast<float>(magnitude + (113u << 23)) - 0x1p-14f;
    const float absolute = magnitude < 1u << 23 ? subnormal : normal;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(absolute) | (bits & 0x80000000));
  }
};

// Sums over the rows of a block, for each column: of the values, and of the squares of 2^exponent, from which
// add_block() computes squared ulps. Even and odd columns are summed separately, so that the loops are
// vectorized: a 32-bit word holds two adjacent elements, and a shift or a mask makes an fp32 value of each.
struct BlockSums {
  float even[kTile / 2] = {}, odd[kTile / 2] = {}, even_squares[kTile / 2] = {}, odd_squares[kTile / 2] = {};

  // Adds a row. `columns` must be even. Returns false if a value is not finite or its exponent exceeds
  // Type::kMost.
  template <class Type>
  bool add(const char* row, int64_t columns) {
    uint16_t exponent[kTile], largest = 0;  // compared as int16_t, for which SSE2 has a maximum
    for (int64_t c = 0; c < columns; ++c) {
      const auto bits = static_cast<int16_t>(load_unaligned<uint16_t>(row + 2 * c) & Type::kExponent);
      exponent[c] = static_cast<uint16_t>(std::max<int16_t>(bits, Type::kLeast));
    }
    for (int64_t c = 0; c < columns; ++c)
      largest =
          static_cast<uint16_t>(std::max(static_cast<int16_t>(largest), static_cast<int16_t>(exponent[c])));
    for (int64_t pair = 0; pair < columns / 2; ++pair) {
      const auto values = load_unaligned<uint32_t>(row + 4 * pair);
      const auto powers = load_unaligned<uint32_t>(reinterpret_cast<const char*>(exponent + 2 * pair));
      const float even_power = Type::widen(powers << 16), odd_power = Type::widen(powers & 0xffff0000);
      even[pair] += Type::widen(values << 16);
      odd[pair] += Type::widen(values & 0xffff0000);
      even_squares[pair] += even_power * even_power;
      odd_squares[pair] += odd_power * odd_power;
    }
    return largest <= Type::kMost;
  }
};

// A block. Its rows are row_bytes apart. Its columns are adjacent except in add_elements().
struct Block {
  const char* first;  // the first element
  int64_t rows, row_bytes, columns;
};

// Adds a block to the sums of its columns. If BlockSums::add() refuses a row, adds nothing and returns false.
template <class Type>
bool add_block(const Block& block, const Format& format, ColumnSum* to) {
  BlockSums sums;
  bool is_accepted = true;
  for (int64_t row = 0; row < block.rows; ++row) {
    prefetch_row(block.first + (row + kRowsAhead) * block.row_bytes, 2 * block.columns);
    is_accepted &= sums.add<Type>(block.first + row * block.row_bytes, block.columns);
  }
  if (!is_accepted) return false;
  const double unit = 2 / static_cast<double>(uint64_t{1} << format.precision);  // ulp(x) / 2^exponent
  for (int64_t c = 0; c < block.columns; ++c) {
    const auto pair = static_cast<size_t>(c / 2);
    to[c].sum += double{c % 2 == 0 ? sums.even[pair] : sums.odd[pair]};
    to[c].ulp_squares += double{c % 2 == 0 ? sums.even_squares[pair] : sums.odd_squares[pair]} * unit * unit;
  }
  return true;
}

// Does the same as add_block() for fp32 elements, with sums in fp64, and accepts every finite element.
bool add_fp32_block(const Block& block, const Format& format, ColumnSum* to) {
  constexpr int32_t kExponent = 0x7f800000, kLeast = (127 + ColumnSum::kLeastExponent) << 23;
  double sums[kTile] = {}, squares[kTile] = {};
  int32_t largest = 0;
  for (int64_t row = 0; row < block.rows; ++row) {
    const char* elements = block.first + row * block.row_bytes;
    prefetch_row(elements + kRowsAhead * block.row_bytes, 4 * block.columns);
    for (int64_t c = 0; c < block.columns; ++c) {
      const auto bits = load_unaligned<int32_t>(elements + 4 * c);
      const int32_t exponent = bits & kExponent;
      const double power = double{std::bit_cast<float>(std::max(exponent, kLeast))};
      largest = std::max(largest, exponent);
      sums[c] += double{std::bit_cast<float>(bits)};
      squares[c] += power * power;
    }
  }
  if (largest == kExponent) return false;  // NaN or Inf
  const double unit = 2 / static_cast<double>(uint64_t{1} << format.precision);
  for (int64_t c = 0; c < block.columns; ++c) {
    to[c].sum += sums[c];
    to[c].ulp_squares += squares[c] * unit * unit;
  }
  return true;
}

// Adds one element at a time. Slow, but handles every format, layout and value.
void add_elements(const TensorView& view, const Block& block, ColumnSum* to) {
  const int64_t stride = view.stride[3] * static_cast<int64_t>(size_of(view.dtype));
  const Format format = format_of(view.dtype);
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t c = 0; c < block.columns; ++c)
      to[c].add(load_as_double(block.first + row * block.row_bytes + c * stride, view.dtype, 0), format);
}

// Sums each column of one head, in order of the rows. A view's dimensions are batch, head, row, column.
void sum_rows(const TensorView& view, int64_t batch, int64_t head, ColumnSum* to) {
  const Format format = format_of(view.dtype);
  const int64_t element = static_cast<int64_t>(size_of(view.dtype)), row_bytes = view.stride[2] * element;
  std::fill_n(to, view.shape[3], ColumnSum{});
  for (int64_t column = 0; column < view.shape[3]; column += kTile) {
    const int64_t columns = std::min(kTile, view.shape[3] - column);
    const bool is_dense = view.stride[3] == 1, is_paired = is_dense && columns % 2 == 0;
    for (int64_t row = 0; row < view.shape[2]; row += kRowsOfABlock) {
      const Block block = {view.row(batch, head, row) + column * view.stride[3] * element,
                           std::min(kRowsOfABlock, view.shape[2] - row), row_bytes, columns};
      ColumnSum* sums = to + column;
      const bool is_added =
          (view.dtype == DType::kBf16 && is_paired && add_block<Bf16>(block, format, sums)) ||
          (view.dtype == DType::kFp16 && is_paired && add_block<Fp16>(block, format, sums)) ||
          (view.dtype == DType::kFp32 && is_dense && add_fp32_block(block, format, sums));
      if (!is_added) add_elements(view, block, sums);
    }
  }
}

}  // namespace

void sum_over_keys(const TensorView& grad_query, const TensorView& grad_key, const TensorView& grad_value,
                   int64_t batch, int64_t kv_head, ColumnSum* to) {
  sum_rows(grad_key, batch, kv_head, to);
  sum_rows(grad_value, batch, kv_head, to + grad_key.shape[3]);
  const int64_t group = grad_query.shape[1] / grad_key.shape[1];
  ColumnSum nonfinite_of_query;  // the last entry of `to`; its sums stay 0
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    nonfinite_of_query.nonfinite += count_nonfinite(grad_query, batch, head);
  to[grad_key.shape[3] + grad_value.shape[3]] = nonfinite_of_query;
}

}  // namespace foreshock
