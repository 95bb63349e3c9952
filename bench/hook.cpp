// Measures the time that the hook foreshock_attention_enter(), which the trainer calls before each attention
// operation, adds to a call that is not sampled: with the monitor off, and with the monitor on in a step that
// is not sampled. Turns of ten thousand calls of the hook alternate with turns of as many calls of direct(),
// an empty function that is not inlined. The medians of the time per call over the turns are compared. The
// aims: at most 2 ns (off) and 5 ns (on) more than for direct().
#include "foreshock/hook.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr int kCalls = 10000, kTurns = 2001;

// Not inlined, like a function of another library. The asm uses the arguments, so that they are passed.
__attribute__((noinline)) int direct(int32_t op, uint32_t flags) {
  asm volatile("" : : "r"(op), "r"(flags));
  return 0;
}

template <class Call>
double nanoseconds_per_call(Call call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int n = 0; n < kCalls; ++n) call(0, 0);  // operation 0, no flags
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Prints the medians of direct() and of the hook. Volatile pointers prevent inlining.
void measure(const char* state, double aim) {
  int (*volatile call_direct)(int32_t, uint32_t) = direct;
  int (*volatile call_hook)(int32_t, uint32_t) = foreshock_attention_enter;
  std::vector<double> of_direct, of_hook;
  for (int turn = 0; turn < kTurns; ++turn) {
    of_direct.push_back(nanoseconds_per_call(call_direct));
    of_hook.push_back(nanoseconds_per_call(call_hook));
  }
  const double added = median(of_hook) - median(of_direct);
  std::printf("%-22s direct %.2f ns   hook %.2f ns   added %+.2f ns   aim %.0f ns: %s\n", state,
              median(of_direct), median(of_hook), added, aim, added <= aim ? "met" : "missed");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    // Measures each state in a process of its own, since a monitor that is off cannot be switched on again.
    unsetenv("FORESHOCK_DIR");
    const std::string self = argv[0];
    return std::system((self + " off").c_str()) != 0 || std::system((self + " on").c_str()) != 0;
  }
  const int32_t op = foreshock_register_op("bench::attention", FORESHOCK_FORWARD);
  if (argv[1][1] == 'f') {  // "off", not "on"
    foreshock_off("bench");
    measure("off", 2);
    return 0;
  }
  std::string base = "/dev/shm/foreshock-bench-XXXXXX";
  if (mkdtemp(base.data()) == nullptr) return std::puts("on: no tmpfs at /dev/shm, not measured"), 0;
  std::filesystem::create_directory(base + "/run");
  setenv("FORESHOCK_DIR", base.c_str(), 1);
  setenv("FORESHOCK_RUN_ID", "run", 1);
  setenv("FORESHOCK_EVERY", "1000000", 1);  // steps between two sampled steps
  foreshock_step step = {};
  step.size = sizeof step;
  step.version = FORESHOCK_ABI_VERSION;
  step.step = 1;
  foreshock_step_end(&step);  // creates the segment, the file shared with the agent
  // Begins step 2, which is not sampled. Of the later calls only every 1024th takes the slow path.
  foreshock_attention_enter(op, 0);
  // The monitor is off if it could not create its segment.
  if (foreshock_enabled()) measure("on, not sampled", 5);
  std::filesystem::remove_all(base);
  return 0;
}
