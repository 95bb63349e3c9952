#include "agent/discovery.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "exporters/registry.h"

namespace foreshock {
namespace {

// Descriptors that segments leave to everything else: an agent without any finds no exit of a launcher,
// writes no summary and answers nobody.
constexpr rlim_t kMostLeft = 64;

// The kernel gives the lowest number that is free.
bool leaves_enough(int file) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(file) < limit.rlim_cur - std::min(kMostLeft, limit.rlim_cur / 4);
}

}  // namespace

std::vector<std::unique_ptr<segment::SegmentReader>> Discovery::look(size_t most,
                                                                     std::vector<Refusal>* refused) {
  std::vector<std::unique_ptr<segment::SegmentReader>> found;
  const std::vector<std::string> files = directory_.names("", ".seg");
  for (const std::string& file : files) {
    if (found.size() >= most) break;
    if (known_.count(file) != 0) continue;
    const std::string name = file.substr(0, file.size() - 4);
    std::string why;
    bool is_short = false;
    auto reader = open(name, &is_short, &why);
    if (!is_short) {
      known_.insert(file);
      waiting_.erase(file);
    }
    if (reader != nullptr)
      found.push_back(std::move(reader));
    else if (!is_short || waiting_.insert(file).second)
      refused->push_back({label_text(name), why, is_short});
  }
  // One that was not listed may be there all the same, if there was nothing left to read the directory with.
  const auto is_gone = [&](const std::string& name) {
    return !std::binary_search(files.begin(), files.end(), name) && !directory_.status_of(name);
  };
  std::erase_if(known_, is_gone);
  std::erase_if(waiting_, is_gone);
  return found;
}

std::unique_ptr<segment::SegmentReader> Discovery::open(const std::string& name, bool* is_short,
                                                        std::string* why) const {
  const int segment = directory_.open_file(name + ".seg", O_RDONLY);
  int error = segment < 0 ? errno : 0;
  const int control = segment < 0 ? -1 : directory_.open_file(name + ".ctl", O_RDWR);
  if (segment >= 0 && control < 0) error = errno;
  if (control >= 0 && !leaves_enough(std::max(segment, control))) error = EMFILE;
  *is_short = is_shortage(error);
  if (!*is_short) return segment::SegmentReader::adopt(name, segment, control, why);
  for (const int file : {segment, control})
    if (file >= 0) close(file);
  *why = std::string(std::strerror(error)) + " (ulimit -n)";
  return nullptr;
}

}  // namespace foreshock
