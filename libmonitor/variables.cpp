#include "libmonitor/variables.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace foreshock {
namespace {

// No program is started with more: the kernel takes 6 MiB of arguments, environment and pointers to both.
// Thousands of variables are no rarity: Kubernetes tells a pod of every service.
constexpr size_t kMostEntries = size_t{1} << 19;
constexpr size_t kText = size_t{8} << 20;
constexpr size_t kEntriesAtOnce = 512;
constexpr size_t kLongest = 4096;  // bytes of one variable: name, '=', value, NUL
constexpr int kTries = 100;

// Bytes copied, up to the first that cannot be read. The descriptor can only be read from: should somebody
// close it under us and open a file of theirs in its place, nothing of theirs is changed.
size_t copy_memory(int memory, void* to, const void* from, size_t bytes) {
  const ssize_t got = pread(memory, to, bytes, static_cast<off_t>(reinterpret_cast<uintptr_t>(from)));
  return got > 0 ? static_cast<size_t>(got) : 0;
}

}  // namespace

// Only what is used of it becomes memory.
struct Variables::Room {
  const char* entries[kMostEntries];
  const char* again[kMostEntries];
  char text[kText];  // "NAME=value\0NAME=value\0\0"
};

Variables::Variables(const char* memory) {
  const int fd = open(memory, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* room = mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room != MAP_FAILED) {
    room_ = static_cast<Room*>(room);
    is_copy_ = copy(fd);
  }
  close(fd);
}

Variables::~Variables() {
  if (room_ != nullptr) munmap(room_, sizeof(Room));
}

// The array as it was at one moment, or within about a microsecond; false where it went away meanwhile.
bool Variables::copy_array(int memory, const char** entries, size_t* count) const {
  char** const array = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
  *count = 0;
  if (array == nullptr) return true;  // clearenv()
  while (*count < kMostEntries) {     // piece by piece: nothing is known of what lies beyond its end
    const char** const piece = entries + *count;
    const size_t got =
        copy_memory(memory, piece, array + *count, kEntriesAtOnce * sizeof *piece) / sizeof *piece;
    const char** const end = std::find(piece, piece + got, nullptr);
    *count += static_cast<size_t>(end - piece);
    if (end != piece + got) return true;
    if (got < kEntriesAtOnce) return false;
  }
  return true;
}

bool Variables::copy(int memory) {
  // unsetenv() moves entries to the front one by one: what was copied meanwhile may lack one, and differs
  // from what is copied next. Where it never stands still the last copy must do.
  size_t count = 0, again = 0;
  bool is_there = false, is_still = false;
  for (int tried = 0; tried < kTries && !is_still; ++tried) {
    if (!copy_array(memory, room_->again, &again) || !copy_array(memory, room_->entries, &count)) continue;
    is_there = true;
    is_still = count == again && std::equal(room_->entries, room_->entries + count, room_->again);
  }
  if (!is_there) return false;
  char *to = room_->text, *const end = room_->text + kText;
  for (size_t n = 0; n<count&& static_cast<size_t>(end - to)> kLongest; ++n) {
    const size_t got = copy_memory(memory, to, room_->entries[n], kLongest);
    const size_t length = strnlen(to, got);
    if (length > 0 && length < got) to += length + 1;  // else too long, or not there any more
  }
  *to = '\0';
  return true;
}

const char* Variables::find(const char* name) const {
  if (!is_copy_) return std::getenv(name);
  const size_t length = std::strlen(name);
  for (const char* at = room_->text; *at != '\0'; at += std::strlen(at) + 1)
    if (std::strncmp(at, name, length) == 0 && at[length] == '=') return at + length + 1;
  return nullptr;
}

}  // namespace foreshock
