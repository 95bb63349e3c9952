// The two sides of the protocol against each other, on a real tmpfs where there is one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "segment/checksum.h"
#include "tests/segment/segment_files.h"

namespace {
long g_page_bytes = 0;  // of the system, as sysconf() reports them; 0: the real ones
}  // namespace

// In clang, no_sanitize("thread") leaves calls of the runtime at entry and exit of a function.
#if __has_attribute(disable_sanitizer_instrumentation)
#define NOT_INSTRUMENTED __attribute__((disable_sanitizer_instrumentation))
#else
#define NOT_INSTRUMENTED __attribute__((no_sanitize("address", "thread", "undefined")))
#endif

// In place of the C library's. A sanitizer's runtime may call it before it is ready.
extern "C" long __sysconf(int name) noexcept;
extern "C" NOT_INSTRUMENTED long sysconf(int name) noexcept {
  return name == _SC_PAGESIZE && g_page_bytes != 0 ? g_page_bytes : __sysconf(name);
}

namespace foreshock::segment {
namespace {

// Overwrites one word of a file of the segment.
void store_word(const std::string& path, std::streamoff offset, uint32_t value) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST_F(SegmentFiles, RefusesAnotherLayoutAndNamesTheSideToUpgrade) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  const std::string path = directory_ + "/0-0000000000000010";
  const auto refusal = [&] {
    std::string why;
    EXPECT_EQ(SegmentReader::open(directory_, "0-0000000000000010", &why), nullptr);
    return why;
  };
  store_word(path + ".seg", offsetof(Header, layout_version), kLayoutVersion + 1);
  EXPECT_NE(refusal().find("upgrade foreshock where the agent runs"), std::string::npos) << refusal();
  store_word(path + ".seg", offsetof(Header, layout_version), kLayoutVersion - 1);
  EXPECT_NE(refusal().find("upgrade foreshock where the trainer runs"), std::string::npos) << refusal();
  store_word(path + ".seg", offsetof(Header, layout_version), kLayoutVersion);
  EXPECT_NE(open(), nullptr);
  store_word(path + ".ctl", offsetof(Control, layout_version), kLayoutVersion - 1);
  EXPECT_NE(refusal().find("control file"), std::string::npos) << refusal();
}

// A device pins whole pages, and no page may be pinned twice.
TEST_F(SegmentFiles, RegionsWrittenByADeviceBeginOnAPage) {
  for (const long page : {4096, 16384, 65536}) {
    g_page_bytes = page;
    SegmentWriter writer;
    const auto nonce = static_cast<uint64_t>(page);
    const char* why = create(&writer, 0, nonce);
    const uint64_t expected = segment_bytes(4, 4096);
    g_page_bytes = 0;
    ASSERT_EQ(why, nullptr) << why;
    const auto begin = reinterpret_cast<char*>(writer.identity()) - 4096;  // the header is the first page
    const auto offset = [begin](const void* at) { return static_cast<const char*>(at) - begin; };
    EXPECT_EQ(offset(writer.progress()) % page, 0);
    EXPECT_EQ(offset(writer.slot_region()) % page, 0);
    EXPECT_GE(offset(writer.slot_region()) - offset(writer.progress()), page);
    EXPECT_EQ(offset(writer.slot_region()) + 4 * 4096, static_cast<int64_t>(expected));
    char name[32];
    std::snprintf(name, sizeof name, "0-%016llx", static_cast<unsigned long long>(nonce));
    EXPECT_NE(open(name), nullptr) << "the reader takes the offsets from the file";
    EXPECT_EQ(fs::file_size(directory_ + "/" + name + ".seg"), expected);
  }
}

TEST_F(SegmentFiles, AFileSizeLimitIsRefusedWithoutASignal) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  SegmentWriter writer;
  const char* why = create(&writer);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_STREQ(why, "file_limit");
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(SegmentFiles, ReservesItsSpaceDespiteAProfilersTimer) {
  struct sigaction counting = {}, before = {};
  counting.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &counting, &before), 0);
  const itimerval often = {{0, 2000}, {0, 2000}}, never = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  SegmentWriter writer;
  const char* why = writer.create({directory_.c_str(), 0, 0x10, 4, 8 << 20});  // longer than one period
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(why, nullptr) << why;
}

// A daemon's are closed; whatever prints there all the same would print into the segment.
TEST_F(SegmentFiles, DoesNotUseADescriptorOfAStandardStream) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);
    SegmentWriter writer;
    if (create(&writer) != nullptr) _exit(1);
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      if (write(stream, "loss 0.5", 8) != -1) _exit(2);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
  ASSERT_NE(open(), nullptr);
}

