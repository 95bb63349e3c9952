#include "kernels/gather.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace foreshock {
namespace {

struct Case {
  const char* name;
  int64_t stride[4];
};

class Gather : public testing::TestWithParam<Case> {};

// The slow truth: one element after the other.
std::vector<float> by_element(const TensorView& view, int64_t i, int64_t j, int64_t first, int64_t count,
                              int64_t width) {
  std::vector<float> out;
  const float* data = static_cast<const float*>(view.data);
  for (int64_t k = first; k < first + count; ++k)
    for (int64_t l = 0; l < width; ++l)
      out.push_back(data[i * view.stride[0] + j * view.stride[1] + k * view.stride[2] + l * view.stride[3]]);
  return out;
}

TEST_P(Gather, CopiesTheIndexedElements) {
  std::vector<float> storage(4096);
  std::iota(storage.begin(), storage.end(), 0.f);
  TensorView view;
  view.data = storage.data() + 1024;  // room for negative strides
  view.dtype = DType::kFp32;
  const int64_t shape[4] = {2, 3, 7, 5};
  std::copy_n(shape, 4, view.shape);
  std::copy_n(GetParam().stride, 4, view.stride);
  for (int64_t width : {int64_t{1}, int64_t{3}, int64_t{5}}) {
    for (int64_t first : {0, 2}) {
      std::vector<float> got(5 * width, -1);
      const uint64_t bytes =
          gather_row_starts(view, 1, 2, first, 5, width, reinterpret_cast<char*>(got.data()));
      EXPECT_EQ(bytes, 5 * width * sizeof(float));
      EXPECT_EQ(got, by_element(view, 1, 2, first, 5, width));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Gather,
                         testing::Values(Case{"contiguous", {105, 35, 5, 1}},
                                         Case{"heads_inside", {105, 5, 15, 1}},
                                         Case{"padded", {200, 60, 8, 1}}, Case{"transposed", {105, 35, 1, 7}},
                                         Case{"broadcast_row", {105, 35, 0, 1}},
                                         Case{"broadcast_all", {0, 0, 0, 0}},
                                         Case{"negative", {105, 35, -5, 1}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshock
