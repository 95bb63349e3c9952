// Parts of weight tensors as a trainer writes them, for the tests of what the agent makes of them.
#ifndef FORESHOCK_TESTS_AGENT_WRITTEN_PARTS_H_
#define FORESHOCK_TESTS_AGENT_WRITTEN_PARTS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/weights.h"
#include "kernels/histogram.h"
#include "kernels/sums.h"

namespace foreshock {

using segment::TensorRecord;

inline segment::Identity rank_of(int rank) {
  segment::Identity identity = {};
  identity.rank = identity.data_parallel = rank;
  identity.late_ready = 1;
  return identity;
}

// Rows [first, first + count) of a tensor of `columns` columns, as a trainer writes them.
class Part {
 public:
  Part(int64_t step, const std::vector<float>& whole, size_t columns, size_t first, size_t rows,
       const char* name = "w", uint64_t interval = 1, uint32_t tensors = 1,
       segment::HistogramForm form = segment::HistogramForm::kBins) {
    TensorRecord& record = view_.record;
    record = {};
    record.kind = segment::TensorKind::kSnapshot;
    record.step = step;
    record.interval = interval;
    record.snapshot = 1;
    record.tensors = tensors;
    record.dims = 2;
    record.dtype = 2;
    for (int n = 0; n < 4; ++n) record.shape[n] = record.part[n] = 1;
    record.shape[0] = static_cast<int64_t>(whole.size() / columns);
    record.part[0] = static_cast<int64_t>(rows);
    record.offset[0] = static_cast<int64_t>(first);
    record.shape[1] = record.part[1] = static_cast<int64_t>(columns);
    record.elements = rows * columns;
    record.form = form;
    std::strcpy(record.name, name);
    std::strcpy(record.layer, "000");
    const float* values = whole.data() + first * columns;
    record.checksum = checksum(values, record.elements * sizeof(float));
    fill_histogram(values);
    reductions_ = {0, 0.5 * static_cast<double>(record.elements), 0, 0.75};
    for (size_t n = 0; n < record.elements; ++n) reductions_[0] += double{values[n]} * double{values[n]};
    view_.payload[segment::kTensorHistogram] = std::as_bytes(std::span(histogram_));
    view_.payload[segment::kTensorReductions] = std::as_bytes(std::span(reductions_));
  }
  // The change is known of so many values alone; 0: of none.
  Part& with_update_of(double elements, double sum) {
    reductions_.resize(segment::kTensorReductionCount, std::nan(""));
    if (elements == 0) reductions_[1] = reductions_[2] = reductions_[3] = std::nan("");
    if (elements > 0) reductions_[1] = sum;
    reductions_[segment::kUpdateElements] = elements;
    view_.payload[segment::kTensorReductions] = std::as_bytes(std::span(reductions_));
    return *this;
  }
  Part& with_optimizer(double staleness) {
    optimizer_.assign(segment::kOptimizerNumbers, std::nan(""));
    optimizer_[segment::kMomentElements] = static_cast<double>(view_.record.elements);
    optimizer_[segment::kStalenessSum] = staleness;
    optimizer_[segment::kEpsilonDominated] = 1;
    optimizer_[segment::kSeenBeta2] = 0.95;
    view_.payload[segment::kTensorOptimizer] = std::as_bytes(std::span(optimizer_));
    return *this;
  }
  segment::TensorView& view() { return view_; }

 private:
  void fill_histogram(const float* values) {
    const size_t bytes = view_.record.elements * sizeof(float);
    if (view_.record.form == segment::HistogramForm::kValues) {
      histogram_.resize(bytes);
      std::memcpy(histogram_.data(), values, bytes);
      return;
    }
    std::vector<uint64_t> words(kBinWords);
    count_bins(values, view_.record.elements, words.data());
    histogram_.resize(1 << 20);
    histogram_.resize(pack_bins(words.data(), histogram_.data(), histogram_.size()));
  }

  std::vector<char> histogram_;
  std::vector<double> reductions_, optimizer_;
  segment::TensorView view_;
};

inline std::vector<float> normal(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> law(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = law(random);
  return values;
}

inline std::vector<double> wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

inline std::vector<TensorSnapshot> take(Weights& weights, Part part, int rank = 0, size_t ranks = 1) {
  const char* why = nullptr;
  auto done = weights.add(part.view(), rank_of(rank), ranks, &why);
  EXPECT_EQ(why, nullptr) << why;
  return done;
}

inline std::vector<TensorSnapshot> take_at(Weights& weights, Part part, int rank, size_t ranks,
                                           double seconds) {
  part.view().record.time_ns = static_cast<uint64_t>(1e9 * seconds);
  return take(weights, std::move(part), rank, ranks);
}

// One tensor over time, one number of it at each step.
inline std::vector<TensorSnapshot> take_timed(Weights& weights, int rank, size_t ranks, int64_t step,
                                              double seconds, uint64_t snapshot = 2, size_t first = 0,
                                              size_t rows = 100) {
  static const auto values = normal(400, 31);
  Part part(step, values, 4, first, rows);
  part.view().record.time_ns = static_cast<uint64_t>(1e9 * seconds);
  part.view().record.snapshot = snapshot;
  return take(weights, std::move(part), rank, ranks);
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_AGENT_WRITTEN_PARTS_H_
