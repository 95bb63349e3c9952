// Measures weight tensors, on the host or with kernels on their device: histograms, changes, optimizer sums.
// A histogram counts values by bit pattern (16-bit formats) or by bin (fp32), see kernels/histogram.h.
#include "libmonitor/weight_measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>

#include "foreshock/hook.h"
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
  const uint64_t most = is_fp32 ? kMostBinned : kMostPatterns;  // a larger tensor gets several histograms
  size_t packed = 0;
  for (uint64_t done = 0; done < elements; done += most) {
    const auto* from = static_cast<const char*>(values) + done * size_of(type);
    const size_t size =
        count_and_pack(from, type, std::min(most, elements - done), to + packed, room - packed);
    if (size == kPackFailed) return kPackFailed;
    packed += size;
  }
  return packed;
}

size_t HistogramPacker::pack_counted(void* words, DType type, char* to, size_t room, HistogramForm* form) {
  *form = type == DType::kFp32 ? HistogramForm::kBins : HistogramForm::kPatterns;
  if (type == DType::kFp32) return pack_bins(static_cast<uint64_t*>(words), to, room);
  return pack_patterns(static_cast<uint32_t*>(words), to, room, /*sets=*/1);
}

size_t HistogramPacker::count_and_pack(const char* values, DType type, uint64_t elements, char* to,
                                       size_t room) {
  if (type == DType::kFp32) {
    auto* words = reinterpret_cast<uint64_t*>(counters_.data());
    count_bins(values, elements, words);
    return pack_bins(words, to, room);
  }
  auto* words = reinterpret_cast<uint32_t*>(counters_.data());
  count_patterns(values, elements, words);
  return pack_patterns(words, to, room);
}

// Returns the offset in the tensor of the n-th kept piece, if `kept` of the tensor's `bytes` bytes are kept
// in pieces, evenly spread. A last piece that is shorter than kPiece is kept only with the whole tensor.
uint64_t CopiesBeforeStep::piece_offset(uint64_t n, uint64_t kept, uint64_t bytes) {
  const uint64_t pieces = (bytes + kPiece - 1) / kPiece, kept_pieces = (kept + kPiece - 1) / kPiece;
  return n * pieces / kept_pieces * kPiece;
}

CopiesBeforeStep::Copy CopiesBeforeStep::keep(const void* values, uint64_t bytes, DType type,
                                              uint64_t share) {
  constexpr uint64_t kAlign = 64;
  const uint64_t most = std::min(share, room() - used_);
  const uint64_t copied = bytes <= most ? bytes : most / kPiece * kPiece;  // all, or whole pieces
  const Copy copy = {.offset = used_, .bytes = copied, .whole_bytes = bytes, .type = type, .round = round_};
  overwrite(copy, values);
  used_ = std::min((used_ + copy.bytes + kAlign - 1) / kAlign * kAlign, room());
  return copy;
}

void CopiesBeforeStep::overwrite(const Copy& copy, const void* values) {
  const auto* from = static_cast<const char*>(values);
  char* to = memory_.data() + copy.offset;
  if (copy.bytes == copy.whole_bytes) {
    std::memcpy(to, from, copy.bytes);
    return;
  }
  for (uint64_t n = 0; n < copy.bytes / kPiece; ++n)
    std::memcpy(to + n * kPiece, from + piece_offset(n, copy.bytes, copy.whole_bytes), kPiece);
}

Update CopiesBeforeStep::update_since(const Copy& copy, const void* values, uint64_t* elements) const {
  *elements = copy.bytes / size_of(copy.type);
  const auto* now = static_cast<const char*>(values);
  const char* before = memory_.data() + copy.offset;
  if (copy.bytes == copy.whole_bytes) return update_between(before, now, copy.type, *elements);
  Update sum;
  for (uint64_t n = 0; n < copy.bytes / kPiece; ++n) {
    const Update piece =
        update_between(before + n * kPiece, now + piece_offset(n, copy.bytes, copy.whole_bytes), copy.type,
                       kPiece / size_of(copy.type));
    sum.sum_magnitude += piece.sum_magnitude;
    sum.sum_squares += piece.sum_squares;
    sum.sum_squares_after += piece.sum_squares_after;
    sum.max_magnitude = std::max(sum.max_magnitude, piece.max_magnitude);
  }
  return sum;
}

