// foreshock pause|resume: the kill switch of a live run, one word in each control file that belongs to us.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>

#include "cli/commands.h"
#include "cli/live_runs.h"
#include "cli/say.h"
#include "segment/layout.h"

namespace foreshock::cli {
namespace {

bool store_switch(const std::string& path, uint32_t value) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return false;
  char magic[sizeof segment::kControlMagic];
  const bool is_control = pread(descriptor, magic, sizeof magic, 0) == sizeof magic &&
                          memcmp(magic, segment::kControlMagic, sizeof magic) == 0;
  const bool stored = is_control && pwrite(descriptor, &value, sizeof value,
                                           offsetof(segment::Control, command_switch)) == sizeof value;
  close(descriptor);
  return stored;
}

int switch_runs(const Arguments& arguments, uint32_t value) {
  const std::string run_id = arguments.text(OptionId::kRunId);
  int switched = 0, failed = 0;
  for (const LiveRun& run : live_runs(run_id)) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run.directory, error)) {
      if (entry.path().extension() != ".ctl") continue;
      ++(store_switch(entry.path(), value) ? switched : failed);
    }
  }
  if (switched == 0 && failed == 0) {
    say("no live run" + (run_id.empty() ? "" : " '" + run_id + "'") + " to " +
        (value != 0 ? "resume" : "pause") + "; `foreshock status` lists what is there");
    return 1;
  }
  say(std::string(value != 0 ? "resumed " : "paused ") + std::to_string(switched) +
      (switched == 1 ? " rank" : " ranks") + (failed == 0 ? "" : ", failed for " + std::to_string(failed)));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int pause(const Arguments& arguments) { return switch_runs(arguments, 0); }

int resume(const Arguments& arguments) { return switch_runs(arguments, 1); }

}  // namespace foreshock::cli
