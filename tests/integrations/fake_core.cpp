// Stands in for libforeshock.so in the tests of the PyTorch adapter: says "sample" to every call and keeps
// what it is told as JSON lines, which the tests read through ctypes. Preloaded like the real one.
#include <foreshock/hook.h>

#include <atomic>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "recomputed.h"

namespace {

using recomputed::Element;

std::mutex g_lock;
std::string g_events;
std::vector<std::pair<std::string, uint32_t>> g_ops;
std::atomic<int> g_sample{1}, g_record{1};
uint32_t g_weights = 0;
bool g_fetch_fails = false;
int g_names_busy = 0;  // times that the table of weights is in another thread's hands

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

void Record(const std::string& line) {
  if (!g_record) return;
  const std::lock_guard<std::mutex> guard(g_lock);
  g_events += line + "\n";
}

// JSON has no NaN; the tests read these words as Python does.
std::string Number(double value) {
  if (value != value) return "NaN";
  if (value - value != 0) return value > 0 ? "Infinity" : "-Infinity";
  return Format("%.17g", value);
}

// Sum of value * (1 + position in the logical order): differs when a stride or a shape is wrong.
double Fingerprint(const foreshock_tensor& tensor) {
  double total = 0;
  int64_t order = 0;
  for (int64_t a = 0; a < tensor.shape[0]; ++a)
    for (int64_t b = 0; b < tensor.shape[1]; ++b)
      for (int64_t c = 0; c < tensor.shape[2]; ++c)
        for (int64_t d = 0; d < tensor.shape[3]; ++d)
          total +=
              static_cast<double>(++order) * Element(tensor, a * tensor.stride[0] + b * tensor.stride[1] +
                                                                 c * tensor.stride[2] + d * tensor.stride[3]);
  return total;
}

// Tensors of CUDA lie in memory of the host too where host_cuda.cpp is the device.
bool IsReadable(const foreshock_tensor& tensor) {
  static const bool is_host_cuda = std::getenv("HOST_CUDA") != nullptr;
  return tensor.device_type == FORESHOCK_DEVICE_CPU ||
         (is_host_cuda && tensor.device_type == FORESHOCK_DEVICE_CUDA);
}

std::string Describe(const foreshock_tensor& tensor) {
  if (!tensor.data) return "null";
  const bool readable = IsReadable(tensor);
  return Format("{\"data\": %" PRIuPTR ", \"shape\": [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "], \"dims\": %u, \"dtype\": %u, \"device\": [%d,%d], \"fingerprint\": %s}",
                reinterpret_cast<uintptr_t>(tensor.data), tensor.shape[0], tensor.shape[1], tensor.shape[2],
                tensor.shape[3], tensor.dims, tensor.dtype, tensor.device_type, tensor.device_index,
                Number(readable ? Fingerprint(tensor) : 0).c_str());
}

uintptr_t Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

