// Finds the torch of a command and the adapter for this torch, and makes the command's environment. An
// adapter, made by build_adapter.py, is a library that connects libforeshock.so with one version of torch.
// LibTorch is torch for C++ programs. The helper is the Python package foreshock_torch, which Python finds by
// PYTHONPATH. A wrapper is a program, such as nice or srun, that starts another command.
#include "cli/torch.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "cli/process.h"
#include "cli/run_dir.h"
#include "cli/terminal.h"
#include "libmonitor/options.h"
#include "libmonitor/trusted_path.h"
#include "segment/layout.h"

namespace foreshock::cli {

Installation find_installation() {
  std::error_code ignored;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path root = executable.parent_path().parent_path();
  const std::filesystem::path share = root / "share" / "foreshock";
  return {executable, root / "lib" / "libforeshock.so", share / "python", share / "torch", root / "include"};
}

namespace {

namespace fs = std::filesystem;

// Returns "" if only this user and root can replace the file or folder at `path`, else what is wrong.
// `remedy` says what to do if a file or folder belongs to another user.
std::string trust_problem(const std::string& path, const std::string& remedy) {
  const PathTrust trust = path_trust(path.c_str());
  const std::string where = trust.where[0] == '\0' ? "/" : trust.where;
  switch (trust.distrust) {
    case Distrust::kNone:
      return "";
    case Distrust::kOwner:
      return where + " belongs to user " + std::to_string(trust.owner) +
             ", who could put code into the training; " + remedy;
    case Distrust::kWritable:
      return where + " is writable by other users, who could put code into the training; chmod go-w " + where;
    case Distrust::kUnreadable:
      break;
  }
  return where + " cannot be examined, so its owner is unknown; " + remedy;
}

// Checks everything of the installation that runs in a training: the library, the code for devices, the
// helper, and the sources and builder of the adapter.
std::string installation_trust_problem(const Installation& installation) {
  const std::string remedy = "install foreshock as root or as this user";
  std::vector<std::string> paths = {
      installation.library, fs::path(installation.library).replace_extension(".fatbin"),
      installation.headers + "/foreshock", fs::path(installation.adapter_sources).parent_path() / "adapters"};
  for (const std::string& folder : {installation.python_helper, installation.adapter_sources}) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, ignored))
      paths.push_back(entry.path());
  }
  for (const std::string& path : paths)
    if (const std::string problem = trust_problem(path, remedy); !problem.empty()) return problem;
  return "";
}

// Creates the folders for the bytecode of the helper. Python would create them with the umask of the command;
// who may write into such a folder can put code into the trainings that follow. Ignores errors: the
// installation may be read-only.
void create_bytecode_folders(const std::string& helper) {
  std::error_code ignored;
  std::set<std::string> folders;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(helper, ignored))
    if (entry.path().extension() == ".py") folders.insert(entry.path().parent_path() / "__pycache__");
  const mode_t before = umask(S_IWGRP | S_IWOTH);
  for (const std::string& folder : folders) mkdir(folder.c_str(), 0755);
  umask(before);
}

}  // namespace

std::string installation_problem(const Installation& installation) {
  if (installation.executable.empty())
    return "/proc is not mounted here; foreshock finds its own files and the trainer's state through it";
  for (const std::string& path :
       {installation.library, installation.python_helper + "/foreshock_torch/__init__.py",
        installation.adapter_sources + "/build_adapter.py", installation.headers + "/foreshock/hook.h"}) {
    if (access(path.c_str(), R_OK) != 0) return path + " is missing; build or install foreshock again";
  }
  if (installation.python_helper.find(':') != std::string::npos)
    return "a ':' in the path of foreshock breaks PYTHONPATH";
  create_bytecode_folders(installation.python_helper);
  return installation_trust_problem(installation);
}

