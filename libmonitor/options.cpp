// Parses options. Copies the environment, which other threads may change, and reads settings from the copy.
#include "libmonitor/options.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace foreshock {
namespace {

constexpr bool rows_are_in_order_of_id() {
  for (size_t row = 0; row < kOptionCount; ++row)
    if (static_cast<size_t>(kOptions[row].id) != row) return false;
  return true;
}
static_assert(rows_are_in_order_of_id());

// Returns the end of the digits, or null without digits or on overflow. strtoull is not used, because it
// accepts signs, spaces and the locale's digits.
const char* read_digits(const char* text, uint64_t* result) {
  const char* next = text;
  uint64_t value = 0;
  for (; *next >= '0' && *next <= '9'; ++next) {
    const uint64_t digit = static_cast<uint64_t>(*next - '0');
    if (value > (UINT64_MAX - digit) / 10) return nullptr;
    value = value * 10 + digit;
  }
  if (next == text) return nullptr;
  *result = value;
  return next;
}

// Returns the end of the number, or null if `text` does not begin with a digit or the part before the point
// overflows. strtod is not used, because it follows the trainer's locale ("0,01").
const char* read_decimal(const char* text, double* result) {
  uint64_t whole = 0;
  const char* next = read_digits(text, &whole);
  if (next == nullptr) return nullptr;
  double value = static_cast<double>(whole);
  if (*next == '.') {
    double unit = 0.1;
    for (++next; *next >= '0' && *next <= '9'; ++next, unit /= 10) value += unit * (*next - '0');
  }
  *result = value;
  return next;
}

struct Unit {
  const char* name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},           {"B", 1},          {"KiB", 1ull << 10}, {"MiB", 1ull << 20},  {"GiB", 1ull << 30},
    {"kB", 1000},      {"KB", 1000},      {"MB", 1000'000},    {"GB", 1000'000'000}, {"K", 1ull << 10},
    {"M", 1ull << 20}, {"G", 1ull << 30},
};

bool is_one_of(const char* text, const char* const (&names)[4]) {
  for (const char* name : names)
    if (std::strcmp(text, name) == 0) return true;
  return false;
}

}  // namespace

const Option& option(OptionId id) { return kOptions[static_cast<size_t>(id)]; }

const char* option_value(OptionId id) {
  const Option& row = option(id);
  const char* given = row.variable != nullptr ? std::getenv(row.variable) : nullptr;
  return given != nullptr && *given != '\0' ? given : row.fallback;
}

bool parse_ratio(const char* text, double* result) {
  double value = 0;
  const char* rest = read_decimal(text, &value);
  if (rest == nullptr) return false;
  if (*rest == ' ') ++rest;
  if (*rest == '%') {
    value /= 100;
    ++rest;
  }
  if (*rest != '\0' || !(value <= 1)) return false;
  *result = value;
  return true;
}

bool parse_bytes(const char* text, uint64_t* result) {
  uint64_t value = 0;
  const char* rest = read_digits(text, &value);
  if (rest == nullptr) return false;
  if (*rest == ' ') ++rest;
  for (const Unit& unit : kUnits) {
    if (std::strcmp(rest, unit.name) != 0) continue;
    if (value > UINT64_MAX / unit.bytes) return false;
    *result = value * unit.bytes;
    return true;
  }
  return false;
}

bool parse_count(const char* text, uint64_t* result) {
  uint64_t value = 0;
  const char* rest = read_digits(text, &value);
  if (rest == nullptr || *rest != '\0') return false;
  *result = value;
  return true;
}

bool parse_number(OptionId id, const char* text, uint64_t* result) {
  const Option& row = option(id);
  const bool is_bytes = row.value != nullptr && std::strcmp(row.value, "BYTES") == 0;
  uint64_t value = 0;
  if (!(is_bytes ? parse_bytes(text, &value) : parse_count(text, &value))) return false;
  // A 0 that is the default means "never" or "automatic", so the bounds do not apply to it.
  const bool is_default_zero = value == 0 && std::strcmp(row.fallback, "0") == 0;
  if (!is_default_zero && (value < row.least || value > row.most)) return false;
  *result = value;
  return true;
}

bool parse_switch(const char* text, bool* result) {
  static constexpr const char* kOn[4] = {"on", "1", "true", "yes"};
  static constexpr const char* kOff[4] = {"off", "0", "false", "no"};
  const bool is_on = is_one_of(text, kOn);
  if (!is_on && !is_one_of(text, kOff)) return false;
  *result = is_on;
  return true;
}

