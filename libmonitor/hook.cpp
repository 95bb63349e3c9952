// Implements the C ABI (hook.h): checks the arguments of each call and forwards them to the monitor. Calls of
// unsampled steps are only counted, on a fast path in foreshock_attention_enter(). g_process.hot() is the hot
// word: its low bits are flags of this process (kHotArmed: its segment exists; kHotPaused, ...), the bits
// above them the number of its segment (the generation, in units of kHotGeneration).
#include "foreshock/hook.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "kernels/sketch.h"
#include "libmonitor/monitor.h"
#include "libmonitor/process.h"
#include "libmonitor/weight_measure.h"

using foreshock::g_monitor;
using foreshock::g_process;

namespace {

// While the hot word equals t_quiet_state, the monitor is armed and on, and the step is not sampled. This
// thread then only counts its calls, in t_block, the block that has this thread's counters.
thread_local uint32_t t_quiet_state = ~0u;  // ~0: not set yet
thread_local foreshock::segment::ThreadBlock* t_block = nullptr;

// Whether the struct is present and has the layout of this hook.h. If not, only its first fields may be read.
template <class T>
bool is_readable(const T* argument) {
  return argument != nullptr && argument->version == FORESHOCK_ABI_VERSION && argument->size == sizeof(T);
}

// Does what Counting::add() does for a block that no other thread counts in, without its branches.
inline void count_quietly(uint64_t& counter) {
  const uint64_t next = std::atomic_ref<uint64_t>(counter).load(std::memory_order_relaxed) + 1;
  std::atomic_ref<uint64_t>(counter).store(next, std::memory_order_relaxed);
}

// Returns whether the call is sampled. Prepares the fast path of this thread if the step is not. Not inlined,
// so that the fast path saves no registers for this call.
__attribute__((noinline)) int enter_slowly(int32_t op, uint32_t flags) {
  const int is_sampled = g_monitor.enter(op, flags);
  // The bits below kHotGeneration are flags. The state is quiet if kHotArmed is the only flag that is set.
  const uint32_t generation = g_process.hot() & ~(foreshock::kHotGeneration - 1);
  const uint32_t quiet = generation | foreshock::kHotArmed;
  if (g_process.hot() != quiet) return is_sampled;
  const foreshock::Counting counting = g_process.counting();
  if (counting.shared) return is_sampled;  // other threads use the block too; the fast path is not atomic
  // The first calls all take the slow path, which reads the clock: a program may make only a few, long ones.
  if (counting.block->all_calls < foreshock::kCallsPerClockRead) return is_sampled;
  t_block = counting.block;
  t_quiet_state = quiet;
  return is_sampled;
}

// Reads the control file until two reads in a row have found the same advice: the agent may be writing it.
// Returns false if it does not settle.
bool read_settled_control(foreshock::segment::Control* control) {
  constexpr int kMostReads = 64;
  foreshock::segment::Control before;
  g_process.writer().read_control(&before);
  for (int reads = 1; reads < kMostReads; ++reads, before = *control) {
    g_process.writer().read_control(control);
    if (std::memcmp(&before.advice, &control->advice, sizeof before.advice) == 0) return true;
  }
  return false;
}

}  // namespace

