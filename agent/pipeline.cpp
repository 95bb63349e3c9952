// Reads step records, slices (copied parts of attention calls) and weight tensors from a trainer's segment in
// shared memory, has them checked, and passes the results to statistics, record and detectors.
#include "agent/pipeline.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <string_view>

#include "agent/rank_state.h"
#include "agent/record_lines.h"
#include "shadow/written_out.h"

namespace foreshock {

// The record may have `bytes_` bytes of histograms, in base64. At the first snapshot of an interval, stride_
// is set to 2^n if at least n sixteenths of these bytes are used, but not n + 1. The histograms of an
// interval are written if its number, `window`, is a multiple of stride_.
bool HistogramQuota::takes(const TensorSnapshot& snapshot) {
  if (bytes_ == 0) return false;
  const int64_t window = snapshot.step / static_cast<int64_t>(snapshot.interval);
  if (window != window_) stride_ = uint64_t{1} << std::min(spent_ / (bytes_ / kParts + 1), kParts - 1);
  window_ = window;
  const uint64_t base64_bytes = (snapshot.stored.size() + 2) / 3 * 4;
  const bool fits = snapshot.stored.size() <= kLongest && spent_ + base64_bytes <= bytes_;
  if (!fits || static_cast<uint64_t>(window) % stride_ != 0) {
    ++left_out_;
    return false;
  }
  spent_ += base64_bytes;
  return true;
}

using segment::SegmentReader;

namespace {

double thread_cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns the array in a payload of a slot, or null if the slot does not have this payload.
const void* data_of(segment::Bytes payload) { return payload.empty() ? nullptr : payload.data(); }

// Returns the layer under which a call is counted. An empty label means that the layer is unknown.
LayerOfCall layer_of(const segment::Slot& slot, const RankStatistics& rank) {
  const auto source = static_cast<segment::LayerSource>(slot.layer_source);
  LayerOfCall layer = {"", "", segment::name_of(source)};
  if (slot.layer < 0) return layer;
  if (source == segment::LayerSource::kOrdinal) {
    // If layers have names, a call with only an ordinal (in an evaluation, for example) belongs to one of the
    // named layers, but it is unknown to which one.
    if (rank.layer_source == segment::name_of(segment::LayerSource::kParameter) ||
        rank.layer_source == segment::name_of(segment::LayerSource::kAnnotation))
      return {"", "", segment::name_of(segment::LayerSource::kUnknown)};
    // The ordinal is the index of the call in the step, not of a layer, so the label begins with "call".
    char label[16];
    std::snprintf(label, sizeof label, "call%03d", slot.layer);
    layer.label = label;
    return layer;
  }
  const auto index = static_cast<size_t>(slot.layer);
  if (index >= rank.layer_names.size()) return layer;  // the trainer has not written the label yet
  layer.label = rank.layer_names[index].label;
  layer.name = rank.layer_names[index].name;
  return layer;
}

// Whether the label of the slice's layer is needed and was not read yet.
bool lacks_label(const segment::Slot& slot, const RankStatistics& rank) {
  return slot.layer >= 0 && slot.layer_source != static_cast<uint32_t>(segment::LayerSource::kOrdinal) &&
         static_cast<size_t>(slot.layer) >= rank.layer_names.size();
}

void set_layer_names(const std::vector<segment::Layer>& layers, RankStatistics* rank) {
  rank->layer_names.clear();
  for (const segment::Layer& layer : layers) {
    rank->layer_names.push_back(
        {segment::text_of(layer.label), segment::text_of(layer.name), layer.attention, {}});
    for (uint32_t pass = 0; pass < segment::kPasses; ++pass)  // without bits that are no reason
      rank->layer_names.back().skipped[pass] = layer.skipped[pass] & ((1u << segment::kSkipReasons) - 1);
  }
}

// Tensors processed per rank and poll, so that a fast rank cannot starve the others. Kept small: a tensor
// takes about 1 ms and can wait in its ring, but an attention call that finds no free slot is not sampled.
constexpr uint32_t kMaxTensorsPerPoll = 16;
// CPU seconds per rank and poll after which no further slice is read. A slice of 1000 keys takes about a
// hundredth of this, a slice of a million keys more than all of it.
constexpr double kMaxSecondsPerPoll = 0.25;
// Limit of the polls of a segment whose trainer has ended: enough for all slots and for 64 x 16 tensors.
constexpr uint32_t kMaxDrainPolls = 64;

// Copies the identity of the trainer from the segment. Rank, world size, attempt and launcher id are copied
// only the first time: a segment that kept changing them would create Prometheus series without limit. The
// trainer writes some fields later, and then sets late_ready to 1. After that the identity is not read again.
void refresh_identity(const SegmentReader& segment, RankStatistics* rank) {
  if (rank->identity.late_ready == 1) return;
  const segment::Identity before = rank->identity;
  rank->identity = segment.identity();
  if (!rank->identified) {
    rank->identified = true;
    return;
  }
  rank->identity.rank = before.rank;
  rank->identity.world_size = before.world_size;
  rank->identity.attempt = before.attempt;
  rank->identity.launcher_id = before.launcher_id;
}

// Sets soft cap and dropout of *slice, an AttentionSlice or KeyColumns.
template <class SliceType>
void add_rules(const segment::SlotView& view, SliceType* slice) {
  slice->soft_cap = view.header.soft_cap;
  slice->kept = data_of(view.payload[segment::kKept]);
  slice->kept_dtype = static_cast<DType>(view.header.kept_dtype);
  slice->dropout = view.header.dropout;
}

}  // namespace

AttentionSlice slice_of(const segment::SlotView& view) {
  const segment::Slot& slot = view.header;
  AttentionSlice slice;
  slice.dtype = static_cast<DType>(slot.dtype);
  slice.rows = static_cast<int>(slot.rows);
  slice.keys = static_cast<int>(slot.keys);
  // On devices kernels skip the tiles of keys that no row of a tile sees, so NaN spreads within a tile only.
  // There NaN stays a fault, since no other count finds it. The host has nonfinite_out and the sums of dQ.
  slice.lacks_keys = slot.checksum != 0 && slot.keys < slot.key_length;
  slice.head_dim = static_cast<int>(slot.head_dim);
  slice.value_dim = static_cast<int>(slot.value_dim);
  slice.scale = slot.scale;
  slice.key_begin = slot.seen_begin;
  slice.key_limit = slot.seen_end;
  slice.query = data_of(view.payload[segment::kQuery]);
  slice.key = data_of(view.payload[segment::kKey]);
  slice.value = data_of(view.payload[segment::kValue]);
  slice.out = data_of(view.payload[segment::kOut]);
  slice.log_sum_exp = data_of(view.payload[segment::kLogSumExp]);
  slice.log_sum_exp_dtype = static_cast<DType>(slot.lse_dtype);
  slice.mask = data_of(view.payload[segment::kMask]);
  slice.mask_dtype = static_cast<DType>(slot.mask_dtype);
  add_rules(view, &slice);
  slice.grad_out = data_of(view.payload[segment::kGradOut]);
  slice.grad_query = data_of(view.payload[segment::kGradQuery]);
  return slice;
}

// In a slot of key positions, some fields have another meaning: `rows` counts key positions, and seen_begin
// and seen_end have the query positions that see each of them.
KeyColumns columns_of(const segment::SlotView& view) {
  const segment::Slot& slot = view.header;
  KeyColumns columns;
  columns.dtype = static_cast<DType>(slot.dtype);
  columns.columns = static_cast<int>(slot.rows);
  columns.heads = static_cast<int>(slot.heads_in_slice);
  columns.queries = static_cast<int>(slot.query_length);
  columns.head_dim = static_cast<int>(slot.head_dim);
  columns.value_dim = static_cast<int>(slot.value_dim);
  columns.scale = slot.scale;
  columns.first_query = slot.seen_begin;
  columns.query_end = slot.seen_end;
  columns.query = data_of(view.payload[segment::kQuery]);
  columns.out = data_of(view.payload[segment::kOut]);
  columns.grad_out = data_of(view.payload[segment::kGradOut]);
  columns.log_sum_exp = data_of(view.payload[segment::kLogSumExp]);
  columns.log_sum_exp_dtype = static_cast<DType>(slot.lse_dtype);
  columns.mask = data_of(view.payload[segment::kMask]);
  columns.mask_dtype = static_cast<DType>(slot.mask_dtype);
  add_rules(view, &columns);
  columns.key = data_of(view.payload[segment::kKey]);
  columns.value = data_of(view.payload[segment::kValue]);
  columns.grad_key = data_of(view.payload[segment::kGradKey]);
  columns.grad_value = data_of(view.payload[segment::kGradValue]);
  columns.sums = static_cast<const ColumnSum*>(data_of(view.payload[segment::kKeySums]));
  columns.keys = static_cast<int64_t>(slot.key_length);
  return columns;
}

bool Pipeline::poll(SegmentReader& segment, RankStatistics* rank) {
  const double begin = thread_cpu_seconds();
  bool found = false;
  for (const segment::StepRecord& step : segment.unread_steps()) {
    found = true;
    if (!rank->announced) {
      refresh_identity(segment, rank);  // complete now: the trainer describes itself before it ends a step
      announce(rank);
    }
    // Bit n of scalars_given: the step has a value of scalar n, a number that the training logs. If its name
    // is missing here, the names are read again; the trainer writes a name before the first value.
    if (step.scalars_given >> rank->scalar_names.size() != 0) rank->scalar_names = segment.scalar_names();
    observe_step(step, rank);
    // If erase() returns true, a killed agent has written this line, and the detectors already have it.
    if (const StepLine line = step_line(*rank, step); !written_lines_.erase(line)) detect(line, rank);
    if (rank->watch != nullptr) rank->loss_zscore = rank->watch->loss_verdict().z;
  }
  flush_record();
  segment.consume_steps();
  rank->steps = segment.steps_consumed();
  SegmentReader::Ready ready;
  // At most as many slices as there are slots, so that a trainer that fills (or pretends to fill) slots
  // without pause cannot starve the other ranks.
  for (uint32_t taken = 0; taken < segment::kMaxSlots && segment.next_ready(&ready); ++taken) {
    found = true;
    const double slice_begins = thread_cpu_seconds();
    judge_slot(segment, ready, rank);
    const double now = thread_cpu_seconds();
    // The first samples of a run (the first look) are paid from a grant, so their time is summed separately.
    const bool is_first_look = rank->is_in_first_look(ready.view.header.step);
    (is_first_look ? rank->first_look.agent_seconds : rank->judging_seconds) += now - slice_begins;
    rank->row_slices_handled += ready.view.header.columns == 0;
    if (now - begin > kMaxSecondsPerPoll) break;
  }
  const double tensors_begin = thread_cpu_seconds();
  found |= take_tensors(segment, rank);
  const double end = thread_cpu_seconds();
  rank->tensor_seconds += end - tensors_begin;
  rank->agent_seconds += end - begin;
  return found;
}

bool Pipeline::take_tensors(SegmentReader& segment, RankStatistics* rank) {
  SegmentReader::ReadyTensor ready;
  uint32_t taken = 0;
  for (; taken < kMaxTensorsPerPoll && segment.next_tensor(&ready); ++taken) {
    // add() needs the rank's parallel coordinates, which the trainer adds to the identity before any tensor.
    refresh_identity(segment, rank);
    const char* why = ready.why;  // the reason why the tensor is refused; null: it is not refused
    if (why == nullptr && ready.view.record.kind == segment::TensorKind::kGradientLook) {
      detect(gradient_line(*rank, ready.view), rank);
      flush_record();
      segment.consume_tensor();
      continue;
    }
    std::vector<TensorSnapshot> done;
    if (why == nullptr) done = weights_.add(ready.view, rank->identity, ranks_here_, &why);
    rank->refused_tensors += why != nullptr;
    // If an earlier agent, for example, has read a tensor's first snapshot, distances from it are unknown.
    if (const auto step = weights_.take_initial_unknown())
      record_event(rank, "weight_initial_unknown", *step, "", std::nullopt);
    add_to_history(weights_, rank);
    record_weights(done, rank);
    for (const TensorSnapshot& snapshot : done) {
      add_to_history(snapshot, rank);
      if (!snapshot.odd_ranks.empty())  // the value of the event is the first rank that differs
        record_event(rank, "weight_mismatch", snapshot.step, snapshot.layer,
                     static_cast<double>(snapshot.odd_ranks[0]));
    }
    flush_record();
    segment.consume_tensor();
  }
  return taken > 0;
}

// Writes the lines of the snapshots `done` and of the pools that are complete now. A pool has the figures of
// all tensors of a layer, or of the model.
void Pipeline::record_weights(const std::vector<TensorSnapshot>& done, RankStatistics* rank) {
  const std::vector<PoolSnapshot> pools = weights_.completed();
  for (const TensorSnapshot& snapshot : done) {
    const bool with_histogram = record_ != nullptr && !snapshot.parts.empty() && histograms_.takes(snapshot);
    detect(tensor_line(rank->run, snapshot, with_histogram), rank);
  }
  for (const TensorSnapshot& snapshot : done)
    if (snapshot.optimizer) detect(optimizer_line(rank->run, snapshot), rank);
  if (record_ == nullptr) return;
  for (const PoolSnapshot& pool : pools) record_->write(model_line(rank->run, pool));
}

namespace {

// Reads what the trainer has counted, and the names of what it has counted. Neither operations nor calls ever
// become fewer; if they do, another process has changed the file. If it was truncated, what was read before
// is kept.
void read_counts(const SegmentReader& segment, RankStatistics* rank) {
  std::vector<segment::Op> ops = segment.ops();
  const segment::Totals totals = segment.totals();
  const auto all_calls = [](const segment::Totals& of) {
    return std::accumulate(std::begin(of.calls), std::end(of.calls), uint64_t{0});
  };
  const uint64_t calls = all_calls(totals), calls_before = all_calls(rank->totals);
  const bool has_fewer_ops = ops.size() < rank->ops.size();
  rank->is_damaged = rank->is_damaged || has_fewer_ops || calls < calls_before;
  if (has_fewer_ops || (calls == 0 && calls_before > 0)) return;
  rank->ops = std::move(ops);
  rank->totals = totals;
  rank->unseen = segment.unseen_names();
  rank->coverage = segment.coverage();
}

}  // namespace

void Pipeline::judge_slot(SegmentReader& segment, const SegmentReader::Ready& ready, RankStatistics* rank) {
  const segment::Slot& slot = ready.view.header;
  if (ready.why != nullptr) {
    rank->refused_slots += ready.lost_as == segment::Lost::kRefused;
    return segment.consume_lost(ready, ready.lost_as);
  }
  const double begin = thread_cpu_seconds();
  // If the trainer has registered the operation of this call, or labelled its layer, after the last
  // refresh(), reads the list again.
  if (rank->ops.size() <= static_cast<size_t>(std::max(slot.op, 0))) read_counts(segment, rank);
  if (lacks_label(slot, *rank)) set_layer_names(segment.layers(), rank);
  const LayerOfCall layer = layer_of(slot, *rank);
  const std::string op = rank->operation_of(slot);
  if (slot.columns == 1) {
    const KeyColumns columns = columns_of(ready.view);
    if (!is_valid(columns)) return segment.consume_lost(ready, segment::Lost::kUnsupported);
    ColumnDeviation deviation = judge(columns, &column_reference_);
    allow_for_operation(op, &deviation.grad_key);
    allow_for_operation(op, &deviation.grad_value);
    const double seconds_per_line = (thread_cpu_seconds() - begin) / 2;  // one line for dK and one for dV
    observe(slot, layer, deviation.grad_key, seconds_per_line, rank);
    observe(slot, layer, deviation.grad_value, seconds_per_line, rank);
    if (flagged_ != nullptr)
      flagged_->consider(slot, JudgedColumns{columns, deviation, column_reference_, layer.label}, layer,
                         *rank, segment.name());
  } else {
    const AttentionSlice slice = slice_of(ready.view);
    if (!is_valid(slice)) return segment.consume_lost(ready, segment::Lost::kUnsupported);
    SliceDeviation deviation = judge(slice, &workspace_);
    pool_few_rows(layer.label, &deviation, rank);
    allow_for_operation(op, &deviation);
    // The trainer counts NaN and Inf in all output rows of the slice's first head, but only in half of the
    // slices, and only in forward calls on the CPU without a mask and with finite inputs (slice.cpp,
    // count_nonfinite_out()). A slice with a count has the output, unless its slot is invalid.
    // The scores of other rows of the head are as large.
    const bool may_overflow = deviation.logit_abs_max.value_or(0) >= kScoresAreNoise;
    deviation.nonfinite_anywhere = slot.nonfinite_out > 0 && slice.out != nullptr && !may_overflow;
    observe(slot, layer, deviation, thread_cpu_seconds() - begin, rank);
    // A slice without the output (dropout) is not saved, since it could not be checked again.
    if (flagged_ != nullptr && slice.out != nullptr)
      flagged_->consider(slot, JudgedSlice{slice, deviation, workspace_.reference, layer.label}, layer, *rank,
                         segment.name());
  }
  flush_record();
  segment.consume_judged(ready);
}

void Pipeline::observe(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
                       double seconds, RankStatistics* rank) {
  const SampleLine line = sample_line(*rank, slot, layer, deviation, seconds);
  foreshock::observe(line, rank);
  // The trainer's count, slot.nonfinite_out, covers rows of the slice too, so the two counts are not added.
  const auto nonfinite_out = std::max<uint64_t>(deviation.nonfinite_out, slot.nonfinite_out);
  const bool is_new = !written_lines_.erase(line);  // false: a killed agent has written the line
  const auto note = [&](const char* event, uint64_t values) {
    if (values > 0) record_event(rank, event, slot.step, layer.label, static_cast<double>(values), is_new);
  };
  note("nonfinite", nonfinite_out);
  note("nonfinite_attention_gradient", deviation.nonfinite_gradient);
  if (is_new) detect(line, rank);
}

// Detectors belong to a rank number. If `current` is false, a later process of the run has this number now.
void Pipeline::set_watch(RankStatistics* rank) const {
  rank->watch = rank->current ? watches_.watch_of(rank->run, rank->identity.rank) : nullptr;
  rank->conditions = rank->current ? watches_.conditions_of(rank->run) : nullptr;
}

void Pipeline::flush_record() {
  if (record_ != nullptr) record_->copy_to_spool();
}

void Pipeline::resume_from(const SegmentReader& segment, RankStatistics* rank) {
  set_watch(rank);
  if (segment.steps_consumed() + segment.steps_lost() == 0) return;  // no earlier agent has read a step
  foreshock::resume_from(segment.last_step(), watches_.watch_of(rank->run, rank->identity.rank), rank);
}

void Pipeline::refresh(const SegmentReader& segment, RankStatistics* rank) {
  // Reads the trainer's lock before the counters: if it is free, the trainer has stored its last counts.
  rank->alive = segment.is_locked();
  refresh_identity(segment, rank);
  read_counts(segment, rank);
  record_skips(rank);
  rank->tensors = segment.tensor_ring();
  rank->steps = segment.steps_consumed();
  rank->steps_lost = segment.steps_lost();
  rank->steps_damaged = segment.steps_damaged();
  rank->is_damaged = rank->is_damaged || !segment.is_intact() || rank->coverage.writes_failed > 0;
  if (rank->last_step.sequence == 0) rank->last_step = segment.last_step();  // read by an earlier agent
  record_backward_calls(rank);
  rank->switched_on = segment.switched_on();
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    rank->judged[pass] = segment.judged(pass);
    for (uint32_t reason = 0; reason < segment::kLostReasons; ++reason)
      rank->lost[pass][reason] = segment.lost(pass, static_cast<segment::Lost>(reason));
  }
  const std::vector<segment::Layer> layers = segment.layers();
  set_layer_names(layers, rank);
  for (const segment::Layer& record : layers) {
    // The trainer shortens a name when it finds another parameter of the layer, so the name of a known layer
    // may have changed.
    const std::string label = segment::text_of(record.label), name = segment::text_of(record.name);
    if (const auto known = rank->layers.find(label); known != rank->layers.end()) known->second.name = name;
    if (record.gradient_step == 0) continue;  // the layer has a name but no gradient norm yet
    LayerStatistics* layer = rank->layer_of(label);
    if (layer == nullptr) break;  // too many layers
    layer->label = label;
    layer->name = name;
    layer->gradient_norm = record.gradient_norm;
    const auto step = static_cast<int64_t>(record.gradient_step);
    if (record.gradient_step != layer->gradient_step)
      layer->history.add(step, kLayerGradientNorm, record.gradient_norm);
    layer->gradient_step = record.gradient_step;
    const auto last_nonfinite_step = static_cast<int64_t>(record.last_nonfinite_step);
    if (record.nonfinite_steps > layer->nonfinite_steps) {
      // The first of the new steps, if they follow each other; else a step after it.
      const auto new_steps = static_cast<int64_t>(record.nonfinite_steps - layer->nonfinite_steps);
      record_event(rank, "nonfinite_gradient", std::max<int64_t>(last_nonfinite_step - new_steps + 1, 0),
                   layer->label, static_cast<double>(record.nonfinite_steps));
    }
    layer->nonfinite_steps = record.nonfinite_steps;
    if (record.nonfinite_steps > 0) layer->last_nonfinite_step = last_nonfinite_step;
  }
  if (!rank->alive) rank->exit_status = segment.exit_status();
}

