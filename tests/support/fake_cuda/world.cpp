#include "tests/support/fake_cuda/world.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace fake_cuda {

World& world() {
  static World* world = new World;  // threads of streams may outlive main()
  return *world;
}

std::vector<Context*>& context_stack() {
  thread_local std::vector<Context*> stack;
  return stack;
}

int& capture_mode() {
  thread_local int mode = 0;  // global
  return mode;
}

void violation(const std::string& what) {
  world().violations.push_back(what);
  if (std::getenv("FAKE_CUDA_TELLS") != nullptr) std::fprintf(stderr, "fake_cuda: %s\n", what.c_str());
}

Faults faults_of_environment() {
  Faults faults;
  if (const char* version = std::getenv("FAKE_CUDA_VERSION")) faults.version = std::atoi(version);
  if (const char* architecture = std::getenv("FAKE_CUDA_ARCHITECTURE"))
    faults.architecture = std::atoi(architecture);
  return faults;
}

Stream* stream_of(void* handle) {
  if (handle != legacy_stream() && handle != thread_stream() && handle != nullptr)
    return static_cast<Stream*>(handle);
  // The default streams of a thread and of a device are one here: order is all that matters.
  auto& stack = context_stack();
  return stack.empty() || stack.back() == nullptr ? nullptr : world().legacy[stack.back()->device];
}

bool any_capture() {
  for (const auto& stream : world().streams)
    if (stream->is_capturing) return true;
  return false;
}

namespace {

bool can_run(const Stream& stream) {
  if (world().faults.is_lost || stream.is_busy || stream.queue.empty()) return false;
  const Operation& next = stream.queue.front();
  return next.waits_for == nullptr || *next.waits_for;
}

// Takes the next operation of the stream and does it without the lock.
void do_next(Stream* stream, Lock* lock) {
  Operation next = std::move(stream->queue.front());
  stream->queue.pop_front();
  stream->is_busy = true;
  const int delay = next.is_copy ? world().faults.copy_delay_us : 0;
  lock->unlock();
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  if (next.work) next.work();
  lock->lock();
  stream->is_busy = false;
  world().changed.notify_all();
}

void serve(Stream* stream) {
  Lock lock(world().mutex);
  while (!world().stops) {
    if (can_run(*stream))
      do_next(stream, &lock);
    else
      world().changed.wait(lock);
  }
}

bool is_at_rest() {
  for (const auto& stream : world().streams)
    if (stream->is_busy || can_run(*stream)) return false;
  return true;
}

Context* add_context(int device) {
  World& w = world();
  w.contexts.push_back(std::make_unique<Context>(Context{w.next_context++, device}));
  Context* context = w.contexts.back().get();
  w.primary[device] = context;
  w.legacy[device] = add_stream(context);
  return context;
}

}  // namespace

Stream* add_stream(Context* context) {
  World& w = world();
  w.streams.push_back(std::make_unique<Stream>());
  Stream* stream = w.streams.back().get();
  stream->context = context;
  if (w.run == Run::kByThreads) stream->thread = std::thread(serve, stream);
  return stream;
}

void push(Stream* stream, Operation operation) {
  stream->queue.push_back(std::move(operation));
  world().changed.notify_all();
}

void start(Run run, int devices) {
  World& w = world();
  Lock lock(w.mutex);
  w.stops = true;
  w.changed.notify_all();
  lock.unlock();
  for (auto& stream : w.streams)
    if (stream->thread.joinable()) stream->thread.join();
  lock.lock();
  w.stops = false;
  w.run = run;
  w.faults = faults_of_environment();
  w.clock_ns = 1000;
  w.streams.clear();
  w.events.clear();
  w.functions.clear();
  w.pinned.clear();
  w.calls.clear();
  w.violations.clear();
  w.symbols.clear();
  w.images.clear();
  w.times.clear();
  for (auto& [address, block] : w.memory)
    ::operator delete (reinterpret_cast<void*>(address), std::align_val_t{256});
  w.memory.clear();
  context_stack().clear();
  for (int device = 0; device < devices; ++device) {
    w.primary_users[device] = 1;
    add_context(device);
  }
  context_stack().push_back(w.primary[0]);
}

void set_faults(const Faults& faults) {
  Lock lock(world().mutex);
  world().faults = faults;
  world().times.clear();
  world().changed.notify_all();
}

void* legacy_stream() { return reinterpret_cast<void*>(uintptr_t{1}); }
void* thread_stream() { return reinterpret_cast<void*>(uintptr_t{2}); }

void* new_stream(int device) {
  Lock lock(world().mutex);
  return add_stream(world().primary[device]);
}

void* new_stream_apart(int device) {
  World& w = world();
  Lock lock(w.mutex);
  w.contexts.push_back(std::make_unique<Context>(Context{w.next_context++, device}));
  return add_stream(w.contexts.back().get());
}

void enqueue(void* stream, std::function<void()> work) {
  Lock lock(world().mutex);
  push(stream_of(stream), {std::move(work), nullptr});
}

void begin_capture(void* stream) {
  Lock lock(world().mutex);
  stream_of(stream)->is_capturing = true;
}

void end_capture(void* stream) {
  Lock lock(world().mutex);
  stream_of(stream)->is_capturing = false;
}

void set_device(int device) {
  Lock lock(world().mutex);
  context_stack().clear();
  if (device >= 0) context_stack().push_back(world().primary[device]);
}

int current_device() {
  return context_stack().empty() || context_stack().back() == nullptr ? -1 : context_stack().back()->device;
}

int primary_users(int device) {
  Lock lock(world().mutex);
  return world().primary_users[device];
}

void reset_device(int device) {
  World& w = world();
  Lock lock(w.mutex);
  Context* old = w.primary[device];
  old->is_alive = false;
  for (auto& stream : w.streams)
    if (stream->context == old) stream->queue.clear();
  for (auto at = w.memory.begin(); at != w.memory.end();) {
    if (at->second.second == old) {
      ::operator delete (reinterpret_cast<void*>(at->first), std::align_val_t{256});
      at = w.memory.erase(at);
    } else {
      ++at;
    }
  }
  w.pinned.clear();
  w.faults = {};
  add_context(device);
  context_stack().clear();
  context_stack().push_back(w.primary[device]);
}

void run(void* stream) {
  Lock lock(world().mutex);
  Stream* of = stream_of(stream);
  while (can_run(*of)) do_next(of, &lock);
}

void run_all() {
  Lock lock(world().mutex);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t n = 0; n < world().streams.size(); ++n) {
      Stream* stream = world().streams[n].get();
      for (; can_run(*stream); moved = true) do_next(stream, &lock);
    }
  }
}

void rest() {
  Lock lock(world().mutex);
  world().changed.wait(lock, is_at_rest);
}

std::vector<Call> calls() {
  Lock lock(world().mutex);
  return world().calls;
}

void forget_calls() {
  Lock lock(world().mutex);
  world().calls.clear();
}

std::vector<std::string> violations() {
  Lock lock(world().mutex);
  return world().violations;
}

std::vector<std::string> symbols_asked_for() {
  Lock lock(world().mutex);
  return world().symbols;
}

std::vector<std::string> images() {
  Lock lock(world().mutex);
  return world().images;
}

void* own_stream(int device) {
  Lock lock(world().mutex);
  void* found = nullptr;
  for (const auto& stream : world().streams)
    if (stream->is_ours && stream->context->device == device) found = stream.get();
  return found;
}

int priority_of(void* stream) {
  Lock lock(world().mutex);
  return static_cast<Stream*>(stream)->priority;
}

}  // namespace fake_cuda