extern "C" {

uint32_t foreshock_abi_version(void) { return FORESHOCK_ABI_VERSION; }

int foreshock_enabled(void) {
  const uint32_t hot = g_process.hot();
  return (hot & foreshock::kHotArmed) != 0 && (hot & foreshock::kHotPaused) == 0;
}

// What was counted before is in the segment when this returns. An empty reason is not reported.
void foreshock_off(const char* reason) {
  if ((g_process.hot() & foreshock::kHotArmed) != 0) {
    g_process.writer().publish_threads();
    g_process.writer().publish_facts();
  }
  g_process.off(reason != nullptr ? reason : "asked");
}

int foreshock_read_advice(foreshock_advice* advice) {
  if (!is_readable(advice)) return 0;
  if ((g_process.hot() & foreshock::kHotArmed) == 0) return 0;
  foreshock_advice latest = {};
  foreshock::segment::Control control;
  if (!read_settled_control(&control) || !foreshock::read_advice(control, &latest)) return 0;
  g_process.writer().refresh_control();  // for steps_ahead()
  latest.size = advice->size;
  latest.version = advice->version;
  latest.age_steps = g_process.writer().steps_ahead();  // step records that the agent has not consumed yet
  *advice = latest;
  return 1;
}

int32_t foreshock_register_op(const char* name, uint32_t pass) { return g_process.register_op(name, pass); }

int foreshock_attention_enter(int32_t op, uint32_t flags) {
  const uint32_t hot = g_process.hot();
  if (hot == t_quiet_state && static_cast<uint32_t>(op) < foreshock::segment::kMaxOps) [[likely]] {
    foreshock::segment::ThreadBlock& block = *t_block;
    // Every kCallsPerClockRead-th call takes the slow path, which writes the counts into the segment if the
    // last write was long ago, and reads whether the monitor has been paused.
    if (block.calls[op] % foreshock::kCallsPerClockRead != foreshock::kCallsPerClockRead - 1) [[likely]] {
      const uint32_t pass = g_process.pass_of(op);
      count_quietly(block.calls[op]);
      count_quietly(block.all_calls);
      count_quietly(block.unsampled[pass]);
      return 0;
    }
  }
  return g_process.is_off() ? 0 : enter_slowly(op, flags);
}

void foreshock_attention_leave(const foreshock_attention_call* call) {
  if (!is_readable(call)) return g_monitor.skip(call != nullptr ? call->op : -1, FORESHOCK_SKIP_UNKNOWN);
  g_monitor.leave(*call);
}

void foreshock_attention_skip(int32_t op, uint32_t reason) { g_monitor.skip(op, reason); }

void foreshock_note_unseen(const char* name, uint32_t evidence) {
  if (!g_process.is_off()) g_monitor.note_unseen(name, evidence);
}

[[gnu::hot]] void foreshock_step_end(const foreshock_step* step) {
  if (is_readable(step) && !g_process.is_off()) g_monitor.end_step(*step);
}

void foreshock_step_skipped(void) { g_monitor.skip_step(); }
void foreshock_step_skipped_if(uint64_t number) { g_monitor.skip_step_if(number); }
void foreshock_skips_unseen(void) { g_monitor.mark_skips_unknown(); }
void foreshock_gradients_too_many(void) { g_monitor.count_missing_norms(); }

void foreshock_observe_loss(double value, uint32_t source) {
  if (!g_process.is_off()) g_monitor.observe_loss(value, source);
}

void foreshock_observe_root_divisor(double divisor) {
  if (!g_process.is_off()) g_monitor.observe_root_divisor(divisor);
}

void foreshock_loss_is_of(const char* name) {
  if (name != nullptr && !g_process.is_off()) g_monitor.loss_is_of(name);
}

void foreshock_observe_loss_sum(double sum, double weight) {
  if (!g_process.is_off()) g_monitor.observe_loss_sum(sum, weight);
}

int foreshock_fetch(const foreshock_tensor* values, size_t count, void* stream, uint32_t what,
                    uint64_t* numbers) {
  if (values == nullptr || numbers == nullptr || count == 0 || !foreshock_enabled()) return 0;
  return g_monitor.fetch(values, count, stream, what, numbers) ? 1 : 0;
}

// In the next three functions `number`, `scale`, `sum` and `weight` stand for values on a device, to which
// foreshock_fetch() gave these numbers. 0 stands for no value.
void foreshock_observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source) {
  if (number != 0 && !g_process.is_off()) g_monitor.observe_fetched_loss(number, scale, source);
}

void foreshock_observe_fetched_loss_sum(uint64_t sum, uint64_t weight) {
  if (sum != 0 && weight != 0 && !g_process.is_off()) g_monitor.observe_fetched_loss_sum(sum, weight);
}

void foreshock_fetched(uint64_t number, double value) {
  if (number != 0 && !g_process.is_off()) g_monitor.fetched(number, value);
}

