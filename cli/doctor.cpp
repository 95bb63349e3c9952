// foreshock doctor: goes the way of `run` step by step and tells at each what works, what is off, and why.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/adapter.h"
#include "cli/base_directory.h"
#include "cli/command_environment.h"
#include "cli/commands.h"
#include "cli/installation.h"
#include "cli/known_bad.h"
#include "cli/process.h"
#include "cli/python_finder.h"
#include "shadow/reference.h"

namespace foreshock::cli {
namespace {

struct Check {
  bool ok;
  std::string what, detail;
};

struct Coverage {
  const char* fate;
  const char* what;
};

constexpr Coverage kCoverage[] = {
    {"judged", "PyTorch's fused attention on the CPU (scaled_dot_product_attention), forward and dQ,"},
    {"", "in bf16, fp16, fp32, fp64: GQA, causal, float and bool masks, strides, autocast,"},
    {"", "checkpointing, torch.compile, DDP"},
    {"counted", "fused attention on other devices, and calls skipped for a reason that is named"},
    {"not seen", "attention on the math path (dropout > 0 on the CPU takes it), written by hand, or by"},
    {"", "kernels PyTorch does not dispatch (FlexAttention, flash-attn, Transformer Engine)"},
};

std::string size_text(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "no limit";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB free", static_cast<double>(bytes) / (1ull << 30));
  return text;
}

Check check_installation(const Installation& installation) {
  const std::string problem = installation_problem(installation);
  return {problem.empty(), "installation", problem.empty() ? installation.library : problem};
}

Check check_base(const BaseDirectory& base) {
  if (!base.problem.empty()) return {false, "shared memory", base.problem};
  return {true, "shared memory", base.path + ", " + size_text(free_bytes(base.path))};
}

Check check_preload(const Installation& installation, const Arguments& arguments, const std::string& base) {
  const std::vector<std::string> environment =
      command_environment(installation, arguments, {base, "doctor", ""});
  const std::string problem = preload_problem(environment, installation.library);
  return {problem.empty(), "preload", problem.empty() ? "libforeshock.so loads into /bin/true" : problem};
}

FoundPython choose_python(const Arguments& arguments) {
  const bool named = arguments.has_flag(OptionId::kPython);
  if (!named && !arguments.command().empty()) return find_python(arguments.command());
  const char* path = std::getenv("PATH");
  return {look_up(arguments.text(OptionId::kPython), path != nullptr ? path : "/usr/bin:/bin"), named, {}};
}

Check check_python(const FoundPython& python, const Arguments& arguments) {
  if (python.executable.empty()) return {false, "Python", "not found; name it with --python EXE"};
  if (python.certain) return {true, "Python", python.executable};
  return {true, "Python",
          python.executable + (arguments.command().empty() ? " (the python3 of PATH)"
                                                           : " (a guess: the command shows none)")};
}

Check check_adapter(const Adapter& adapter) {
  const std::string torch = adapter.torch.empty() ? "PyTorch" : "torch " + adapter.torch;
  if (!adapter.usable()) return {false, torch, adapter.reason};
  char built[64] = "adapter built before and tested";
  if (adapter.state == "built")
    std::snprintf(built, sizeof built, "adapter built and tested in %.0f s", adapter.seconds);
  if (adapter.state == "prebuilt")
    std::snprintf(built, sizeof built, "prebuilt adapter tested in %.0f s", adapter.seconds);
  return {true, torch, built};
}

// Every instruction set gives the same bits; this one only says how fast.
Check check_reference() {
  return {true, "reference", std::string("fp64 with ") + reference_target_name() + " instructions"};
}

// The Python helper comes in through PYTHONPATH and torch's entry points. Without it steps stay unknown.
Check check_helper(const FoundPython& python) {
  for (const std::string& option : python.options) {
    const bool ignores_path = option[1] != '-' && option.find_first_of("EI") != std::string::npos;
    if (ignores_path) {
      return {false, "steps and loss", "python " + option + " ignores PYTHONPATH; leave " + option + " out"};
    }
  }
  const char* autoload = std::getenv("TORCH_DEVICE_BACKEND_AUTOLOAD");
  if (autoload != nullptr && std::string(autoload) == "0") {
    return {false, "steps and loss", "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps the helper out; unset it"};
  }
  return {true, "steps and loss", "helper enters by the torch.backends entry point"};
}

void print(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    std::printf("  %-5s%-18s%s\n", check.ok ? "ok" : "off", check.what.c_str(), check.detail.c_str());
  }
  std::printf("\n");
  for (const Coverage& line : kCoverage) std::printf("  %-10s%s\n", line.fate, line.what);
}

}  // namespace

int doctor(const Arguments& arguments) {
  const Installation installation = find_installation();
  const BaseDirectory base = choose_base_directory();
  std::vector<Check> checks = {check_installation(installation), check_base(base), check_reference()};
  if (checks[0].ok) checks.push_back(check_preload(installation, arguments, base.path));
  const FoundPython python = choose_python(arguments);
  checks.push_back(check_python(python, arguments));
  if (checks[0].ok && !python.executable.empty()) {
    checks.push_back(
        check_adapter(prepare_adapter(installation, python.executable, adapter_cache(installation))));
    checks.push_back(check_helper(python));
  }
  print(checks);
  if (!python.executable.empty())
    std::printf("%s", known_bad_text(known_bad(installed_versions(python.executable))).c_str());
  bool all_ok = true;
  for (const Check& check : checks) all_ok = all_ok && check.ok;
  std::printf("\n  %s\n", all_ok ? "A training will be monitored here."
                                 : "A training will not be monitored here as it is.");
  return all_ok ? 0 : 1;
}

}  // namespace foreshock::cli
