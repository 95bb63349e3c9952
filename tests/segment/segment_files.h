// A directory with the files of one segment, and slices to fill it with.
#ifndef FORESHOCK_TESTS_SEGMENT_SEGMENT_FILES_H_
#define FORESHOCK_TESTS_SEGMENT_SEGMENT_FILES_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "segment/reader.h"
#include "segment/writer.h"

namespace foreshock::segment {

namespace fs = std::filesystem;

class SegmentFiles : public testing::Test {
 protected:
  void SetUp() override {
    const char* base = fs::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string pattern = std::string(base) + "/foreshock-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  const char* create(SegmentWriter* writer, int rank = 0, uint64_t nonce = 0x10, uint32_t slots = 4) {
    return writer->create({directory_.c_str(), rank, nonce, slots, 4096});
  }
  std::unique_ptr<SegmentReader> open(const std::string& name = "0-0000000000000010") {
    std::string why;
    auto reader = SegmentReader::open(directory_, name, &why);
    EXPECT_NE(reader, nullptr) << why;
    return reader;
  }
  std::string directory_;
};

// Fills a claimed slot with a slice of one row whose query tells its ticket.
inline void fill(Slot* slot, uint64_t ticket) {
  slot->dtype = 1;  // fp64
  slot->rows = slot->keys = slot->head_dim = slot->value_dim = slot->heads_in_slice = 1;
  slot->query_length = slot->key_length = 1;
  slot->scale = 1;
  slot->seen_end[0] = 1;
  uint64_t at = (sizeof(Slot) + 63) / 64 * 64;
  for (PayloadId id : {kQuery, kKey, kValue, kOut}) {
    slot->payload[id] = {at, 8};
    const double value = static_cast<double>(ticket);
    std::memcpy(reinterpret_cast<char*>(slot) + at, &value, 8);
    at += 64;
  }
}

inline double query_of(const SegmentReader::Ready& ready) {
  double value = 0;
  std::memcpy(&value, ready.view.payload[kQuery].data(), 8);
  return value;
}

// Judges every slice that is published until `done`, and those that were there then; `check` looks at each.
template <typename Check>
void judge_until(const std::atomic<bool>& done, SegmentReader* reader, const Check& check) {
  SegmentReader::Ready ready;
  for (bool last = false, any = true; !last || any;) {
    last = done.load();
    any = false;
    while (reader->next_ready(&ready)) {
      any = true;
      check(ready);
      reader->consume_judged(ready);
    }
  }
}

}  // namespace foreshock::segment

#endif  // FORESHOCK_TESTS_SEGMENT_SEGMENT_FILES_H_
