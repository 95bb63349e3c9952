#include "cli/libtorch_finder.h"

#include <elf.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/process.h"
#include "cli/python_finder.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kListTimeoutMs = 20000;

// `libtorch_cpu.so => /opt/libtorch/lib/libtorch_cpu.so (0x...)`, or `=> not found`. False: not linked.
bool read_list(const std::string& list, std::string* library) {
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, arrow, path;
    words >> name >> arrow >> path;
    if (name.rfind("libtorch_cpu.so", 0) != 0 && name.find("/libtorch_cpu.so") == std::string::npos) continue;
    *library = arrow == "=>" ? (path[0] == '/' ? path : "") : name;
    return true;
  }
  return false;
}

bool lists_libtorch(const std::string& program, std::string* library) {
  const std::string linker = program_interpreter(program);
  if (linker.empty()) return false;
  // As ldd does it. Without a dynamic linker of its own the program would be run.
  std::vector<std::string> environment = own_environment();
  set_environment(&environment, "LD_TRACE_LOADED_OBJECTS", "1");
  const Captured list = run_and_capture({linker, program}, environment, kListTimeoutMs);
  return list.start_error == 0 && read_list(list.output, library);
}

// Headers lie beside the libraries: <home>/include, <home>/lib.
std::string home_of(const std::string& library) {
  std::error_code error;
  const fs::path home = fs::canonical(library, error).parent_path().parent_path();
  return !error && fs::exists(home / "include" / "ATen" / "ATen.h", error) ? home.string() : "";
}

bool read_header(std::ifstream* file, Elf64_Ehdr* header) {
  if (!file->read(reinterpret_cast<char*>(header), sizeof *header)) return false;
  return std::string(reinterpret_cast<char*>(header->e_ident), SELFMAG) == ELFMAG &&
         header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_phentsize == sizeof(Elf64_Phdr);
}

}  // namespace

std::string program_interpreter(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header = {};
  if (!read_header(&file, &header)) return "";
  for (int n = 0; n < header.e_phnum; ++n) {
    Elf64_Phdr part = {};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + n * sizeof part));
    if (!file.read(reinterpret_cast<char*>(&part), sizeof part)) return "";
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
  const char* path = std::getenv("PATH");
  for (size_t at = 0; at < command.size(); ++at) {
    const std::string program = look_up(command[at], path != nullptr ? path : "/usr/bin:/bin");
    std::string library;
    if (!program.empty() && lists_libtorch(program, &library)) {
      std::error_code ignored;
      return {fs::absolute(program, ignored), library, library.empty() ? "" : home_of(library)};
    }
    if (at == 0 && !starts_a_command(command[0])) break;
  }
  return {};
}

}  // namespace foreshock::cli