// Records the optimizer steps that a gradient scaler has skipped since the last step, if their number has
// doubled since it was last recorded, or if the trainer has ended.
void Pipeline::record_skips(RankStatistics* rank) {
  const uint64_t in_row = rank->coverage.skipped_in_row;
  if (in_row == 0) rank->skips_recorded = 0;
  const uint64_t least =
      rank->alive ? std::max(kSkipsInRow, 2 * rank->skips_recorded) : rank->skips_recorded + 1;
  if (in_row < std::max(kSkipsInRow, least)) return;
  rank->skips_recorded = in_row;
  const int64_t step = rank->last_step.sequence != 0 ? rank->last_step.step : 0;
  rank->note_event(kScalerSkips, step, "", static_cast<double>(in_row));
  detect(event_line(*rank, kScalerSkips, step, "", static_cast<double>(in_row)), rank);
}

// Records the backward calls of attention since the last step if they are far more than any step had calls
// and have doubled since. Counts the calls from the first reading that knows this step up to the reading
// before, after which all steps were read: a step that has ended since then is not known yet.
void Pipeline::record_backward_calls(RankStatistics* rank) {
  auto& since = rank->backward_since_step;
  const uint64_t calls = rank->calls(1);
  if (since.step_sequence != rank->last_step.sequence || calls < since.last)
    since = {rank->last_step.sequence, calls, calls, 0};
  const uint64_t count = since.last - since.first;
  since.last = calls;
  if (rank->conditions == nullptr || rank->coverage.skipped_in_row > 0 || rank->last_step.sequence == 0)
    return;
  const uint64_t least = rank->alive ? 2 * since.recorded : since.recorded + 1;
  if (count < least || !rank->conditions->have_steps_stopped(rank->identity.rank, count)) return;
  since.recorded = count;
  const int64_t step = rank->last_step.step;
  rank->note_event(kBackwardWithoutStep, step, "", static_cast<double>(count));
  detect(event_line(*rank, kBackwardWithoutStep, step, "", static_cast<double>(count)), rank);
}

