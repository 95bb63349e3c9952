// Interposes TransformerEngine's fused attention (used by Megatron-LM): nvte_fused_attn_fwd and _bwd of
// libtransformer_engine.so. A preloaded libforeshock.so comes first when the dynamic linker looks for them.
//
// The order of the arguments changes between minor versions, and an unknown version must keep working too. So
// no function here declares the real arguments: the words in registers and on the stack are forwarded
// unchanged (FORESHOCK_PARAMETERS in base.h). They are read as arguments only if the package's metadata names
// a known version, and only while they are plausible for that version (transformer_engine.cpp). Calls of any
// other version are counted under a separate name, skipped as `unknown` when sampled, and reported once.
//
// TransformerEngine makes two calls for each attention. The first call passes no workspace and returns the
// size that the workspace must have. It is forwarded and, if its arguments can be read, not counted.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "foreshock/hook.h"
#include "libmonitor/base.h"
#include "libmonitor/bootstrap.h"
#include "libmonitor/transformer_engine.h"

namespace foreshock {
namespace {

// Stack words to forward. The longest known function takes 35 words, 29 of them on the stack.
#define FORESHOCK_STACK(X)                                                                              \
  X(s0), X(s1), X(s2), X(s3), X(s4), X(s5), X(s6), X(s7), X(s8), X(s9), X(s10), X(s11), X(s12), X(s13), \
      X(s14), X(s15), X(s16), X(s17), X(s18), X(s19), X(s20), X(s21), X(s22), X(s23), X(s24), X(s25),   \
      X(s26), X(s27), X(s28), X(s29), X(s30), X(s31), X(s32), X(s33), X(s34), X(s35), X(s36), X(s37),   \
      X(s38), X(s39), X(s40), X(s41), X(s42), X(s43), X(s44), X(s45), X(s46), X(s47)
constexpr int kStackWords = 48;

// The known functions return nothing. If a later version has a result, it is returned.
using Function = Word (*)(FORESHOCK_PARAMETERS);

constexpr const char* kLibrary = "libtransformer_engine.so";
// Only the library that replaces TransformerEngine in our tests defines this symbol.
constexpr const char* kTestLibrarySymbol = "foreshock_stand_in_of_transformer_engine";
constexpr const char* kFunctions[] = {"nvte_fused_attn_fwd", "nvte_fused_attn_bwd"};  // by pass (0, 1)
constexpr const char* kUnknownVersionNames[] = {"nvte_fused_attn_fwd of an unknown version",
                                                "nvte_fused_attn_bwd of an unknown version"};

// Functions of CUDA's driver; null if the driver is not mapped into this process.
struct Driver {
  int (*stream_is_capturing)(void* stream, int* capturing);
  int (*pointer_get_attribute)(void* value, int attribute, Word pointer);
};
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

// The real functions and what is known about their library. The first call fills in all members.
struct Library {
  Function real[2];             // by pass; null: not found
  bool is_monitored;            // this process is monitored; if not, only `real` is set
  bool is_known;                // version, signature and tensors are valid
  bool is_test_library;         // its tensors are in host memory
  NvteSignature signature;      // which words are which arguments in this version
  NvteTensorFunctions tensors;  // the library's functions that read a tensor handle
  Driver driver;
  char version[64];
  int32_t ops[2];  // by pass: numbers from foreshock_register_op
};

// Sets *function to the address of a function of a library that this process has mapped; null: not found.
template <class T>
void find(const char* library, const char* name, T* function) {
  *reinterpret_cast<void**>(function) = find_in_mapped(library, name);
}

// Adds the library to the list of attention that is not checked; `why` is appended to its version.
void note_unknown(const char* version, const char* why) {
  char name[128];
  std::snprintf(name, sizeof name, "transformer_engine %s%s", version[0] != '\0' ? version : "?", why);
  foreshock_note_unseen(name, FORESHOCK_UNSEEN_USED);
}

// Finds the real functions, which callers would get without libforeshock.so. `ours`: the functions of this
// file, by pass.
Library real_functions(void* const (&ours)[2]) {
  Library found = {};
  for (int pass = 0; pass < 2; ++pass)
    found.real[pass] =
        reinterpret_cast<Function>(find_original(kLibrary, kFunctions[pass], nullptr, ours[pass]));
  return found;
}

Library find_library(void* const (&ours)[2]) {
  Library found = real_functions(ours);
  found.is_monitored = is_monitored_process();
  if (!found.is_monitored) return found;
  char path[512];
  found.is_known = find_mapped_path(kLibrary, path) &&
                   read_package_version(path, "transformer_engine", found.version) &&
                   find_nvte_signature(found.version, &found.signature);
  find(kLibrary, "nvte_tensor_data", &found.tensors.data);
  find(kLibrary, "nvte_tensor_type", &found.tensors.type);
  find(kLibrary, "nvte_tensor_shape", &found.tensors.shape);
  found.is_known = found.is_known && found.tensors.are_known();
  if (!found.is_known) note_unknown(found.version, "");
  found.is_test_library = find_in_mapped(kLibrary, kTestLibrarySymbol) != nullptr;
  find("libcuda.so", "cuStreamIsCapturing", &found.driver.stream_is_capturing);
  find("libcuda.so", "cuPointerGetAttribute", &found.driver.pointer_get_attribute);
  for (uint32_t pass = 0; pass < 2; ++pass)
    found.ops[pass] = foreshock_register_op((found.is_known ? kFunctions : kUnknownVersionNames)[pass], pass);
  return found;
}

Library g_library;
std::atomic<int> g_library_state{0};  // 0: no call yet, 1: a thread fills in g_library, 2: it is complete

// Returns g_library, or *temporary with only the real functions. Never waits: while one thread fills in
// g_library, other threads only forward their calls.
const Library& library(void* const (&ours)[2], Library* temporary) {
  if (g_library_state.load(std::memory_order_acquire) == 2) [[likely]]
    return g_library;
  int unset = 0;
  if (!g_library_state.compare_exchange_strong(unset, 1)) {
    *temporary = real_functions(ours);
    return *temporary;
  }
  g_library = find_library(ours);
  g_library_state.store(2, std::memory_order_release);
  return g_library;
}

// Whether the words of calls are the arguments of the known version, by pass. kUntried: no call has been
// described yet. kTrusted: a call has been described. kRefused: the words of a call were not plausible.
enum Trust { kUntried, kTrusted, kRefused };
std::atomic<int> g_trust[2];
// Numbers of the operations kUnknownVersionNames, once refuse() was called.
std::atomic<int32_t> g_refused_ops[2] = {-1, -1};

// Ends the reading of arguments in this process, for both passes: their signatures belong to one version.
void refuse(const Library& library) {
  for (uint32_t pass = 0; pass < 2; ++pass) {
    g_refused_ops[pass].store(foreshock_register_op(kUnknownVersionNames[pass], pass),
                              std::memory_order_relaxed);
    g_trust[pass].store(kRefused, std::memory_order_release);
  }
  note_unknown(library.version, ": other arguments");
}

// Function of the adapter that returns whether this thread runs a backward pass; null without an adapter. A
// forward call in a backward pass recomputes an activation and does not belong to a new layer.
std::atomic<int (*)()> g_in_backward{nullptr};

// Function of the adapter that returns whether the same calls are reported by Transformer Engine's Python
// functions (foreshock_torch/seams.py), so that they must not be counted here too; null without an adapter.
std::atomic<int (*)(int)> g_has_seam{nullptr};

bool has_seam() {
  const auto query = g_has_seam.load(std::memory_order_acquire);
  return query != nullptr && query(0) != 0;
}

bool is_in_backward() {
  const auto query = g_in_backward.load(std::memory_order_acquire);
  return query != nullptr && query() != 0;
}

constexpr int32_t kHost = -1, kUnknownDevice = -2;  // in place of the index of a device

// Returns the device of the memory, kHost for the test library, or kUnknownDevice if the driver cannot be
// queried. It is never assumed that the host can read the memory. Must not be called during a capture.
int32_t device_of(const Library& library, const void* data) {
  if (library.is_test_library) return kHost;
  int ordinal = kUnknownDevice;
  const auto query = library.driver.pointer_get_attribute;
  if (query == nullptr || query(&ordinal, kDeviceOrdinal, reinterpret_cast<Word>(data)) != 0 || ordinal < 0)
    return kUnknownDevice;
  return ordinal;
}

// Whether the stream is being captured into a CUDA graph; true also if the driver returns an error.
bool is_captured(const Driver& driver, void* stream) {
  int capturing = 0;
  return driver.stream_is_capturing != nullptr &&
         (driver.stream_is_capturing(stream, &capturing) != 0 || capturing != 0);
}

const NvteIndices& argument_indices(const Library& library, uint32_t pass) {
  return pass == FORESHOCK_BACKWARD ? library.signature.backward : library.signature.forward;
}

// Reports a sampled call after its return: its description, or a skip reason. `floats`: scale and dropout.
void report(const Library& library, uint32_t pass, const Word* words, const float (&floats)[2]) {
  const uint64_t begin = monotonic_ns();
  const NvteIndices& indices = argument_indices(library, pass);
  const int32_t op = library.ops[pass];
  auto* stream = reinterpret_cast<void*>(words[indices.stream]);
  if (is_captured(library.driver, stream)) return foreshock_attention_skip(op, FORESHOCK_SKIP_CAPTURE);
  const int32_t device = device_of(library, library.tensors.data(words[indices.query]));
  if (device == kUnknownDevice) return foreshock_attention_skip(op, FORESHOCK_SKIP_DEVICE);
  const NvteCall given = {&library.signature, &library.tensors, words, floats[0], floats[1], pass, device};
  foreshock_attention_call call;
  const int reason = describe_nvte_call(given, &call);  // why the call is skipped; -1: it is described
  if (reason == kNotAnNvteCall) {
    refuse(library);
    return foreshock_attention_skip(op, FORESHOCK_SKIP_UNKNOWN);
  }
  if (reason >= 0) return foreshock_attention_skip(op, static_cast<uint32_t>(reason));
  int untried = kUntried;  // expected value: kRefused stays
  g_trust[pass].compare_exchange_strong(untried, kTrusted, std::memory_order_relaxed);
  call.op = op;
  // A null handle is the legacy default stream in the CUDA runtime, which hook.h numbers 1.
  call.stream = stream != nullptr ? stream : reinterpret_cast<void*>(1);
  call.prepare_ns = monotonic_ns() - begin;
  foreshock_attention_leave(&call);
}

// Returns the flags of foreshock_attention_enter. `is_read`: the words can be read as the arguments.
uint32_t flags_of(const Library& library, uint32_t pass, const Word* words, bool is_read) {
  if (pass == FORESHOCK_BACKWARD) return FORESHOCK_NEEDS_GRADIENT | FORESHOCK_IN_BACKWARD;
  // is_training is a bool, so only the lowest byte of its word is defined.
  const bool trains = is_read && (words[library.signature.forward.is_training] & 0xff) != 0;
  return (trains ? FORESHOCK_NEEDS_GRADIENT : 0) | (is_in_backward() ? FORESHOCK_IN_BACKWARD : 0);
}

// Whether the words are the arguments of the known version. If not, calls refuse(): no later call is read.
bool are_arguments(const Library& library, uint32_t pass, const Word* words, const float (&floats)[2]) {
  if (g_trust[pass].load(std::memory_order_acquire) == kRefused) return false;
  if (are_words_plausible(argument_indices(library, pass), words, floats[0], floats[1])) return true;
  refuse(library);
  return false;
}

// Ends the process as the dynamic linker would if no library defined the function. Returning would be worse,
// because attention would have computed nothing.
[[noreturn]] void end_for_missing_function(const char* name) {
  char line[128];
  const int length = std::snprintf(line, sizeof line, "libforeshock.so: undefined symbol: %s\n", name);
  if (write(STDERR_FILENO, line, static_cast<size_t>(length)) < 0) _exit(127);  // compilers warn without `if`
  _exit(127);
}

// Calls the real function, and reports the call to the monitor. The macros declare and name the words of the
// call (integer registers, then the stack) and its floating-point registers d0, d1, ...
Word forward_call(uint32_t pass, void* const (&ours)[2], FORESHOCK_PARAMETERS) {
  Library temporary;
  const Library& target = library(ours, &temporary);
  const Function real = target.real[pass];
  if (real == nullptr) end_for_missing_function(kFunctions[pass]);
  if (!target.is_monitored || has_seam()) return real(FORESHOCK_ARGUMENTS);
  const Word words[] = {FORESHOCK_INTEGERS(FORESHOCK_NAME), FORESHOCK_STACK(FORESHOCK_NAME)};
  static_assert(sizeof words / sizeof *words == kIntegerRegisters + kStackWords);
  static_assert(kIntegerRegisters + kStackWords >= kMostNvteWords);
  float floats[2];
  std::memcpy(&floats[0], &d0, sizeof(float));  // a float is the lower half of its register: scale
  std::memcpy(&floats[1], &d1, sizeof(float));  // dropout
  // The words of every call are checked until a call has been described; then only those of sampled calls.
  const bool is_trusted = g_trust[pass].load(std::memory_order_acquire) == kTrusted;
  const bool is_read = target.is_known && (is_trusted || are_arguments(target, pass, words, floats));
  if (is_read && target.tensors.data(words[argument_indices(target, pass).workspace]) == nullptr)
    return real(FORESHOCK_ARGUMENTS);  // computes only the size of the workspace
  // A known version whose words are refused is counted under the name of an unknown one.
  const bool is_refused = target.is_known && !is_read;
  const int32_t op = is_refused ? g_refused_ops[pass].load() : target.ops[pass];
  const int must_describe = foreshock_attention_enter(op, flags_of(target, pass, words, is_read));
  const Word result = real(FORESHOCK_ARGUMENTS);  // exceptions propagate; nothing needs cleanup
  if (must_describe == 0) return result;
  if (is_read && are_arguments(target, pass, words, floats))
    report(target, pass, words, floats);
  else
    foreshock_attention_skip(op, FORESHOCK_SKIP_UNKNOWN);
  return result;
}

}  // namespace

void attach_nvte(void* adapter) {
  if (&dlsym == nullptr) return;  // a weak reference: null with an older glibc if libdl is not loaded
  g_in_backward.store(reinterpret_cast<int (*)()>(dlsym(adapter, "foreshock_adapter_in_backward")),
                      std::memory_order_release);
  g_has_seam.store(reinterpret_cast<int (*)(int)>(dlsym(adapter, "foreshock_adapter_engine_has_seam")),
                   std::memory_order_release);
}

}  // namespace foreshock

extern "C" FORESHOCK_EXPORT foreshock::Word nvte_fused_attn_fwd(FORESHOCK_PARAMETERS);
extern "C" FORESHOCK_EXPORT foreshock::Word nvte_fused_attn_bwd(FORESHOCK_PARAMETERS);

namespace {
void* const kOurs[] = {reinterpret_cast<void*>(&nvte_fused_attn_fwd),
                       reinterpret_cast<void*>(&nvte_fused_attn_bwd)};
}

foreshock::Word nvte_fused_attn_fwd(FORESHOCK_PARAMETERS) {
  return foreshock::forward_call(FORESHOCK_FORWARD, kOurs, FORESHOCK_ARGUMENTS);
}

foreshock::Word nvte_fused_attn_bwd(FORESHOCK_PARAMETERS) {
  return foreshock::forward_call(FORESHOCK_BACKWARD, kOurs, FORESHOCK_ARGUMENTS);
}
