// A directory for one test, removed with it.
#ifndef FORESHOCK_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
#define FORESHOCK_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace foreshock {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent = std::filesystem::temp_directory_path()) {
    std::string name = parent + "/foreshock-test-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file) << text;
    chmod(file.c_str(), mode);
    return file;
  }

 private:
  std::string path_;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