void Pipeline::announce(RankStatistics* rank) {
  if (rank->announced) return;
  rank->announced = true;
  record_process(*rank, "started");
}

void Pipeline::record_process(const RankStatistics& rank, const char* state) {
  const RunLine line = run_line(rank, state);
  watches_.observe(line);
  if (record_ != nullptr) record_->write(line);
}

void Pipeline::finish(SegmentReader& segment, RankStatistics* rank) {
  set_layer_names(segment.layers(), rank);
  segment.read_all_slots_next();  // a killed trainer may have completed a slice without counting it
  segment.wait_no_more();         // numbers that are still on a device will not arrive
  for (uint32_t polls = 0; polls < kMaxDrainPolls && poll(segment, rank); ++polls) {
  }
  for (const SegmentReader::Ready& torn : segment.torn()) segment.consume_lost(torn, segment::Lost::kTorn);
  refresh(segment, rank);
  record_backward_calls(rank);  // no step follows, so the calls that refresh() has read count too
  // A trainer that was killed may have counted a slice that it had not begun to write. Of a damaged file,
  // slices are missing too.
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const uint64_t missing = rank->in_flight(pass);
    const segment::Lost reason = rank->is_damaged ? segment::Lost::kDamaged : segment::Lost::kTorn;
    segment.count_lost(pass, reason, missing);
    rank->lost[pass][static_cast<uint32_t>(reason)] += missing;
  }
}