extern "C" {

// -- read by the tests --
FORESHOCK_EXPORT const char* fake_events(void) {
  static std::string copy;
  const std::lock_guard<std::mutex> guard(g_lock);
  copy.swap(g_events);
  g_events.clear();
  return copy.c_str();
}
FORESHOCK_EXPORT void fake_sample(int on) { g_sample = on; }
FORESHOCK_EXPORT void fake_record(int on) { g_record = on; }
FORESHOCK_EXPORT void fake_fetch_fails(int fails) { g_fetch_fails = fails != 0; }
FORESHOCK_EXPORT void fake_names_busy(int times) { g_names_busy = times; }

// -- hook.h --
uint32_t foreshock_abi_version(void) { return FORESHOCK_ABI_VERSION; }
int foreshock_enabled(void) { return 1; }
int foreshock_load_adapter(void) { return 1; }  // start.py opens the adapter
void foreshock_off(const char* reason) { Record(Format("{\"event\": \"off\", \"reason\": \"%s\"}", reason)); }

void foreshock_describe(const foreshock_identity* identity) {
  Record(
      Format("{\"event\": \"identity\", \"rank\": %d, \"world_size\": %d, \"at\": [%d, %d, %d, %d], "
             "\"framework\": \"%s\"}",
             identity->rank, identity->world_size, identity->data_parallel, identity->tensor_parallel,
             identity->pipeline_parallel, identity->expert_parallel, identity->framework));
}

int32_t foreshock_register_op(const char* name, uint32_t pass) {
  g_ops.emplace_back(name, pass);
  return static_cast<int32_t>(g_ops.size()) - 1;
}

int foreshock_attention_enter(int32_t op, uint32_t flags) {
  if (!g_record) return g_sample;
  Record(Format("{\"event\": \"enter\", \"op\": \"%s\", \"pass\": %u, \"flags\": %u}",
                g_ops[op].first.c_str(), g_ops[op].second, flags));
  return g_sample;
}

void foreshock_attention_leave(const foreshock_attention_call* call) {
  std::string line = Format(
      "{\"event\": \"leave\", \"op\": \"%s\", \"pass\": %u, \"causal\": %d, \"layer\": %" PRIuPTR,
      g_ops[call->op].first.c_str(), g_ops[call->op].second, call->causal, Address(call->layer_identity));
  if (call->layer_name) line += Format(", \"layer_name\": \"%s\"", call->layer_name);
  line += ", \"scale\": " + Number(call->scale) + ", \"dropout\": " + Number(call->dropout) +
          ", \"soft_cap\": " + Number(call->soft_cap);
  if (call->window != FORESHOCK_CAUSAL_NONE)
    line += ", \"window\": [" + std::to_string(call->window) + ", " + std::to_string(call->window_left) +
            ", " + std::to_string(call->window_right) + "]";
  line += Format(", \"stream\": %" PRIuPTR, Address(call->stream));
  const std::pair<const char*, const foreshock_tensor*> tensors[] = {{"query", &call->query},
                                                                     {"key", &call->key},
                                                                     {"value", &call->value},
                                                                     {"out", &call->out},
                                                                     {"lse", &call->log_sum_exp},
                                                                     {"mask", &call->mask},
                                                                     {"kept", &call->kept},
                                                                     {"grad_out", &call->grad_out},
                                                                     {"grad_query", &call->grad_query},
                                                                     {"grad_key", &call->grad_key},
                                                                     {"grad_value", &call->grad_value},
                                                                     {"weights", &call->weights}};
  for (const auto& [name, tensor] : tensors) line += std::string(", \"") + name + "\": " + Describe(*tensor);
  if (call->query_offsets) {
    line += Format(", \"longest\": [%" PRId64 ", %" PRId64 "], \"offsets\": [", call->longest_query,
                   call->longest_key);
    const char* between = "[";
    for (const int32_t* offsets : {call->query_offsets, call->key_offsets}) {
      line += std::exchange(between, "], [");
      for (int64_t n = 0; n <= call->sequences && IsReadable(call->query); ++n)
        line += Format(n ? ", %d" : "%d", offsets[n]);
    }
    line += "]]";
  }
  const recomputed::Errors errors =
      IsReadable(call->query) ? recomputed::ErrorsOf(*call) : recomputed::Errors{};
  line += ", \"errors\": {\"out\": " + Number(errors.out) + ", \"lse\": " + Number(errors.log_sum_exp) +
          ", \"grad_query\": " + Number(errors.grad_query) + "}";
  Record(line + "}");
}

void foreshock_attention_skip(int32_t op, uint32_t reason) {
  Record(Format("{\"event\": \"skip\", \"op\": \"%s\", \"reason\": %u}", g_ops[op].first.c_str(), reason));
}

void foreshock_note_unseen(const char* name, uint32_t evidence) {
  Record(Format("{\"event\": \"unseen\", \"name\": \"%s\", \"evidence\": %u}", name, evidence));
}

void foreshock_step_end(const foreshock_step* step) {
  Record(Format("{\"event\": \"step\", \"step\": %" PRId64
                ", \"source\": %u, \"given\": %u, \"batch_id\": %" PRIu64
                ", \"learning_rate\": %s, \"prepare_ns\": %" PRIu64 "}",
                step->step, step->step_source, step->given, step->batch_id,
                Number(step->learning_rate).c_str(), step->prepare_ns));
}

void foreshock_gradients_too_many(void) { Record("{\"event\": \"gradients_too_many\"}"); }
void foreshock_skips_unseen(void) { Record("{\"event\": \"skips_unseen\"}"); }
void foreshock_step_skipped(void) { Record("{\"event\": \"step_skipped\"}"); }

void foreshock_observe_loss(double value, uint32_t source) {
  Record(Format("{\"event\": \"loss\", \"source\": %u, \"value\": %s}", source, Number(value).c_str()));
}

void foreshock_loss_is_of(const char* name) {
  Record(Format("{\"event\": \"loss_is_of\", \"name\": \"%s\"}", name));
}

void foreshock_observe_root_divisor(double divisor) {
  Record(Format("{\"event\": \"root_divisor\", \"value\": %.17g}", divisor));
}

void foreshock_observe_loss_sum(double sum, double weight) {
  Record(Format("{\"event\": \"loss_sum\", \"sum\": %s, \"weight\": %s}", Number(sum).c_str(),
                Number(weight).c_str()));
}

// Numbers are there at once: the device is memory of the host.
int foreshock_fetch(const foreshock_tensor* values, size_t count, void* stream, uint32_t what,
                    uint64_t* numbers) {
  static uint64_t last = 0;
  if (g_fetch_fails) return 0;
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = ++last;
    Record(Format("{\"event\": \"fetch\", \"what\": %u, \"number\": %" PRIu64 ", \"stream\": %" PRIuPTR
                  ", \"tensor\": %s}",
                  what, last, Address(stream), Describe(values[i]).c_str()));
  }
  return 1;
}
void foreshock_observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source) {
  Record(Format("{\"event\": \"fetched_loss\", \"number\": %" PRIu64 ", \"scale\": %" PRIu64
                ", \"source\": %u}",
                number, scale, source));
}
void foreshock_observe_fetched_loss_sum(uint64_t sum, uint64_t weight) {
  Record(Format("{\"event\": \"fetched_loss_sum\", \"sum\": %" PRIu64 ", \"weight\": %" PRIu64 "}", sum,
                weight));
}
void foreshock_fetched(uint64_t number, double value) {
  Record(Format("{\"event\": \"fetched\", \"number\": %" PRIu64 ", \"value\": %s}", number,
                Number(value).c_str()));
}
void foreshock_step_skipped_if(uint64_t number) {
  Record(Format("{\"event\": \"step_skipped_if\", \"number\": %" PRIu64 "}", number));
}