namespace {

// Limit of variables that are copied. No program starts with more: the kernel accepts 6 MiB of arguments,
// environment and pointers to both. Thousands of variables are common, since Kubernetes sets some for every
// service.
constexpr size_t kMostEntries = size_t{1} << 19;
constexpr size_t kTextBytes = size_t{8} << 20;  // bytes for the copies of all variables
constexpr size_t kEntriesAtOnce = 512;          // pointers copied by one system call
constexpr size_t kMostVariableBytes = 4096;     // bytes of one variable: name, '=', value, NUL
constexpr int kTries = 100;                     // attempts to copy the array twice with the same result

// Copies memory of this process through `memory_fd`, a descriptor of /proc/self/mem. Returns the number of
// bytes copied: all, or those before the first unreadable one. The descriptor is used for reading only: if
// another thread closes it and opens another file under its number, that file is not changed.
size_t copy_memory(int memory_fd, void* to, const void* from, size_t bytes) {
  const ssize_t got = pread(memory_fd, to, bytes, static_cast<off_t>(reinterpret_cast<uintptr_t>(from)));
  return got > 0 ? static_cast<size_t>(got) : 0;
}

}  // namespace

// A large mapping, of which only the used pages are allocated.
struct SafeEnvironment::Buffers {
  const char* entries[kMostEntries];  // a copy of `environ`, the array of pointers to variables
  const char* earlier[kMostEntries];  // an earlier copy of `environ`, for comparison
  char text[kTextBytes];              // "NAME=value\0NAME=value\0\0"
};

