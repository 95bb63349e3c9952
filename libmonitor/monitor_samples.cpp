// The parts of Monitor that take the sample of an attention call after its operation: leave() checks its
// description, chooses a slice of it (call.h), and has the slice copied into slots of the segment, the memory
// shared with the agent process. On a device, kernels on the trainer's stream copy it (device_sampler.h).
// Each use of a slot has a number, its ticket, from 1 on. All random choices follow from seed, step, call
// number and rank, so a rerun repeats them.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "kernels/packed.h"
#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/device_sampler.h"
#include "libmonitor/monitor.h"

namespace foreshock {

// -- checks of the description of a call --

namespace {

// hook.h (C) and DType number the storage formats equally.
constexpr bool is_same(DType type, int number) { return static_cast<int>(type) == number; }
static_assert(is_same(DType::kFp64, FORESHOCK_FP64) && is_same(DType::kFp32, FORESHOCK_FP32) &&
              is_same(DType::kBf16, FORESHOCK_BF16) && is_same(DType::kFp16, FORESHOCK_FP16) &&
              is_same(DType::kBool, FORESHOCK_BOOL));

// Returns a view whose first dimensions are those of the tensor (view_of() in weight_measure.h has them
// last).
TensorView unaligned_view_of(const foreshock_tensor& tensor) {
  TensorView view;
  view.data = tensor.data;
  view.dtype = tensor.dtype <= FORESHOCK_BOOL ? static_cast<DType>(tensor.dtype) : DType::kNone;
  std::copy_n(tensor.shape, 4, view.shape);
  std::copy_n(tensor.stride, 4, view.stride);
  return view;
}

// Returns a view of a mask. If it has fewer than 4 dimensions, they are the last ones of the view.
TensorView right_aligned_view_of(const foreshock_tensor& tensor) {
  TensorView view = unaligned_view_of(tensor);
  const int missing = 4 - static_cast<int>(std::min<uint32_t>(tensor.dims, 4));
  for (int n = 3; n >= 0; --n) {
    view.shape[n] = n >= missing ? tensor.shape[n - missing] : 1;
    view.stride[n] = n >= missing ? tensor.stride[n - missing] : 0;
  }
  return view;
}

// Returns `tensor`, or an absent tensor if an older caller's struct ends before offset `end` of this field.
foreshock_tensor given(const foreshock_attention_call& call, size_t end, const foreshock_tensor& tensor) {
  return call.size >= end ? tensor : foreshock_tensor{};
}

// Returns what dropout has kept; absent where it is not read.
foreshock_tensor kept_of(const foreshock_attention_call& call) {
  if (!(call.dropout > 0 && call.dropout < 1) || call.query_offsets != nullptr) return {};
  return given(call, offsetof(foreshock_attention_call, kept) + sizeof call.kept, call.kept);
}

// Whether all tensors that are set, except grad_key and grad_value, are on one device. The CPU has no index.
bool is_on_one_device(const foreshock_attention_call& call) {
  const foreshock_tensor& query = call.query;
  const foreshock_tensor kept = kept_of(call);
  for (const foreshock_tensor* tensor : {&call.key, &call.value, &call.out, &call.log_sum_exp, &call.mask,
                                         &call.grad_out, &call.grad_query, &kept}) {
    if (tensor->data == nullptr) continue;
    if (tensor->device_type != query.device_type) return false;
    if (query.device_type != FORESHOCK_DEVICE_CPU && tensor->device_index != query.device_index) return false;
  }
  return true;
}

bool has_shape(const TensorView& view, int64_t a, int64_t b, int64_t c, int64_t d) {
  return view.data != nullptr && view.shape[0] == a && view.shape[1] == b && view.shape[2] == c &&
         view.shape[3] == d;
}

bool broadcasts(int64_t size, int64_t full_size) { return size == full_size || size == 1; }

// Extends the mask to `shape`: a dimension of size 1 gets stride 0.
void broadcast(TensorView* mask, const int64_t (&shape)[4]) {
  for (int n = 0; n < 4; ++n) {
    if (mask->shape[n] == 1 && shape[n] != 1) mask->stride[n] = 0;
    mask->shape[n] = shape[n];
  }
}

// Removes the gradients of keys and values if this is a forward call, or if one of them does not match the
// call. The call can be judged without them.
void drop_mismatched_key_gradients(const foreshock_attention_call& call, ValidatedCall* checked) {
  ValidatedCall& c = *checked;
  const auto [batch, heads, kv_heads, queries, keys] = c.shape;
  const auto is_on_query_device = [&](const foreshock_tensor& tensor) {
    return tensor.device_type == call.query.device_type &&
           (tensor.device_type == FORESHOCK_DEVICE_CPU || tensor.device_index == call.query.device_index);
  };
  if (c.pass == FORESHOCK_BACKWARD && has_shape(c.grad_key, batch, kv_heads, keys, c.head_dim) &&
      has_shape(c.grad_value, batch, kv_heads, keys, c.value_dim) && c.grad_key.dtype == c.dtype &&
      c.grad_value.dtype == c.dtype && is_on_query_device(call.grad_key) &&
      is_on_query_device(call.grad_value))
    return;
  c.grad_key = c.grad_value = {};
}

// Takes the weights if they stand for a log-sum-exp that is absent, and match the call.
void take_weights(const foreshock_attention_call& call, ValidatedCall* checked) {
  ValidatedCall& c = *checked;
  const auto [batch, heads, kv_heads, queries, keys] = c.shape;
  const foreshock_tensor weights =
      given(call, offsetof(foreshock_attention_call, weights) + sizeof call.weights, call.weights);
  c.weights = unaligned_view_of(weights);
  const bool is_usable = c.pass == FORESHOCK_BACKWARD && c.log_sum_exp.data == nullptr && c.soft_cap == 0 &&
                         c.device_type == FORESHOCK_DEVICE_CPU &&
                         weights.device_type == FORESHOCK_DEVICE_CPU && call.query_offsets == nullptr &&
                         has_shape(c.weights, batch, heads, queries, keys) && is_floating(c.weights.dtype);
  if (!is_usable) c.weights = {};
}

bool is_alignment(int32_t causal) {
  return causal >= FORESHOCK_CAUSAL_NONE && causal <= FORESHOCK_CAUSAL_BOTTOM_RIGHT;
}

// Joins causal mask and window. Returns false if they are invalid, or aligned differently. call.causal must
// be valid.
bool take_window(const foreshock_attention_call& call, segment::KeyWindow* window) {
  constexpr size_t kEnd = offsetof(foreshock_attention_call, window_right) + sizeof call.window_right;
  const int32_t of_window = call.size >= kEnd ? call.window : FORESHOCK_CAUSAL_NONE;
  const int32_t alignment = of_window != FORESHOCK_CAUSAL_NONE ? of_window : call.causal;
  if (!is_alignment(of_window) || (call.causal != FORESHOCK_CAUSAL_NONE && call.causal != alignment))
    return false;
  *window = {};
  window->is_bottom_right = alignment == FORESHOCK_CAUSAL_BOTTOM_RIGHT ? 1 : 0;
  if (of_window != FORESHOCK_CAUSAL_NONE) {
    if (call.window_left < -1 || call.window_right < -1) return false;
    const auto limited = [](int64_t keys) { return keys > segment::kMostWindow ? -1 : keys; };
    window->left = limited(call.window_left);
    window->right = limited(call.window_right);
  }
  if (call.causal != FORESHOCK_CAUSAL_NONE) window->right = 0;
  return true;
}

// Whether a query sees no key because of the window. Kernels differ in what they write for it.
bool hides_all_keys(const ValidatedCall& c) {
  const bool is_windowed = c.window.left >= 0 || c.window.right > 0;  // more than a causal mask
  return is_windowed && has_query_without_keys(c.window, c.shape.queries, c.shape.keys);
}

constexpr int64_t kMaxHeadDim = 4096;  // the agent accepts no larger head dimension

// The functions from here to validate_call() are for packed batches. Tensors of a packed batch have no batch
// dimension. They hold several sequences one after the other, and int32 arrays (the offsets) have the
// positions at which the sequences begin.

constexpr int64_t kMaxOffset = std::numeric_limits<int32_t>::max();

bool is_aligned(const int32_t* offsets) {
  return offsets != nullptr && reinterpret_cast<uint64_t>(offsets) % alignof(int32_t) == 0;
}

void add_batch_dimension(TensorView* view) {
  for (int n = 3; n > 0; --n) {
    view->shape[n] = view->shape[n - 1];
    view->stride[n] = view->stride[n - 1];
  }
  view->shape[0] = 1;
  view->stride[0] = 0;
}

// Whether log_sum_exp is absent or has one of its two layouts: (1, head, position in the batch) or, if
// lse_by_sequence, (sequence, head, position in the sequence). Sets lse_by_sequence.
bool check_log_sum_exp(const foreshock_attention_call& call, ValidatedCall* checked) {
  const TensorView& lse = checked->log_sum_exp;
  if (lse.data == nullptr) return true;
  checked->lse_by_sequence = call.log_sum_exp.dims == 3;
  const int64_t rows = checked->lse_by_sequence ? checked->shape.queries : checked->query.shape[2];
  const int64_t batch = checked->lse_by_sequence ? call.sequences : 1;
  return is_floating(lse.dtype) && lse.shape[0] == batch && lse.shape[1] == checked->shape.heads &&
         lse.shape[2] >= rows && lse.shape[3] == 1;
}

// Gives all tensors a batch dimension of size 1, except a log_sum_exp whose first dimension is the sequences.
void add_batch(const foreshock_attention_call& call, ValidatedCall* checked) {
  for (TensorView* view : {&checked->query, &checked->key, &checked->value, &checked->out, &checked->grad_out,
                           &checked->grad_query, &checked->grad_key, &checked->grad_value})
    add_batch_dimension(view);
  if (call.log_sum_exp.dims == 2) add_batch_dimension(&checked->log_sum_exp);
}

// Checks what only packed calls have, and stores it in *checked. Does not read the offsets, which may be on a
// device. Returns -1 or the reason to skip the call.
int check_packed(const foreshock_attention_call& call, ValidatedCall* checked) {
  CallShape& shape = checked->shape;
  const int64_t queries = shape.queries, keys = shape.keys;
  if (call.mask.data != nullptr) return FORESHOCK_SKIP_MASK;
  if (!is_aligned(call.query_offsets) || !is_aligned(call.key_offsets) || call.sequences < 1 ||
      call.sequences > kMaxOffset || queries > kMaxOffset || keys > kMaxOffset || call.longest_query < 1 ||
      call.longest_key < 1)
    return FORESHOCK_SKIP_LAYOUT;
  shape.queries = std::min(queries, call.longest_query);
  shape.keys = std::min(keys, call.longest_key);
  if (!check_log_sum_exp(call, checked)) return FORESHOCK_SKIP_LAYOUT;
  // With the same offsets a sequence has as many keys as queries, so both alignments are equal.
  if (call.query_offsets == call.key_offsets) checked->window.is_bottom_right = 0;
  checked->packed = {.query_offsets = reinterpret_cast<uint64_t>(call.query_offsets),
                     .key_offsets = reinterpret_cast<uint64_t>(call.key_offsets),
                     .count = static_cast<uint32_t>(call.sequences),
                     .queries = static_cast<uint32_t>(queries),
                     .keys = static_cast<uint32_t>(keys),
                     .longest_query = static_cast<uint32_t>(shape.queries),
                     .longest_key = static_cast<uint32_t>(shape.keys),
                     .place = 0};
  return -1;
}

void restrict_rows(int64_t first, int64_t length, TensorView* view) {
  if (view->data == nullptr) return;
  view->data = view->row(0, 0, first);
  view->shape[2] = length;
}

}  // namespace

int validate_call(const foreshock_attention_call& call, uint32_t pass, ValidatedCall* checked) {
  // Dropout changes the output, which can be recomputed only if it is known which weights were kept. It does
  // not change the scores or their log-sum-exp, so a forward call can be judged by these. `!(x == 0)` treats
  // NaN as dropout too.
  const foreshock_tensor kept = kept_of(call);
  const bool has_dropout = !(call.dropout == 0) && kept.data == nullptr;
  if (has_dropout && (pass == FORESHOCK_BACKWARD || !(call.dropout > 0 && call.dropout <= 1)))
    return FORESHOCK_SKIP_DROPOUT;
  if (call.query.device_type != FORESHOCK_DEVICE_CPU && call.query.device_type != FORESHOCK_DEVICE_CUDA)
    return FORESHOCK_SKIP_DEVICE;
  if (!is_on_one_device(call)) return FORESHOCK_SKIP_LAYOUT;

  ValidatedCall& c = *checked;
  c.packed = {};
  c.lse_by_sequence = false;
  c.sequence = 0;
  const bool is_packed = call.query_offsets != nullptr;
  const uint32_t dims = is_packed ? 3 : 4;
  c.query = unaligned_view_of(call.query);
  c.key = unaligned_view_of(call.key);
  c.value = unaligned_view_of(call.value);
  c.out = has_dropout ? TensorView{} : unaligned_view_of(call.out);
  c.log_sum_exp = unaligned_view_of(call.log_sum_exp);
  c.mask = right_aligned_view_of(call.mask);
  c.grad_out = unaligned_view_of(call.grad_out);
  c.grad_query = unaligned_view_of(call.grad_query);
  c.grad_key = unaligned_view_of(
      given(call, offsetof(foreshock_attention_call, grad_key) + sizeof call.grad_key, call.grad_key));
  c.grad_value = unaligned_view_of(
      given(call, offsetof(foreshock_attention_call, grad_value) + sizeof call.grad_value, call.grad_value));
  c.device_type = call.query.device_type;
  c.device_index = call.query.device_index;
  c.stream = call.stream;
  c.pass = pass;
  c.dtype = c.query.dtype;
  c.scale = call.scale;
  const bool is_capped = call.size >= offsetof(foreshock_attention_call, soft_cap) + sizeof call.soft_cap;
  c.soft_cap = is_capped ? call.soft_cap : 0;
  c.kept = right_aligned_view_of(kept);
  c.dropout = c.kept.data != nullptr ? call.dropout : 0;
  if (!(c.soft_cap >= 0) || c.soft_cap * 0 != 0) return FORESHOCK_SKIP_MASK;
  const bool is_finite = c.scale * 0 == 0;  // Inf and NaN give NaN
  if (call.query.dims != dims || call.key.dims != dims || call.value.dims != dims || !is_floating(c.dtype) ||
      !is_alignment(call.causal) || !is_finite || c.scale == 0)
    return FORESHOCK_SKIP_LAYOUT;
  if (!take_window(call, &c.window)) return FORESHOCK_SKIP_MASK;
  if (is_packed) add_batch(call, checked);
  const int64_t batch = c.query.shape[0], heads = c.query.shape[1], queries = c.query.shape[2];
  const int64_t kv_heads = c.key.shape[1], keys = c.key.shape[2];
  c.head_dim = c.query.shape[3];
  c.value_dim = c.value.shape[3];
  c.shape = {batch, heads, kv_heads, queries, keys};
  if (batch < 1 || heads < 1 || queries < 1 || keys < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
      c.head_dim < 1 || c.value_dim < 1 || c.head_dim > kMaxHeadDim || c.value_dim > kMaxHeadDim ||
      !has_shape(c.query, batch, heads, queries, c.head_dim) ||
      !has_shape(c.key, batch, kv_heads, keys, c.head_dim) ||
      !has_shape(c.value, batch, kv_heads, keys, c.value_dim) || c.key.dtype != c.dtype ||
      c.value.dtype != c.dtype)
    return FORESHOCK_SKIP_LAYOUT;
  if (!has_dropout && (!has_shape(c.out, batch, heads, queries, c.value_dim) || c.out.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
  if (pass == FORESHOCK_BACKWARD && (!has_shape(c.grad_out, batch, heads, queries, c.value_dim) ||
                                     !has_shape(c.grad_query, batch, heads, queries, c.head_dim) ||
                                     c.grad_out.dtype != c.dtype || c.grad_query.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
  drop_mismatched_key_gradients(call, checked);
  take_weights(call, checked);
  if (is_packed) return check_packed(call, checked);
  if (hides_all_keys(c)) return FORESHOCK_SKIP_MASK;
  if (c.log_sum_exp.data != nullptr &&
      (!has_shape(c.log_sum_exp, batch, heads, queries, 1) || !is_floating(c.log_sum_exp.dtype)))
    return FORESHOCK_SKIP_LAYOUT;
  for (TensorView* view : {&c.mask, &c.kept}) {
    if (view->data == nullptr) continue;
    const int64_t full[4] = {batch, heads, queries, keys};
    for (int n = 0; n < 4; ++n)
      if (!broadcasts(view->shape[n], full[n])) return FORESHOCK_SKIP_MASK;
    if (view->dtype == DType::kNone) return FORESHOCK_SKIP_MASK;
    broadcast(view, full);
  }
  return -1;
}

// Takes the sequence at the fraction `place` / 2^32 of all query positions of the packed batch.
int take_sequence(uint32_t place, ValidatedCall* checked) {
  ValidatedCall& c = *checked;
  c.packed.place = place;
  const SequencePlace found = find_sequence(c.packed, HostMemory());
  c.packed = {};  // from here on the call has only this sequence and is not packed
  if (found.queries == 0) return FORESHOCK_SKIP_LAYOUT;  // invalid offsets
  // Kernels differ in what they write for queries that see no key.
  if (has_query_without_keys(c.window, found.queries, found.keys)) return FORESHOCK_SKIP_MASK;
  c.sequence = found.number;
  c.shape.queries = found.queries;
  c.shape.keys = found.keys;
  for (TensorView* view : {&c.query, &c.out, &c.grad_out, &c.grad_query})
    restrict_rows(found.query, found.queries, view);
  for (TensorView* view : {&c.key, &c.value, &c.grad_key, &c.grad_value})
    restrict_rows(found.key, found.keys, view);
  if (c.lse_by_sequence && c.log_sum_exp.data != nullptr)
    c.log_sum_exp.data = c.log_sum_exp.row(found.number, 0, 0);
  else
    restrict_rows(found.query, found.queries, &c.log_sum_exp);
  return -1;
}

// -- the sample of a call --

// A call that is to be sampled, and its slice of key positions, if it gives one.
struct SampledCall {
  ValidatedCall checked;
  struct {
    uint64_t bytes;  // size of a slot
    uint32_t slots;  // the largest number of slots that a slice may use
  } limits;
  std::optional<DeviceTurn> turn;  // exclusive access to the call's device; empty for host tensors
  Slice columns;
  SlicePlan columns_plan;
};

void Monitor::leave(const foreshock_attention_call& call) {
  const OpenCall open = std::exchange(t_open, {});
  if (open.op < 0) return;
  const uint32_t pass = g_process.pass_of(open.op);
  if (open.sizes_segment) {
    ValidatedCall checked;
    const bool usable = validate_call(call, pass, &checked) < 0;
    const uint64_t slot_bytes = usable ? slot_bytes_for(checked) : 0;  // 0: unknown
    if (ensure_segment(slot_bytes)) slice_cost_.expect(slot_bytes);
    return;
  }
  const uint64_t begin = monotonic_ns();
  const Counting counting = g_process.counting();
  CopiedSlices copied;
  const int reason = take_sample(counting, call, open, pass, &copied);
  if (reason >= 0) counting.add(counting.block->skipped[pass][reason]);
  mark_layer(call, open, pass, reason);
  const uint64_t own_ns = monotonic_ns() - begin + call.prepare_ns;
  counting.add(counting.block->hook_ns, own_ns);
  if (reason >= 0) g_process.writer().publish_block(counting.block);  // put_slice() has done so for a sample
  slices_ns_.fetch_add(own_ns, std::memory_order_relaxed);
  if (copied.bytes == 0) return;  // nothing was copied
  if (TryLock lock(cost_busy_); lock) slice_cost_.observe(copied.bytes, copied.is_cold, seconds(own_ns));
}

// Copies a slice of rows of the call, and perhaps a slice of key positions, and counts the call as sampled.
// Returns -1, or the FORESHOCK_SKIP_ reason why nothing was copied.
int Monitor::take_sample(const Counting& counting, const foreshock_attention_call& call, const OpenCall& open,
                         uint32_t pass, CopiedSlices* copied) {
  SampledCall sampled;
  ValidatedCall& checked = sampled.checked;
  if (const int reason = validate_call(call, pass, &checked); reason >= 0) return reason;
  segment::SegmentWriter& writer = g_process.writer();
  if (writer.slots() == 0) return FORESHOCK_SKIP_OFF;

  const int64_t step = step_.load(std::memory_order_relaxed);
  const Settings& settings = g_process.settings();
  if (checked.packed.count > 0) {
    // `place` is a random position in the packed batch; the sequence that holds it is sampled.
    const uint32_t place = choose_packed_position(settings.seed, step, open.call, settings.rank);
    checked.packed.place = place;  // if the offsets are on a device, the gather kernel finds the sequence
    if (checked.device_type == FORESHOCK_DEVICE_CPU)
      if (const int reason = take_sequence(place, &checked); reason >= 0) return reason;
  }
  sampled.limits = {writer.slot_bytes(), writer.slots()};
  if (checked.device_type != FORESHOCK_DEVICE_CPU) {
    if (const int reason = devices_.begin(checked, &sampled.turn.emplace()); reason >= 0) return reason;
    sampled.limits = {sampled.turn->state().capacity(), sampled.turn->state().most_parts()};
  }
  SlicePlan plan;
  plan.header.step = step;
  plan.header.time_ns = realtime_ns();
  plan.header.call = open.call;
  plan.header.op = open.op;
  name_layer(call, open, &plan.header);
  Slice rows = choose_slice(checked.shape, settings.seed, step, open.call, settings.rank);
  if (!plan_slice(checked, sampled.limits.bytes, sampled.limits.slots, &rows, &plan))
    return FORESHOCK_SKIP_TOO_LARGE;
  slots_per_slice_.store(plan.slots, std::memory_order_relaxed);

  if (pass == FORESHOCK_BACKWARD) plan.header.columns_skip = plan_columns_of(plan.header, &sampled);

  // The call is counted before put_slice() writes its slot. If the process dies during the write, the agent
  // finds an unfinished slot and counts it as torn; the call must then already count as sampled.
  counting.add(counting.block->sampled[pass]);
  if (const int reason = put_slice(rows, plan, counting, &sampled, copied); reason >= 0) {
    counting.take_back(counting.block->sampled[pass]);
    return reason;
  }
  // The call counts as sampled even if its key positions find no free slot.
  if (pass == FORESHOCK_BACKWARD && plan.header.columns_skip == segment::kColumnsTaken &&
      put_slice(sampled.columns, sampled.columns_plan, counting, &sampled, copied) < 0)
    first_columns_.add(plan.header.layer);
  return -1;
}

// Copies a slice of host tensors, or launches the copy of a slice of device tensors. Returns -1, or the
// FORESHOCK_SKIP_ reason. Adds the copied bytes to *copied. Writes the counts of the thread before the slice.
int Monitor::put_slice(const Slice& slice, const SlicePlan& plan, const Counting& counting, SampledCall* call,
                       CopiedSlices* copied) {
  segment::SegmentWriter& writer = g_process.writer();
  const uint64_t ticket = ticket_.fetch_add(plan.slots, std::memory_order_relaxed) + 1;
  segment::Slot* slots[segment::kMaxSlots];
  const uint64_t bytes = write_slice(call->checked, slice, plan, writer, ticket, slots);
  if (bytes == 0) return FORESHOCK_SKIP_RING_FULL;
  if (!call->turn) {
    if (plan.header.columns == 0) writer.publish_block(counting.block);
    writer.publish(slots, ticket, plan.slots);
  } else if (const int reason = call->turn->state().send(call->checked, slice, {slots, ticket, &plan},
                                                         static_cast<cuda::Stream>(call->checked.stream));
             reason >= 0) {
    writer.give_back(ticket, plan.slots);
    return reason;
  } else if (plan.header.columns == 0) {
    writer.publish_block(counting.block);  // after send(), which may refuse: a count must not fall
  }
  copied->bytes += bytes;
  // A slot is cold in the first round of tickets: the operating system had to map its pages.
  copied->is_cold |= ticket <= writer.slots();
  return -1;
}

// Decides whether a backward call gives a slice of key positions beside its slice of rows, and plans it.
// `rows` is the slot header of the slice of rows: both slices share some of its fields.
segment::ColumnsSkip Monitor::plan_columns_of(const segment::Slot& rows, SampledCall* call) {
  const Settings& settings = g_process.settings();
  const ValidatedCall& checked = call->checked;
  if (const segment::ColumnsSkip why = why_no_columns(checked); why != segment::kColumnsTaken) return why;
  if (!first_columns_.is_missing(rows.layer) &&
      !takes_columns(checked, columns_are_affordable_.load(std::memory_order_relaxed), settings.seed,
                     rows.step, rows.call))
    return segment::kColumnsNotChosen;
  call->columns = choose_columns(checked.shape, settings.seed, rows.step, rows.call, settings.rank);
  SlicePlan& plan = call->columns_plan;
  if (!plan_columns(checked, call->limits.bytes, call->limits.slots, call->columns, &plan))
    return segment::kColumnsTooLarge;
  slots_per_columns_.store(plan.slots, std::memory_order_relaxed);
  const int64_t needed = plan.slots;
  // column_slots_ excludes the free slots that are kept for slices of rows.
  if (column_slots_.fetch_sub(needed, std::memory_order_relaxed) < needed) return segment::kColumnsRingFull;
  plan.header.step = rows.step;
  plan.header.time_ns = rows.time_ns;
  plan.header.call = rows.call;
  plan.header.op = rows.op;
  plan.header.layer = rows.layer;
  plan.header.layer_source = rows.layer_source;
  return segment::kColumnsTaken;
}

// Sets the layer of the slice. The sources, best first, are: a name given with the call, the parameter from
// which the call's inputs were computed (`identity`), the order of calls in the step (the ordinal).
void Monitor::name_layer(const foreshock_attention_call& call, const OpenCall& open, segment::Slot* slot) {
  const void* identity = call.layer_identity;
  const auto assign = [&](int layer, segment::LayerSource source) {  // false: the layer is unknown (-1)
    slot->layer = layer;
    if (layer >= 0) slot->layer_source = static_cast<uint32_t>(source);
    return layer >= 0;
  };
  if (call.layer_name != nullptr) {
    TryLock lock(layer_busy_);
    if (lock && assign(layers_.index_of(call.layer_name, nullptr), segment::LayerSource::kAnnotation)) return;
  }
  if (assign(layers_.find(identity), segment::LayerSource::kParameter)) return;
  // An ordinal is used if the call has no parameter, or if the process named no parameters (e.g. in C++).
  const bool is_unnamed = identity != nullptr && layers_.has_names();
  slot->layer_source = static_cast<uint32_t>(is_unnamed ? segment::LayerSource::kUnnamedParameter
                                                        : segment::LayerSource::kUnknown);
  if (!is_unnamed) assign(open.ordinal, segment::LayerSource::kOrdinal);
}

// Marks that the call's layer was seen, and why no slice was taken. `reason`: the result of take_sample().
void Monitor::mark_layer(const foreshock_attention_call& call, const OpenCall& open, uint32_t pass,
                         int reason) {
  int layer = layers_.find(call.layer_identity);
  if (call.layer_name != nullptr)
    if (TryLock lock(layer_busy_); lock) layer = layers_.index_of(call.layer_name, nullptr);
  if (layer < 0) return;
  const bool needs_gradient = pass == FORESHOCK_FORWARD && open.needs_gradient;
  const uint32_t seen = (pass == FORESHOCK_FORWARD ? segment::kForwardSeen : segment::kBackwardSeen) |
                        (needs_gradient ? uint32_t{segment::kForwardNeedsGradient} : 0);
  layers_.mark(layer, seen, pass, reason >= 0 ? uint32_t{1} << reason : 0);
}

// Counts the thread's open call as skipped. If `op` is not the operation of this call, the reason is unknown.
void Monitor::skip(int32_t op, uint32_t reason) {
  const OpenCall open = std::exchange(t_open, {});
  if (open.op < 0 || open.sizes_segment) return;
  const Counting counting = g_process.counting();
  const bool is_known = open.op == op && reason < FORESHOCK_SKIP_REASONS;
  counting.add(counting.block->skipped[g_process.pass_of(open.op)]
                                      [is_known ? reason : uint32_t{FORESHOCK_SKIP_UNKNOWN}]);
  g_process.writer().publish_block(counting.block);
}

}  // namespace foreshock
