#include "libmonitor/device_scalars.h"

#include <sys/mman.h>

#include <atomic>

#include "kernels/device_code.h"
#include "kernels/dtype.h"

namespace foreshock {
namespace {

constexpr size_t kBytes = kScalarCells * sizeof(ScalarCell);

// Shared, so that a fork leaves these pages to us: a page that is copied at the next store is another one
// than that which the device stores into.
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

void DeviceScalars::set_up(const DeviceDriver& driver, cuda::Module module) {
  driver_ = &driver;
  first_ = next_;
  is_usable_ = false;
  // Others than before: a context that is left may still store into those.
  cells_ = static_cast<ScalarCell*>(shared_memory(kBytes));
  if (cells_ == nullptr || !driver.find_kernel(module, name_of(DeviceKernel::kScalars), &kernel_)) return;
  const cuda::Result pinned =
      driver.mem_host_register(cells_, kBytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
  is_usable_ = ok(pinned) && ok(driver.mem_host_get_device_pointer(&address_, cells_, 0));
}

// A cell is given away again only when its kernel has ended: two that store into one could mix their values.
bool DeviceScalars::is_free(uint64_t number) const {
  const uint64_t before = number - kScalarCells;
  if (number < first_ + kScalarCells) return true;
  const std::atomic_ref<uint64_t> word(cells_[cell_of(number)].number);
  return word.load(std::memory_order_relaxed) == before;
}

bool DeviceScalars::launch(ScalarsJob* job, cuda::Stream stream) {
  const LaunchShape shape = launch_of(*job);
  void* parameters[] = {job};
  return ok(driver_->launch_kernel(kernel_, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes,
                                   stream, parameters, nullptr));
}

bool DeviceScalars::has_room(size_t count) const {
  if (!is_usable_ || count > kScalarCells) return false;
  for (size_t n = 0; n < count; ++n)
    if (!is_free(next_ + n)) return false;
  return true;
}

template <class Sources>
uint64_t DeviceScalars::send_all(size_t count, cuda::Stream stream, const Sources& source) {
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
    if (launch(&job, stream)) continue;
    lose();  // who refuses once has lost the context, or will refuse again
    return 0;
  }
  return first;
}

uint64_t DeviceScalars::send(const foreshock_tensor* values, size_t count, cuda::Stream stream) {
  return send_all(count, stream, [values](size_t n) {
    return Source{reinterpret_cast<uint64_t>(values[n].data), values[n].dtype};
  });
}

uint64_t DeviceScalars::send(std::span<const ScalarRow> rows, cuda::Stream stream) {
  size_t count = 0;
  for (const ScalarRow& row : rows) count += row.count;
  return send_all(count, stream, [rows](size_t n) {
    size_t of = 0;
    for (; n >= rows[of].count; ++of) n -= rows[of].count;
    const bool is_sum = rows[of].dtype == kSquaresOfSums;
    const size_t bytes = is_sum ? sizeof(GradientSums) : size_of(static_cast<DType>(rows[of].dtype));
    return Source{rows[of].at + n * bytes, rows[of].dtype};
  });
}

// A cell is given to a later number only when that of the one before is there.
bool DeviceScalars::has_come(uint64_t number) const {
  return cells_ != nullptr &&
         std::atomic_ref<uint64_t>(cells_[cell_of(number)].number).load(std::memory_order_acquire) >= number;
}

bool DeviceScalars::find(uint64_t number, double* value) const {
  if (cells_ == nullptr) return false;
  ScalarCell& cell = cells_[cell_of(number)];
  const std::atomic_ref<uint64_t> word(cell.number);
  if (word.load(std::memory_order_acquire) != number) return false;
  const double found = std::atomic_ref<double>(cell.value).load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (word.load(std::memory_order_relaxed) != number) return false;
  *value = found;
  return true;
}

}  // namespace foreshock
