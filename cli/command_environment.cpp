#include "cli/command_environment.h"

#include <cstring>

#include "cli/process.h"
#include "cli/run_dir.h"

namespace foreshock::cli {
namespace {

constexpr int kProbeTimeoutMs = 5000;

bool is_entry_of(const std::string& list, const std::string& entry) {
  return (":" + list + ":").find(":" + entry + ":") != std::string::npos;
}

}  // namespace

std::vector<std::string> command_environment(const Installation& installation, const Arguments& arguments,
                                             const Monitored& monitored) {
  std::vector<std::string> environment = own_environment();
  const std::string preload = environment_value(environment, "LD_PRELOAD");
  if (!is_entry_of(preload, installation.library)) {
    set_environment(&environment, "LD_PRELOAD",
                    preload.empty() ? installation.library : preload + ":" + installation.library);
  }
  const std::string path = environment_value(environment, "PYTHONPATH");
  if (!is_entry_of(path, installation.python_helper)) {
    set_environment(&environment, "PYTHONPATH",
                    installation.python_helper + (path.empty() ? "" : ":" + path));
  }
  set_environment(&environment, "FORESHOCK_DIR", monitored.base);
  set_environment(&environment, "FORESHOCK_RUN_ID", monitored.run_id);
  set_environment(&environment, "FORESHOCK_ADAPTERS", monitored.adapters);
  set_environment(&environment, "FORESHOCK_LAUNCHER", std::to_string(launcher_id()));
  for (OptionId id : {OptionId::kEvery, OptionId::kMaxSlowdown, OptionId::kMemory, OptionId::kSlices,
                      OptionId::kMathPath, OptionId::kWeights, OptionId::kCountKernels}) {
    set_environment(&environment, option(id).variable, arguments.text(id));
  }
  // --every without --max-slowdown is a promise to sample: an empty limit says so to the trainer.
  const bool has_every = arguments.is_given(OptionId::kEvery) && arguments.text(OptionId::kEvery) != "0";
  if (has_every && !arguments.is_given(OptionId::kMaxSlowdown))
    set_environment(&environment, option(OptionId::kMaxSlowdown).variable, "");
  return environment;
}

std::string preload_problem(const std::vector<std::string>& environment, const std::string& library) {
  const Captured probe = run_and_capture({"/bin/true"}, environment, kProbeTimeoutMs);
  if (probe.start_error != 0)
    return "/bin/true does not start: " + std::string(std::strerror(probe.start_error));
  if (probe.timed_out) return "/bin/true hangs with libforeshock.so preloaded";
  // The dynamic linker goes on without a library that it cannot load, and says so.
  if (probe.errors.find(library) != std::string::npos) return "libforeshock.so cannot be preloaded here";
  if (probe.status.signal != 0 || probe.status.code != 0)
    return "/bin/true fails with libforeshock.so preloaded";
  return "";
}

}  // namespace foreshock::cli
