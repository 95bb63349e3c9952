#include "exporters/record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

namespace foreshock {
namespace {

constexpr size_t kBufferBytes = kLongestRecordLine + 1;
constexpr int64_t kFlushMs = 1000;
constexpr char kFirstBytes[] = R"({"schema":1,)";  // of every line

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool starts_like_a_record(int file, off_t size) {
  char head[sizeof kFirstBytes - 1];
  const auto length = static_cast<size_t>(std::min<off_t>(size, sizeof head));
  return pread(file, head, length, 0) == static_cast<ssize_t>(length) &&
         std::memcmp(head, kFirstBytes, length) == 0;
}

// Bytes up to and including the last newline.
off_t whole_lines(int file, off_t size) {
  char piece[4096];
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof piece));
    if (pread(file, piece, static_cast<size_t>(end - begin), begin) != end - begin) return size;
    for (off_t at = end; at > begin; --at) {
      if (piece[at - begin - 1] == '\n') return at;
    }
    end = begin;
  }
  return 0;
}

// Empty when the file may be written to, from *size on.
std::string prepare(int file, off_t* size) {
  if (flock(file, LOCK_EX | LOCK_NB) != 0) return "another writer holds it";
  if (*size == 0) return "";
  if (!starts_like_a_record(file, *size))
    return "exists and is not a record of foreshock; choose another file";
  *size = whole_lines(file, *size);
  return ftruncate(file, *size) == 0 ? "" : std::strerror(errno);
}

}  // namespace

std::unique_ptr<RecordWriter> RecordWriter::open(const std::string& path, std::string* error) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    *error = "record " + path + ": " + std::strerror(errno);
    if (file >= 0) close(file);
    return nullptr;
  }
  const bool regular = S_ISREG(status.st_mode);
  off_t size = regular ? status.st_size : 0;
  const std::string refusal = regular ? prepare(file, &size) : "";
  if (!refusal.empty()) {
    *error = "record " + path + ": " + refusal;
    close(file);
    return nullptr;
  }
  std::signal(SIGXFSZ, SIG_IGN);
  return std::unique_ptr<RecordWriter>(new RecordWriter(file, regular, path, static_cast<uint64_t>(size)));
}

RecordWriter::RecordWriter(int file, bool regular, std::string path, uint64_t size)
    : file_(file), regular_(regular), path_(std::move(path)), size_(size), last_flush_ms_(now_ms()) {}

RecordWriter::~RecordWriter() {
  flush();
  close(file_);
}

void RecordWriter::append(const std::string& line) {
  const auto fits = [&] { return buffer_.size() + line.size() + 1 <= kBufferBytes; };
  // While the disk is full, only the clock below makes a new attempt.
  if (!fits() && !failing_) flush();
  if (fits()) {
    buffer_ += line;
    buffer_ += '\n';
  } else {
    ++lines_lost_;
  }
  if (now_ms() - last_flush_ms_ >= kFlushMs) flush();
}

bool RecordWriter::flush() {
  last_flush_ms_ = now_ms();
  size_t written = 0;
  int cause = 0;
  while (written < buffer_.size() && cause == 0) {
    const ssize_t n = ::write(file_, buffer_.data() + written, buffer_.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) cause = errno;
    if (n == 0) cause = ENOSPC;
  }
  // A torn line is taken back and waits with the rest.
  const size_t whole = written == 0 ? 0 : buffer_.rfind('\n', written - 1) + 1;
  size_ += whole;
  if (cause != 0 && whole != written && regular_ && ftruncate(file_, static_cast<off_t>(size_)) != 0)
    cause = errno;
  buffer_.erase(0, regular_ ? whole : written);
  if (cause == 0) {
    failing_ = false;
    return true;
  }
  ++errors_;
  if (!failing_) error_ = "record " + path_ + ": " + std::strerror(cause) + "; the run goes on without it";
  failing_ = true;
  return false;
}

std::string RecordWriter::take_error() { return std::exchange(error_, {}); }

}  // namespace foreshock
