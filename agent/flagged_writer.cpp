#include "agent/flagged_writer.h"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <utility>
namespace foreshock {

using std::chrono::milliseconds;

namespace {
constexpr milliseconds kAtEnd{3000};
}

struct FlaggedWriter::Shared {
  explicit Shared(std::unique_ptr<const FlaggedFolder> to) : folder(std::move(to)) {}

  const std::unique_ptr<const FlaggedFolder> folder;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<FlaggedSlice> waiting;
  uint64_t waiting_bytes = 0;
  bool is_writing = false, is_ending = false;
  FlaggedCounts counts;
  FlaggedFolder::Outcome last = FlaggedFolder::Outcome::kWritten;  // each trouble is told once

  bool is_idle() const { return waiting.empty() && !is_writing; }
};

FlaggedWriter::FlaggedWriter(std::unique_ptr<const FlaggedFolder> folder)
    : shared_(std::make_shared<Shared>(std::move(folder))) {}

FlaggedWriter::~FlaggedWriter() {
  const bool is_done = wait(kAtEnd);
  {
    const std::unique_lock lock(shared_->mutex);
    shared_->is_ending = true;
    shared_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (is_done) {
    thread_.join();
  } else {
    spdlog::error("--save-flagged: {} does not answer; slices that wait for it are lost", path());
    thread_.detach();
  }
}

void FlaggedWriter::offer(FlaggedSlice slice) {
  const uint64_t bytes = slice.bytes();
  const std::unique_lock lock(shared_->mutex);
  // A slice that is larger than all that may wait, waits alone.
  if (!shared_->waiting.empty() && shared_->waiting_bytes + bytes > kMostWaitingBytes) {
    ++shared_->counts.dropped[static_cast<size_t>(FlaggedDrop::kBusy)];
    return;
  }
  if (!thread_.joinable()) {
    sigset_t all, before;  // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread(work, shared_);
    } catch (const std::system_error&) {
      ++shared_->counts.dropped[static_cast<size_t>(FlaggedDrop::kError)];
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!thread_.joinable()) return;
  }
  shared_->waiting_bytes += bytes;
  shared_->waiting.push_back(std::move(slice));
  shared_->changed.notify_all();
}

void FlaggedWriter::drop(FlaggedDrop why) {
  const std::unique_lock lock(shared_->mutex);
  ++shared_->counts.dropped[static_cast<size_t>(why)];
}

bool FlaggedWriter::wait(milliseconds most) {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, most, [&] { return shared_->is_idle(); });
}

FlaggedCounts FlaggedWriter::counts() const {
  const std::unique_lock lock(shared_->mutex);
  return shared_->counts;
}

const std::string& FlaggedWriter::path() const { return shared_->folder->path(); }

void FlaggedWriter::work(const std::shared_ptr<Shared>& shared) {
  using Outcome = FlaggedFolder::Outcome;
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return !shared->waiting.empty() || shared->is_ending; });
    if (shared->waiting.empty()) return;
    const FlaggedSlice slice = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    shared->waiting_bytes -= slice.bytes();
    shared->is_writing = true;
    lock.unlock();
    std::string error;
    const Outcome outcome = shared->folder->write(slice.name, flagged_file(slice), &error);
    lock.lock();
    if (outcome != Outcome::kWritten && outcome != shared->last) spdlog::error("--save-flagged: {}", error);
    shared->last = outcome;
    if (!error.empty()) shared->counts.problem = error;
    if (outcome == Outcome::kWritten) ++shared->counts.saved[static_cast<size_t>(slice.reason)];
    if (outcome == Outcome::kFull) ++shared->counts.dropped[static_cast<size_t>(FlaggedDrop::kQuota)];
    if (outcome == Outcome::kFailed) ++shared->counts.dropped[static_cast<size_t>(FlaggedDrop::kError)];
    shared->is_writing = false;
    shared->changed.notify_all();
  }
}

}  // namespace foreshock