// Passes a change of a detector's level to the adviser, which makes the advice for the training script. The
// event "resumed" (back to an earlier step) names no detector, but makes all detectors quiet.
void Pipeline::note_level(const EventLine& event) {
  const bool is_resumed = event.event == name_of(WatchEventKind::kResumed);
  if ((event.detector.empty() && !is_resumed) || !event.rank) return;
  const RankWatch* watch = watches_.watch_of(event.run, *event.rank);
  if (watch == nullptr) return;
  adviser_.note(*event.rank, event, watch->states());
  changes_.any = true;
  changes_.warns |= !is_resumed && event.level != name_of(Level::kQuiet);
}

void Pipeline::note_burst(RankStatistics* rank, int64_t step, uint64_t interval) {
  record_event(rank, "burst", step, "", static_cast<double>(interval));
}

// Writes the line before the events that it causes. If the agent is killed between the two, no information is
// lost: the next agent computes the events from the line.
template <class Line>
void Pipeline::detect(const Line& line, RankStatistics* rank) {
  const std::vector<EventLine>& events = watches_.observe(line);
  if (record_ != nullptr) record_->write(line);
  for (EventLine event : events) {
    event.time = seconds_since_1970();
    observe_event(event, rank);
    if (record_ != nullptr) record_->write(event);
    if (alerts_ != nullptr) alerts_->add(event, AlertCommand::Clock::now());
    note_level(event);
  }
  set_watch(rank);
}

void Pipeline::record_event(RankStatistics* rank, const char* event, int64_t step, const std::string& layer,
                            std::optional<double> value, bool is_new) {
  // An event that is not new is added too: the agent that wrote it was killed before it saved its list of
  // events.
  const uint64_t count = rank->note_event(event, step, layer, value);
  if (record_ == nullptr || !is_new) return;
  // NaN often stays until the end of a run, in every sample: the record has its 1st, 2nd, 4th, ... event, as
  // far as the list remembers earlier ones.
  if (std::string_view(event).starts_with("nonfinite") && !std::has_single_bit(count)) return;
  record_->write(event_line(*rank, event, step, layer, value));
}

}  // namespace foreshock
