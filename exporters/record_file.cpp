#include "exporters/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace foreshock {
namespace {

constexpr char kFirstBytes[] = R"({"schema":1,)";  // of every line

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

std::unique_ptr<RecordFile> RecordFile::open(const std::string& path, std::string* error, WriteCall write) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    *error = "record " + path + ": " + std::strerror(errno);
    if (file >= 0) close(file);
    return nullptr;
  }
  const bool is_regular = S_ISREG(status.st_mode);
  off_t size = is_regular ? status.st_size : 0;
  const std::string refusal = is_regular ? prepare(file, &size) : "";
  if (!refusal.empty()) {
    *error = "record " + path + ": " + refusal;
    close(file);
    return nullptr;
  }
  return std::unique_ptr<RecordFile>(
      new RecordFile(file, path, is_regular, status.st_ino, static_cast<uint64_t>(size), write));
}

RecordFile::RecordFile(int file, std::string path, bool is_regular, uint64_t inode, uint64_t size,
                       WriteCall write)
    : file_(file),
      path_(std::move(path)),
      is_regular_(is_regular),
      inode_(inode),
      size_(size),
      write_(write) {}

RecordFile::~RecordFile() { close(file_); }

RecordFile::Appended RecordFile::append(std::string_view lines) {
  Appended result;
  size_t written = 0;
  while (written < lines.size() && result.error == 0) {
    const ssize_t n = write_(file_, lines.data() + written, lines.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) result.error = errno;
    if (n == 0) result.error = ENOSPC;
  }
  const size_t whole = written == 0 ? 0 : lines.rfind('\n', written - 1) + 1;
  size_ += whole;
  if (whole != written && is_regular_ && ftruncate(file_, static_cast<off_t>(size_)) != 0)
    result.error = errno;
  result.bytes = is_regular_ ? whole : written;
  return result;
}

}  // namespace foreshock
