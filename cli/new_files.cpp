#include "cli/new_files.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

std::string told(const std::string& problem) {
  return problem.empty() ? ""
                         : problem + "; none of the files is there: mend that, or choose another directory";
}

}  // namespace

NewFiles::~NewFiles() {
  files_.clear();
  std::error_code ignored;
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder)
    fs::remove(*folder, ignored);  // if empty
}

std::string NewFiles::make_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::exists(folder, error)) return "";
  if (std::string problem = make_folders(folder.parent_path()); !problem.empty()) return problem;
  if (fs::create_directory(folder, error)) made_.push_back(folder);
  return error ? "cannot make " + folder.string() + ": " + error.message() : "";
}

std::string NewFiles::write(const std::string& name, std::string_view bytes) {
  auto file = files_.find(name);
  if (file == files_.end()) {
    const fs::path path = folder_ / name;
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path.string() + ": is there already; choose another directory";
    if (const std::string problem = make_folders(path.parent_path()); !problem.empty()) return told(problem);
    file = files_.try_emplace(name, path.string()).first;
  }
  file->second.write(bytes);
  return told(file->second.problem());
}

std::string NewFiles::finish() {
  for (auto& [name, file] : files_) {
    file.close();
    if (!file.problem().empty()) return told(file.problem());
  }
  std::vector<fs::path> there;
  for (auto& [name, file] : files_) {
    if (!file.finish().empty()) {
      std::error_code ignored;
      for (const fs::path& path : there) fs::remove(path, ignored);
      return told(file.problem());
    }
    there.push_back(folder_ / name);
  }
  made_.clear();
  return "";
}

}  // namespace foreshock::cli