int foreshock_observe_scalars(const foreshock_scalar* scalars, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Record(Format("{\"event\": \"scalar\", \"name\": \"%s\", \"value\": %s, \"step\": %" PRId64 "}",
                  scalars[i].name, Number(scalars[i].value).c_str(), scalars[i].step));
  }
  return static_cast<int>(count);
}

int foreshock_step_is_sampled(void) { return g_sample; }

int foreshock_name_weights(const foreshock_weight* weights, size_t count) {
  if (g_names_busy > 0) {
    --g_names_busy;
    return -1;
  }
  for (size_t i = 0; i < count; ++i) {
    const foreshock_weight& w = weights[i];
    Record(
        Format("{\"event\": \"weight_name\", \"name\": \"%s\", \"layer\": \"%s\", \"dims\": %u, "
               "\"shape\": [%" PRId64 ",%" PRId64 "], \"offset\": [%" PRId64 ",%" PRId64 "], "
               "\"part\": [%" PRId64 ",%" PRId64 "], \"unfollowed\": %u}",
               w.name, w.layer, w.dims, w.shape[0], w.shape[1], w.offset[0], w.offset[1], w.part[0],
               w.part[1], w.unfollowed));
  }
  g_weights = static_cast<uint32_t>(count);
  return static_cast<int>(count);
}

size_t foreshock_weights_due(uint32_t* numbers, size_t room) {
  const size_t count = g_sample && room >= g_weights ? g_weights : 0;
  for (uint32_t i = 0; i < count; ++i) numbers[i] = i;
  return count;
}