namespace {

constexpr int kBuildTimeoutMs = 15 * 60 * 1000;

std::string cache_root() {
  if (const char* cache = option_value(OptionId::kCache); *cache != '\0') return cache;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return std::string(cache) + "/foreshock";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return std::string(home) + "/.cache/foreshock";
  return "";
}

// Returns the FNV-1a hash of the adapter's sources, so that adapters built from other sources are not used.
std::string hash_of_sources(const Installation& installation) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const std::string& folder : {installation.adapter_sources, installation.headers + "/foreshock"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string kind = entry.path().extension();
      if (kind == ".cpp" || kind == ".h" || entry.path().filename() == "build_adapter.py")
        files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.filename() < b.filename(); });
  uint64_t hash = fnv1a("");  // the initial value of the hash
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    hash = fnv1a(path.filename().native(), hash);
    hash = fnv1a(std::string(std::istreambuf_iterator<char>(file), {}), hash);
  }
  return hexadecimal(hash);
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of("\n ");
  if (end == std::string::npos) return "no output";
  const size_t newline = text.find_last_of('\n', end);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end + 1 - begin);
}

// Reads the JSON that build_adapter.py has printed. The braces below set the first members of Adapter: state,
// torch (its version), path and reason.
Adapter read_answer(const Captured& answer, const std::string& python) {
  const nlohmann::json json = nlohmann::json::parse(answer.output, nullptr, false);
  if (!json.is_object()) {
    std::string why = answer.start_error != 0 ? std::strerror(answer.start_error)
                      : answer.timed_out      ? "it took longer than 15 minutes"
                                              : last_line(answer.errors);
    return {"failed", "", "", "the adapter could not be prepared with " + python + ": " + why};
  }
  const auto text = [&json](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
  };
  Adapter adapter = {text("state"), text("torch"), text("path"), text("reason")};
  if (json.contains("seconds") && json["seconds"].is_number()) adapter.seconds = json["seconds"];
  return adapter;
}

// Announces a build when build_adapter.py has written "building" to standard error. A long wait does not
// imply a build, because checking a cached adapter may take seconds on a busy machine.
void announce_build_once(const Captured& so_far) {
  static bool is_announced = false;
  if (is_announced || so_far.errors.find("building\n") == std::string::npos) return;
  is_announced = true;
  say("preparing the adapter for this torch (once, about a minute) ...");
}

