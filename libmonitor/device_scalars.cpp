// Copies single values and sums of gradients from a device to the host. Each value has a running number, by
// which the host finds it: value n is stored in cell n % kScalarCells.
#include "libmonitor/device_scalars.h"

#include <sys/mman.h>

#include <atomic>

#include "kernels/device_code.h"
#include "kernels/dtype.h"
#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/weight_measure.h"

namespace foreshock {
namespace {

constexpr size_t kCellsBytes = kScalarCells * sizeof(ScalarCell);

// Maps the memory as shared, so that a fork does not make its pages copy-on-write. Otherwise our next store
// would copy the page, while the device would still store into the old page.
void* shared_memory(size_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return map == MAP_FAILED ? nullptr : map;
}

}  // namespace

bool is_scalar_on_device(const foreshock_tensor& tensor) {
  const auto type = static_cast<DType>(tensor.dtype);
  if (tensor.device_type != FORESHOCK_DEVICE_CUDA || tensor.data == nullptr || !is_floating(type))
    return false;
  for (uint32_t d = 0; d < tensor.dims && d < FORESHOCK_TENSOR_DIMS; ++d)
    if (tensor.shape[d] != 1) return false;
  return tensor.dims <= FORESHOCK_TENSOR_DIMS &&
         reinterpret_cast<uintptr_t>(tensor.data) % size_of(type) == 0;
}

void ScalarReadback::set_up(const DriverApi& driver, cuda::Module module) {
  driver_ = &driver;
  first_ = next_;
  is_usable_ = false;
  // Maps new cells: kernels of the earlier context may still store into the old ones, which stay mapped.
  cells_ = static_cast<ScalarCell*>(shared_memory(kCellsBytes));
  if (cells_ == nullptr || !driver.find_kernel(module, name_of(DeviceKernel::kScalars), &kernel_)) return;
  const cuda::Result pinned =
      driver.mem_host_register(cells_, kCellsBytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
  is_usable_ = ok(pinned) && ok(driver.mem_host_get_device_pointer(&address_, cells_, 0));
}

// A cell is reused only after its earlier value has arrived; else two kernels could store into it at once.
bool ScalarReadback::is_free(uint64_t number) const {
  if (number < first_ + kScalarCells) return true;  // first_: the first number in this context
  const std::atomic_ref<uint64_t> word(cells_[cell_of(number)].number);
  return word.load(std::memory_order_relaxed) == number - kScalarCells;
}

bool ScalarReadback::has_room(size_t count) const {
  if (!is_usable_ || count > kScalarCells) return false;
  for (size_t n = 0; n < count; ++n)
    if (!is_free(next_ + n)) return false;
  return true;
}

// Launches as many kernels as needed: a job has at most kMostScalars values of one dtype. source(n): value n.
template <class Sources>
uint64_t ScalarReadback::send_all(size_t count, cuda::Stream stream, const Sources& source) {
  if (count == 0 || !has_room(count)) return 0;
  const uint64_t first = next_;
  next_ += count;
  for (size_t begin = 0; begin < count;) {
    ScalarsJob job = {};
    job.cells = address_;
    job.first = first + begin;
    job.dtype = source(begin).dtype;
    for (; begin < count && job.count < kMostScalars && source(begin).dtype == job.dtype; ++begin)
      job.from[job.count++] = source(begin).from;
    if (driver_->launch(kernel_, launch_of(job), &job, stream)) continue;
    disable();  // after a failed launch the context is lost, or later launches fail too
    return 0;
  }
  return first;
}

uint64_t ScalarReadback::send(const foreshock_tensor* values, size_t count, cuda::Stream stream) {
  return send_all(count, stream, [values](size_t n) {
    return Source{reinterpret_cast<uint64_t>(values[n].data), values[n].dtype};
  });
}

uint64_t ScalarReadback::send(std::span<const ScalarRow> rows, cuda::Stream stream) {
  size_t count = 0;
  for (const ScalarRow& row : rows) count += row.count;
  return send_all(count, stream, [rows](size_t n) {
    const ScalarRow* row = rows.data();
    for (; n >= row->count; ++row) n -= row->count;  // finds the row of value n, and its index in the row
    const bool is_sum = row->dtype == kSumOfSquares;
    const size_t stride = is_sum ? sizeof(GradientSums) : size_of(static_cast<DType>(row->dtype));
    return Source{row->at + n * stride, row->dtype};
  });
}

// A cell gets a larger number only after its earlier one has arrived. So a larger number proves arrival, too.
bool ScalarReadback::has_arrived(uint64_t number) const {
  return cells_ != nullptr &&
         std::atomic_ref<uint64_t>(cells_[cell_of(number)].number).load(std::memory_order_acquire) >= number;
}

bool ScalarReadback::find(uint64_t number, double* value) const {
  if (cells_ == nullptr) return false;
  ScalarCell& cell = cells_[cell_of(number)];
  const std::atomic_ref<uint64_t> word(cell.number);
  if (word.load(std::memory_order_acquire) != number) return false;
  const double found = std::atomic_ref<double>(cell.value).load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (word.load(std::memory_order_relaxed) != number) return false;  // the cell was reused during the read
  *value = found;
  return true;
}

namespace {

// The begin of GradientReadback's device memory, zero before the first kernel. The sums follow.
struct Head {
  GatherClock clock;           // scratch memory of store_time()
  uint32_t arrived, reserved;  // arrived: scratch memory of the kernels that sum
  uint64_t first[2], last[2];  // begin and end of the two store_time() kernels, before and after the sums
};
constexpr uint64_t kHeadBytes = 256;  // Head, padded
static_assert(sizeof(Head) <= kHeadBytes);

// Where the sums of tensors and the sums of chunks (parts of tensors) begin.
constexpr uint64_t kResultsOffset = kHeadBytes;
constexpr uint64_t kPartialsOffset = kResultsOffset + GradientReadback::kMostTensors * sizeof(GradientSums);
constexpr uint64_t kSumsBytes = kPartialsOffset + GradientReadback::kMostChunks * sizeof(GradientSums);

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

void GradientReadback::set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id) {
  set_up_in(context_id, [&] {
    driver_ = &driver;
    last_number_ = 0;
    return try_set_up(code);
  });
}

// Returns -1, or the FORESHOCK_SKIP_ reason why gradients cannot be summed in the current context.
int GradientReadback::try_set_up(std::span<const std::byte> code) {
  const DriverApi& driver = *driver_;
  const CaptureGuard relaxed(driver);
  cuda::Device device = 0;
  cuda::Module module = nullptr;
  int processors = 0;
  if (!relaxed || code.empty() || !ok(driver.ctx_get_device(&device)) ||
      !ok(driver.device_get_attribute(&processors, cuda::kProcessors, device)) || processors < 1)
    return FORESHOCK_SKIP_DEVICE;
  limits_ = {static_cast<uint32_t>(processors), 0};  // 0: sum_all() does not use the shared memory's size
  size_t free = 0, total = 0;
  if (!ok(driver.mem_get_info(&free, &total))) return FORESHOCK_SKIP_DEVICE;
  if (free / kShareOfFree < kSumsBytes) return FORESHOCK_SKIP_DEVICE_MEMORY;
  if (!ok(driver.module_load_data(&module, code.data())) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kGather), &clock_) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kGradientSums), &sums_))
    return FORESHOCK_SKIP_DEVICE;
  // The memory is allocated last, so that no memory is lost if something else fails.
  return ok(driver.mem_alloc(&memory_, kSumsBytes)) ? -1 : FORESHOCK_SKIP_DEVICE_MEMORY;
}

