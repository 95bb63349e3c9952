// Finds new segments (files <rank>-<nonce>.seg and .ctl) in a run directory, and new run directories in a
// tree: ROOT/<run id> or ROOT/<user>/<run id>. The directories may belong to hostile users.
#include "agent/discovery.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "exporters/metrics.h"

namespace foreshock {
namespace {

// Descriptors that are reserved and never used for segments, at most a quarter of the limit. The agent needs
// them to read launchers' exit files, write the summary and accept connections.
constexpr rlim_t kMostReserved = 64;

// Whether enough descriptors remain free after `file` was opened. The kernel assigns the lowest free number,
// so `file` shows how many are in use.
bool leaves_enough(int file) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(file) < limit.rlim_cur - std::min(kMostReserved, limit.rlim_cur / 4);
}

bool is_same_directory(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool is_unchanged(const struct stat& a, const struct stat& b) {
  return is_same_directory(a, b) && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// Whether the last change is more than two seconds old. Two changes within one tick of the kernel's clock
// have the same time stamp, so the status would not show a second change directly after the first.
bool is_settled(const struct stat& status) { return status.st_mtim.tv_sec + 2 < time(nullptr); }

// Whether a launcher (run.lock) or trainer (.seg) has created a file here. *was_read becomes false if a
// shortage of descriptors or memory prevented the check.
bool is_run_directory(const Directory& directory, bool* was_read) {
  *was_read = true;
  return directory.has("run.lock") || !directory.names("", ".seg", was_read).empty();
}

}  // namespace

std::vector<std::unique_ptr<segment::SegmentReader>> Discovery::find_new(size_t most,
                                                                         std::vector<Refusal>* refused) {
  std::vector<std::unique_ptr<segment::SegmentReader>> found;
  untried_ = 0;
  const std::vector<std::string> files = directory_.names("", ".seg");
  for (const std::string& file : files) {
    if (known_.count(file) != 0) continue;
    if (found.size() >= most) {
      ++untried_;
      continue;
    }
    const std::string name = file.substr(0, file.size() - std::strlen(".seg"));
    std::string why;
    bool is_short = false;  // descriptors or memory were short
    auto reader = open(name, &is_short, &why);
    if (!is_short) {  // else the next find_new() tries the segment again
      known_.insert(file);
      waiting_.erase(file);
    }
    if (reader != nullptr)
      found.push_back(std::move(reader));
    else if (!is_short || waiting_.insert(file).second)  // a shortage is reported once for each file
      refused->push_back({label_text(name), why, is_short});
  }
  // A file that is not in `files` may still exist, since names() returns nothing if no descriptor is free.
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
  // adopt() takes the descriptors and reports any other error.
  if (!*is_short) return segment::SegmentReader::adopt(name, segment, control, why);
  for (const int file : {segment, control})
    if (file >= 0) close(file);
  *why = std::string(std::strerror(error)) + " (ulimit -n)";
  return nullptr;
}

std::vector<FoundRun> Tree::find_new() {
  found_.clear();
  followed_ = 0;
  for (auto& [label, seen] : seen_) {
    seen.was_found = false;
    followed_ += seen.followed;
  }
  size_t unused = 0;  // the root belongs to no user
  was_read_ = true;
  scan(*root_, "", &unused);
  // After an incomplete listing a missing run may still exist. If its entry were removed here, the next
  // find_new() would return the run as a new one, and the agent would lose the run's statistics.
  if (was_read_) std::erase_if(seen_, [](const auto& entry) { return !entry.second.was_found; });
  return std::exchange(found_, {});
}

// Entries of the root are runs or users; entries of a user are runs. *runs_of_user: the user's followed runs.
void Tree::scan(const Directory& directory, const std::string& prefix, size_t* runs_of_user) {
  std::string why;
  bool was_read = false;
  const std::vector<std::string> names = directory.directories(&was_read);
  was_read_ &= was_read;
  for (const std::string& name : names) {
    const std::string label = prefix + name;
    const std::optional<struct stat> status = directory.status_of(name);
    if (!status || !S_ISDIR(status->st_mode)) continue;
    size_t runs_of_entry = 0;  // runs followed in this entry of the root, which is a run or a user
    size_t* runs_of_owner = prefix.empty() ? &runs_of_entry : runs_of_user;
    const bool is_new = needs_examination(label, *status, runs_of_owner);
    const auto known = seen_.find(label);
    // A user's directory is scanned each time: a new file in a run does not change the status of its parent.
    const bool may_be_user = prefix.empty() && (known == seen_.end() || !known->second.followed);
    if (!is_new && !may_be_user) continue;
    std::unique_ptr<Directory> inside = directory.open_inside(name, &why);
    const bool is_run = inside != nullptr && is_run_directory(*inside, &was_read);
    // After a shortage of descriptors or memory, this search counts as incomplete.
    if (inside == nullptr ? is_shortage(errno) : !was_read) was_read_ = false;
    if (inside == nullptr || !was_read) continue;
    if (is_run) {
      if (is_new) examine(label, std::move(inside), runs_of_owner);
      continue;
    }
    seen_[label] = {.status = inside->status(), .settled = is_settled(inside->status())};
    if (prefix.empty()) scan(*inside, label + "/", &runs_of_entry);
  }
}

// Whether the directory is new, or may have changed since it was last examined. If its run is followed, adds
// 1 to *runs_of_user.
bool Tree::needs_examination(const std::string& label, const struct stat& now, size_t* runs_of_user) {
  const auto known = seen_.find(label);
  if (known == seen_.end()) return true;
  Seen& seen = known->second;
  seen.was_found = true;
  *runs_of_user += seen.followed;
  if (seen.followed) return !is_same_directory(seen.status, now);  // it was removed and created again
  return seen.retry || !seen.settled || !is_unchanged(seen.status, now);
}

void Tree::examine(const std::string& label, std::unique_ptr<Directory> directory, size_t* runs_of_user) {
  const struct stat now = directory->status();
  // A run with an invalid name is not followed: label_text() could make another run's label from the name.
  if (label_text(label) != label) {
    refused_ += seen_.count(label) == 0;  // counts each directory once
    seen_[label] = {.status = now, .settled = true};
    return;
  }
  if (followed_ >= kMostRuns || *runs_of_user >= kMostRunsOfUser)
    return;  // the next find_new() examines it again
  ++followed_;
  ++*runs_of_user;
  seen_[label] = {.status = now, .followed = true, .settled = true};
  found_.push_back({label, label.substr(label.find('/') + 1), std::move(directory)});
}

// Called when the agent does not follow a run that find_new() returned, or stops following it.
void Tree::leave(const std::string& label, const Directory& directory, bool retry) {
  const auto known = seen_.find(label);
  const struct stat now = directory.status();
  if (known == seen_.end() || !is_same_directory(known->second.status, now)) return;
  known->second = {.status = now, .retry = retry, .settled = is_settled(now)};
}

}  // namespace foreshock
