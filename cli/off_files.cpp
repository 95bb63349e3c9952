#include "cli/off_files.h"

#include <sys/statvfs.h>

#include <fstream>

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

struct Advice {
  const char* reason;
  const char* text;
};

constexpr Advice kAdvice[] = {
    {"adapter_missing",
     "no adapter was built for its torch; run `foreshock doctor -- COMMAND` with the same command"},
    {"adapter_not_loadable",
     "the adapter does not load; remove it from the cache and run `foreshock doctor`"},
    {"adapter_failed", "the adapter refused this torch; run `foreshock doctor -- COMMAND`"},
    {"torch_version_unknown", "its torch has no version.py beside it, so no adapter can be chosen"},
    {"no_space", "the tmpfs of the run directory is full; free some of /dev/shm or set FORESHOCK_DIR"},
    {"memory_limit",
     "the memory limit of its cgroup or container leaves no room for a segment; raise it by a few MiB"},
    {"no_directory", "its run directory is gone or not writable; start it with `foreshock run`"},
    {"no_mapping", "the kernel refused it memory; look at its limits (ulimit -v, cgroup, seccomp)"},
    {"no_descriptor", "it has no file descriptor left; raise `ulimit -n`"},
    {"file_limit", "its files are limited to less than a segment; raise `ulimit -f` to 4 MiB or more"},
    {"not_permitted",
     "a sandbox refused a call that the monitor needs (seccomp or a security module); run "
     "`foreshock doctor -- COMMAND` inside it"},
    {"rank_taken", "another live process has the same run id and rank; give each run an id of its own"},
    {"no_tmpfs", "the run directory is not on tmpfs; set FORESHOCK_DIR"},
};

// "off.1234.no_space" -> "no_space"; "" for any other name.
std::string reason_of(const std::string& file) {
  if (file.rfind("off.", 0) != 0) return "";
  const size_t dot = file.find('.', 4);
  return dot == std::string::npos ? "" : file.substr(dot + 1);
}

// Without a launcher's number in it, a file may be anybody's.
bool may_belong_to(const fs::path& file, uint64_t launcher_id) {
  uint64_t owner = 0;
  return !(std::ifstream(file) >> owner) || owner == 0 || owner == launcher_id;
}

}  // namespace

std::string advice_for(const std::string& reason) {
  for (const Advice& row : kAdvice) {
    if (reason == row.reason) return row.text;
  }
  return "run `foreshock doctor -- COMMAND` to see more";
}

OffFiles off_files(const std::string& directory) {
  OffFiles files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!reason_of(entry.path().filename()).empty())
      files[entry.path().filename()] = entry.last_write_time(error);
  }
  return files;
}

std::vector<std::string> off_lines(const std::string& directory, const OffFiles& earlier,
                                   uint64_t launcher_id) {
  std::map<std::string, int> processes;
  for (const auto& file : off_files(directory)) {
    const auto before = earlier.find(file.first);
    if (before != earlier.end() && before->second == file.second) continue;
    if (may_belong_to(directory + "/" + file.first, launcher_id)) ++processes[reason_of(file.first)];
  }
  std::vector<std::string> lines;
  for (const auto& [reason, count] : processes) {
    lines.push_back("monitoring was off in " + std::to_string(count) +
                    (count == 1 ? " process (" : " processes (") + reason + "): " + advice_for(reason));
  }
  return lines;
}

std::string other_ranks_line() {
  return "no segment of its own: the training was started by another `foreshock run` of this run id, inside "
         "the command or beside it, which tells of it";
}

std::string no_segment_line(const std::string& directory) {
  struct statvfs info = {};
  if (statvfs(directory.c_str(), &info) == 0 && info.f_files > 0 && info.f_favail == 0)
    return "no segment seen: the tmpfs of " + directory + " has no inode left, so none could be made";
  return "no segment seen: no training step or attention call was met in the command; "
         "`foreshock doctor -- COMMAND` tells what is seen";
}

}  // namespace foreshock::cli