SafeEnvironment::SafeEnvironment(const char* memory) {
  const int fd = open(memory, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* mapping = mmap(nullptr, sizeof(Buffers), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping != MAP_FAILED) {
    buffers_ = static_cast<Buffers*>(mapping);
    is_copy_ = copy(fd);
  }
  close(fd);
}

SafeEnvironment::~SafeEnvironment() {
  if (buffers_ != nullptr) munmap(buffers_, sizeof(Buffers));
}

// Copies the array `environ` and sets *count to its length. Returns false if the array was freed during the
// copy. The copy takes about a microsecond, in which another thread may change the array.
bool SafeEnvironment::copy_array(int memory_fd, const char** entries, size_t* count) const {
  char** const array = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
  *count = 0;
  if (array == nullptr) return true;  // clearenv()
  while (*count < kMostEntries) {     // piece by piece, since memory past the end may be unmapped
    const char** const piece = entries + *count;
    const size_t got =
        copy_memory(memory_fd, piece, array + *count, kEntriesAtOnce * sizeof *piece) / sizeof *piece;
    const char** const end = std::find(piece, piece + got, nullptr);
    *count += static_cast<size_t>(end - piece);
    if (end != piece + got) return true;
    if (got < kEntriesAtOnce) return false;  // unreadable memory before the null pointer at the end
  }
  return true;
}

bool SafeEnvironment::copy(int memory_fd) {
  // unsetenv() moves entries to the front one by one. A copy made at that time may lack an entry, and then
  // differs from the next copy. So the array is copied until two copies agree, at most kTries times. If no
  // two agree, the last copy is used if it is whole.
  size_t count = 0, earlier_count = 0;
  bool has_copy = false, is_stable = false;
  for (int tried = 0; tried < kTries && !is_stable; ++tried) {
    has_copy = copy_array(memory_fd, buffers_->earlier, &earlier_count) &&
               copy_array(memory_fd, buffers_->entries, &count);
    is_stable = has_copy && count == earlier_count &&
                std::equal(buffers_->entries, buffers_->entries + count, buffers_->earlier);
  }
  if (!has_copy) return false;
  char *to = buffers_->text, *const last_begin = buffers_->text + kTextBytes - kMostVariableBytes;
  for (size_t n = 0; n < count && to < last_begin; ++n) {
    const size_t got = copy_memory(memory_fd, to, buffers_->entries[n], kMostVariableBytes);
    const size_t length = strnlen(to, got);
    // If there is no NUL within `got` bytes, the variable is too long or already freed, and is left out.
    if (length > 0 && length < got) to += length + 1;
  }
  *to = '\0';
  return true;
}

const char* SafeEnvironment::find(const char* name) const {
  if (!is_copy_) return std::getenv(name);
  const size_t length = std::strlen(name);
  for (const char* variable = buffers_->text; *variable != '\0'; variable += std::strlen(variable) + 1)
    if (std::strncmp(variable, name, length) == 0 && variable[length] == '=') return variable + length + 1;
  return nullptr;
}

namespace {

// Returns the value of the first named variable that holds a whole number up to 10 million (more than a job
// has ranks), else `fallback`.
int first_number(const SafeEnvironment& variables, std::initializer_list<const char*> names, int fallback) {
  for (const char* name : names) {
    const char* text = variables.find(name);
    uint64_t value = 0;
    if (text != nullptr && parse_count(text, &value) && value <= 10'000'000) return static_cast<int>(value);
  }
  return fallback;
}

// Returns the number of tasks on node number `node` from Slurm's list for all nodes: "4(x2),3" means 4, 4 and
// 3. Reads the list only as far as needed. Returns -1 if this part is missing, invalid or too short; numbers
// above 10 million are invalid.
int tasks_of_node(const char* list, int node) {
  for (int64_t first = 0; list != nullptr && *list >= '0' && *list <= '9';) {
    char* end = nullptr;
    const long tasks = std::strtol(list, &end, 10);
    long nodes = 1;
    if (end[0] == '(' && end[1] == 'x') nodes = std::strtol(end + 2, &end, 10);
    if (*end == ')') ++end;
    if (nodes < 1 || nodes > 10'000'000 || tasks > 10'000'000) return -1;
    if (node < first + nodes) return static_cast<int>(tasks);
    first += nodes;
    list = *end == ',' ? end + 1 : nullptr;
  }
  return -1;
}

// Returns the number of ranks on this node according to Slurm; 1 if it is unknown.
int slurm_local_ranks(const SafeEnvironment& variables) {
  const int node = first_number(variables, {"SLURM_NODEID"}, 0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const int tasks = tasks_of_node(variables.find(name), node); tasks > 0) return tasks;
  return 1;
}

}  // namespace

const char* option_value(const SafeEnvironment& variables, OptionId id) {
  const Option& row = option(id);
  const char* given = row.variable != nullptr ? variables.find(row.variable) : nullptr;
  return given != nullptr && *given != '\0' ? given : row.fallback;
}

bool read_environment(const SafeEnvironment& variables, Settings* settings) {
  const auto value = [&](OptionId id) { return option_value(variables, id); };
  const auto number = [&](std::initializer_list<const char*> names, int fallback) {
    return first_number(variables, names, fallback);
  };
  bool enabled = true;
  if (parse_switch(value(OptionId::kEnabled), &enabled) && !enabled) return false;
  const char* base = value(OptionId::kBaseDirectory);
  const char* run_id = value(OptionId::kRunId);
  if (*base == '\0' || *run_id == '\0') return false;
  Settings& s = *settings;
  s = {};
  if (std::snprintf(s.directory, sizeof s.directory, "%s/%s", base, run_id) >= int(sizeof s.directory))
    return false;
  if (std::snprintf(s.run_id, sizeof s.run_id, "%s", run_id) >= int(sizeof s.run_id)) return false;

  // A value that cannot be parsed leaves the default: `foreshock run` has checked it, and we must not print.
  parse_ratio(option(OptionId::kMaxSlowdown).fallback, &s.max_slowdown);
  parse_bytes(option(OptionId::kMemory).fallback, &s.memory);
  s.slices = true;
  parse_count(value(OptionId::kLauncher), &s.launcher_id);
  parse_count(value(OptionId::kEvery), &s.every);
  // `foreshock run` sets an empty FORESHOCK_MAX_SLOWDOWN if the user gave --every without --max-slowdown.
  const char* limit = variables.find(option(OptionId::kMaxSlowdown).variable);
  s.every_ignores_cost = s.every != 0 && (limit == nullptr || *limit == '\0');
  parse_ratio(value(OptionId::kMaxSlowdown), &s.max_slowdown);
  parse_bytes(value(OptionId::kMemory), &s.memory);
  parse_switch(value(OptionId::kSlices), &s.slices);
  parse_count(value(OptionId::kSeed), &s.seed);
  parse_count(value(OptionId::kCountKernels), &s.count_kernels);
  // --weights is a number of steps, "auto" or a switch. 0 steps means off; parse_switch() leaves "auto" on.
  s.weights = true;
  if (parse_count(value(OptionId::kWeights), &s.weights_every))
    s.weights = s.weights_every > 0;
  else
    parse_switch(value(OptionId::kWeights), &s.weights);

  s.rank = number({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
  s.local_rank = number({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, -1);
  // A Slurm step may have fewer tasks than its job, so the step's number has priority.
  s.world_size =
      number({"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1);
  s.local_ranks =
      number({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"},
             slurm_local_ranks(variables));
  s.attempt = number({"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}, 0);
  return true;
}

}  // namespace foreshock
