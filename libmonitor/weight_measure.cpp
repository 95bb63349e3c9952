#include "libmonitor/weight_measure.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/histogram.h"
#include "kernels/sums.h"

namespace foreshock {

using segment::HistogramForm;

bool HistogramPacker::reserve() { return counters_.reserve(kBinWords * sizeof(uint64_t)); }

size_t HistogramPacker::pack(const void* values, DType type, uint64_t elements, char* to, size_t room,
                             HistogramForm* form) {
  const uint64_t bytes = elements * size_of(type);
  if (bytes <= kSmallBytes) {
    *form = HistogramForm::kValues;
    if (bytes > room) return kPackFailed;
    std::memcpy(to, values, bytes);
    return bytes;
  }
  const bool is_fp32 = type == DType::kFp32;
  *form = is_fp32 ? HistogramForm::kBins : HistogramForm::kPatterns;
  const uint64_t most = is_fp32 ? kMostBinned : kMostPatterns;
  size_t packed = 0;
  for (uint64_t done = 0; done < elements; done += most) {
    const auto* from = static_cast<const char*>(values) + done * size_of(type);
    const size_t size = count(from, type, std::min(most, elements - done), to + packed, room - packed);
    if (size == kPackFailed) return kPackFailed;
    packed += size;
  }
  return packed;
}

size_t HistogramPacker::pack_counted(void* words, DType type, char* to, size_t room, HistogramForm* form) {
  *form = type == DType::kFp32 ? HistogramForm::kBins : HistogramForm::kPatterns;
  return type == DType::kFp32 ? pack_bins(static_cast<uint64_t*>(words), to, room)
                              : pack_patterns(static_cast<uint32_t*>(words), to, room, 1);
}

size_t HistogramPacker::count(const char* values, DType type, uint64_t elements, char* to, size_t room) {
  if (type == DType::kFp32) {
    auto* words = reinterpret_cast<uint64_t*>(counters_.data());
    count_bins(values, elements, words);
    return pack_bins(words, to, room);
  }
  auto* words = reinterpret_cast<uint32_t*>(counters_.data());
  count_patterns(values, elements, words);
  return pack_patterns(words, to, room);
}

namespace {

constexpr uint64_t kAlign = 64;

}  // namespace

// The last piece of a tensor may be shorter. It is only copied if all pieces are.
uint64_t UpdateSnapshots::piece_at(uint64_t n, uint64_t kept, uint64_t of) {
  const uint64_t pieces = (of + kPiece - 1) / kPiece, here = (kept + kPiece - 1) / kPiece;
  return n * pieces / here * kPiece;
}

UpdateSnapshots::Copy UpdateSnapshots::keep(const void* values, uint64_t bytes, DType type, uint64_t share) {
  const uint64_t most = std::min(share, room() - used_);
  const Copy copy = {used_, bytes <= most ? bytes : most / kPiece * kPiece, bytes, type, round_};
  renew(copy, values);
  used_ = std::min((used_ + copy.bytes + kAlign - 1) / kAlign * kAlign, room());
  return copy;
}

void UpdateSnapshots::renew(const Copy& copy, const void* values) {
  const auto* from = static_cast<const char*>(values);
  char* to = memory_.data() + copy.at;
  if (copy.bytes == copy.of) {
    std::memcpy(to, from, copy.bytes);
    return;
  }
  for (uint64_t n = 0; n < copy.bytes / kPiece; ++n)
    std::memcpy(to + n * kPiece, from + piece_at(n, copy.bytes, copy.of), kPiece);
}

Update UpdateSnapshots::update(const Copy& copy, const void* values, uint64_t* elements) const {
  *elements = copy.bytes / size_of(copy.type);
  const auto* now = static_cast<const char*>(values);
  const char* before = memory_.data() + copy.at;
  if (copy.bytes == copy.of) return update_between(before, now, copy.type, *elements);
  Update sum;
  for (uint64_t n = 0; n < copy.bytes / kPiece; ++n) {
    const Update of = update_between(before + n * kPiece, now + piece_at(n, copy.bytes, copy.of), copy.type,
                                     kPiece / size_of(copy.type));
    sum.sum_magnitude += of.sum_magnitude;
    sum.sum_squares += of.sum_squares;
    sum.sum_squares_after += of.sum_squares_after;
    sum.max_magnitude = std::max(sum.max_magnitude, of.max_magnitude);
  }
  return sum;
}

namespace {

bool is_readable(const foreshock_tensor& tensor) {
  return tensor.data != nullptr && tensor.device_type == FORESHOCK_DEVICE_CPU &&
         is_floating(static_cast<DType>(tensor.dtype)) && tensor.dims <= FORESHOCK_TENSOR_DIMS;
}

void report_gradient(const GradientSums& sums, double* numbers) {
  numbers[segment::kGradientSumOfSquares] = sums.squares;
  numbers[segment::kGradientElements] = static_cast<double>(sums.finite);
  numbers[segment::kGradientNonFinite] = static_cast<double>(sums.nonfinite);
}

void report_moment(const AdamSums& sums, double* numbers) {
  numbers[segment::kMomentElements] = static_cast<double>(sums.counted);
  numbers[segment::kMomentUnusable] = static_cast<double>(sums.unusable_state);
  numbers[segment::kStalenessSum] = sums.staleness;
  numbers[segment::kEpsilonDominated] = static_cast<double>(sums.epsilon_dominated);
  numbers[segment::kSurprised] = static_cast<double>(sums.surprised);
  numbers[segment::kSurpriseElements] = static_cast<double>(sums.surprise_counted);
}

}  // namespace

OptimizerState optimizer_of(const foreshock_weight_state& state) {
  return {.gradient = state.gradient,
          .second_moment = state.square_average,
          .step = state.optimizer_step,
          .learning_rate = state.learning_rate,
          .beta1 = state.beta1,
          .beta2 = state.beta2,
          .epsilon = state.epsilon,
          .weight_decay = state.weight_decay};
}

TensorView view_of(const foreshock_tensor& tensor) {
  TensorView view{.data = tensor.data, .dtype = static_cast<DType>(tensor.dtype)};
  const uint32_t absent = FORESHOCK_TENSOR_DIMS - tensor.dims;
  for (uint32_t d = 0; d < tensor.dims; ++d) {
    view.shape[absent + d] = tensor.shape[d];
    view.stride[absent + d] = tensor.stride[d];
  }
  return view;
}

bool is_same_shape(const foreshock_tensor& a, const foreshock_tensor& b) {
  return a.dims == b.dims && std::equal(a.shape, a.shape + a.dims, b.shape);
}

bool adam_step_of(const OptimizerState& state, AdamStep* step) {
  *step = {.beta2 = state.beta2, .eps = state.epsilon, .step = state.step};
  return state.step >= 1 && state.beta2 >= 0 && state.beta2 < 1 && state.epsilon >= 0;
}

void tell_optimizer(const OptimizerState& state, const GradientSums* gradient, const AdamSums* moment,
                    double* numbers) {
  std::fill_n(numbers, segment::kOptimizerNumbers, std::numeric_limits<double>::quiet_NaN());
  numbers[segment::kSeenLearningRate] = state.learning_rate;
  numbers[segment::kSeenBeta1] = state.beta1;
  numbers[segment::kSeenBeta2] = state.beta2;
  numbers[segment::kSeenEpsilon] = state.epsilon;
  numbers[segment::kSeenWeightDecay] = state.weight_decay;
  if (moment != nullptr) {
    report_moment(*moment, numbers);
    report_gradient({moment->gradient_squares, moment->counted, moment->nonfinite_gradient}, numbers);
  } else if (gradient != nullptr) {
    report_gradient(*gradient, numbers);
  }
}

void optimizer_numbers(const OptimizerState& state, double* numbers) {
  if (!is_readable(state.gradient)) return tell_optimizer(state, nullptr, nullptr, numbers);
  const TensorView gradient = view_of(state.gradient);
  AdamSums sums;
  AdamStep step;
  if (is_readable(state.second_moment) && is_same_shape(state.gradient, state.second_moment) &&
      adam_step_of(state, &step))
    add_adam_sums(gradient, view_of(state.second_moment), step, &sums);
  if (sums.counted + sums.nonfinite_gradient + sums.unusable_state > 0)
    return tell_optimizer(state, nullptr, &sums, numbers);
  GradientSums of_gradient;
  add_gradient_sums(gradient, &of_gradient);
  tell_optimizer(state, &of_gradient, nullptr, numbers);
}

}  // namespace foreshock
