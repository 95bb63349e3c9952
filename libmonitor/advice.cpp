#include "libmonitor/advice.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace foreshock {
namespace {

// The agent holds it for three system calls. It may be off its core meanwhile: then there is none now.
constexpr int kTries = 64;

constexpr size_t kWords = sizeof(segment::Advice) / sizeof(uint64_t);

// Every word with acquire order: the sequence is read again after all of them.
bool copy_whole(const segment::Advice& shared, segment::Advice* copy) {
  using Word [[gnu::may_alias]] = const uint64_t;
  auto* words = reinterpret_cast<Word*>(&shared);
  const auto load = [&](size_t n) { return __atomic_load_n(words + n, __ATOMIC_ACQUIRE); };
  for (int tries = 0; tries < kTries; ++tries) {
    uint64_t copied[kWords];
    for (size_t n = 0; n < kWords; ++n) copied[n] = load(n);
    if (copied[0] == 0) return false;
    if (copied[0] % 2 != 0 || load(0) != copied[0]) continue;
    std::memcpy(copy, copied, sizeof *copy);
    return true;
  }
  return false;
}

// Names end, and are of characters that a terminal and a C program can bear.
template <size_t n>
void copy_text(const char (&from)[n], char (&to)[n]) {
  size_t at = 0;
  for (; at + 1 < n && from[at] != 0; ++at) to[at] = from[at] > 0x20 && from[at] < 0x7f ? from[at] : '_';
  std::memset(to + at, 0, n - at);
}

}  // namespace

bool read_advice(const segment::Control& control, foreshock_advice* advice) {
  segment::Advice read;
  if (!copy_whole(control.advice, &read) || read.level >= segment::kAdviceLevels) return false;
  advice->level = read.level;
  advice->rank = read.rank;
  advice->since_step = read.since_step;
  advice->from_step = read.from_step;
  advice->score = read.score;
  copy_text(read.detector, advice->detector);
  copy_text(read.layer, advice->layer);
  return true;
}

}  // namespace foreshock