// Names the processor too, since machines with other processors may share a home.
std::string cache_name(const Installation& installation) {
  utsname system;
  const std::string machine = uname(&system) == 0 ? system.machine : "unknown";
  return "adapters-" FORESHOCK_VERSION "-" + machine + "-" + hash_of_sources(installation);
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// python, python3, python3.11, pypy3
bool is_python_name(const std::string& name) {
  for (const char* stem : {"python", "pypy"}) {
    if (name.rfind(stem, 0) == 0 &&
        name.find_first_not_of("0123456789.", std::string(stem).size()) == std::string::npos)
      return true;
  }
  return false;
}

// The effect of a missing helper, for messages.
constexpr const char* kWithoutHelper = "; else nothing of the training is seen";

// Returns 'I' or 'E' if `option` is -I or -E, or a group of one-letter options with one of these (-uE). With
// either, Python ignores PYTHONPATH. Returns 0 for other options, such as -X..., -W... and --long.
char isolating_letter(const std::string& option) {
  constexpr const char* kWithoutValue = "bBdEiIOPqRsSuvx";  // Python's one-letter options without a value
  if (option.find_first_not_of(kWithoutValue, 1) != std::string::npos) return 0;
  if (option.find('I') != std::string::npos) return 'I';
  return option.find('E') != std::string::npos ? 'E' : 0;
}

bool is_program(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string search_path() {
  const char* path = std::getenv("PATH");
  return path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
}

// Returns the options of an interpreter without their values: the words from `begin` to before its script,
// module or program text. The word "-" is a script: standard input.
std::vector<std::string> options_from(const std::vector<std::string>& command, size_t begin) {
  std::vector<std::string> options;
  for (size_t n = begin; n < command.size() && command[n].size() > 1 && command[n][0] == '-'; ++n) {
    if (command[n] == "-c" || command[n] == "-m") break;
    options.push_back(command[n]);
    const bool has_value =
        command[n] == "-X" || command[n] == "-W" || command[n] == "--check-hash-based-pycs";
    n += has_value;  // skips the value
  }
  return options;
}

// Returns the interpreter and options in the "#!" line of a Python script; empty if `script` is not a Python
// script. `path`: folders, separated as in PATH, in which an interpreter after "env" is looked up.
std::vector<std::string> script_command(const std::string& script, const std::string& path) {
  std::ifstream file(script, std::ios::binary);
  std::string first_line, second_line;
  if (file.get() != '#' || file.get() != '!' || !std::getline(file, first_line)) return {};
  std::istringstream words(first_line);
  std::string interpreter, word;
  words >> interpreter;
  if (base_name(interpreter) == "env") {
    while (words >> word)  // skips options and NAME=value
      if (word[0] != '-' && word.find('=') == std::string::npos) break;
    interpreter = look_up(word, path);
  } else if (base_name(interpreter) == "sh" && std::getline(file, second_line) &&
             second_line.rfind("'''exec' ", 0) == 0) {
    // The line that pip writes: '''exec' /long/path/python3 "$0" "$@"
    words = std::istringstream(second_line.substr(9));  // 9: the length of "'''exec' "
    words >> interpreter;
    interpreter.erase(std::remove(interpreter.begin(), interpreter.end(), '"'), interpreter.end());
  }
  if (!is_python_name(base_name(interpreter))) return {};
  std::vector<std::string> command = {interpreter};
  while (words >> word) command.push_back(word);
  return command;
}

constexpr int kListTimeoutMs = 20000;  // for the dynamic linker, which lists a program's libraries

// Reads the line `libtorch_cpu.so => /opt/libtorch/lib/libtorch_cpu.so (0x...)` of the dynamic linker's list
// (here for `stem` libtorch_cpu.so) and sets `*library` to the path; "" if the line has `=> not found`. A
// line without `=>` begins with the path. Returns false if no line names the library: the program does not
// load it.
bool read_list(const std::string& list, const std::string& stem, std::string* library) {
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, arrow, path;
    words >> name >> arrow >> path;
    if (name.rfind(stem, 0) != 0 && name.find("/" + stem) == std::string::npos) continue;
    *library = arrow == "=>" ? (path[0] == '/' ? path : "") : name;
    return true;
  }
  return false;
}

// Returns the dynamic linker's list of the libraries of a program; "" if the program names no linker.
std::string list_libraries(const std::string& program) {
  const std::string linker = program_interpreter(program);
  if (linker.empty()) return "";
  // Does what ldd does, but starts the linker directly, so that the program itself does not run.
  std::vector<std::string> environment = own_environment();
  set_environment(&environment, "LD_TRACE_LOADED_OBJECTS", "1");
  const Captured list = run_and_capture({linker, program}, environment, kListTimeoutMs);
  return list.start_error == 0 ? list.output : "";
}

// Returns the directory that has `library` in lib/ and its headers in include/; "" if there are no headers.
std::string home_of(const std::string& library) {
  std::error_code error;
  const fs::path home = fs::canonical(library, error).parent_path().parent_path();
  return !error && fs::exists(home / "include" / "ATen" / "ATen.h", error) ? home.string() : "";
}

// Reads the header of an ELF file. Returns false if the file is not a 64-bit ELF file.
bool read_header(std::ifstream* file, Elf64_Ehdr* header) {
  if (!file->read(reinterpret_cast<char*>(header), sizeof *header)) return false;
  return std::string(reinterpret_cast<char*>(header->e_ident), SELFMAG) == ELFMAG &&
         header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_phentsize == sizeof(Elf64_Phdr);
}

constexpr int kProbeTimeoutMs = 5000;  // for /bin/true in preload_problem()

// Whether `list`, whose entries are separated by colons, has the entry.
bool is_entry_of(const std::string& list, const std::string& entry) {
  return (":" + list + ":").find(":" + entry + ":") != std::string::npos;
}

}  // namespace

// Returns <cache>; the path of the adapter is <cache>/<directory of one torch>/adapter.so.
std::string Adapter::folder() const { return fs::path(path).parent_path().parent_path().string(); }

std::string adapter_cache(const Installation& installation) {
  const std::string root = cache_root();
  if (root.empty()) return "";
  return root + "/" + cache_name(installation);
}

