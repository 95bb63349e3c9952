// Finds the torch that a command will use (Python's or LibTorch's), and finds or builds the adapter for it.
#ifndef FORESHOCK_CLI_TORCH_H_
#define FORESHOCK_CLI_TORCH_H_

#include <string>
#include <vector>

#include "cli/options.h"

namespace foreshock::cli {

struct Installation {
  std::string executable;       // <root>/bin/foreshock
  std::string library;          // <root>/lib/libforeshock.so, for LD_PRELOAD
  std::string python_helper;    // <root>/share/foreshock/python, for PYTHONPATH
  std::string adapter_sources;  // <root>/share/foreshock/torch
  std::string headers;          // <root>/include
};

Installation find_installation();

// "" if all files exist and the library can be preloaded, else what is wrong.
std::string installation_problem(const Installation& installation);

// The PyTorch adapter, built for the exact torch of one interpreter. It is built in a separate process, never
// in a trainer, and stored in a cache whose name has a hash of the sources.

struct Adapter {
  std::string state;   // ready, prebuilt, built, no_torch, unsupported, no_compiler, no_python, failed
  std::string torch;   // version, "" when unknown
  std::string path;    // path of adapter.so
  std::string reason;  // one line that says what to do; "" when usable
  double seconds = 0;  // that building or testing took
  std::string folder() const;  // the value for FORESHOCK_ADAPTERS; "" if `path` is empty
  bool usable() const { return state == "ready" || state == "prebuilt" || state == "built"; }
};

// <cache>/adapters-<version of foreshock>-<hash of the adapter's sources>; "" if no cache directory
// is known (neither FORESHOCK_CACHE, XDG_CACHE_HOME nor HOME).
std::string adapter_cache(const Installation& installation);

// Runs integrations/torch/build_adapter.py with `python`. Takes milliseconds if the adapter is built already,
// else about a minute, which is announced on standard error. If `cache` is "" or cannot be written, a
// prebuilt adapter is linked in the base directory of runs (see Adapter::path). `libtorch`: the directory of
// the LibTorch to build for; "": the torch of `python`.
Adapter prepare_adapter(const Installation& installation, const std::string& python, const std::string& cache,
                        const std::string& libtorch = "");

struct FoundLibtorch;

// Like prepare_adapter(), for a program that is linked with LibTorch; uses the python3 of PATH.
Adapter prepare_adapter_for(const Installation& installation, const FoundLibtorch& libtorch,
                            const std::string& cache);

// The Python interpreter that a command will use, found without running the command.

struct FoundPython {
  std::string executable;            // absolute; "" when none was found
  bool certain = false;              // false: a guess, the python3 of PATH
  std::vector<std::string> options;  // words between the interpreter and its script, e.g. -I
};

// Skips wrappers such as env, nice and numactl. Recognises python itself, scripts by their "#!" line
// (torchrun, accelerate and other console scripts), and the /bin/sh form that pip writes if that line would
// be too long.
FoundPython find_python(const std::vector<std::string>& command);

// "" if this interpreter will load our Python helper (through PYTHONPATH and torch's entry points), else why
// not, what is unknown then, and what to do.
std::string helper_problem(const FoundPython& python);

// True for wrappers such as env, nice, srun and mpirun, which start the command in their arguments.
bool starts_a_command(const std::string& program);

// The executable that the shell would find for `name`; "" if there is none. `path`: directories as in PATH.
std::string look_up(const std::string& name, const std::string& path);

// The interpreter and options in the first line of a Python script; empty if `script` is not one.
std::vector<std::string> script_command(const std::string& script, const std::string& path);

// The LibTorch that a C++ trainer will use, found without running it.

struct FoundLibtorch {
  std::string program;  // absolute; "" when no word of the command is a program linked with LibTorch
  std::string library;  // the libtorch_cpu.so it will load; "" when the dynamic linker finds none
  std::string home;     // the directory with include/ and lib/; "" if there are no headers
};

// Lets the dynamic linker of each program among the words of `command` list its libraries, so that all its
// rules (RUNPATH, LD_LIBRARY_PATH, cache) apply. Skips wrappers as find_python() does.
FoundLibtorch find_libtorch(const std::vector<std::string>& command);

// True for a program without a dynamic linker, into which nothing can be preloaded.
bool is_static_program(const std::string& path);

// The dynamic linker that the program at `path` names; "" for a script, a static program, anything else.
std::string program_interpreter(const std::string& path);

// The environment of a monitored command.

struct Monitored {
  std::string base, run_id, adapters;  // values of FORESHOCK_DIR, FORESHOCK_RUN_ID, FORESHOCK_ADAPTERS
};

// Our own environment, with our library at the end of LD_PRELOAD (the user's libraries stay first), our
// helper at the beginning of PYTHONPATH, and the FORESHOCK_ variables of the trainer.
std::vector<std::string> command_environment(const Installation& installation, const Arguments& arguments,
                                             const Monitored& monitored);

// Runs /bin/true. "" if a program started in `environment` loads our library, else why not.
std::string preload_problem(const std::vector<std::string>& environment, const std::string& library);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_TORCH_H_
