// Finds the torch of a command (Python's or LibTorch's), and the adapter for it, which is built when it is
// not there yet.
#ifndef FORESHOCK_CLI_TORCH_H_
#define FORESHOCK_CLI_TORCH_H_

#include <string>
#include <vector>

#include "cli/options.h"

namespace foreshock::cli {

struct Installation {
  std::string executable;       // <root>/bin/foreshock
  std::string library;          // <root>/lib/libforeshock.so, what is preloaded
  std::string python_helper;    // <root>/share/foreshock/python, what goes on PYTHONPATH
  std::string adapter_sources;  // <root>/share/foreshock/torch
  std::string headers;          // <root>/include
};

Installation find_installation();

// "" when everything is in place and may be preloaded, else what is missing.
std::string installation_problem(const Installation& installation);

// The PyTorch adapter: built for the exact torch of one interpreter, outside any trainer, into a stamped
// cache.

struct Adapter {
  std::string state;   // ready, prebuilt, built, no_torch, unsupported, no_compiler, no_python, failed
  std::string torch;   // version, "" when unknown
  std::string path;    // of adapter.so
  std::string reason;  // one line that says what to do; "" when usable
  double seconds = 0;
  std::string folder() const;  // what FORESHOCK_ADAPTERS must name; "" when it has no path
  bool usable() const { return state == "ready" || state == "prebuilt" || state == "built"; }
};

// <cache>/adapters-<version of foreshock>-<hash of the adapter's sources>; "" when there is no home to put
// it.
std::string adapter_cache(const Installation& installation);

// Runs integrations/torch/build_adapter.py with `python`. Milliseconds when it is built already, else about a
// minute, and then says so on standard error. If `cache` is "" or cannot be written, a prebuilt adapter is
// linked in the base directory of runs (Adapter::path says where it is). `libtorch`: the directory of a
// LibTorch whose adapter is wanted; "": that of the torch of `python`.
Adapter prepare_adapter(const Installation& installation, const std::string& python, const std::string& cache,
                        const std::string& libtorch = "");

struct FoundLibtorch;

// For a program that is linked with LibTorch.
Adapter prepare_adapter_for(const Installation& installation, const FoundLibtorch& libtorch,
                            const std::string& cache);

// Which Python interpreter a command will use, found without running it.

struct FoundPython {
  std::string executable;            // absolute; "" when none was found
  bool certain = false;              // false: a guess, the python3 of PATH
  std::vector<std::string> options;  // words between the interpreter and its script, e.g. -I
};

// Looks through env, nice, numactl and their like; knows python itself, scripts by their first line
// (torchrun, accelerate and every other console script), and pip's /bin/sh form of long first lines.
FoundPython find_python(const std::vector<std::string>& command);

// "" when our Python helper comes in there (through PYTHONPATH and torch's entry points), else why it does
// not, what is missing then, and what to do.
std::string helper_problem(const FoundPython& python);

// True for env, nice, srun, mpirun and their like: programs that start the rest of their words.
bool starts_a_command(const std::string& program);

// `name` as the shell would find it; "" when it is not there. `path` as in PATH.
std::string look_up(const std::string& name, const std::string& path);

// The interpreter of a Python script and the options that its first line gives; empty if it is not Python's.
std::vector<std::string> script_command(const std::string& script, const std::string& path);

// Which LibTorch a command will use: that of a C++ trainer, found without running it.

struct FoundLibtorch {
  std::string program;  // absolute; "" when no word of the command is a program linked with LibTorch
  std::string library;  // the libtorch_cpu.so it will load; "" when the dynamic linker finds none
  std::string home;     // the directory with its include/ and lib/; "" when it has no headers beside it
};

// Asks the dynamic linker of each program among the words of `command`, so every rule of its own (RUNPATH,
// LD_LIBRARY_PATH, its cache) holds. Looks through env, mpirun and their like as find_python() does.
FoundLibtorch find_libtorch(const std::vector<std::string>& command);

// True for a program without a dynamic linker: nothing can be preloaded into it.
bool is_static_program(const std::string& path);

// The dynamic linker that the program at `path` names; "" for a script, a static program, anything else.
std::string program_interpreter(const std::string& path);

// The environment of a monitored command.

struct Monitored {
  std::string base, run_id, adapters;
};

// Ours, with LD_PRELOAD appended to (what the user preloads stays first), PYTHONPATH prepended to, and the
// FORESHOCK_ variables of the trainer set.
std::vector<std::string> command_environment(const Installation& installation, const Arguments& arguments,
                                             const Monitored& monitored);

// "" when a program started in `environment` loads our library, else why not. Runs /bin/true.
std::string preload_problem(const std::vector<std::string>& environment, const std::string& library);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_TORCH_H_