void foreshock_observe_weights(const foreshock_weight_state* states, size_t count, uint32_t when) {
  for (size_t i = 0; i < count; ++i) {
    const foreshock_weight_state& s = states[i];
    Record(
        Format("{\"event\": \"weight\", \"when\": %u, \"number\": %u, \"parameter\": %s, \"gradient\": %s, "
               "\"average\": %s, \"square_average\": %s, \"step\": %" PRId64 ", \"lr\": %s, \"beta1\": %s, "
               "\"beta2\": %s, \"eps\": %s, \"decay\": %s}",
               when, s.number, Describe(s.parameter).c_str(), Describe(s.gradient).c_str(),
               Describe(s.average).c_str(), Describe(s.square_average).c_str(), s.optimizer_step,
               Number(s.learning_rate).c_str(), Number(s.beta1).c_str(), Number(s.beta2).c_str(),
               Number(s.epsilon).c_str(), Number(s.weight_decay).c_str()));
  }
}

// A sketch has one product, the fingerprint.
int foreshock_add_sketch(const foreshock_tensor* tensor, uint64_t seed, int64_t first, int64_t whole,
                         foreshock_sketch* sketch) {
  if (!tensor->data || !IsReadable(*tensor)) return 0;
  sketch->products[0] += Fingerprint(*tensor);
  sketch->products[1] = static_cast<double>(seed);
  sketch->products[2] = static_cast<double>(first);
  sketch->products[3] = static_cast<double>(whole);
  return 1;
}

void foreshock_observe_gradient_looks(const foreshock_gradient_look* looks, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const foreshock_gradient_look& look = looks[i];
    Record(
        Format("{\"event\": \"look\", \"number\": %u, \"parameters\": %u, \"contributions\": %u, "
               "\"whole\": %u, \"mesh\": %u, \"part\": [%s, %s], \"seed\": %s, \"local\": %s, \"last\": %s, "
               "\"before\": %s, \"used\": %s}",
               look.number, look.parameters, look.contributions, look.is_whole, look.mesh,
               Number(look.value.products[2]).c_str(), Number(look.value.products[3]).c_str(),
               Number(look.value.products[1]).c_str(), Number(look.local.products[0]).c_str(),
               Number(look.last.products[0]).c_str(), Number(look.before.products[0]).c_str(),
               Number(look.used.products[0]).c_str()));
  }
}

int foreshock_name_parameters(const foreshock_parameter* parameters, size_t count) {
  if (count == 0) Record("{\"event\": \"names_forgotten\"}");
  for (size_t i = 0; i < count; ++i) {
    Record(Format("{\"event\": \"name\", \"identity\": %" PRIuPTR
                  ", \"name\": \"%s\", \"layer\": \"%s\", \"elements\": %" PRIu64 "}",
                  Address(parameters[i].identity), parameters[i].name, parameters[i].layer,
                  parameters[i].elements));
  }
  return static_cast<int>(count);
}

int foreshock_name_mixers(const foreshock_mixer* mixers, size_t count) {
  for (size_t i = 0; i < count; ++i)
    Record(
        Format("{\"event\": \"mixer\", \"layer\": \"%s\", \"name\": \"%s\", \"kind\": %u, \"trained\": %u}",
               mixers[i].layer ? mixers[i].layer : "", mixers[i].name, mixers[i].kind, mixers[i].is_trained));
  return static_cast<int>(count);
}

void foreshock_observe_gradients(const foreshock_gradient* gradients, size_t count) {
  std::string line = "{\"event\": \"gradients\", \"squares\": {";
  for (size_t i = 0; i < count; ++i) {
    double squares = gradients[i].sum_of_squares;
    const foreshock_tensor& values = gradients[i].values;
    if (values.data) {
      squares = 0;
      for (int64_t e = 0; e < values.shape[0]; ++e) squares += Element(values, e) * Element(values, e);
    }
    line += Format("%s\"%" PRIuPTR "\": ", i ? ", " : "", Address(gradients[i].identity)) + Number(squares);
  }
  line += "}, \"fetched\": {";
  const char* between = "";
  for (size_t i = 0; i < count; ++i) {
    if (gradients[i].norm_fetched == 0) continue;
    line += Format("%s\"%" PRIuPTR "\": %" PRIu64, std::exchange(between, ", "),
                   Address(gradients[i].identity), gradients[i].norm_fetched);
  }
  Record(line + Format("}, \"from_values\": %s}", count && gradients[0].values.data ? "true" : "false"));
}

}  // extern "C"