Adapter prepare_adapter(const Installation& installation, const std::string& python, const std::string& cache,
                        const std::string& libtorch) {
  std::string base = choose_base_directory().path;
  // The group of a service could replace code in a base that it shares.
  if (!base.empty() && !is_trusted(base.c_str())) base.clear();
  if (cache.empty() && base.empty())
    return {"failed", "", "", "there is no place for the adapter: set FORESHOCK_CACHE to a directory"};
  const std::string remedy = "set FORESHOCK_CACHE to a directory of your own";
  // Checked before the build too, since what a build leaves beside a folder of another user may be replaced.
  if (const std::string problem = cache.empty() ? "" : trust_problem(cache, remedy); !problem.empty())
    return {"failed", "", "", problem};
  std::vector<std::string> command = {python,      installation.adapter_sources + "/build_adapter.py",
                                      "--library", installation.library,
                                      "--include", installation.headers};
  if (!cache.empty()) command.insert(command.end(), {"--cache", cache});
  // `base` is the directory of all runs. Agents that search it for runs ignore names that begin with a dot.
  if (!base.empty()) command.insert(command.end(), {"--fallback", base + "/." + cache_name(installation)});
  if (!libtorch.empty()) command.insert(command.end(), {"--torch", libtorch});
  const mode_t before = umask(0);
  umask(before | S_IWGRP | S_IWOTH);  // what the builder makes is never writable by others
  const Captured answer = run_and_capture(command, own_environment(), kBuildTimeoutMs, announce_build_once);
  umask(before);
  Adapter adapter = read_answer(answer, python);
  // Others may have put it there while the cache was open to them.
  if (const std::string problem = adapter.usable() ? trust_problem(adapter.path, "remove it") : "";
      !problem.empty())
    return {"failed", adapter.torch, "", problem};
  return adapter;
}

Adapter prepare_adapter_for(const Installation& installation, const FoundLibtorch& libtorch,
                            const std::string& cache) {
  if (libtorch.library.empty())
    return {"failed", "", "", "the dynamic linker finds no libtorch_cpu.so for it; set LD_LIBRARY_PATH"};
  if (libtorch.home.empty())
    return {"failed", "", "", libtorch.library + " has no headers in ../include; install LibTorch whole"};
  const std::string python = look_up("python3", search_path());
  if (python.empty())
    return {"no_python", "", "", "python3 builds the adapter, and there is none in PATH; install it"};
  return prepare_adapter(installation, python, cache, libtorch.home);
}

std::string link_problem(const FoundLibtorch& libtorch) {
  if (libtorch.program.empty() || libtorch.has_monitor) return "";
  return libtorch.program +
         " is linked with LibTorch, but not with libforeshock.so: give --preload, or link it "
         "(docs/install.md)";
}

std::string helper_problem(const FoundPython& python) {
  for (const std::string& option : python.options) {
    if (const char letter = isolating_letter(option); letter != 0)
      return std::string("python -") + letter + (letter == 'I' ? " (isolated mode)" : "") +
             " ignores PYTHONPATH, through which `import torch` finds foreshock: leave it out" +
             kWithoutHelper;
  }
  // torch imports the helper as if it were an extension for a device (entry point group torch.backends).
  const char* autoload = std::getenv("TORCH_DEVICE_BACKEND_AUTOLOAD");
  if (autoload != nullptr && std::string(autoload) == "0")
    return std::string(
               "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps `import torch` from starting foreshock: unset it") +
           kWithoutHelper;
  return "";
}

bool starts_a_command(const std::string& program) {
  static constexpr const char* kWrappers[] = {"env",     "nice",   "ionice", "numactl", "taskset",
                                              "timeout", "stdbuf", "nohup",  "setsid",  "time",
                                              "chrt",    "srun",   "mpirun", "mpiexec"};
  return std::find(std::begin(kWrappers), std::end(kWrappers), base_name(program)) != std::end(kWrappers);
}

std::string look_up(const std::string& name, const std::string& path) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  std::istringstream directories(path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  return "";
}

FoundPython find_python(const std::vector<std::string>& command) {
  const std::string path = search_path();
  for (size_t n = 0; n < command.size(); ++n) {
    const std::string program = look_up(command[n], path);
    if (is_python_name(base_name(command[n])) && !program.empty())
      return {program, true, options_from(command, n + 1)};
    if (const auto script = script_command(program, path); !script.empty())
      return {script[0], true, options_from(script, 1)};
    // Only a wrapper has a further program among its words.
    if (n == 0 && !starts_a_command(command[0])) break;
  }
  return {look_up("python3", path), /*certain=*/false, {}};
}