// Launches a kernel that only stores the device's time: its begin at `times`, its end in the word after that.
bool GradientReadback::store_time(cuda::Address times, cuda::Stream stream) {
  GatherJob job = clock_job(times, memory_ + offsetof(Head, clock));
  return driver_->launch(clock_, launch_of(job), &job, stream);
}

// Launches as many kernels as needed for all gradients. Each job takes as many tensors and chunks as it can
// hold. The kernels run one after the other, so they can use the same memory for the sums of chunks.
bool GradientReadback::sum_all(const foreshock_gradient* gradients, size_t count, cuda::Stream stream) {
  GradientSumsJob job = {};
  job.results = memory_ + kResultsOffset;
  job.partials = memory_ + kPartialsOffset;
  job.arrived = memory_ + offsetof(Head, arrived);
  const auto launch_job = [&] {
    if (job.tensors == 0) return true;
    const bool is_launched = driver_->launch(sums_, launch_of(job, limits_), &job, stream);
    job.results += job.tensors * sizeof(GradientSums);
    job.chunks = job.tensors = 0;
    return is_launched;
  };
  for (size_t n = 0; n < count; ++n) {
    const foreshock_gradient& gradient = gradients[n];
    if (gradient.values.data == nullptr) continue;
    const uint64_t elements = elements_of(gradient), chunks = sum_chunks(elements);
    const bool is_full = job.tensors == kMostSumTensors || job.chunks + chunks > kMostChunks;
    if (is_full && !launch_job()) return false;
    job.tensor[job.tensors++] = {reinterpret_cast<uint64_t>(gradient.values.data), elements, job.chunks,
                                 gradient.values.dtype, 0};
    job.chunks += chunks;
  }
  return launch_job();
}

int GradientReadback::send(const foreshock_gradient* gradients, size_t count, cuda::Stream stream,
                           ScalarReadback* scalars, SentGradients* sent) {
  size_t tensors = 0;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_gradient& gradient = gradients[n];
    if (gradient.values.data == nullptr) continue;
    ++tensors;
    if (sum_chunks(elements_of(gradient)) > kMostChunks) return FORESHOCK_SKIP_TOO_LARGE;
  }
  if (tensors > kMostTensors) return FORESHOCK_SKIP_TOO_LARGE;
  // On another stream, the new kernels could run at the same time as the earlier ones, in the same memory.
  const bool is_in_use = last_number_ != 0 && stream != last_stream_ && !scalars->has_arrived(last_number_);
  if (is_in_use || !scalars->has_room(tensors + kTimes)) return FORESHOCK_SKIP_RING_FULL;
  if (!ok(driver_->memset_d8_async(memory_, 0, kHeadBytes, stream)) ||
      !store_time(memory_ + offsetof(Head, first), stream) || !sum_all(gradients, count, stream) ||
      !store_time(memory_ + offsetof(Head, last), stream))
    return fail();
  constexpr auto kWord = static_cast<uint32_t>(DType::kFp64);  // bits of the kTimes (2) times, sent as fp64
  const ScalarRow rows[] = {{memory_ + offsetof(Head, first), kWord, 1},
                            {memory_ + offsetof(Head, last) + sizeof(uint64_t), kWord, 1},
                            {memory_ + kResultsOffset, kSumOfSquares, tensors}};
  const uint64_t first = scalars->send(rows, stream);
  if (first == 0) return fail();
  *sent = {.begin = first, .end = first + 1, .first = first + kTimes, .stride = 1};
  last_stream_ = stream;
  last_number_ = first + tensors + kTimes - 1;
  return -1;
}

}  // namespace foreshock
