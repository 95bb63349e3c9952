#include "libmonitor/device_gradients.h"

#include <algorithm>

#include "kernels/device_code.h"
#include "kernels/dtype.h"
#include "libmonitor/element.h"
#include "libmonitor/relaxed_capture.h"
#include "libmonitor/weight_work.h"

namespace foreshock {
namespace {

// At the front of the memory, zero before the first kernel.
struct Head {
  GatherClock clock;
  uint32_t arrived, reserved;
  uint64_t first[2], last[2];  // when the first kernel and the last one began and ended
};
constexpr uint64_t kHeadBytes = 256;
static_assert(sizeof(Head) <= kHeadBytes);

constexpr uint64_t kResults = kHeadBytes;
constexpr uint64_t kPartials = kResults + DeviceGradients::kMostTensors * sizeof(GradientSums);
constexpr uint64_t kBytes = kPartials + DeviceGradients::kMostChunks * sizeof(GradientSums);

uint64_t elements_of(const foreshock_gradient& gradient) {
  return static_cast<uint64_t>(gradient.values.shape[0]);
}

}  // namespace

bool is_gradient_on_device(const foreshock_gradient& gradient) {
  const foreshock_tensor& values = gradient.values;
  const auto type = static_cast<DType>(values.dtype);
  return values.data != nullptr && values.device_type == FORESHOCK_DEVICE_CUDA && is_floating(type) &&
         values.dims == 1 && values.stride[0] == 1 && values.shape[0] > 0 &&
         reinterpret_cast<uintptr_t>(values.data) % size_of(type) == 0;
}

void DeviceGradients::set_up(const DeviceDriver& driver, std::span<const std::byte> code,
                             uint64_t context_id) {
  set_up_in(context_id, [&] {
    driver_ = &driver;
    last_ = 0;
    return try_set_up(code);
  });
}

int DeviceGradients::try_set_up(std::span<const std::byte> code) {
  const DeviceDriver& driver = *driver_;
  const RelaxedCapture relaxed(driver);
  cuda::Device device = 0;
  cuda::Module module = nullptr;
  int processors = 0;
  if (!relaxed || code.empty() || !ok(driver.ctx_get_device(&device)) ||
      !ok(driver.device_get_attribute(&processors, cuda::kProcessors, device)) || processors < 1)
    return FORESHOCK_SKIP_DEVICE;
  limits_ = {static_cast<uint32_t>(processors), 0};
  size_t free = 0, total = 0;
  if (!ok(driver.mem_get_info(&free, &total))) return FORESHOCK_SKIP_DEVICE;
  if (free / kShareOfFree < kBytes) return FORESHOCK_SKIP_DEVICE_MEMORY;
  if (!ok(driver.module_load_data(&module, code.data())) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kGather), &clock_) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kGradientSums), &sums_))
    return FORESHOCK_SKIP_DEVICE;
  // The memory last: it is what could be missed if something else failed.
  return ok(driver.mem_alloc(&memory_, kBytes)) ? -1 : FORESHOCK_SKIP_DEVICE_MEMORY;
}

bool DeviceGradients::launch(cuda::Function kernel, const LaunchShape& shape, void* job,
                             cuda::Stream stream) {
  void* parameters[] = {job};
  return ok(driver_->launch_kernel(kernel, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes,
                                   stream, parameters, nullptr));
}

bool DeviceGradients::look_at_clock(cuda::Address times, cuda::Stream stream) {
  GatherJob job = foreshock::look_at_clock(times, memory_ + offsetof(Head, clock));
  return launch(clock_, launch_of(job), &job, stream);
}

// As many at a time as a job holds, and places for their chunks: the kernels run one after the other.
bool DeviceGradients::sum_all(const foreshock_gradient* gradients, size_t count, cuda::Stream stream) {
  GradientSumsJob job = {};
  job.results = memory_ + kResults;
  job.partials = memory_ + kPartials;
  job.arrived = memory_ + offsetof(Head, arrived);
  const auto sum = [&] {
    if (job.tensors == 0) return true;
    const bool is_given = launch(sums_, launch_of(job, limits_), &job, stream);
    job.results += job.tensors * sizeof(GradientSums);
    job.chunks = job.tensors = 0;
    return is_given;
  };
  for (size_t n = 0; n < count; ++n) {
    const foreshock_gradient& gradient = element(gradients, n);
    if (gradient.values.data == nullptr) continue;
    const uint64_t elements = elements_of(gradient), chunks = sum_chunks(elements);
    if ((job.tensors == kMostSumTensors || job.chunks + chunks > kMostChunks) && !sum()) return false;
    job.tensor[job.tensors++] = {reinterpret_cast<uint64_t>(gradient.values.data), elements, job.chunks,
                                 gradient.values.dtype, 0};
    job.chunks += chunks;
  }
  return sum();
}

int DeviceGradients::send(const foreshock_gradient* gradients, size_t count, cuda::Stream stream,
                          DeviceScalars* scalars, SentGradients* sent) {
  size_t tensors = 0;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_gradient& gradient = element(gradients, n);
    if (gradient.values.data == nullptr) continue;
    ++tensors;
    if (sum_chunks(elements_of(gradient)) > kMostChunks) return FORESHOCK_SKIP_TOO_LARGE;
  }
  if (tensors > kMostTensors) return FORESHOCK_SKIP_TOO_LARGE;
  // On another stream than before nothing keeps the order in which they use the memory.
  const bool is_in_use = last_ != 0 && stream != last_stream_ && !scalars->has_come(last_);
  if (is_in_use || !scalars->has_room(tensors + kTimes)) return FORESHOCK_SKIP_RING_FULL;
  if (!ok(driver_->memset_d8_async(memory_, 0, kHeadBytes, stream)) ||
      !look_at_clock(memory_ + offsetof(Head, first), stream) || !sum_all(gradients, count, stream) ||
      !look_at_clock(memory_ + offsetof(Head, last), stream))
    return fail();
  constexpr auto kWord = static_cast<uint32_t>(DType::kFp64);
  const ScalarRow rows[] = {{memory_ + offsetof(Head, first), kWord, 1},
                            {memory_ + offsetof(Head, last) + sizeof(uint64_t), kWord, 1},
                            {memory_ + kResults, kSquaresOfSums, tensors}};
  const uint64_t first = scalars->send(rows, stream);
  if (first == 0) return fail();
  *sent = {first, first + 1, first + kTimes, 1};
  last_stream_ = stream;
  last_ = first + tensors + kTimes - 1;
  return -1;
}

}  // namespace foreshock
