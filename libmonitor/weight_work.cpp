#include "libmonitor/weight_work.h"

#include <algorithm>

#include "kernels/sums.h"

namespace foreshock {
namespace {

constexpr uint64_t kRow = 512;  // values that neighbouring threads copy together

constexpr uint64_t round_up(uint64_t value) {
  return (value + WeightWork::kAlign - 1) / WeightWork::kAlign * WeightWork::kAlign;
}

uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

// Elements that fill one block of memory on the device of `beside`, aligned as kernels load them.
bool is_readable_there(const foreshock_tensor& tensor, const foreshock_tensor& beside) {
  const auto type = static_cast<DType>(tensor.dtype);
  if (tensor.data == nullptr || tensor.device_type != FORESHOCK_DEVICE_CUDA ||
      tensor.device_index != beside.device_index || !is_floating(type) || tensor.dims > FORESHOCK_TENSOR_DIMS)
    return false;
  const TensorView view = view_of(tensor);
  return element_count(view) > 0 && address(tensor.data) % size_of(type) == 0 && is_jointly_dense(view, view);
}

// A sum is taken in chunks; each has a place for its part. One kernel at a time has use for them.
uint64_t scratch_bytes(const WeightWork& work) {
  const uint64_t of_values = work.is_counted ? sum_chunks(work.count) : 0;
  const uint64_t of_gradient = work.has_gradient ? sum_chunks(work.gradient.count) : 0;
  const uint64_t of_moment = work.has_moment ? sum_chunks(work.adam.count) : 0;
  return std::max((of_values + of_gradient) * sizeof(GradientSums), of_moment * sizeof(AdamSums));
}

uint64_t scratch_of(const WeightWork& work, uint64_t at) { return at + round_up(work.result_bytes()); }

void plan_optimizer(const foreshock_tensor& values, const OptimizerState& optimizer, WeightWork* work) {
  const foreshock_tensor &gradient = optimizer.gradient, &moment = optimizer.second_moment;
  if (!is_readable_there(gradient, values)) return;
  const TensorView view = view_of(gradient);
  const auto count = static_cast<uint64_t>(element_count(view));
  AdamStep step;
  if (is_readable_there(moment, values) && is_same_shape(gradient, moment) &&
      is_jointly_dense(view, view_of(moment)) && adam_step_of(optimizer, &step)) {
    work->has_moment = true;
    work->adam = {.gradient = address(gradient.data),
                  .moment = address(moment.data),
                  .count = count,
                  .first_chunk = 0,
                  .gradient_dtype = gradient.dtype,
                  .moment_dtype = moment.dtype,
                  .constants = adam_constants(step)};
    return;
  }
  work->has_gradient = true;
  work->gradient = {address(gradient.data), count, 0, gradient.dtype, 0};
}

}  // namespace

bool plan_weight(const foreshock_tensor& values, uint64_t elements, const OptimizerState& optimizer,
                 WeightWork* work) {
  *work = {};
  work->type = static_cast<DType>(values.dtype);
  work->from = address(values.data);
  work->count = elements;
  const bool is_fp32 = work->type == DType::kFp32;
  const uint64_t words = is_fp32 ? kBinWords * sizeof(uint64_t) : kPatterns * sizeof(uint32_t);
  const uint64_t bytes = elements * size_of(work->type);
  // Up to half as large the values themselves leave the device sooner, and the host counts them as fast as it
  // looks through the words.
  work->is_counted = 2 * bytes > words;
  if (work->is_counted && elements > (is_fp32 ? kMostBinned : kMostPatterns)) return false;
  work->payload_bytes = work->is_counted ? words : bytes;
  plan_optimizer(values, optimizer, work);
  work->bytes = round_up(work->result_bytes()) + round_up(scratch_bytes(*work));
  return true;
}

GatherJob look_at_clock(uint64_t times, uint64_t clock) {
  GatherJob job = {};
  job.times = times;
  job.clock = clock;
  return job;
}

GatherJob copy_of_values(const WeightWork& work, uint64_t at) {
  GatherJob job = look_at_clock(at + offsetof(WeightResults, first), at + offsetof(WeightResults, clock));
  job.to = at + WeightWork::kPayload;
  const uint64_t rows = work.count / kRow, rest = work.count % kRow, element = size_of(work.type);
  const auto put = [&](uint64_t first, uint64_t count, uint64_t width) {
    if (count * width == 0) return;
    GatherPiece& piece = job.piece[job.pieces++];
    piece = {};
    piece.from = work.from + first * element;
    piece.to = first * element;
    piece.row_stride = static_cast<int64_t>(width);
    piece.column_stride = 1;
    piece.heads = 1;
    piece.rows = static_cast<uint32_t>(count);
    piece.width = static_cast<uint32_t>(width);
    piece.element = static_cast<uint32_t>(element);
  };
  put(0, rows, kRow);
  put(rows * kRow, 1, rest);
  return job;
}

GradientSumsJob sums_of_values_and_gradient(const WeightWork& work, uint64_t at) {
  GradientSumsJob job = {};
  job.partials = scratch_of(work, at);
  job.arrived = at + offsetof(WeightResults, arrived);
  const auto put = [&job](GradientTensor tensor) {
    tensor.first_chunk = job.chunks;
    job.chunks += sum_chunks(tensor.count);
    job.tensor[job.tensors++] = tensor;
  };
  // Results follow each other; where the values are not summed here, the gradient's are the first.
  static_assert(offsetof(WeightResults, gradient) == offsetof(WeightResults, values) + sizeof(GradientSums));
  job.results = at + (work.is_counted ? offsetof(WeightResults, values) : offsetof(WeightResults, gradient));
  if (work.is_counted) put({work.from, work.count, 0, static_cast<uint32_t>(work.type), 0});
  if (work.has_gradient) put(work.gradient);
  return job;
}

AdamSumsJob sums_of_moment(const WeightWork& work, uint64_t at) {
  AdamSumsJob job = {};
  job.results = at + offsetof(WeightResults, moment);
  job.partials = scratch_of(work, at);
  job.arrived = at + offsetof(WeightResults, arrived);
  job.chunks = sum_chunks(work.adam.count);
  job.tensors = 1;
  job.tensor[0] = work.adam;
  return job;
}

}  // namespace foreshock