TEST_F(SegmentFiles, SlicesArriveOnceAndAreAcknowledged) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  EXPECT_TRUE(reader->header().regions[kSlots].count == 4);
  SegmentReader::Ready ready;
  EXPECT_FALSE(reader->next_ready(&ready));

  for (uint64_t ticket = 1; ticket <= 4; ++ticket) {
    Slot* slot = writer.claim(ticket);
    ASSERT_NE(slot, nullptr);
    fill(slot, ticket);
    writer.publish(slot, ticket);
  }
  EXPECT_EQ(writer.claim(5), nullptr);  // full: the ticket is burned
  EXPECT_EQ(writer.free_slots(), 0u);
  double sum = 0;
  while (reader->next_ready(&ready)) {
    ASSERT_EQ(ready.why, nullptr) << ready.why;
    EXPECT_EQ(query_of(ready), static_cast<double>(ready.ticket));
    sum += query_of(ready);
    reader->consume_judged(ready);
  }
  EXPECT_EQ(sum, 10);
  EXPECT_EQ(reader->judged(0), 4u);
  EXPECT_EQ(writer.free_slots(), 4u);
  EXPECT_NE(writer.claim(6), nullptr);
}

// As the stream of a device publishes: it stores payload, times and words, and counts nothing.
TEST_F(SegmentFiles, ADeviceSliceIsReadAfterTheDeviceMarksIt) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  SegmentReader::Ready ready;
  EXPECT_FALSE(reader->next_ready(&ready));
  ASSERT_TRUE(writer.map_for_devices());
  const auto stored_by_device = [&](uint64_t& in_image) {
    return word(*reinterpret_cast<uint64_t*>(writer.device_memory(&in_image)));
  };
  for (const uint32_t device : {0u, kDeviceProgress - 1}) {
    const uint64_t ticket = device + 1;
    Slot* slot = writer.claim(ticket);
    ASSERT_NE(slot, nullptr);
    fill(slot, ticket);
    writer.leave_to_device(&slot, ticket, 1);
    constexpr uint64_t kEnd = 4096 - sizeof(Slot);
    std::memcpy(writer.device_memory(slot) + sizeof(Slot), reinterpret_cast<char*>(slot) + sizeof(Slot),
                kEnd);
    stored_by_device(slot->device_begin_ns).store(10);
    stored_by_device(slot->device_end_ns).store(17);
    writer.read_back(slot);
    EXPECT_EQ(slot->sequence, 2 * ticket - 1) << "it has not arrived";
    stored_by_device(slot->sequence).store(2 * ticket);
    EXPECT_FALSE(reader->next_ready(&ready)) << "it looks at one page only";
    stored_by_device(writer.progress()->by_device[device]).store(ticket);
    ASSERT_TRUE(reader->next_ready(&ready));
    EXPECT_EQ(ready.why, nullptr) << ready.why;
    EXPECT_EQ(ready.ticket, ticket);
    writer.read_back(slot);
    EXPECT_EQ(slot->sequence, 2 * ticket);
    EXPECT_EQ(slot->device_end_ns, 17u);
    writer.read_back_progress();
    EXPECT_EQ(writer.progress()->by_device[device], ticket);
    reader->consume_judged(ready);
    EXPECT_FALSE(reader->next_ready(&ready));
  }
}

TEST_F(SegmentFiles, FindsTheUncountedSliceOfAKilledWriter) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  SegmentReader::Ready ready;
  EXPECT_FALSE(reader->next_ready(&ready));
  Slot* slot = writer.claim(1);
  fill(slot, 1);
  slot->checksum = checksum_of(*slot, reinterpret_cast<char*>(slot), writer.slot_bytes());
  slot->sequence = 2;
  writer.write({{slot, writer.slot_bytes()}});  // publish() up to its last line
  EXPECT_FALSE(reader->next_ready(&ready));
  reader->read_all_slots_next();
  EXPECT_TRUE(reader->next_ready(&ready));
}

