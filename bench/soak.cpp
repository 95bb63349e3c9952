// The trainer of bench/soak.py: calls the C interface of foreshock at a given rate, with attention, losses,
// scalars (numbers with a name) and weights. Divides its work into parts and pauses after each part, so that
// bench/soak.py can measure the trainer and the agent.
//
//   bench_soak steps COUNT PARTS RATE   COUNT steps at RATE per second; names of layers and scalars change
//   bench_soak restarts COUNT PARTS     COUNT processes of five steps each, one after the other
//
// After each part it prints "PID DONE" (its pid; steps or restarts so far) and waits for a line of input.
// Each process of `restarts` is this program with the argument "short".
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "foreshock/hook.h"

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLayers = 4, kLength = 8, kDim = 8, kWeights = 6;
constexpr long kNames = 100000;  // names change kNames to 2 * kNames times, but at most once per step

// Returns a struct of the C interface with its size and version; all other members are zero.
template <class Struct>
Struct sized() {
  Struct record = {};
  record.size = sizeof record;
  record.version = FORESHOCK_ABI_VERSION;
  return record;
}

// Makes training steps. The names of layers and scalars change every steps_per_name_ steps. `steps`: planned
// number of steps.
class Trainer {
 public:
  explicit Trainer(long steps) : steps_per_name_(std::max(steps / kNames, 1L)) {
    forward_ = foreshock_register_op("soak_forward", FORESHOCK_FORWARD);
    for (int n = 0; n < kWeights; ++n) weights_[n].fill(0.5F);
  }

  void step() {
    ++step_;
    for (int layer = 0; layer < kLayers; ++layer) attend(layer);
    observe_weights();
    const std::string scalar_name = "made_up_" + std::to_string(step_ / steps_per_name_);
    auto scalar = sized<foreshock_scalar>();
    scalar.name = scalar_name.c_str();
    scalar.value = static_cast<double>(step_);
    scalar.step = -1;  // the training gives no step number
    foreshock_observe_scalars(&scalar, 1);
    auto record = sized<foreshock_step>();
    record.step = step_;
    record.step_source = FORESHOCK_STEP_REPORTED;
    record.loss = 2 + 0.1 * random();
    record.gradient_norm = std::exp(0.1 * random());
    record.given = FORESHOCK_GIVEN_LOSS | FORESHOCK_GIVEN_GRADIENT_NORM;
    foreshock_step_end(&record);
  }

