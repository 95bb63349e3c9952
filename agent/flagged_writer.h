// Writes flagged slices on a thread of its own: a disk that is slow or hangs holds up that thread alone.
#ifndef FORESHOCK_AGENT_FLAGGED_WRITER_H_
#define FORESHOCK_AGENT_FLAGGED_WRITER_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "agent/flagged_file.h"
#include "agent/flagged_folder.h"

namespace foreshock {

// Why a slice that was flagged is in no file.
enum class FlaggedDrop : int { kAlike, kBusy, kQuota, kError };
inline constexpr size_t kFlaggedDrops = 4;
inline constexpr const char* kFlaggedDropNames[kFlaggedDrops] = {"alike", "busy", "quota", "error"};

struct FlaggedCounts {
  std::array<uint64_t, kFlagReasons> saved = {};
  std::array<uint64_t, kFlaggedDrops> dropped = {};
  std::string problem;  // the last one, in one line; empty: none
};

class FlaggedWriter {
 public:
  static constexpr uint64_t kMostWaitingBytes = uint64_t{64} << 20;

  explicit FlaggedWriter(std::unique_ptr<const FlaggedFolder> folder);
  // Waits a little for what is still to be written, not for a disk that hangs.
  ~FlaggedWriter();
  FlaggedWriter(const FlaggedWriter&) = delete;
  FlaggedWriter& operator=(const FlaggedWriter&) = delete;

  // Never waits. What finds too much waiting already is dropped, kBusy. The thread begins with the first one.
  void offer(FlaggedSlice slice);
  void drop(FlaggedDrop why);

  // Until everything offered is written or dropped. False: not within this time.
  bool wait(std::chrono::milliseconds most);

  FlaggedCounts counts() const;
  const std::string& path() const;

 private:
  struct Shared;  // with the thread, which may outlive this
  static void work(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_WRITER_H_
