#include "libmonitor/weight_staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "foreshock/hook.h"
#include "libmonitor/relaxed_capture.h"

namespace foreshock {
namespace {

// The words: which work has come, by its place; behind them the one that tells that set-up is done.
constexpr uint32_t kReadyWord = DeviceRing::kMostSlices;
constexpr uint64_t kWordBytes = 4096;
static_assert((kReadyWord + 1) * sizeof(uint64_t) <= kWordBytes);
static_assert(DeviceRing::kAlign == WeightWork::kAlign);

constexpr DeviceKernel kUsed[] = {DeviceKernel::kGather,    DeviceKernel::kCountPatterns,
                                  DeviceKernel::kCountBins, DeviceKernel::kGradientSums,
                                  DeviceKernel::kAdamSums,  DeviceKernel::kChecksum};

}  // namespace

void WeightStaging::set_up(const DeviceDriver& driver, std::span<const std::byte> code, uint64_t context_id) {
  driver_ = &driver;
  set_up_in(context_id, [&] { return try_set_up(code); });
}

// Where a block may not have the shared memory that counts patterns fastest, it counts without.
bool WeightStaging::load(std::span<const std::byte> code) {
  const DeviceDriver& driver = *driver_;
  cuda::Module module = nullptr;
  if (!ok(driver.module_load_data(&module, code.data()))) return false;
  for (const DeviceKernel kernel : kUsed) {
    cuda::Function& function = function_[static_cast<int>(kernel)];
    if (!driver.find_kernel(module, name_of(kernel), &function)) return false;
  }
  return limits_.shared_bytes < kPatternSharedBytes ||
         ok(driver.func_set_attribute(function_[static_cast<int>(DeviceKernel::kCountPatterns)],
                                      cuda::kMostDynamicShared, int{kPatternSharedBytes}));
}

int WeightStaging::try_set_up(std::span<const std::byte> code) {
  const DeviceDriver& driver = *driver_;
  const RelaxedCapture relaxed(driver);
  cuda::Device device = 0;
  int can_write = 0, processors = 0, shared_bytes = 0;
  if (!relaxed || code.empty() || !ok(driver.ctx_get_device(&device)) ||
      !ok(driver.device_get_attribute(&can_write, cuda::kCanWriteFromStream, device)) || can_write != 1 ||
      !ok(driver.device_get_attribute(&processors, cuda::kProcessors, device)) || processors < 1 ||
      !ok(driver.device_get_attribute(&shared_bytes, cuda::kSharedBytesOptIn, device)) || shared_bytes < 0)
    return FORESHOCK_SKIP_DEVICE;
  limits_ = {static_cast<uint32_t>(processors), static_cast<uint32_t>(shared_bytes)};

  size_t free = 0, total = 0;
  if (!ok(driver.mem_get_info(&free, &total))) return FORESHOCK_SKIP_DEVICE;
  const uint64_t bytes =
      std::min<uint64_t>(free / kShareOfFree, kMostBytes) / DeviceRing::kAlign * DeviceRing::kAlign;
  if (bytes < kLeastBytes) return FORESHOCK_SKIP_DEVICE_MEMORY;
  // Not for children: what is pinned must stay the memory that the device knows, and a fork would part them
  // as soon as one side writes.
  if (!host_.reserve(kWordBytes + kMostBytes) || madvise(host_.data(), host_.bytes(), MADV_DONTFORK) != 0)
    return FORESHOCK_SKIP_DEVICE_MEMORY;

  int least = 0, greatest = 0;
  if (!load(code) || !ok(driver.ctx_get_stream_priority_range(&least, &greatest)) ||
      !ok(driver.stream_create_with_priority(&stream_, cuda::kStreamNonBlocking, least)) ||
      !ok(driver.event_create(&event_, cuda::kEventDisableTiming)))
    return FORESHOCK_SKIP_DEVICE;
  // The memory last: it is what could be missed if something else failed.
  // All of it: another context that finds it registered may have more room.
  const cuda::Result pinned = driver.mem_host_register(host_.data(), kWordBytes + kMostBytes,
                                                       cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
  if ((!ok(pinned) && pinned != cuda::kAlreadyRegistered) ||
      !ok(driver.mem_host_get_device_pointer(&words_, host_.data(), 0)) ||
      !ok(driver.mem_alloc(&memory_, bytes)))
    return FORESHOCK_SKIP_DEVICE_MEMORY;
  ring_.reset(bytes);
  std::fill_n(word(0), kReadyWord + 1, uint64_t{0});
  std::fill_n(released_, DeviceRing::kMostSlices, uint64_t{0});
  if (!ok(driver.memset_d8_async(memory_, 0, bytes, stream_)) ||
      !ok(driver.stream_write_value_64(stream_, word_on_device(kReadyWord), marker(), 0)))
    return FORESHOCK_SKIP_DEVICE;
  return -1;
}

bool WeightStaging::is_ready() { return has_written_marker(*word(kReadyWord)); }

// The room is left as it was found, all zero, so that the trainer's stream need not see to it.
bool WeightStaging::copy(const WeightWork& work, const SentWork& sent) {
  const DeviceDriver& driver = *driver_;
  const cuda::Address at = memory_ + sent.offset;
  return ok(driver.stream_wait_event(stream_, event_, 0)) &&
         ok(driver.memcpy_dtoh_async(host_.data() + kWordBytes + sent.offset, at, work.result_bytes(),
                                     stream_)) &&
         ok(driver.memset_d8_async(at, 0, work.bytes, stream_)) &&
         ok(driver.stream_write_value_64(stream_, word_on_device(sent.place), sent.ticket, 0));
}

int WeightStaging::send(const WeightWork& work, cuda::Stream stream, SentWork* sent) {
  DeviceRing::Place place;
  if (!ring_.find(work.bytes, &place)) return FORESHOCK_SKIP_RING_FULL;
  *sent = {context_id(), ticket_ + 1, place.offset, place.number};
  const auto launch = [&](DeviceKernel kernel, const LaunchShape& shape, void* job) {
    void* parameters[] = {job};
    return ok(driver_->launch_kernel(function_[static_cast<int>(kernel)], shape.blocks, 1, 1, shape.threads,
                                     1, 1, shape.shared_bytes, stream, parameters, nullptr));
  };
  if (!launch_all(work, memory_ + place.offset, limits_, launch) ||
      !ok(driver_->event_record(event_, stream)) || !copy(work, *sent))
    return fail();
  ++ticket_;
  ring_.commit(&released_[place.number], sent->ticket);
  return -1;
}

char* WeightStaging::results(const SentWork& sent) const {
  if (!is_awaited(sent) || host_.data() == nullptr) return nullptr;
  const uint64_t come = std::atomic_ref<uint64_t>(*word(sent.place)).load(std::memory_order_acquire);
  return come == sent.ticket ? host_.data() + kWordBytes + sent.offset : nullptr;
}

void WeightStaging::release(const SentWork& sent) {
  if (is_awaited(sent)) released_[sent.place] = sent.ticket;
}

}  // namespace foreshock