int foreshock_observe_scalars(const foreshock_scalar* scalars, size_t count) {
  if (scalars == nullptr || count == 0 || g_process.is_off()) return 0;
  return is_readable(scalars) ? g_monitor.observe_scalars(scalars, count) : 0;
}

[[gnu::hot]] int foreshock_step_is_sampled(void) { return g_monitor.step_is_sampled(); }

int foreshock_name_parameters(const foreshock_parameter* parameters, size_t count) {
  if (g_process.is_off()) return 0;
  const bool is_valid = count == 0 || is_readable(parameters);  // count 0 forgets all names
  return is_valid ? g_monitor.name_parameters(parameters, count) : 0;
}

int foreshock_name_mixers(const foreshock_mixer* mixers, size_t count) {
  if (g_process.is_off()) return 0;
  const bool is_valid = count == 0 || is_readable(mixers);  // count 0: the model has no mixer
  return is_valid ? g_monitor.name_mixers(mixers, count) : 0;
}

void foreshock_observe_gradients(const foreshock_gradient* gradients, size_t count) {
  if (gradients == nullptr || count == 0 || g_process.is_off()) return;
  if (is_readable(gradients)) g_monitor.observe_gradients(gradients, count);
}

int foreshock_name_weights(const foreshock_weight* weights, size_t count) {
  if (weights == nullptr || count == 0 || g_process.is_off()) return 0;
  return is_readable(weights) ? g_monitor.name_weights(weights, count) : 0;
}

[[gnu::hot]] size_t foreshock_weights_due(uint32_t* numbers, size_t room) {
  return numbers == nullptr || !foreshock_enabled() ? 0 : g_monitor.weights_due(numbers, room);
}

void foreshock_observe_weights(const foreshock_weight_state* states, size_t count, uint32_t when) {
  if (states == nullptr || count == 0 || when > (FORESHOCK_AFTER_STEP | FORESHOCK_ENDED_STEP) ||
      !foreshock_enabled())
    return;
  if (is_readable(states)) g_monitor.observe_weights(states, count, when);
}

int foreshock_add_sketch(const foreshock_tensor* tensor, uint64_t seed, int64_t first, int64_t whole,
                         foreshock_sketch* sketch) {
  if (tensor == nullptr || sketch == nullptr || tensor->data == nullptr ||
      tensor->device_type != FORESHOCK_DEVICE_CPU)
    return 0;
  return foreshock::add_sketch(foreshock::view_of(*tensor), seed, sketch->products, &sketch->norm, first,
                               whole);
}

void foreshock_observe_gradient_looks(const foreshock_gradient_look* looks, size_t count) {
  if (looks == nullptr || count == 0 || !foreshock_enabled()) return;
  if (is_readable(looks)) g_monitor.observe_gradient_looks(looks, count);
}

void foreshock_describe(const foreshock_identity* given) {
  if (!is_readable(given) || g_process.is_off()) return;
  foreshock::segment::Identity described = {};
  described.rank = given->rank;
  described.local_rank = given->local_rank;
  described.world_size = given->world_size;
  described.attempt = given->attempt;
  described.data_parallel = given->data_parallel;
  described.tensor_parallel = given->tensor_parallel;
  described.pipeline_parallel = given->pipeline_parallel;
  described.expert_parallel = given->expert_parallel;
  if (given->framework != nullptr)
    std::snprintf(described.framework, sizeof described.framework, "%s", given->framework);
  g_process.describe(described);
}

void foreshock_graph_begins(void) { g_monitor.begin_graph(); }

int foreshock_graph_ends(uint64_t* calls) {
  foreshock::PassCalls captured;
  if (calls == nullptr || !g_monitor.end_graph(&captured)) return 0;
  std::copy(std::begin(captured.of), std::end(captured.of), calls);
  return 1;
}

void foreshock_graph_launched(const uint64_t* calls) {
  if (calls == nullptr) return g_monitor.launch_graph(nullptr);
  const foreshock::PassCalls known = {{calls[0], calls[1]}};
  g_monitor.launch_graph(&known);
}

}  // extern "C"