std::string program_interpreter(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header = {};
  if (!read_header(&file, &header)) return "";
  for (int n = 0; n < header.e_phnum; ++n) {
    Elf64_Phdr part = {};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + n * sizeof part));
    if (!file.read(reinterpret_cast<char*>(&part), sizeof part)) return "";
    // The part PT_INTERP has the path of the dynamic linker with a 0 byte at its end. 4096: PATH_MAX.
    if (part.p_type != PT_INTERP || part.p_filesz < 2 || part.p_filesz > 4096) continue;
    std::string name(part.p_filesz - 1, '\0');
    file.seekg(static_cast<std::streamoff>(part.p_offset));
    return file.read(name.data(), static_cast<std::streamsize>(name.size())) ? name : "";
  }
  return "";
}

bool is_static_program(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header = {};
  return read_header(&file, &header) && program_interpreter(path).empty();
}

FoundLibtorch find_libtorch(const std::vector<std::string>& command) {
  const std::string path = search_path();
  for (size_t n = 0; n < command.size(); ++n) {
    const std::string program = look_up(command[n], path);
    const std::string list = program.empty() ? "" : list_libraries(program);
    if (std::string library; read_list(list, "libtorch_cpu.so", &library)) {
      std::error_code ignored;
      std::string ours;
      return {fs::absolute(program, ignored), library, library.empty() ? "" : home_of(library),
              read_list(list, "libforeshock.so", &ours)};
    }
    if (n == 0 && !starts_a_command(command[0])) break;  // not a wrapper
  }
  return {};
}

std::vector<std::string> command_environment(const Installation& installation, const Arguments& arguments,
                                             const RunVariables& variables) {
  std::vector<std::string> environment = own_environment();
  const std::string preload = environment_value(environment, "LD_PRELOAD");
  if (arguments.has_flag(OptionId::kPreload) && !is_entry_of(preload, installation.library)) {
    set_environment(&environment, "LD_PRELOAD",
                    preload.empty() ? installation.library : preload + ":" + installation.library);
  }
  const std::string path = environment_value(environment, "PYTHONPATH");
  if (!is_entry_of(path, installation.python_helper)) {
    set_environment(&environment, "PYTHONPATH",
                    installation.python_helper + (path.empty() ? "" : ":" + path));
  }
  set_environment(&environment, "FORESHOCK_DIR", variables.base);
  set_environment(&environment, "FORESHOCK_RUN_ID", variables.run_id);
  set_environment(&environment, "FORESHOCK_ADAPTERS", variables.adapters);
  set_environment(&environment, "FORESHOCK_LAUNCHER", std::to_string(launcher_id()));
  for (OptionId id : {OptionId::kEvery, OptionId::kMaxSlowdown, OptionId::kMemory, OptionId::kSlices,
                      OptionId::kMathPath, OptionId::kWeights, OptionId::kCountKernels})
    set_environment(&environment, option(id).variable, arguments.text(id));
  // A fixed interval (--every is not 0) without --max-slowdown applies at any cost: "" means no limit.
  const bool has_every = arguments.is_given(OptionId::kEvery) && arguments.text(OptionId::kEvery) != "0";
  if (has_every && !arguments.is_given(OptionId::kMaxSlowdown))
    set_environment(&environment, option(OptionId::kMaxSlowdown).variable, "");
  return environment;
}

std::string preload_problem(const std::vector<std::string>& environment, const std::string& library) {
  // The dynamic linker splits LD_PRELOAD at ' ' and ':' and expands '$'. These characters cannot be escaped.
  if (library.find_first_of(" :$") != std::string::npos)
    return "the path " + library + " cannot be preloaded; move foreshock to one without ' ', ':' and '$'";
  const Captured probe = run_and_capture({"/bin/true"}, environment, kProbeTimeoutMs);
  if (probe.start_error != 0)
    return "/bin/true does not start: " + std::string(std::strerror(probe.start_error));
  if (probe.timed_out) return "/bin/true hangs with libforeshock.so preloaded";
  // If the dynamic linker cannot load the library, it prints a message with the library's name and continues.
  if (probe.errors.find(library) != std::string::npos) return "libforeshock.so cannot be preloaded here";
  if (probe.status.signal != 0 || probe.status.code != 0)
    return "/bin/true fails with libforeshock.so preloaded";
  return "";
}

}  // namespace foreshock::cli
