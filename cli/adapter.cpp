#include "cli/adapter.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "segment/layout.h"
#include "cli/libtorch_finder.h"
#include "cli/process.h"
#include "cli/python_finder.h"
#include "cli/say.h"
#include "cli/version.h"
#include "libmonitor/options.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kBuildTimeoutMs = 15 * 60 * 1000;

std::string cache_root() {
  if (const char* given = option_value(OptionId::kCache); *given != '\0') return given;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/foreshock";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/foreshock";
  }
  return "";
}

// FNV-1a over the names and contents of the sources, so that an adapter never outlives what it was built
// from.
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
  uint64_t hash = fnv1a("");
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
  const size_t start = text.find_last_of('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}

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

}  // namespace

std::string adapter_cache(const Installation& installation) {
  const std::string root = cache_root();
  if (root.empty()) return "";
  return root + "/adapters-" + kVersion + "-" + hash_of_sources(installation);
}

Adapter prepare_adapter(const Installation& installation, const std::string& python, const std::string& cache,
                        const std::string& libtorch) {
  if (cache.empty())
    return {"failed", "", "", "there is no place for the adapter: set FORESHOCK_CACHE to a directory"};
  std::vector<std::string> command = {python,      installation.adapter_sources + "/build_adapter.py",
                                      "--cache",   cache,
                                      "--library", installation.library,
                                      "--include", installation.headers};
  if (!libtorch.empty()) command.insert(command.end(), {"--torch", libtorch});
  return read_answer(
      run_and_capture(command, own_environment(), kBuildTimeoutMs,
                      [] { say("preparing the adapter for this torch (once, about a minute) ..."); }),
      python);
}

Adapter prepare_adapter_for(const Installation& installation, const FoundLibtorch& libtorch,
                            const std::string& cache) {
  if (libtorch.library.empty())
    return {"failed", "", "", "the dynamic linker finds no libtorch_cpu.so for it; set LD_LIBRARY_PATH"};
  if (libtorch.home.empty())
    return {"failed", "", "", libtorch.library + " has no headers in ../include; install LibTorch whole"};
  const char* path = std::getenv("PATH");
  const std::string python = look_up("python3", path != nullptr ? path : "/usr/bin:/bin");
  if (python.empty())
    return {"no_python", "", "", "python3 builds the adapter, and there is none in PATH; install it"};
  return prepare_adapter(installation, python, cache, libtorch.home);
}

}  // namespace foreshock::cli
