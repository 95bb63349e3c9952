// Measures what a sampled attention call costs a training on a CUDA device: the host's time in the C
// interface of foreshock, which queues copies of a slice (the sampled part of the call), and the delay of the
// trainer's stream by these copies. A window stands for a step: work on the device and attention calls
// alternate, as in the layers of a model. Windows with sampled calls alternate with windows without calls,
// and the medians of their times are compared. Two settings of CUDA_DEVICE_MAX_CONNECTIONS are measured:
// CUDA's default, and one connection for all streams, which Megatron-LM needs. With one connection the copies
// could delay the trainer's kernels.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "foreshock/hook.h"
#include "segment/reader.h"
#include "tests/support/live_device.h"
#include "tests/support/reported_step.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

// A layer of attention in bf16: a slice is K and V of one head, 4 MB.
constexpr int64_t kHeads = 32, kKvHeads = 8, kTokens = 8192, kDim = 128;
constexpr int kLayers = 8;  // attention calls in a window
constexpr int kWarmUp = 4;  // windows before the measured ones

struct Size {  // how much is measured
  int windows = 60;
  size_t work_bytes = size_t{1} << 30;  // memset between two calls; takes half a millisecond on an H100
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// A training on the device. device_.must(name, ...) calls a function of the driver and exits on an error.
class Training {
 public:
  Training(const LiveDevice& device, const Size& size) : device_(device), size_(size) {
    device_.must("cuMemAlloc_v2", &work_, size_.work_bytes);
    stream_ = device_.new_stream(1);  // 1: the legacy default stream does not wait for it
    call_.size = sizeof call_;
    call_.version = FORESHOCK_ABI_VERSION;
    call_.op = foreshock_register_op("bench::forward", FORESHOCK_FORWARD);
    call_.scale = 0.1;
    call_.causal = FORESHOCK_CAUSAL_TOP_LEFT;
    call_.stream = stream_;
    call_.query = call_.out = tensor(kHeads);
    call_.key = call_.value = tensor(kKvHeads);
  }

  // Runs a window. Returns its microseconds until the trainer's stream is idle. The copies that foreshock has
  // queued on another stream are awaited after that, outside the measured time.
  double run_window(bool with_calls) {
    const Clock::time_point begin = Clock::now();
    for (int layer = 0; layer < kLayers; ++layer) {
      device_.must("cuMemsetD8Async", work_, static_cast<unsigned char>(layer), size_.work_bytes, stream_);
      if (with_calls) attention();
    }
    device_.wait_for(stream_);
    const double took = Microseconds(Clock::now() - begin).count();
    end_reported_step(++step_);
    device_.wait();
    return took;
  }

  std::vector<double> call_microseconds;  // the host's time in each call so far

 private:
  // A tensor on the device, 2 bytes a value; the values do not matter and are not set.
  foreshock_tensor tensor(int64_t heads) {
    uint64_t address = 0;
    device_.must("cuMemAlloc_v2", &address, static_cast<size_t>(heads * kTokens * kDim * 2));
    return {reinterpret_cast<void*>(address),
            {1, heads, kTokens, kDim},
            {heads * kTokens * kDim, kDim, heads * kDim, 1},
            FORESHOCK_BF16,
            4,  // dimensions
            FORESHOCK_DEVICE_CUDA,
            0};  // index of the device
  }

  void attention() {
    const Clock::time_point begin = Clock::now();
    // Nonzero: the call is sampled. No operation runs between the two, so only the hooks are measured.
    if (foreshock_attention_enter(call_.op, FORESHOCK_NEEDS_GRADIENT) != 0) foreshock_attention_leave(&call_);
    call_microseconds.push_back(Microseconds(Clock::now() - begin).count());
  }

  const LiveDevice& device_;
  const Size size_;
  uint64_t work_ = 0;
  void* stream_ = nullptr;
  foreshock_attention_call call_ = {};
  int64_t step_ = 0;
};

// Frees the slots (pieces of shared memory that hold a slice), as an agent does.
void consume(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".seg") continue;
    std::string why;
    auto reader = segment::SegmentReader::open(folder, entry.path().stem(), &why);
    segment::SegmentReader::Ready ready;
    while (reader != nullptr && reader->next_ready(&ready)) reader->consume_judged(ready);
  }
}

uint64_t sampled_calls(const fs::path& folder) {
  uint64_t all = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".seg") continue;
    std::string why;
    if (auto reader = segment::SegmentReader::open(folder, entry.path().stem(), &why))
      all += reader->totals().sampled[FORESHOCK_FORWARD];
  }
  return all;
}

// Measures one value of CUDA_DEVICE_MAX_CONNECTIONS ("": CUDA's default). Returns an exit status: 1 if no
// call was sampled. The segment (the file with the slots) is created in base/r, since the run's id is "r".
int measure(const char* connections, const fs::path& base, const Size& size) {
  if (*connections != '\0') setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
  setenv("FORESHOCK_DIR", base.c_str(), 1);
  for (const auto& [name, value] :
       {std::pair("RUN_ID", "r"), {"EVERY", "1"}, {"MAX_SLOWDOWN", "100%"}, {"MEMORY", "256MiB"}})
    setenv((std::string("FORESHOCK_") + name).c_str(), value, 1);
  const fs::path folder = base / "r";
  fs::create_directory(folder);
  const LiveDevice device;
  Training training(device, size);
  for (int n = 0; n < kWarmUp; ++n) {
    training.run_window(true);
    consume(folder);
  }
  training.call_microseconds.clear();
  const uint64_t sampled_before = sampled_calls(folder);
  std::vector<double> with, without;
  for (int n = 0; n < size.windows; ++n) {
    with.push_back(training.run_window(true));
    consume(folder);
    without.push_back(training.run_window(false));
  }
  const double sampled_per_window =
      static_cast<double>(sampled_calls(folder) - sampled_before) / size.windows;
  std::printf("%-22s %4.1f of %d calls sampled; %6.1f us of the host and %6.1f us of the stream a call\n",
              *connections != '\0' ? "one connection:" : "connections of CUDA:", sampled_per_window, kLayers,
              median(training.call_microseconds),
              sampled_per_window > 0 ? (median(with) - median(without)) / sampled_per_window : 0.0);
  return sampled_per_window > 0 ? 0 : 1;
}

// Measures each setting in a separate process, since the driver reads the environment only once.
int run(const Size& size) {
  if (const std::string missing = missing_device(); !missing.empty()) {
    std::printf("nothing was measured: no device: %s\n", missing.c_str());
    return 0;
  }
  int failed = 0;
  for (const char* connections : {"", "1"}) {
    std::string base = "/dev/shm/foreshock-bench-XXXXXX";
    if (mkdtemp(base.data()) == nullptr) return 1;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) std::exit(measure(connections, base, size));
    int status = -1;
    waitpid(child, &status, 0);
    failed += status != 0;
    fs::remove_all(base);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace foreshock

// With a number N as argument: N windows with little work, only to test that the bench runs.
int main(int count, char** arguments) {
  foreshock::Size size;
  if (count > 1) size = {.windows = std::max(std::atoi(arguments[1]), 1), .work_bytes = size_t{1} << 20};
  return foreshock::run(size);
}
