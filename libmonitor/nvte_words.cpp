#include "libmonitor/nvte_words.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace foreshock {
namespace {

constexpr Word kFirstAddress = 4096, kEndOfAddresses = Word{1} << 48;
constexpr Word kEndOfLengths = Word{1} << 31;  // and of windows
// The table of handles has some 100'000 places; a program that is not moved about in memory, and so its heap,
// begins at 4 MiB.
constexpr Word kEndOfNumbers = Word{1} << 21;
constexpr size_t kPackBytes = 11 * sizeof(Word);

bool is_address(Word word) { return word >= kFirstAddress && word < kEndOfAddresses; }

// Until 2.7 a handle is the address of a tensor, then its number in a table; 0 is none in both. A call has
// only one kind of them, which that of the query tells: it comes first in every version.
class Handles {
 public:
  explicit Handles(Word query) : are_addresses_(query >= kEndOfNumbers) {}

  bool is_one(Word word) const {
    return word == 0 ||
           (are_addresses_ ? is_address(word) && word % alignof(void*) == 0 : word < kEndOfNumbers);
  }
  // One that the library will be asked about. A tensor of any version is larger than this.
  bool can_be_asked_about(Word word) const {
    return word != 0 && is_one(word) && (!are_addresses_ || is_readable(word, 2 * sizeof(Word)));
  }

 private:
  bool are_addresses_;
};

bool is_window(Word word) { return word == ~Word{0} || word < kEndOfLengths; }

bool is_boolean(Word word) { return (word & 0xff) <= 1; }

bool is_stream(Word word) { return word <= 2 || is_address(word); }

// Of what a word is; numbers of enumerations fill the lower half of theirs.
bool is_plausible(NvteKind kind, Word word, const Handles& handles) {
  const auto number = static_cast<uint32_t>(word);
  switch (kind) {
    case NvteKind::kHandle:
      return handles.is_one(word);
    case NvteKind::kPack:
      return is_address(word) && word % alignof(void*) == 0 && is_readable(word, kPackBytes);
    case NvteKind::kLength:
      return word < kEndOfLengths;
    case NvteKind::kBoolean:
      return is_boolean(word);
    case NvteKind::kLayout:
      return number <= 26;  // of 2.18, with the one for "not set"
    case NvteKind::kFormat:
      return number <= 8;
    case NvteKind::kBias:
      return number <= 3;
    case NvteKind::kMask:
      return number <= 5;
    case NvteKind::kSoftmax:
      return number <= 2;
    case NvteKind::kWindow:
      return is_window(word);
    case NvteKind::kStream:
      return is_stream(word);
  }
  return false;
}

}  // namespace

bool is_readable(Word address, size_t bytes) {
  const int error = errno;
  bool is = true;
  // The kernel copies the set of signals before it looks at what is to be done with it, of which there is
  // nothing by this number: EFAULT or EINVAL, and no mask is changed. It takes 8 bytes at a time.
  for (const Word place : {address, address + bytes - sizeof(Word)}) {
    syscall(SYS_rt_sigprocmask, ~0, reinterpret_cast<const void*>(place), nullptr, sizeof(Word));
    is &= errno == EINVAL;
  }
  errno = error;
  return is;
}

bool are_words_plausible(const NvteWords& places, const Word* words, float scale, float dropout) {
  if (!(scale > 0 && scale * 0 == 0) || !(dropout >= 0 && dropout <= 1)) return false;
  const Handles handles(words[places.query]);
  for (int n = 0; n < places.count; ++n)
    if (!is_plausible(places.kinds[n], words[n], handles)) return false;
  const int8_t asked[] = {places.query,    places.key,        places.value,    places.out,
                          places.grad_out, places.grad_query, places.workspace};
  return std::all_of(std::begin(asked), std::end(asked),
                     [&](int8_t place) { return place < 0 || handles.can_be_asked_about(words[place]); });
}

}  // namespace foreshock