namespace {

bool is_readable_on_host(const foreshock_tensor& tensor) {
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

void ElementSample::renew(const void* values, DType type_now, uint64_t elements_now, uint64_t* compared,
                          uint64_t* unmoved) {
  const uint64_t count = std::min(elements_now, kMost);
  *compared = elements == elements_now && type == type_now ? count : 0;
  *unmoved = 0;
  elements = elements_now;
  type = type_now;
  const size_t width = size_of(type_now);
  for (uint64_t n = 0; n < count; ++n) {
    uint32_t now = 0;
    std::memcpy(&now, static_cast<const char*>(values) + n * elements_now / count * width,
                std::min(width, sizeof now));
    *unmoved += *compared > 0 && now == bits[n];
    bits[n] = now;
  }
}

OptimizerState optimizer_of(const foreshock_weight_state& state) {
  return {.gradient = state.gradient,
          .second_moment = state.square_average,
          .step = state.optimizer_step,
          .learning_rate = state.learning_rate,
          .beta1 = state.beta1,
          .beta2 = state.beta2,
          .epsilon = state.epsilon,
          .weight_decay = state.weight_decay,
          .gradient_state = state.gradient_state};
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

void write_optimizer_numbers(const OptimizerState& state, const GradientSums* gradient,
                             const AdamSums* moment, double* numbers) {
  std::fill_n(numbers, segment::kOptimizerNumbers, std::numeric_limits<double>::quiet_NaN());
  numbers[segment::kSeenLearningRate] = state.learning_rate;
  numbers[segment::kSeenBeta1] = state.beta1;
  numbers[segment::kSeenBeta2] = state.beta2;
  numbers[segment::kSeenEpsilon] = state.epsilon;
  numbers[segment::kSeenWeightDecay] = state.weight_decay;
  if (state.step >= 0) numbers[segment::kSeenStep] = static_cast<double>(state.step);
  numbers[segment::kSeenGradient] = state.gradient_state;
  if (moment != nullptr) {
    report_moment(*moment, numbers);
    report_gradient({moment->gradient_squares, moment->counted, moment->nonfinite_gradient}, numbers);
  } else if (gradient != nullptr) {
    report_gradient(*gradient, numbers);
  }
}

void optimizer_numbers(const OptimizerState& state, double* numbers) {
  if (!is_readable_on_host(state.gradient)) return write_optimizer_numbers(state, nullptr, nullptr, numbers);
  const TensorView gradient = view_of(state.gradient);
  AdamSums sums;
  AdamStep step;
  if (is_readable_on_host(state.second_moment) && is_same_shape(state.gradient, state.second_moment) &&
      adam_step_of(state, &step))
    add_adam_sums(gradient, view_of(state.second_moment), step, &sums);
  // The counts are all 0 if add_adam_sums() was not called or could not read the formats.
  if (sums.counted + sums.nonfinite_gradient + sums.unusable_state > 0)
    return write_optimizer_numbers(state, nullptr, &sums, numbers);
  GradientSums gradient_sums;
  add_gradient_sums(gradient, &gradient_sums);
  write_optimizer_numbers(state, &gradient_sums, nullptr, numbers);
}

namespace {

constexpr uint64_t kValuesPerRow = 512;  // the kernel kGather copies the values in rows

constexpr uint64_t round_up(uint64_t value) {
  return (value + WeightWork::kAlign - 1) / WeightWork::kAlign * WeightWork::kAlign;
}

uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Whether kernels can read the tensor: dense, on the device of `weight`, and aligned to its elements.
bool is_readable_on_device(const foreshock_tensor& tensor, const foreshock_tensor& weight) {
  const auto type = static_cast<DType>(tensor.dtype);
  if (tensor.data == nullptr || tensor.device_type != FORESHOCK_DEVICE_CUDA ||
      tensor.device_index != weight.device_index || !is_floating(type) || tensor.dims > FORESHOCK_TENSOR_DIMS)
    return false;
  const TensorView view = view_of(tensor);
  return element_count(view) > 0 && address(tensor.data) % size_of(type) == 0 && is_jointly_dense(view, view);
}

// Returns the size of the scratch memory for partial sums: tensors are summed in chunks, each with a result.
// The two kernels that sum (values and gradient, or second moment) run one after the other and share it.
uint64_t scratch_bytes(const WeightWork& work) {
  const uint64_t of_values = work.is_counted ? sum_chunks(work.count) : 0;
  const uint64_t of_gradient = work.has_gradient ? sum_chunks(work.gradient.count) : 0;
  const uint64_t of_moment = work.has_moment ? sum_chunks(work.adam.count) : 0;
  return std::max((of_values + of_gradient) * sizeof(GradientSums), of_moment * sizeof(AdamSums));
}

// Returns the address of that scratch memory. `at`, also below: the device address of the WeightResults.
uint64_t scratch_of(const WeightWork& work, uint64_t at) { return at + round_up(work.result_bytes()); }

// Plans sums over gradient and second moment if kernels can read both, else over the gradient if they can
// read it, else none.
void plan_optimizer(const foreshock_tensor& values, const OptimizerState& optimizer, WeightWork* work) {
  const foreshock_tensor &gradient = optimizer.gradient, &moment = optimizer.second_moment;
  if (!is_readable_on_device(gradient, values)) return;
  const TensorView view = view_of(gradient);
  const auto count = static_cast<uint64_t>(element_count(view));
  AdamStep step;
  if (is_readable_on_device(moment, values) && is_same_shape(gradient, moment) &&
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
  const uint64_t counter_bytes = is_fp32 ? kBinWords * sizeof(uint64_t) : kPatterns * sizeof(uint32_t);
  const uint64_t bytes = elements * size_of(work->type);
  // If the values take at most half the bytes of the counters, the values are copied to the host and counted
  // there. Copying them is faster than copying counters, and counting takes no longer than reading counters.
  work->is_counted = 2 * bytes > counter_bytes;
  if (work->is_counted && elements > (is_fp32 ? kMostBinned : kMostPatterns)) return false;
  work->payload_bytes = work->is_counted ? counter_bytes : bytes;
  plan_optimizer(values, optimizer, work);
  work->bytes = round_up(work->result_bytes()) + round_up(scratch_bytes(*work));
  return true;
}

GatherJob clock_job(uint64_t times, uint64_t clock) {
  GatherJob job = {};  // without pieces to copy, the kernel only stores its times
  job.times = times;
  job.clock = clock;
  return job;
}

GatherJob copy_of_values(const WeightWork& work, uint64_t at) {
  GatherJob job = clock_job(at + offsetof(WeightResults, first), at + offsetof(WeightResults, clock));
  job.to = at + WeightWork::kPayload;
  const uint64_t rows = work.count / kValuesPerRow, rest = work.count % kValuesPerRow,
                 element = size_of(work.type);
  const auto copy_rows = [&](uint64_t first, uint64_t count, uint64_t width) {
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
  copy_rows(0, rows, kValuesPerRow);
  copy_rows(rows * kValuesPerRow, 1, rest);
  return job;
}

GradientSumsJob sums_of_values_and_gradient(const WeightWork& work, uint64_t at) {
  GradientSumsJob job = {};
  job.partials = scratch_of(work, at);
  job.arrived = at + offsetof(WeightResults, arrived);
  const auto add_tensor = [&job](GradientTensor tensor) {
    tensor.first_chunk = job.chunks;
    job.chunks += sum_chunks(tensor.count);
    job.tensor[job.tensors++] = tensor;
  };
  // The job writes one GradientSums per tensor, in the order of its tensors: values (if counted), gradient.
  static_assert(offsetof(WeightResults, gradient) == offsetof(WeightResults, values) + sizeof(GradientSums));
  job.results = at + (work.is_counted ? offsetof(WeightResults, values) : offsetof(WeightResults, gradient));
  if (work.is_counted) add_tensor({work.from, work.count, 0, static_cast<uint32_t>(work.type), 0});
  if (work.has_gradient) add_tensor(work.gradient);
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

// The host memory of WeightStaging begins with 64-bit words. There is one for each place in the ring: the
// stream stores the ticket of work there when its results have arrived. kReadyWord is set when the device has
// finished the set-up.
constexpr uint32_t kReadyWord = StagingRing::kMostSlices;
constexpr uint64_t kWordBytes = 4096;  // space for the words; the copies of results follow
static_assert((kReadyWord + 1) * sizeof(uint64_t) <= kWordBytes);
static_assert(StagingRing::kAlign == WeightWork::kAlign);

constexpr DeviceKernel kUsedKernels[] = {DeviceKernel::kGather,    DeviceKernel::kCountPatterns,
                                         DeviceKernel::kCountBins, DeviceKernel::kGradientSums,
                                         DeviceKernel::kAdamSums,  DeviceKernel::kChecksum};

void WeightStaging::set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id) {
  driver_ = &driver;
  set_up_in(context_id, [&] { return try_set_up(code); });
}

// Loads the kernels. The kernel that counts patterns may use kPatternSharedBytes of shared memory if the
// device has that much for a block; otherwise it counts without shared memory, which is slower.
bool WeightStaging::load_kernels(std::span<const std::byte> code) {
  const DriverApi& driver = *driver_;
  cuda::Module module = nullptr;
  if (!ok(driver.module_load_data(&module, code.data()))) return false;
  for (const DeviceKernel kernel : kUsedKernels) {
    cuda::Function& function = function_[static_cast<int>(kernel)];
    if (!driver.find_kernel(module, name_of(kernel), &function)) return false;
  }
  return limits_.shared_bytes < kPatternSharedBytes ||
         ok(driver.func_set_attribute(function_[static_cast<int>(DeviceKernel::kCountPatterns)],
                                      cuda::kMostDynamicShared, int{kPatternSharedBytes}));
}

// Returns -1, or the FORESHOCK_SKIP_ reason why weights on this device cannot be measured.
int WeightStaging::try_set_up(std::span<const std::byte> code) {
  const DriverApi& driver = *driver_;
  const CaptureGuard relaxed(driver);  // without it, set-up calls would invalidate graph captures
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
  // Children do not inherit the pinned pages (MADV_DONTFORK). If they did, the first store of this process
  // after a fork would move it to a copy of the page, and the device would go on writing to the old page.
  if (!host_.reserve(kWordBytes + kMostBytes) || madvise(host_.data(), host_.bytes(), MADV_DONTFORK) != 0)
    return FORESHOCK_SKIP_DEVICE_MEMORY;

  int lowest = 0, highest = 0;  // priorities of streams; this object's stream has the lowest
  if (!load_kernels(code) || !ok(driver.ctx_get_stream_priority_range(&lowest, &highest)) ||
      !ok(driver.stream_create_with_priority(&stream_, cuda::kStreamNonBlocking, lowest)) ||
      !ok(driver.event_create(&event_, cuda::kEventDisableTiming)))
    return FORESHOCK_SKIP_DEVICE;
  // The host memory is pinned late, so that no pinned memory is lost if a call above fails. All of it is
  // pinned, even if `bytes` is less, since a later set-up in another context may use more and pins nothing.
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

bool WeightStaging::is_ready() {
  return has_written_marker(
      [this] { return std::atomic_ref<uint64_t>(*word(kReadyWord)).load(std::memory_order_acquire); });
}

// Queues four operations on this object's stream: wait for the kernels, copy the results to the host, zero
// the device memory for the next work, and store the ticket in the host word.
bool WeightStaging::queue_copy(const WeightWork& work, const SentWork& sent) {
  const DriverApi& driver = *driver_;
  const cuda::Address on_device = memory_ + sent.offset;
  return ok(driver.stream_wait_event(stream_, event_, 0)) &&
         ok(driver.memcpy_dtoh_async(host_.data() + kWordBytes + sent.offset, on_device, work.result_bytes(),
                                     stream_)) &&
         ok(driver.memset_d8_async(on_device, 0, work.bytes, stream_)) &&
         ok(driver.stream_write_value_64(stream_, word_on_device(sent.place), sent.ticket, 0));
}

// Queues the kernels on `stream`, and queue_copy() after them. Returns -1 or the reason, like try_set_up().
// After an error of the driver, fail() makes the object unusable in this context.
int WeightStaging::send(const WeightWork& work, cuda::Stream stream, SentWork* sent) {
  StagingRing::FreeRange place;
  if (!ring_.find(work.bytes, &place)) return FORESHOCK_SKIP_RING_FULL;
  *sent = {context_id(), ticket_ + 1, place.offset, place.number};
  const auto launch = [&](DeviceKernel kernel, const LaunchShape& shape, void* job) {
    void* parameters[] = {job};
    return ok(driver_->launch_kernel(function_[static_cast<int>(kernel)], shape.blocks, 1, 1, shape.threads,
                                     1, 1, shape.shared_bytes, stream, parameters, nullptr));
  };
  if (!launch_all(work, memory_ + place.offset, limits_, launch) ||
      !ok(driver_->event_record(event_, stream)) || !queue_copy(work, *sent))
    return fail();
  ++ticket_;
  ring_.commit(&released_[place.number], sent->ticket);  // in use until release() stores this ticket
  return -1;
}

char* WeightStaging::results(const SentWork& sent) const {
  if (!is_awaited(sent) || host_.data() == nullptr) return nullptr;
  const uint64_t arrived = std::atomic_ref<uint64_t>(*word(sent.place)).load(std::memory_order_acquire);
  return arrived == sent.ticket ? host_.data() + kWordBytes + sent.offset : nullptr;
}

void WeightStaging::release(const SentWork& sent) {
  if (is_awaited(sent)) released_[sent.place] = sent.ticket;
}

}  // namespace foreshock
