// What the entry points of the fake driver work on.
#ifndef FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_WORLD_H_
#define FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_WORLD_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "kernels/device_jobs.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace fake_cuda {

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200, kInvalidContext = 201,
              kNoBinary = 209, kNotFound = 500, kLost = 700, kDestroyed = 709, kAlreadyRegistered = 712,
              kCaptureUnsupported = 900, kCaptureImplicit = 906;

// Device addresses of pinned host memory are not its host addresses.
constexpr uint64_t kHostOffset = uint64_t{1} << 56;

struct Context {
  uint64_t id;
  int device;
  bool is_alive = true;
};

struct Operation {
  std::function<void()> work;
  std::shared_ptr<bool> waits_for;  // null, or the record of an event that has to be done before
  bool is_copy = false;
};

struct Stream {
  Context* context = nullptr;
  bool is_ours = false, is_non_blocking = false, is_capturing = false, is_busy = false;
  int priority = 0;
  std::deque<Operation> queue;
  std::thread thread;
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<bool> record = std::make_shared<bool>(true);
};

struct Function {
  Context* context = nullptr;
  std::string name;
  bool is_loaded = false;
  int most_shared = 48 << 10;  // that a launch may ask for
};

Faults faults_of_environment();

// One lock for all of it; work of streams runs without it.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  Run run = Run::kByHand;
  bool stops = false;
  Faults faults = faults_of_environment();
  uint64_t next_context = 1;
  uint64_t clock_ns = 0;  // of all devices: it moves when it is read
  std::map<int, Context*> primary;
  std::map<int, int> primary_users;
  std::deque<std::unique_ptr<Context>> contexts;
  std::deque<std::unique_ptr<Stream>> streams;
  std::deque<std::unique_ptr<Event>> events;
  std::deque<std::unique_ptr<Function>> functions;
  std::map<int, Stream*> legacy;                           // by device
  std::map<uint64_t, std::pair<size_t, Context*>> memory;  // of cuMemAlloc
  std::map<uint64_t, size_t> pinned;
  std::vector<Call> calls;
  std::vector<std::string> violations, symbols, images;
  std::map<std::string, int> times;  // each entry point was called
};
World& world();

// What a driver of this version returns when it is given a container for a device of this architecture (90:
// sm_90). An entry that is compressed is not read.
int load_error(std::string_view container, int version, int device);

// Of the calling thread, the current one last.
std::vector<Context*>& context_stack();
int& capture_mode();

using Lock = std::unique_lock<std::mutex>;

// All of these under the lock.
Stream* stream_of(void* handle);
Stream* add_stream(Context* context);
void push(Stream* stream, Operation operation);
bool any_capture();
void violation(const std::string& what);

// Whether a module has such a kernel, and what a launch of it does.
bool is_kernel(const std::string& name);
std::function<void()> work_of(const std::string& name, const foreshock::LaunchShape& shape,
                              const void* parameter);

}  // namespace fake_cuda

#endif  // FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_WORLD_H_