 private:
  // A number in [-0.5, 0.5), from a linear congruential generator.
  double random() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 40) / (1 << 24) - 0.5;
  }

  static foreshock_tensor view(const float* data, int dim) {
    foreshock_tensor tensor = {};
    tensor.data = data;
    tensor.dtype = FORESHOCK_FP32;
    tensor.dims = 4;
    const int64_t shape[] = {1, 1, kLength, dim}, stride[] = {kLength * dim, kLength * dim, dim, 1};
    std::memcpy(tensor.shape, shape, sizeof shape);
    std::memcpy(tensor.stride, stride, sizeof stride);
    return tensor;
  }

  // Computes one causal attention call on fp32 tensors, and passes it to the monitor if it is sampled.
  void attend(int layer) {
    const int is_sampled = foreshock_attention_enter(forward_, FORESHOCK_NEEDS_GRADIENT);
    for (auto* tensor : {&query_, &key_, &value_})
      for (float& x : *tensor) x = static_cast<float>(random());
    for (int i = 0; i < kLength; ++i) attend_row(i);
    if (is_sampled == 0) return;
    auto call = sized<foreshock_attention_call>();
    const std::string name = "new." + std::to_string(step_ / steps_per_name_) + "." + std::to_string(layer);
    call.op = forward_;
    call.causal = FORESHOCK_CAUSAL_TOP_LEFT;
    call.scale = 1 / std::sqrt(static_cast<double>(kDim));
    call.query = view(query_.data(), kDim);
    call.key = view(key_.data(), kDim);
    call.value = view(value_.data(), kDim);
    call.out = view(out_.data(), kDim);
    call.log_sum_exp = view(log_sum_exp_.data(), 1);
    call.log_sum_exp.dims = 3;
    call.layer_name = name.c_str();
    foreshock_attention_leave(&call);
  }

  void attend_row(int i) {  // computes output and log-sum-exp of query `i` in fp64
    double sum = 0, sums[kDim] = {};
    for (int j = 0; j <= i; ++j) {
      double score = 0;
      for (int d = 0; d < kDim; ++d)
        score += static_cast<double>(query_[i * kDim + d]) * static_cast<double>(key_[j * kDim + d]);
      const double weight = std::exp(score / std::sqrt(static_cast<double>(kDim)));
      sum += weight;
      for (int d = 0; d < kDim; ++d) sums[d] += weight * static_cast<double>(value_[j * kDim + d]);
    }
    for (int d = 0; d < kDim; ++d) out_[i * kDim + d] = static_cast<float>(sums[d] / sum);
    log_sum_exp_[i] = static_cast<float>(std::log(sum));
  }

  // Changes all weights, and passes the weights whose measurement is due to the monitor.
  void observe_weights() {
    if (!are_named_) name_weights();
    uint32_t due[kWeights] = {};
    const size_t count = foreshock_weights_due(due, kWeights);
    for (auto& weight : weights_)
      for (float& x : weight) x += 1e-3F * static_cast<float>(random());
    foreshock_weight_state states[kWeights] = {};
    for (size_t n = 0; n < count; ++n) {
      states[n] = sized<foreshock_weight_state>();
      states[n].number = due[n];
      foreshock_tensor& tensor = states[n].parameter;
      tensor.data = weights_[due[n]].data();
      tensor.dtype = FORESHOCK_FP32;
      tensor.dims = 1;
      for (int d = 0; d < FORESHOCK_TENSOR_DIMS; ++d) tensor.shape[d] = tensor.stride[d] = 1;
      tensor.shape[0] = static_cast<int64_t>(weights_[due[n]].size());
      states[n].optimizer_step = -1;  // unknown
    }
    foreshock_observe_weights(states, count, FORESHOCK_AFTER_STEP);
  }

  void name_weights() {
    foreshock_weight named[kWeights];
    std::string names[kWeights];
    for (int n = 0; n < kWeights; ++n) {
      names[n] = "blocks." + std::to_string(n) + ".weight";
      named[n] = sized<foreshock_weight>();
      named[n].name = names[n].c_str();
      named[n].dims = 1;
      for (int d = 0; d < FORESHOCK_TENSOR_DIMS; ++d) named[n].shape[d] = named[n].part[d] = 1;
      named[n].shape[0] = named[n].part[0] = static_cast<int64_t>(weights_[n].size());
    }
    are_named_ = foreshock_name_weights(named, kWeights) > 0;
  }

  int32_t forward_ = -1;  // number of the registered operation
  const long steps_per_name_;
  long step_ = 0;
  uint64_t state_ = 1;  // of random()
  bool are_named_ = false;
  std::array<float, kLength * kDim> query_, key_, value_, out_;
  std::array<float, kLength> log_sum_exp_;
  std::array<std::array<float, 4096>, kWeights> weights_;
};

// Reports the end of a part and waits for a line of input. Returns false if bench/soak.py has ended.
bool end_part(long done) {
  std::printf("%d %ld\n", getpid(), done);
  std::fflush(stdout);
  char line[16];
  return std::fgets(line, sizeof line, stdin) != nullptr;
}

// Does the work of "steps". `rate`: steps per second. Returns the exit status: 1 if bench/soak.py has ended.
int run_steps(long count, long parts, double rate) {
  Trainer trainer(count);
  for (long part = 1; part <= parts; ++part) {
    const long first = count * (part - 1) / parts, last = count * part / parts;
    const auto begin = Clock::now();
    for (long n = first; n < last; ++n) {
      trainer.step();
      if ((n - first) % 16 == 15)  // a sleep after every step would be too short to be exact
        std::this_thread::sleep_until(
            begin + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(static_cast<double>(n - first) / rate)));
    }
    if (!end_part(last)) return 1;
  }
  return 0;
}

// Does the work of "restarts". Returns the exit status, as run_steps() does; also 1 if a process fails.
int run_restarts(const char* own_path, long count, long parts) {
  for (long part = 1; part <= parts; ++part) {
    const long first = count * (part - 1) / parts, last = count * part / parts;
    for (long n = first; n < last; ++n) {
      char mode[] = "short";
      char* const words[] = {const_cast<char*>(own_path), mode, nullptr};
      pid_t child = 0;
      int status = 0;
      if (posix_spawn(&child, own_path, nullptr, nullptr, words, environ) != 0) return 1;
      if (waitpid(child, &status, 0) != child || status != 0) return 1;
    }
    if (!end_part(last)) return 1;
  }
  return 0;
}

int train_five_steps() {
  Trainer trainer(5);
  for (int n = 0; n < 5; ++n) trainer.step();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "short") return train_five_steps();
  if (mode == "steps" && argc == 5)
    return run_steps(std::atol(argv[2]), std::atol(argv[3]), std::atof(argv[4]));
  if (mode == "restarts" && argc == 4) return run_restarts(argv[0], std::atol(argv[2]), std::atol(argv[3]));
  std::fputs("bench_soak steps COUNT PARTS RATE | restarts COUNT PARTS; started by bench/soak.py\n", stderr);
  return 2;
}
