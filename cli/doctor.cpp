// foreshock doctor: checks each step of `foreshock run` and reports what works, what does not, and why.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/known_bad.h"
#include "cli/process.h"
#include "cli/run_dir.h"
#include "cli/terminal.h"
#include "cli/torch.h"
#include "cli/words.h"
#include "kernels/device_code.h"
#include "libmonitor/cuda_driver.h"
#include "shadow/reference.h"

namespace foreshock::cli {
namespace {

struct Check {
  bool ok;                   // false: a training cannot be monitored
  std::string what, detail;  // the checked part; its path or version, or the problem and what to do
};

// A row of the table that lists what foreshock can see of any training.
struct Coverage {
  // How much foreshock sees: "checked", compared with fp64; "measured", read but not judged; "counted"; ...
  // "": as in the previous row.
  const char* extent;
  const char* what;  // operations, weights or programs
};

constexpr Coverage kCoverage[] = {
    {"checked",
     "PyTorch's fused attention on the CPU (scaled_dot_product_attention), forward, dQ, dK and dV, in bf16, "
     "fp16, fp32, fp64, from Python and LibTorch"},
    {"", "attention described through <foreshock/hook.h>, or with foreshock.tap(q, k, v, out, layer=...)"},
    {"",
     "in eager code on the CPU: FlexAttention, and attention that a module writes out in torch operations"},
    {"", "the unfused path (dropout > 0 on the CPU, some masks), unless --math-path is off"},
    {"", "on CUDA: PyTorch's fused attention and flash-attn 2.8, without windows, ALiBi and softcap"},
    {"measured", "weights in fp32, bf16, fp16; replicas under DDP and HSDP are compared bit for bit"},
    {"untried",
     "on a real device: flash-attn 2.7, 3 and 4, xformers, Transformer Engine 2.0 to 2.20 "
     "(docs/coverage.md)"},
    {"counted", "fused attention on other devices, and skipped calls, with the reason"},
    {"unseen", "inside torch.compile: FlexAttention and attention written by hand, unless tapped"},
    {"", "attention inside AOTInductor packages and Inductor's cpp_wrapper"},
    {"",
     "programs that are linked statically, or that load LibTorch with dlopen without a call of "
     "foreshock_load_adapter()"},
    {"", "weights in flat parameters (FSDP1); full shards (FSDP2, ZeRO-3) have no replica to compare"},
};

std::string size_text(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "no limit";  // the tmpfs was mounted without a size
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
      command_environment(installation, arguments, {base, /*run_id=*/"doctor", /*adapters=*/""});
  const std::string problem = preload_problem(environment, installation.library);
  return {problem.empty(), "preload", problem.empty() ? "libforeshock.so loads into /bin/true" : problem};
}

// Returns the Python that the command will use. If there is --python or no command, it is that of --python
// (default: python3).
FoundPython choose_python(const Arguments& arguments) {
  const bool named = arguments.has_flag(OptionId::kPython);
  if (!named && !arguments.command().empty()) return find_python(arguments.command());
  const char* path = std::getenv("PATH");
  return {look_up(arguments.text(OptionId::kPython), path != nullptr ? path : "/usr/bin:/bin"),
          /*certain=*/named, /*options=*/{}};
}

Check check_python(const FoundPython& python, const Arguments& arguments) {
  if (python.executable.empty()) {
    const std::string named =
        arguments.has_flag(OptionId::kPython) ? arguments.text(OptionId::kPython) + " is " : "";
    return {false, "Python", named + "not found; name it with --python EXE"};
  }
  if (python.certain) return {true, "Python", python.executable};
  return {true, "Python",
          python.executable + (arguments.command().empty() ? " (the python3 of PATH)"
                                                           : " (assumed: the command names no Python)")};
}

// Reports the adapter, the library between this torch and libforeshock.so. `library`: PyTorch or LibTorch.
Check check_adapter(const Adapter& adapter, const std::string& library) {
  const std::string torch = adapter.torch.empty() ? library : "torch " + adapter.torch;
  if (!adapter.usable()) return {false, torch, adapter.reason};
  char built[64] = "adapter built before and tested";
  if (adapter.state == "built")
    std::snprintf(built, sizeof built, "adapter built and tested in %.0f s", adapter.seconds);
  if (adapter.state == "prebuilt")
    std::snprintf(built, sizeof built, "prebuilt adapter tested in %.0f s", adapter.seconds);
  return {true, torch, built};
}

// The name of a CUDA version that a driver has (12040), and of the branch of drivers that began with it.
std::string cuda_version(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}
std::string driver_from(int version) {
  const char* branch = version == 12000 ? "525 (" : version == 13000 ? "580 (" : "(";
  return "driver " + (branch + cuda_version(version)) + ") or later";
}

// Reports whether the driver of this machine loads the kernels.
std::string driver_text(const std::string& consequence) {
  const int oldest = std::max(device_code_seal().oldest_driver, cuda::kOldestDriver);
  DriverApi driver;
  if (driver.open("libcuda.so.1", oldest))
    return "kernels for sm_80 and later, which the driver here loads (" + cuda_version(driver.version()) +
           ")";
  if (driver.version() == 0)
    return "kernels for sm_80 and later need " + driver_from(oldest) + "; there is no driver here";
  if (driver.version() >= oldest)
    return "the driver here (" + cuda_version(driver.version()) + ") lacks functions that foreshock calls" +
           consequence;
  return "the driver here is too old (" + cuda_version(driver.version()) + ")" + consequence + "; install " +
         driver_from(oldest);
}

// Reports whether attention on CUDA devices can be sampled. This needs libforeshock.fatbin, the CUDA kernels
// from the build of libforeshock.so, and a driver that loads them. The check never fails, because trainings
// on a CPU need no such kernels.
Check check_device_code(const Installation& installation) {
  const DeviceCodeSeal seal = device_code_seal();  // size and checksum of the file; bytes 0: not built
  const std::string path =
      std::filesystem::path(installation.library).replace_filename(kDeviceCodeFile).string();
  Fatbin file;
  file.read(path.c_str(), seal);
  const std::string consequence = "; attention there is counted, not sampled";
  if (seal.bytes == 0) return {true, "CUDA devices", "this build has no kernels" + consequence};
  if (!file.is_read()) {
    const std::string why =
        file.failure() == std::string("no_file") ? " is not there" : " is of another build, or damaged";
    return {true, "CUDA devices", path + why + consequence + "; reinstall foreshock"};
  }
  return {true, "CUDA devices", driver_text(consequence)};
}

// Reports the instruction set of the fp64 reference. It affects only the speed, so the check never fails.
Check check_reference() {
  return {true, "reference", std::string("fp64 with ") + reference_target_name() + " instructions"};
}

// Checks whether `import torch` will start the Python helper, which loads libforeshock.so.
Check check_helper(const FoundPython& python) {
  const std::string problem = helper_problem(python);
  if (!problem.empty()) return {false, "entry", problem};
  return {true, "entry", "`import torch` loads foreshock through its torch.backends entry point"};
}

std::vector<Check> check_libtorch(const Installation& installation, const FoundLibtorch& libtorch,
                                  bool is_preloaded) {
  const std::string where = libtorch.library.empty() ? "" : ", " + libtorch.library;
  const std::string problem = is_preloaded ? "" : link_problem(libtorch);
  const std::string entry =
      libtorch.has_monitor ? " and with libforeshock.so" : "; libforeshock.so is preloaded";
  return {{problem.empty(), "program",
           problem.empty() ? libtorch.program + " is linked with LibTorch" + where + entry : problem},
          check_adapter(prepare_adapter_for(installation, libtorch, adapter_cache(installation)), "LibTorch"),
          {true, "steps and names",
           "steps are counted from the versions of the weights; <foreshock/libtorch.h> reports steps and "
           "layer names"}};
}

// Checks `word`, the program of a command in which neither a Python nor a program with LibTorch was found.
// Returns no checks for scripts, and for programs that start another command.
std::vector<Check> check_program(const std::string& word) {
  const char* path = std::getenv("PATH");
  const std::string program = look_up(word, path != nullptr ? path : "/usr/bin:/bin");
  if (program.empty()) return {{false, "command", word + " is not found or not executable"}};
  if (is_static_program(program))
    return {{false, "program",
             program + " is linked statically, so libforeshock.so cannot be loaded; link it dynamically"}};
  const bool is_script = program_interpreter(program).empty();  // it names no dynamic linker
  if (is_script || starts_a_command(word)) return {};
  return {
      {true, "program",
       program +
           " is not linked with LibTorch: foreshock sees Python that it starts, and calls that it describes "
           "through <foreshock/hook.h> if it is linked with libforeshock.so or started with --preload"}};
}

std::vector<Check> check_python_torch(const Installation& installation, const Arguments& arguments,
                                      const FoundPython& python) {
  std::vector<Check> checks;
  if (!python.certain && !arguments.command().empty()) checks = check_program(arguments.command()[0]);
  checks.push_back(check_python(python, arguments));
  if (python.executable.empty()) return checks;
  const Adapter adapter = prepare_adapter(installation, python.executable, adapter_cache(installation));
  checks.push_back(check_adapter(adapter, "PyTorch"));
  for (const char* platform : {"rocm", "xpu"})  // the local version of PyTorch's own builds
    if (adapter.torch.find(std::string("+") + platform) != std::string::npos)
      checks.push_back({true, "devices of torch",
                        std::string(platform) +
                            ": attention there is counted, not sampled; attention on the CPU is checked"});
  checks.push_back(check_helper(python));
  return checks;
}

void print(const std::vector<Check>& checks, size_t columns) {
  for (const Check& check : checks) {
    // 27 is the column of the details: 2 + 5 + 20.
    std::printf("  %-5s%-20s%s\n", check.ok ? "ok" : "off", check.what.c_str(),
                wrapped(check.detail, 27, columns).c_str());
  }
  std::printf("\n  What is seen of a training:\n");
  for (const Coverage& line : kCoverage)  // 14 = 2 + 12
    std::printf("  %-12s%s\n", line.extent, wrapped(line.what, 14, columns).c_str());
}

}  // namespace

int doctor(const Arguments& arguments) {
  const Installation installation = find_installation();
  const BaseDirectory base = choose_base_directory();
  std::vector<Check> checks = {check_installation(installation), check_base(base), check_reference()};
  // checks[0] is the installation, without which the others would fail too.
  if (checks[0].ok) checks.push_back(check_device_code(installation));
  const bool is_preloaded = arguments.has_flag(OptionId::kPreload);
  if (checks[0].ok && is_preloaded) checks.push_back(check_preload(installation, arguments, base.path));
  const FoundLibtorch libtorch = find_libtorch(arguments.command());
  const FoundPython python = libtorch.program.empty() ? choose_python(arguments) : FoundPython();
  if (checks[0].ok) {
    const std::vector<Check> torch_checks = libtorch.program.empty()
                                                ? check_python_torch(installation, arguments, python)
                                                : check_libtorch(installation, libtorch, is_preloaded);
    checks.insert(checks.end(), torch_checks.begin(), torch_checks.end());
  }
  const size_t columns = terminal_columns(80);
  print(checks, columns);
  if (!python.executable.empty())
    std::printf("%s", known_bad_text(known_bad(installed_versions(python.executable)), columns).c_str());
  bool all_ok = true;
  for (const Check& check : checks) all_ok = all_ok && check.ok;
  std::printf("\n  %s\n", all_ok
                              ? "A training will be monitored here."
                              : "A training will not be monitored here until the checks marked `off` pass.");
  return all_ok ? 0 : 1;
}

}  // namespace foreshock::cli
