#include "libmonitor/weights_cuda.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>

#include "foreshock/hook.h"
#include "kernels/histogram.h"
#include "kernels/sums.h"
#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_sampler.h"
#include "libmonitor/weights.h"

namespace foreshock {
namespace {

constexpr uint64_t kRow = 512;  // values per row of the copy

constexpr uint64_t round_up(uint64_t value) {
  return (value + WeightWork::kAlign - 1) / WeightWork::kAlign * WeightWork::kAlign;
}

uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

// Whether the tensor is contiguous, on the device of `beside`, and aligned as kernels load it.
bool is_readable_there(const foreshock_tensor& tensor, const foreshock_tensor& beside) {
  const auto type = static_cast<DType>(tensor.dtype);
  if (tensor.data == nullptr || tensor.device_type != FORESHOCK_DEVICE_CUDA ||
      tensor.device_index != beside.device_index || !is_floating(type) || tensor.dims > FORESHOCK_TENSOR_DIMS)
    return false;
  const TensorView view = view_of(tensor);
  return element_count(view) > 0 && address(tensor.data) % size_of(type) == 0 && is_jointly_dense(view, view);
}

// A sum is computed in chunks, each with its partial result. The kernels run one after the other and share
// this memory.
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
  // If the values take at most half the bytes of the words, the values are copied instead: the copy is
  // faster, and the host counts them as fast as it reads the words.
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
  // The results are adjacent. If the values are not summed here, the gradient's results are the first.
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

namespace {

// One word per slice of the ring shows that its work has arrived. The next word shows that set-up is
// complete.
constexpr uint32_t kReadyWord = StagingRing::kMostSlices;
constexpr uint64_t kWordBytes = 4096;
static_assert((kReadyWord + 1) * sizeof(uint64_t) <= kWordBytes);
static_assert(StagingRing::kAlign == WeightWork::kAlign);

constexpr DeviceKernel kUsed[] = {DeviceKernel::kGather,    DeviceKernel::kCountPatterns,
                                  DeviceKernel::kCountBins, DeviceKernel::kGradientSums,
                                  DeviceKernel::kAdamSums,  DeviceKernel::kChecksum};

}  // namespace

void WeightStaging::set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id) {
  driver_ = &driver;
  set_up_in(context_id, [&] { return try_set_up(code); });
}

// If a block may not have enough shared memory for the fast count of patterns, the kernel counts without it.
bool WeightStaging::load(std::span<const std::byte> code) {
  const DriverApi& driver = *driver_;
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
  const DriverApi& driver = *driver_;
  const CaptureGuard relaxed(driver);
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
      std::min<uint64_t>(free / kShareOfFree, kMostBytes) / StagingRing::kAlign * StagingRing::kAlign;
  if (bytes < kLeastBytes) return FORESHOCK_SKIP_DEVICE_MEMORY;
  // Not inherited by children: the pinned pages must stay the ones that the device writes to, and after a
  // fork the first store by either process would copy the page.
  if (!host_.reserve(kWordBytes + kMostBytes) || madvise(host_.data(), host_.bytes(), MADV_DONTFORK) != 0)
    return FORESHOCK_SKIP_DEVICE_MEMORY;

  int least = 0, greatest = 0;
  if (!load(code) || !ok(driver.ctx_get_stream_priority_range(&least, &greatest)) ||
      !ok(driver.stream_create_with_priority(&stream_, cuda::kStreamNonBlocking, least)) ||
      !ok(driver.event_create(&event_, cuda::kEventDisableTiming)))
    return FORESHOCK_SKIP_DEVICE;
  // Pinned last, so that no memory is lost if another step fails. All of it is pinned, because another
  // context that finds the memory registered may use more of it.
  const cuda::Result pinned = driver.mem_host_register(host_.data(), kWordBytes + kMostBytes,
                                                       cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
  if ((!ok(pinned) && pinned != cuda::kAlreadyRegistered) ||
      !ok(driver.mem_host_get_device_pointer(&words_, host_.data(), 0)) ||
      !ok(driver.mem_alloc(&memory_, bytes)))
    return FORESHOCK_SKIP_DEVICE_MEMORY;
  ring_.reset(bytes);
  std::fill_n(word(0), kReadyWord + 1, uint64_t{0});
  std::fill_n(released_, StagingRing::kMostSlices, uint64_t{0});
  if (!ok(driver.memset_d8_async(memory_, 0, bytes, stream_)) ||
      !ok(driver.stream_write_value_64(stream_, word_on_device(kReadyWord), marker(), 0)))
    return FORESHOCK_SKIP_DEVICE;
  return -1;
}

bool WeightStaging::is_ready() { return has_written_marker(*word(kReadyWord)); }

// Zeroes the memory after the copy, so that the trainer's stream need not do it before the next work.
bool WeightStaging::copy(const WeightWork& work, const SentWork& sent) {
  const DriverApi& driver = *driver_;
  const cuda::Address at = memory_ + sent.offset;
  return ok(driver.stream_wait_event(stream_, event_, 0)) &&
         ok(driver.memcpy_dtoh_async(host_.data() + kWordBytes + sent.offset, at, work.result_bytes(),
                                     stream_)) &&
         ok(driver.memset_d8_async(at, 0, work.bytes, stream_)) &&
         ok(driver.stream_write_value_64(stream_, word_on_device(sent.place), sent.ticket, 0));
}

int WeightStaging::send(const WeightWork& work, cuda::Stream stream, SentWork* sent) {
  StagingRing::Place place;
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

// Measurements of tensors on a device. They are sent in the step that they belong to, and their record is
// written when the results have arrived. Such a record has everything that follows from the tensor's values,
// but not the change made by the step: that would need a copy of the tensor on the device.

namespace {

// After this many steps a result is no longer awaited. A host can be ahead of its device by as many kernels
// as a stream queues, which is a few steps.
constexpr uint64_t kPatience = 1024;

segment::TensorSkip skip_of(int why) {
  switch (why) {
    case FORESHOCK_SKIP_CAPTURE:
      return segment::kTensorCapture;
    case FORESHOCK_SKIP_DEVICE_MEMORY:
      return segment::kTensorDeviceMemory;
    case FORESHOCK_SKIP_RING_FULL:
      return segment::kTensorDeviceFull;
    case FORESHOCK_SKIP_SET_UP:
      return segment::kTensorSetUp;
    default:
      return segment::kTensorDevice;
  }
}

WeightResults results_in(const char* results) {
  WeightResults copy;
  std::memcpy(&copy, results, sizeof copy);
  return copy;
}

}  // namespace

void WeightSampler::send(const foreshock_weight_state& state, int64_t step) {
  const uint64_t begin = monotonic_ns();
  PendingWeight* pending = pending_.next();
  if (pending == nullptr) return writer_.count_skipped(segment::kTensorDeviceFull);
  const uint64_t elements = weight(state.number)->elements;
  pending->optimizer = optimizer_of(state);
  if (!plan_weight(state.parameter, elements, pending->optimizer, &pending->work))
    return writer_.count_skipped(segment::kTensorTooLarge);
  void* stream = state.stream;
  DeviceTurn turn;
  int why = devices_->begin_weights({state.parameter.device_index, stream}, &turn, &pending->place);
  if (why < 0 && !turn.weights().holds(pending->work)) return writer_.count_skipped(segment::kTensorTooLarge);
  if (why < 0) why = turn.weights().send(pending->work, static_cast<cuda::Stream>(stream), &pending->sent);
  if (why >= 0) return writer_.count_skipped(skip_of(why));
  pending->number = state.number;
  pending->values = state.parameter;
  pending->step = step;
  pending->time_ns = realtime_ns();
  pending->interval = cadence_.interval();
  pending->round = round_;
  pending->host_records = host_records_;
  pending->is_forgotten = false;
  pending_.push();
  writer_.set_awaited(writer_.ring()->awaited + 1);
  pending->launch_ns = monotonic_ns() - begin;
  deferred_ns_ += pending->launch_ns;
}

WeightSampler::Spent WeightSampler::collect() {
  Spent spent;
  if (pending_.count() == 0) return spent;
  const uint64_t begin = monotonic_ns();
  while (PendingWeight* pending = pending_.oldest()) {
    if (!settle(pending, &spent)) break;
    if (!pending->is_forgotten) writer_.set_awaited(writer_.ring()->awaited - 1);
    pending_.pop();
  }
  spent.host_ns = monotonic_ns() - begin;
  return spent;
}

// Returns false if the result is still awaited.
bool WeightSampler::settle(PendingWeight* pending, Spent* spent) {
  bool is_settled = false;
  devices_->visit_weights(pending->place, [&](WeightStaging& staging) {
    char* results = staging.results(pending->sent);
    const bool never_comes = !staging.is_awaited(pending->sent) || round_ - pending->round > kPatience;
    if (results == nullptr && !never_comes) return;
    is_settled = true;
    if (results == nullptr) {
      if (!pending->is_forgotten) writer_.count_skipped(segment::kTensorDevice);
      return;  // not released: a slow device may still store into this memory
    }
    const WeightResults head = results_in(results);
    if (head.first[0] <= head.last[1]) spent->device_ns += head.last[1] - head.first[0];
    spent->before_ns += pending->launch_ns;
    read_ += pending->work.count * size_of(pending->work.type);
    if (!pending->is_forgotten) write(*pending, results);
    staging.release(pending->sent);
  });
  return is_settled;
}

size_t WeightSampler::pack(const PendingWeight& pending, char* payload, const Draft& draft) {
  const uint64_t room = draft.room - draft.histogram_at;
  if (pending.work.is_counted)
    return HistogramPacker::pack_counted(payload, pending.work.type, draft.histogram, room,
                                         &draft.record->form);
  return packer_.pack(payload, pending.work.type, pending.work.count, draft.histogram, room,
                      &draft.record->form);
}

void WeightSampler::write(const PendingWeight& pending, char* results) {
  // A record with an earlier step than the previous record would look to the agent like a training that
  // resumed from a checkpoint.
  if (host_records_ != pending.host_records && host_step_ != pending.step)
    return writer_.count_skipped(segment::kTensorDevice);
  const WeightResults head = results_in(results);
  const WeightWork& work = pending.work;
  char* payload = results + WeightWork::kPayload;
  Weight& of = *weight(pending.number);
  Draft draft;
  if (!open(of, &draft)) return;
  segment::TensorRecord* record = draft.record;
  describe(of, pending.number, work.type, pending.step, record);
  record->time_ns = pending.time_ns;
  record->interval = pending.interval;
  const size_t packed = pack(pending, payload, draft);
  if (packed == kPackFailed) return rest(&of, draft.room);
  record->payload[segment::kTensorHistogram] = {draft.histogram_at, packed};
  record->checksum = work.is_counted ? head.checksum : checksum(payload, work.count * size_of(work.type));
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::fill_n(draft.reductions, segment::kTensorReductionCount, kUnknown);
  if (!work.is_counted)
    draft.reductions[segment::kSumOfSquares] = sum_of_squares(payload, work.type, work.count);
  else if (head.values.nonfinite == 0)
    draft.reductions[segment::kSumOfSquares] = head.values.squares;
  const AdamSums& moment = head.moment;
  const bool is_counted =
      work.has_moment && moment.counted + moment.nonfinite_gradient + moment.unusable_state > 0;
  tell_optimizer(pending.optimizer, work.has_gradient ? &head.gradient : nullptr,
                 is_counted ? &moment : nullptr, draft.optimizer);
  foreshock_tensor values = pending.values;
  values.data = work.is_counted ? nullptr : payload;
  close(&of, draft, add_heads(of, values, (draft.histogram_at + packed + 7) / 8 * 8, draft));
}

}  // namespace foreshock
