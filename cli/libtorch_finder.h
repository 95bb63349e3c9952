// Which LibTorch a command will use: that of a C++ trainer, found without running it.
#ifndef FORESHOCK_CLI_LIBTORCH_FINDER_H_
#define FORESHOCK_CLI_LIBTORCH_FINDER_H_

#include <string>
#include <vector>

namespace foreshock::cli {

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

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_LIBTORCH_FINDER_H_