TEST_F(SegmentFiles, ANewAgentContinuesExactly) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) {
    Slot* slot = writer.claim(ticket);
    fill(slot, ticket);
    slot->pass = ticket == 2;
    writer.publish(slot, ticket);
    StepRecord step = {};
    step.step = static_cast<int64_t>(ticket);
    writer.append_step(step);
  }
  SegmentReader::Ready ready;
  {
    auto first = open();
    EXPECT_EQ(first->new_steps().size(), 3u);
    ASSERT_TRUE(first->next_ready(&ready));
    first->consume_judged(ready);
    ASSERT_TRUE(first->next_ready(&ready));
    first->consume_lost(ready, Lost::kRefused);
    ASSERT_TRUE(first->next_ready(&ready));  // judged, but the agent dies before it says so
  }
  auto second = open();
  EXPECT_EQ(second->judged(0), 1u);
  EXPECT_EQ(second->lost(1, Lost::kRefused), 1u);
  EXPECT_EQ(second->steps_consumed(), 3u);
  EXPECT_EQ(second->last_step().step, 3);
  EXPECT_TRUE(second->new_steps().empty());
  const uint64_t again = ready.ticket;
  ASSERT_TRUE(second->next_ready(&ready));
  EXPECT_EQ(ready.ticket, again);
  second->consume_judged(ready);
  EXPECT_FALSE(second->next_ready(&ready));
  EXPECT_EQ(second->judged(0) + second->lost(1, Lost::kRefused), 3u);
}

TEST_F(SegmentFiles, AWriterKilledInASlotLeavesATornSlice) {
  const pid_t child = fork();
  if (child == 0) {
    SegmentWriter writer;
    if (create(&writer) != nullptr) _exit(1);
    Slot* slot = writer.claim(1);
    fill(slot, 1);
    writer.write({{slot, writer.slot_bytes()}});  // the first half of publish()
    slot = writer.claim(2);
    fill(slot, 2);
    writer.publish(slot, 2);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  auto reader = open();
  EXPECT_FALSE(reader->is_locked());
  SegmentReader::Ready ready;
  ASSERT_TRUE(reader->next_ready(&ready));
  EXPECT_EQ(ready.ticket, 2u);
  reader->consume_judged(ready);
  ASSERT_EQ(reader->torn().size(), 1u);
  EXPECT_EQ(reader->torn()[0].ticket, 1u);
  reader->consume_lost(reader->torn()[0], Lost::kTorn);
  EXPECT_TRUE(reader->torn().empty());
}

TEST_F(SegmentFiles, RefusesHostileFilesWithAReason) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  const std::string good = directory_ + "/0-0000000000000010";
  const auto refused = [&](const char* what) {
    std::string why;
    EXPECT_EQ(SegmentReader::open(directory_, "bad", &why), nullptr) << what;
    EXPECT_FALSE(why.empty()) << what;
    fs::remove(directory_ + "/bad.seg");
    fs::remove(directory_ + "/bad.ctl");
  };
  const auto copy = [&] {
    fs::copy_file(good + ".seg", directory_ + "/bad.seg");
    fs::copy_file(good + ".ctl", directory_ + "/bad.ctl");
  };
  refused("no file");
  fs::copy_file(good + ".seg", directory_ + "/bad.seg");
  refused("no control file");
  copy();
  fs::resize_file(directory_ + "/bad.seg", 100);
  refused("truncated to less than a header");
  copy();
  fs::resize_file(directory_ + "/bad.seg", 8192);
  refused("truncated");
  copy();
  fs::resize_file(directory_ + "/bad.ctl", 100);
  refused("control file of another size");
  copy();
  std::ofstream(directory_ + "/bad.seg", std::ios::in | std::ios::binary) << "GARBAGE!";
  refused("magic");
  fs::create_directory(directory_ + "/bad.seg");
  fs::copy_file(good + ".ctl", directory_ + "/bad.ctl");
  refused("a directory");
  fs::create_symlink(good + ".seg", directory_ + "/bad.seg");
  fs::copy_file(good + ".ctl", directory_ + "/bad.ctl");
  refused("a link");
}

