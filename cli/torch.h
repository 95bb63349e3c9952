// Finds the torch that a command will use: the torch of its Python, or the LibTorch that a C++ program is
// linked with. Finds or builds the adapter for that torch. Makes the environment of a monitored command.
#ifndef FORESHOCK_CLI_TORCH_H_
#define FORESHOCK_CLI_TORCH_H_

#include <string>
#include <vector>

#include "cli/options.h"

namespace foreshock::cli {

// The files of foreshock, relative to the directory <root> that has bin/foreshock.
struct Installation {
  std::string executable;       // <root>/bin/foreshock
  std::string library;          // <root>/lib/libforeshock.so, which the helper loads, or LD_PRELOAD
  std::string python_helper;    // <root>/share/foreshock/python, for PYTHONPATH: hooks torch's optimizers
  std::string adapter_sources;  // <root>/share/foreshock/torch, with build_adapter.py
  std::string headers;          // <root>/include
};

Installation find_installation();

// Returns "" if all files exist and other users cannot change them, else what is wrong. Creates the folders
// for the helper's bytecode.
std::string installation_problem(const Installation& installation);

// The library that connects libforeshock.so with one exact version of torch. Never built inside a trainer.
struct Adapter {
  // Usable: ready (in the cache), prebuilt (in the package), built (just now). Not usable: no_torch,
  // unsupported, no_compiler, no_python, failed.
  std::string state;
  std::string torch;           // version of torch; "": unknown
  std::string path;            // path of adapter.so; "": it is missing
  std::string reason;          // one line that says what to do; "" if the adapter is usable
  double seconds = 0;          // time spent on building or testing
  std::string folder() const;  // the cache in which `path` is, for FORESHOCK_ADAPTERS; "": `path` is empty
  bool usable() const { return state == "ready" || state == "prebuilt" || state == "built"; }
};

// Returns the directory that caches adapters: adapters-<version of foreshock>-<processor>-<hash of the
// adapter's sources> in the user's cache. Returns "" if none of FORESHOCK_CACHE, XDG_CACHE_HOME and HOME is
// set.
std::string adapter_cache(const Installation& installation);

// Runs build_adapter.py with the interpreter `python`. Takes milliseconds if `cache` has the adapter. A build
// takes about a minute and is announced on standard error. If `cache` is "" or cannot be written, only a
// prebuilt adapter of the package can be used, by a symbolic link in the directory that has all runs.
// `libtorch`: the directory of the LibTorch to build for; "": the torch of `python`.
Adapter prepare_adapter(const Installation& installation, const std::string& python, const std::string& cache,
                        const std::string& libtorch = "");

struct FoundLibtorch;

// Like prepare_adapter(), for a program that is linked with LibTorch. Uses the python3 of PATH.
Adapter prepare_adapter_for(const Installation& installation, const FoundLibtorch& libtorch,
                            const std::string& cache);

// The Python interpreter that a command will use, found without running the command.
struct FoundPython {
  std::string executable;            // absolute; "": none was found
  bool certain = false;              // false: `executable` is a guess, the python3 of PATH
  std::vector<std::string> options;  // options of the interpreter, e.g. -I, without their values
};

// Finds the interpreter of a command. Skips wrappers such as env, nice and numactl. Recognizes python itself,
// scripts with a "#!" line (torchrun, accelerate and other console scripts), and the /bin/sh form that pip
// writes if that line would be too long.
FoundPython find_python(const std::vector<std::string>& command);

// Returns "" if this interpreter will load our Python helper, which PYTHONPATH makes visible and torch
// imports as an entry point. If not, returns why, and what to do.
std::string helper_problem(const FoundPython& python);

// Whether `program` is a wrapper, such as env, nice, srun or mpirun, that starts another command.
bool starts_a_command(const std::string& program);

// Returns the executable that a shell finds for `name` with `path` as PATH; "" if no folder has it.
std::string look_up(const std::string& name, const std::string& path);

// The LibTorch that a C++ trainer will use, found without running the trainer.
struct FoundLibtorch {
  std::string program;       // absolute; "": no word of the command is a program linked with LibTorch
  std::string library;       // the libtorch_cpu.so that it will load; "": the dynamic linker finds none
  std::string home;          // the directory with include/ and lib/; "" if there are no headers
  bool has_monitor = false;  // the program loads libforeshock.so too: it is linked with it, or preloads it
};

// Finds the LibTorch of a command. Skips wrappers as find_python() does. The program's own dynamic linker
// lists its libraries, so that the linker's rules (RUNPATH, LD_LIBRARY_PATH, cache) apply.
FoundLibtorch find_libtorch(const std::vector<std::string>& command);

// Returns "" if the program will load libforeshock.so without --preload, or if there is no such program; else
// what to do.
std::string link_problem(const FoundLibtorch& libtorch);

// Whether the program has no dynamic linker, so that no library can be preloaded.
bool is_static_program(const std::string& path);

// Returns the dynamic linker that a program names; "" if it names none (a script, a static program).
std::string program_interpreter(const std::string& path);

// The environment variables of a monitored command that depend on the run.
struct RunVariables {
  std::string base;      // FORESHOCK_DIR: the directory that has a directory for each run
  std::string run_id;    // FORESHOCK_RUN_ID
  std::string adapters;  // FORESHOCK_ADAPTERS: the directory that has the adapter
};

// Returns the environment of the command: ours, with our helper first in PYTHONPATH, and the FORESHOCK_
// variables of the trainer. With --preload, libforeshock.so is at the end of LD_PRELOAD (the user's libraries
// stay first).
std::vector<std::string> command_environment(const Installation& installation, const Arguments& arguments,
                                             const RunVariables& variables);

// Runs /bin/true in `environment`. Returns "" if that process loads our library, else the reason.
std::string preload_problem(const std::vector<std::string>& environment, const std::string& library);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_TORCH_H_
