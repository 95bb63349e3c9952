#include "exporters/record_spool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace foreshock {
namespace {

constexpr char kHeading[] = "foreshock spool %016" PRIx64 " %016" PRIx64 "\n";
constexpr size_t kHeadingBytes = sizeof "foreshock spool 0123456789abcdef 0123456789abcdef\n" - 1;

std::string heading_of(const RecordPlace& place) {
  char text[kHeadingBytes + 1];
  std::snprintf(text, sizeof text, kHeading, place.inode, place.offset);
  return text;
}

bool read_heading(const std::string& text, RecordPlace* place) {
  return std::sscanf(text.c_str(), "foreshock spool %16" SCNx64 " %16" SCNx64, &place->inode,
                     &place->offset) == 2 &&
         text.starts_with(heading_of(*place));
}

size_t size_of(int file) {
  struct stat status = {};
  return file >= 0 && fstat(file, &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
}

}  // namespace

RecordSpool::RecordSpool(int file) : file_(file), size_(size_of(file)), is_whole_(file >= 0) {}

RecordSpool::~RecordSpool() {
  if (file_ >= 0) close(file_);
}

std::string RecordSpool::missing(const RecordPlace& end) const {
  std::string bytes(std::min(size_, kMostBytes), '\0');
  const ssize_t got = bytes.empty() ? 0 : pread(file_, bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  bytes.resize(bytes.rfind('\n') + 1);  // what was added last may be torn
  RecordPlace begin;
  if (!read_heading(bytes, &begin)) return "";
  std::string lines = bytes.substr(kHeadingBytes);
  if (begin.inode == end.inode && begin.offset <= end.offset) lines.erase(0, end.offset - begin.offset);
  return lines;
}

bool RecordSpool::add(std::string_view lines, const RecordPlace& place) {
  if (!is_whole_) return false;
  const std::string bytes = (size_ == 0 ? heading_of(place) : "") + std::string(lines);
  is_whole_ = size_ + bytes.size() <= kMostBytes &&
              write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (is_whole_) size_ += bytes.size();
  return is_whole_;
}

void RecordSpool::clear() {
  if (file_ < 0 || (size_ == 0 && is_whole_)) return;
  is_whole_ = ftruncate(file_, 0) == 0;
  if (is_whole_) size_ = 0;
}

}  // namespace foreshock
