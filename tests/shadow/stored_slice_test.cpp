#include "shadow/stored_slice.h"

#include <gtest/gtest.h>

#include <charconv>
#include <limits>

#include "shadow/judgement.h"
#include "tests/shadow/column_data.h"
#include "tests/shadow/slice_data.h"

namespace foreshock {
namespace {

SliceData full_slice(DType dtype, DType mask) {
  SliceData data({dtype, 12, 70, 24, 40, true});
  data.causal();
  data.log_sum_exp = PackedArray(DType::kFp32, 12);
  data.out.fill([&data] { return data.normal(data.engine); });
  data.grad_query.fill([&data] { return data.normal(data.engine); });
  data.mask = PackedArray(mask, 12 * 70);
  for (size_t n = 0; n < data.mask.size(); ++n) data.mask.set(n, n % 3 == 0);
  return data;
}

std::vector<std::string> texts_of(const AttentionSlice& slice) {
  DeviationWorkspace workspace;
  std::vector<std::string> texts;
  for (const Figure& figure : figures_of(judge(slice, &workspace))) texts.push_back(figure.text);
  return texts;
}

TEST(StoredSlice, RoundTripsWithTheSameJudgement) {
  for (DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    for (DType mask : {DType::kBool, DType::kFp32}) {
      const SliceData data = full_slice(dtype, mask);
      Reference golden;
      reference(data.view(), &golden);
      AttentionSlice back;
      ASSERT_EQ(slice_from(arrays_of(data.view(), golden), {data.view().scale}, &back), "");
      EXPECT_EQ(texts_of(back), texts_of(data.view()));
    }
}

TEST(StoredSlice, AWindowIsStored) {
  SliceData data({DType::kBf16, 5, 40, 8, 8, true});
  data.window(7);
  DeviationWorkspace workspace, again;
  const SliceDeviation judged = judge(data.view(), &workspace);
  StoredArrays arrays = arrays_of(data.view(), workspace.reference);
  ASSERT_TRUE(arrays.contains("key_begin"));
  AttentionSlice slice;
  ASSERT_EQ(slice_from(arrays, {.scale = data.view().scale}, &slice), "");
  for (int row = 0; row < 5; ++row) EXPECT_EQ(slice.key_begin[row], data.key_begin[row]);
  EXPECT_EQ(judge(slice, &again).fused_ratio, judged.fused_ratio);
  data.key_begin.assign(5, 0);
  EXPECT_FALSE(arrays_of(data.view(), workspace.reference).contains("key_begin"));
}

TEST(StoredColumns, AWindowIsStored) {
  const ColumnData data({.columns = 3, .heads = 2, .queries = 20, .is_causal = true, .left = 4});
  ColumnReference workspace;
  judge(data.view(), &workspace);
  std::vector<double> sums;
  std::vector<ColumnSum> sums_again;
  const StoredArrays arrays = arrays_of(data.view(), workspace, &sums);
  ASSERT_TRUE(arrays.contains("query_end"));
  KeyColumns columns;
  ASSERT_EQ(columns_from(arrays, {.scale = data.scale()}, 2, 20, &sums_again, &columns), "");
  for (int n = 0; n < 3; ++n) EXPECT_EQ(columns.end_of(n), data.query_end[n]);
}

TEST(StoredSlice, RoundTripsUnderDropoutAndSoftCap) {
  for (DType kept : {DType::kBool, DType::kBf16}) {
    SliceData data = full_slice(DType::kBf16, DType::kBool);
    data.drop(0.25, kept);
    data.soft_cap = 30;
    Reference golden;
    reference(data.view(), &golden);
    const StoredArrays arrays = arrays_of(data.view(), golden);
    AttentionSlice back;
    ASSERT_EQ(slice_from(arrays, {data.view().scale, 30, 0.25}, &back), "");
    EXPECT_EQ(texts_of(back), texts_of(data.view()));
    ASSERT_EQ(slice_from(arrays, {data.view().scale, 20, 0.25}, &back), "");
    EXPECT_NE(texts_of(back), texts_of(data.view()));
    EXPECT_NE(slice_from(arrays, {data.view().scale, 30}, &back), "") << "kept without a probability";
  }
}

TEST(StoredColumns, RoundTripWithTheSameJudgement) {
  const auto texts = [](const KeyColumns& columns, ColumnReference* reference) {
    const ColumnDeviation deviation = judge(columns, reference);
    std::vector<std::string> all;
    for (const SliceDeviation* of : {&deviation.grad_key, &deviation.grad_value})
      for (const Figure& figure : figures_of(*of)) all.push_back(figure.text);
    return all;
  };
  for (DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64}) {
    ColumnData data({dtype, 5, 2, 30, 24, 40, true});
    if (dtype != DType::kFp64)
      data.add_mask(dtype == DType::kBf16 ? DType::kBool : dtype,
                    [](size_t row, int key) { return key == 12 && row > 20 ? -INFINITY : 0; });
    if (dtype != DType::kFp16) data.drop(0.25, dtype);
    data.cap(4);
    KeyColumns columns = data.view();
    columns.keys = 30;
    std::vector<ColumnSum> sums(key_sum_count(24, 40));
    for (size_t n = 0; n < sums.size(); ++n) sums[n] = {1e-3 * double(n), 1e-6, n % 7 == 3 ? 2u : 0u};
    for (const ColumnSum* given : std::vector<const ColumnSum*>{nullptr, sums.data()}) {
      columns.sums = given;
      ColumnReference reference, again;
      const std::vector<std::string> expected = texts(columns, &reference);
      std::vector<double> stored;
      std::vector<ColumnSum> read;
      const StoredArrays arrays = arrays_of(columns, reference, &stored);
      KeyColumns back;
      ASSERT_EQ(columns_from(arrays, {columns.scale, 4, columns.dropout}, 2, 30, &read, &back), "");
      EXPECT_EQ(texts(back, &again), expected);
    }
  }
}

TEST(StoredColumns, RefusesIncompleteFiles) {
  ColumnData data({DType::kBf16, 5, 2, 30, 24, 40, true});
  data.add_mask(DType::kBool, [](size_t, int) { return 0; });
  std::vector<ColumnSum> sums(key_sum_count(24, 40)), read;
  KeyColumns columns = data.view(), back;
  columns.sums = sums.data();
  ColumnReference reference;
  judge(columns, &reference);
  std::vector<double> stored;
  const StoredArrays good = arrays_of(columns, reference, &stored);
  for (const char* name :
       {"q", "k", "v", "out", "dout", "lse", "mask", "dk", "dv", "first_query", "key_sums"}) {
    StoredArrays arrays = good;
    arrays[name].bytes -= 1;
    EXPECT_NE(columns_from(arrays, {1}, 2, 30, &read, &back), "") << name;
    arrays = good;
    arrays[name].shape = {int64_t{1} << 40, int64_t{1} << 40};
    arrays[name].type = "U32";
    EXPECT_NE(columns_from(arrays, {1}, 2, 30, &read, &back), "") << name;
    if (std::string(name) == "key_sums" || std::string(name) == "mask") continue;
    arrays.erase(name);
    EXPECT_NE(columns_from(arrays, {1}, 2, 30, &read, &back), "") << name;
  }
  const uint32_t beyond[5] = {0, 0, 31, 0, 0};
  StoredArrays arrays = good;
  arrays["first_query"].data = beyond;
  EXPECT_NE(columns_from(arrays, {1}, 2, 30, &read, &back), "");
  stored[2] = -1;
  EXPECT_NE(columns_from(good, {1}, 2, 30, &read, &back), "");
  EXPECT_NE(columns_from(good, {1}, 7, 30, &read, &back), "") << "60 rows are not of 7 heads";
}

TEST(StoredSlice, EachArrayHasItsShape) {
  const SliceData data = full_slice(DType::kBf16, DType::kBool);
  Reference golden;
  reference(data.view(), &golden);
  const std::map<std::string, std::vector<int64_t>> shapes = {{"q", {12, 24}},
                                                              {"k", {70, 24}},
                                                              {"v", {70, 40}},
                                                              {"out", {12, 40}},
                                                              {"dout", {12, 40}},
                                                              {"dq", {12, 24}},
                                                              {"lse", {12}},
                                                              {"mask", {12, 70}},
                                                              {"key_limit", {12}},
                                                              {"reference_lse", {12}},
                                                              {"reference_out", {12, 40}},
                                                              {"reference_dq", {12, 24}}};
  const StoredArrays arrays = arrays_of(data.view(), golden);
  EXPECT_EQ(arrays.size(), shapes.size());
  for (const auto& [name, array] : arrays) {
    ASSERT_TRUE(shapes.contains(name)) << name;
    EXPECT_EQ(array.shape, shapes.at(name)) << name;
  }
}

TEST(StoredSlice, AForwardSliceHasNoGradient) {
  const SliceData data(SliceShape{});
  Reference golden;
  reference(data.view(), &golden);
  const StoredArrays arrays = arrays_of(data.view(), golden);
  EXPECT_EQ(arrays.count("dq") + arrays.count("dout") + arrays.count("reference_dq"), 0u);
  AttentionSlice back;
  EXPECT_EQ(slice_from(arrays, {1}, &back), "");
  EXPECT_FALSE(back.backward());
}

TEST(StoredSlice, AcceptsASliceWhoseRowsSeeNoKey) {
  const SliceData data({DType::kBf16, 2, 0, 8, 8, false});
  Reference golden;
  reference(data.view(), &golden);
  AttentionSlice back;
  EXPECT_EQ(slice_from(arrays_of(data.view(), golden), {1}, &back), "");
  EXPECT_EQ(back.keys, 0);
}

TEST(StoredSlice, RefusesArraysThatDoNotFit) {
  const SliceData data = full_slice(DType::kBf16, DType::kBool);
  Reference golden;
  reference(data.view(), &golden);
  const StoredArrays good = arrays_of(data.view(), golden);
  std::vector<uint32_t> beyond(12, 71);
  const std::vector<std::function<void(StoredArrays&)>> breaks = {
      [](auto& a) { a.erase("q"); },
      [](auto& a) { a.erase("v"); },
      [](auto& a) { a.erase("k"); },
      [](auto& a) { a.erase("out"); },
      [](auto& a) { a.erase("dq"); },  // dout alone is no pass
      [](auto& a) { a.erase("key_limit"); },
      [](auto& a) {
        a["q"].shape = {17, 24};
      },
      [](auto& a) {
        a["q"].shape = {0, 24};
      },
      [](auto& a) { a["q"].shape = {12}; },
      [](auto& a) {
        a["q"].shape = {12, -24};
      },
      [](auto& a) {
        a["q"].shape = {12, int64_t{1} << 62};
      },
      [](auto& a) {
        a["v"].shape = {int64_t{1} << 62, 40};
      },
      [](auto& a) {
        a["k"].shape = {71, 24};
      },
      [](auto& a) {
        a["mask"].shape = {12, 71};
      },
      [](auto& a) {
        a["k"].shape = {140, 12};
      },  // as many bytes
      [](auto& a) {
        a["out"].shape = {40, 12};
      },
      [](auto& a) { a["k"].bytes -= 2; },
      [](auto& a) { a["mask"].bytes -= 1; },
      [](auto& a) { a["lse"].bytes -= 4; },
      [](auto& a) { a["out"].type = "F32"; },
      [](auto& a) { a["v"].type = "F16"; },  // as many bytes, other values
      [](auto& a) { a["q"].type = "BOOL"; },
      [](auto& a) { a["q"].type = "I8"; },
      [](auto& a) { a["lse"].type = "BOOL"; },
      [](auto& a) { a["key_limit"].type = "F32"; },
      [](auto& a) { a["key_limit"].bytes -= 4; },
      [&](auto& a) { a["key_limit"].data = beyond.data(); },
  };
  for (size_t n = 0; n < breaks.size(); ++n) {
    StoredArrays arrays = good;
    breaks[n](arrays);
    AttentionSlice slice;
    EXPECT_NE(slice_from(arrays, {1}, &slice), "") << "break " << n;
  }
  AttentionSlice slice;
  EXPECT_NE(slice_from(good, {std::numeric_limits<double>::infinity()}, &slice), "");
  EXPECT_EQ(slice_from(good, {1}, &slice), "");
}

TEST(Figures, TextIsExact) {
  std::mt19937_64 bits(3);
  for (int n = 0; n < 10000; ++n) {
    const double x = std::bit_cast<double>(bits());
    if (std::isnan(x)) continue;
    const std::string text = exact_text(x);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    EXPECT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(x)) << text;
  }
  EXPECT_EQ(exact_text(0.1), "0.1");
  EXPECT_EQ(exact_text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Figures, HaveEveryNumberOfTheJudgement) {
  SliceDeviation d;
  const auto texts = [&d] {
    std::string all;
    for (const Figure& figure : figures_of(d)) all += figure.text + ";";
    return all;
  };
  double value = 0.5;
  std::string before = texts();
  const auto moves = [&](auto& member) {
    member = static_cast<std::remove_reference_t<decltype(member)>>(++value);
    const std::string now = texts();
    const bool has_moved = now != before;
    before = now;
    return has_moved;
  };
  EXPECT_TRUE(moves(d.rows_compared) && moves(d.rows_not_comparable) && moves(d.rows_with_keys) &&
              moves(d.near_tie_rows) && moves(d.kernel_error_norm) && moves(d.plain_error_norm));
  EXPECT_TRUE(moves(d.bias.numerator) && moves(d.bias.denominator) && moves(d.rounded_bias.numerator) &&
              moves(d.rounded_bias.denominator));
  EXPECT_TRUE(moves(d.relative_error_mean) && moves(d.relative_error_max) && moves(d.deviation_ratio) &&
              moves(d.lse_error_abs_max) && moves(d.logit_abs_max) && moves(d.entropy_min) &&
              moves(d.entropy_mean) && moves(d.grad_out_drift));
  EXPECT_TRUE(moves(d.nonfinite_inputs) && moves(d.nonfinite_out) && moves(d.nonfinite_lse) &&
              moves(d.nonfinite_gradient));
}

}  // namespace
}  // namespace foreshock