TEST_F(SegmentFiles, ManyThreadsAndAReaderLoseNothing) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer, 0, 0x10, 8), nullptr);
  auto reader = open();
  std::atomic<uint64_t> tickets{0}, published{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (int mine = 0; mine < 300;) {
        const uint64_t ticket = tickets.fetch_add(1) + 1;
        Slot* slot = writer.claim(ticket);
        if (slot == nullptr) {
          std::this_thread::yield();
          continue;
        }
        fill(slot, ticket);
        writer.publish(slot, ticket);
        published.fetch_add(1);
        ++mine;
      }
    });
  }
  std::thread judge([&] {
    judge_until(done, reader.get(), [](const SegmentReader::Ready& ready) {
      ASSERT_EQ(ready.why, nullptr);
      ASSERT_EQ(query_of(ready), static_cast<double>(ready.ticket));
    });
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  judge.join();
  EXPECT_EQ(reader->judged(0), published.load());
  EXPECT_EQ(published.load(), 1200u);
  EXPECT_TRUE(reader->torn().empty());
}

// -- who lives, and which of several processes has a rank: locks of the kernel --

// Runs `body` in a child that owns a segment and ends when told.
template <class Body>
void with_live_segment(const std::string& directory, int rank, uint64_t nonce, Body body) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    SegmentWriter writer;
    const char* why = writer.create({directory.c_str(), rank, nonce, 2, 4096});
    const char byte = why == nullptr ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  body();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(SegmentFiles, AKernelLockShowsLiveness) {
  std::unique_ptr<SegmentReader> reader;
  with_live_segment(directory_, 0, 0x10, [&] {
    reader = open();
    EXPECT_TRUE(reader->is_locked());
  });
  EXPECT_FALSE(reader->is_locked());
}

TEST_F(SegmentFiles, RefusesASecondWriterOfARankWhileTheFirstLives) {
  with_live_segment(directory_, 3, 0x10, [&] {
    SegmentWriter second, other_rank;
    EXPECT_STREQ(create(&second, 3, 0x20), "rank_taken");
    EXPECT_FALSE(fs::exists(directory_ + "/3-0000000000000020.seg"));
    EXPECT_FALSE(fs::exists(directory_ + "/3-0000000000000020.ctl"));
    EXPECT_EQ(create(&other_rank, 4, 0x30), nullptr);
  });
  SegmentWriter after;
  EXPECT_EQ(create(&after, 3, 0x40), nullptr);
}

// The first one has far more to reserve, so the second one is done while nothing of the first has its name
// yet.
TEST_F(SegmentFiles, OneOfTwoWritersOfARankThatStartTogetherStays) {
  for (int round = 0; round < 10; ++round) {
    int done[2], end[2];
    ASSERT_EQ(pipe(done), 0);
    ASSERT_EQ(pipe(end), 0);
    pid_t children[2];
    for (uint32_t n = 0; n < 2; ++n) {
      children[n] = fork();
      if (children[n] != 0) continue;
      close(end[1]);
      SegmentWriter writer;
      const char* why = writer.create({directory_.c_str(), 3, 100 + n, n == 0 ? 16u : 2u, 1 << 20});
      const char byte = why == nullptr ? 'y' : std::string(why) == "rank_taken" ? 't' : 'n';
      if (write(done[1], &byte, 1) != 1) _exit(1);
      char none;
      _exit(read(end[0], &none, 1) == 0 ? 0 : 1);  // both live until both have tried
    }
    std::string answers(2, ' ');
    for (char& answer : answers) ASSERT_EQ(read(done[0], &answer, 1), 1);
    std::sort(answers.begin(), answers.end());
    EXPECT_EQ(answers, "ty");
    for (const int fd : {end[1], end[0], done[0], done[1]}) close(fd);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    for (const auto& entry : fs::directory_iterator(directory_)) fs::remove(entry.path());
  }
}

TEST_F(SegmentFiles, AWriterWithoutASegmentLeavesItsRankFree) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {64 << 10, before.rlim_max};
  SegmentWriter writer;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_STREQ(create(&writer, 3, 0x10), "file_limit");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  with_live_segment(directory_, 3, 0x20, [this] { EXPECT_FALSE(fs::exists(directory_ + "/3.rank")); });
}

// -- the slot protocol under load: many writers, and a reader that is slow, dies between reading and
// acknowledging, and comes back. Every count is conserved. --

using namespace std::chrono_literals;

constexpr int kWriters = 6;
constexpr uint64_t kTicketsEach = 4000;
constexpr uint32_t kSlots = 8;
constexpr uint64_t kSteps = 3000;
constexpr int kSlicesRead = 500;  // the writers go on until the agent has read these, however late it starts

