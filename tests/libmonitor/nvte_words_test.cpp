#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <vector>

#include "libmonitor/transformer_engine.h"

namespace foreshock {
namespace {

constexpr Word kNoWindow = ~Word{0};

// Words of a call as 2.18 takes them, forward or backward.
class Call {
 public:
  explicit Call(bool is_backward, bool by_number = false) {
    EXPECT_TRUE(find_nvte_signature("2.18.0", &signature_));
    places_ = is_backward ? signature_.backward : signature_.forward;
    for (int n = 0; n < places_.count; ++n) words_[n] = usual(places_.kinds[n], by_number);
  }

  Word& operator[](int place) { return words_[place]; }
  const NvteIndices& places() const { return places_; }
  bool is_plausible(float scale = 0.125f, float dropout = 0) const {
    return are_words_plausible(places_, words_.data(), scale, dropout);
  }
  // With another word at that place.
  bool is_plausible_with(int place, Word word) const {
    Call changed = *this;
    changed[place] = word;
    return changed.is_plausible();
  }

 private:
  static Word usual(NvteKind kind, bool by_number) {
    static Word tensor[8], pack[11];
    switch (kind) {
      case NvteKind::kHandle:
        return by_number ? 7 : reinterpret_cast<Word>(tensor);
      case NvteKind::kPack:
        return reinterpret_cast<Word>(pack);
      case NvteKind::kLength:
        return 4096;
      case NvteKind::kWindow:
        return kNoWindow;
      case NvteKind::kStream:
        return 0;
      default:
        return 1;
    }
  }
  NvteSignature signature_;
  NvteIndices places_;
  std::array<Word, kMostNvteWords> words_ = {};
};

TEST(NvteWords, OfACallArePlausible) {
  for (const bool is_backward : {false, true})
    for (const bool by_number : {false, true}) {
      const Call call(is_backward, by_number);
      EXPECT_TRUE(call.is_plausible());
      EXPECT_EQ(call.places().count, is_backward ? 35 : 31);
      for (int n = 0; n < call.places().count; ++n)  // what no version takes anywhere
        EXPECT_FALSE(call.is_plausible_with(n, 0xfff0'0000'0000'1003u)) << n;
    }
}

TEST(NvteWords, EachKindHasItsRange) {
  struct Range {
    NvteKind kind;
    std::vector<Word> good, bad;
  };
  const Word upper =
      Word{0xabcd} << 32;  // an int fills the lower half of its word, and a bool its lowest byte
  const std::vector<Range> ranges = {
      {NvteKind::kLength, {1, 1 << 20}, {Word{1} << 31, kNoWindow, upper}},
      {NvteKind::kBoolean, {0, 1, 0xab01}, {2, 9, 0xff}},
      {NvteKind::kLayout, {0, 25, 26, upper + 9}, {27, kNoWindow, 4096}},
      {NvteKind::kFormat, {0, 8, upper + 7}, {9, kNoWindow}},
      {NvteKind::kBias, {0, 3, upper}, {4, kNoWindow}},
      {NvteKind::kMask, {0, 5, upper}, {6, kNoWindow}},
      {NvteKind::kSoftmax, {0, 2, upper}, {3, kNoWindow}},
      {NvteKind::kWindow, {kNoWindow, 0, 128}, {Word{1} << 31, kNoWindow - 1, upper}},
      {NvteKind::kStream, {0, 1, 2, 0x7f00'0000'1230}, {3, 4095, Word{1} << 48, kNoWindow}},
      {NvteKind::kPack, {}, {0, 9, 4096, kNoWindow}},
  };
  for (const bool is_backward : {false, true}) {
    const Call call(is_backward);
    for (const Range& range : ranges)
      for (int n = 0; n < call.places().count; ++n) {
        if (call.places().kinds[n] != range.kind) continue;
        for (const Word word : range.good) EXPECT_TRUE(call.is_plausible_with(n, word)) << n << " " << word;
        for (const Word word : range.bad) EXPECT_FALSE(call.is_plausible_with(n, word)) << n << " " << word;
      }
  }
}

TEST(NvteWords, HandlesAreAllAddressesOrAllNumbers) {
  static Word tensor[8];
  const auto address = reinterpret_cast<Word>(tensor);
  for (const bool by_number : {false, true}) {
    const Call call(false, by_number);
    for (int n = 0; n < call.places().count; ++n) {
      if (call.places().kinds[n] != NvteKind::kHandle) continue;
      EXPECT_FALSE(call.is_plausible_with(n, by_number ? address : 9)) << n;
      EXPECT_FALSE(call.is_plausible_with(n, address + 1)) << n;
    }
    // Those that are not asked about may be none.
    EXPECT_TRUE(call.is_plausible_with(3, 0)) << "no bias";
    for (const int place :
         {call.places().key, call.places().value, call.places().out, call.places().workspace})
      EXPECT_FALSE(call.is_plausible_with(place, 0)) << place;
  }
}

// One that is not there would be the end of the trainer when the library is asked about it.
TEST(NvteWords, AHandleWhoseMemoryIsNotThereIsNone) {
  void* gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  const Call call(true);
  const auto is_plausible = [&] {
    return call.is_plausible_with(call.places().out, reinterpret_cast<Word>(gone));
  };
  EXPECT_TRUE(is_plausible());
  ASSERT_EQ(mprotect(gone, 4096, PROT_NONE), 0);
  EXPECT_FALSE(is_plausible());
  ASSERT_EQ(munmap(gone, 4096), 0);
  EXPECT_FALSE(is_plausible());
}

TEST(NvteWords, ScaleAndDropoutHaveTheirRanges) {
  const Call call(false);
  for (const float scale : {0.f, -1.f, INFINITY, NAN}) EXPECT_FALSE(call.is_plausible(scale)) << scale;
  for (const float dropout : {-0.1f, 1.5f, INFINITY, NAN})
    EXPECT_FALSE(call.is_plausible(0.1f, dropout)) << dropout;
  for (const float dropout : {0.f, 0.1f, 1.f}) EXPECT_TRUE(call.is_plausible(0.1f, dropout)) << dropout;
}

TEST(Readable, WholeOrNotAtAllAndWithoutATrace) {
  auto* pages =
      static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + 4096, 4096, PROT_NONE), 0);
  // What would be blocked if this were taken for a set of signals: all of them.
  std::fill_n(pages, 4096, '\xff');
  sigset_t before, after;
  sigprocmask(SIG_BLOCK, nullptr, &before);
  errno = 77;
  const auto at = [pages](size_t offset) { return reinterpret_cast<Word>(pages + offset); };
  EXPECT_TRUE(is_readable(at(0), 4096));
  EXPECT_TRUE(is_readable(at(4088), 8));
  EXPECT_FALSE(is_readable(at(4088), 16));
  EXPECT_FALSE(is_readable(at(4096), 8));
  EXPECT_FALSE(is_readable(0, 8));
  EXPECT_EQ(errno, 77);
  sigprocmask(SIG_BLOCK, nullptr, &after);
  for (int number = 1; number < 32; ++number)
    EXPECT_EQ(sigismember(&before, number), sigismember(&after, number));
  munmap(pages, 8192);
}

}  // namespace
}  // namespace foreshock
