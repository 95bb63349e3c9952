#include "tests/support/fake_cuda/checks.h"

namespace fake_cuda {

Context* current() { return context_stack().empty() ? nullptr : context_stack().back(); }

int enter(const char* name, void* stream, uint64_t bytes) {
  World& w = world();
  w.calls.push_back({name, stream, bytes});
  if (w.faults.failing == name && w.times[name]++ >= w.faults.failing_after) return w.faults.error;
  return w.faults.is_lost ? kLost : kSuccess;
}

int check(const Context* context) {
  if (context == nullptr || context->is_alive) return kSuccess;
  violation("a handle of a context that is gone");
  return kDestroyed;
}

int check_unsafe(const char* name) {
  if (!any_capture() || capture_mode() == 2) return kSuccess;
  violation(std::string(name) + " while a stream is being captured");
  return kCaptureUnsupported;
}

int check_stream(const char* name, Stream* stream) {
  if (stream == nullptr) return kInvalidContext;
  if (const int error = check(stream->context)) return error;
  if (current() != stream->context) violation(std::string(name) + " on a stream of another context");
  if (stream->is_capturing) violation(std::string(name) + " into a capture");
  return kSuccess;
}

bool is_inside(const std::map<uint64_t, size_t>& ranges, uint64_t at, size_t bytes) {
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second;
}

bool is_on_device(uint64_t at, size_t bytes) {
  std::map<uint64_t, size_t> ranges;
  for (const auto& [begin, block] : world().memory) ranges[begin] = block.first;
  return is_inside(ranges, at, bytes);
}

}  // namespace fake_cuda