class SlotStress : public SegmentFiles {
 protected:
  // Attention calls of one thread: each ends as sampled or as ring_full. Every 7th slice is one that the
  // parser refuses.
  void write_slices() {
    for (uint64_t n = 0; n < kTicketsEach || read_ < kSlicesRead; ++n) {
      const uint64_t ticket = tickets_.fetch_add(1) + 1;
      Slot* slot = writer_.claim(ticket);
      if (slot == nullptr) {
        ring_full_.fetch_add(1);
        if (n % 16 == 0) std::this_thread::sleep_for(50us);
        continue;
      }
      sampled_.fetch_add(1);
      fill(slot, ticket);
      if (ticket % 7 == 0) slot->rows = kRowsPerSlice + 1;
      writer_.publish(slot, ticket);
    }
  }
  void write_steps() {
    for (uint64_t n = 1; n <= kSteps; ++n) {
      StepRecord record = {};
      record.step = static_cast<int64_t>(n);
      record.loss = static_cast<double>(n);
      writer_.append_step(record);
      if (n % 64 == 0) std::this_thread::sleep_for(100us);
    }
  }

  void take_steps(SegmentReader& reader) {
    for (const StepRecord& record : reader.new_steps()) {
      ASSERT_EQ(record.loss, static_cast<double>(record.step)) << "a torn record";
      ASSERT_GT(record.step, last_step_) << "taken twice, or out of order";
      last_step_ = record.step;
    }
  }
  void acknowledge(SegmentReader& reader, const SegmentReader::Ready& ready) {
    if (ready.why != nullptr) return reader.consume_lost(ready, Lost::kRefused);
    ASSERT_EQ(query_of(ready), static_cast<double>(ready.ticket)) << "a torn slice";
    reader.consume_judged(ready);
  }
  // One life of the agent: some slices, then it dies with one of them read and not acknowledged.
  void read_for_a_life(int slices) {
    const auto reader = open();
    SegmentReader::Ready ready;
    for (int n = 0; reader->next_ready(&ready);) {
      take_steps(*reader);
      if (++n > slices) return;
      if (n % 32 == 0) std::this_thread::sleep_for(200us);  // slow
      acknowledge(*reader, ready);
      read_.fetch_add(1);
    }
    take_steps(*reader);
  }

  SegmentWriter writer_;
  std::atomic<uint64_t> tickets_{0}, sampled_{0}, ring_full_{0};
  std::atomic<int> read_{0};  // slices that the agent has acknowledged
  int64_t last_step_ = 0;
};

TEST_F(SlotStress, CountsAreConservedOverRestartsOfTheReader) {
  ASSERT_EQ(create(&writer_, 0, 0x10, kSlots), nullptr);
  std::atomic<bool> done{false};
  std::thread agent([&] {
    for (int life = 1; !done.load(); ++life) read_for_a_life(life % 100);
  });
  std::vector<std::thread> threads;
  for (int n = 0; n < kWriters; ++n) threads.emplace_back([this] { write_slices(); });
  threads.emplace_back([this] { write_steps(); });
  for (std::thread& thread : threads) thread.join();
  done = true;
  agent.join();
  read_for_a_life(1 << 30);  // what was left

  EXPECT_EQ(sampled_ + ring_full_, tickets_.load()) << "every call ends as one of the two";
  EXPECT_GE(tickets_.load(), kWriters * kTicketsEach);
  const auto reader = open();
  EXPECT_EQ(reader->judged(0) + reader->lost(0, Lost::kRefused), sampled_.load());
  EXPECT_GT(reader->judged(0), kSlots) << "the reader was really there";
  EXPECT_GT(reader->lost(0, Lost::kRefused), 0u);
  EXPECT_TRUE(reader->torn().empty());
  EXPECT_EQ(writer_.free_slots(), kSlots) << "every slot can be had again";
  EXPECT_EQ(reader->steps_consumed() + reader->steps_lost(), kSteps);
}

// A thread of a killed trainer leaves its slot odd: lost once, whoever looks.
TEST_F(SlotStress, SlotsOfDeadWritersAreCountedAsLostOnce) {
  ASSERT_EQ(create(&writer_, 0, 0x10, kSlots), nullptr);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> torn{0};
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&] {
      const uint64_t ticket = tickets_.fetch_add(1) + 1;
      Slot* slot = writer_.claim(ticket);
      if (slot == nullptr) return;
      writer_.write({{slot, sizeof *slot}});  // the first half of publish()
      torn.fetch_add(1);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn.load(), 4u);
  for (int life = 0; life < 2; ++life) {
    const auto reader = open();
    SegmentReader::Ready ready;
    EXPECT_FALSE(reader->next_ready(&ready));
    for (const SegmentReader::Ready& each : reader->torn()) reader->consume_lost(each, Lost::kTorn);
    EXPECT_EQ(reader->lost(0, Lost::kTorn), torn.load());
  }
}

}  // namespace
}  // namespace foreshock::segment
