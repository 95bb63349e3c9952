// Files of one folder that come into being together: all of them whole, or none.
#ifndef FORESHOCK_CLI_NEW_FILES_H_
#define FORESHOCK_CLI_NEW_FILES_H_

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/whole_file.h"

namespace foreshock::cli {

class NewFiles {
 public:
  explicit NewFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~NewFiles();  // without finish() nothing has become of them, nor of the folders that were made for them
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  bool has(const std::string& name) const { return files_.contains(name); }
  bool empty() const { return files_.empty(); }

  // Writes to the end of the file of that name, which may have folders in it. An empty string, or what went
  // wrong, in one line: a file that is there already is left alone.
  std::string write(const std::string& name, std::string_view bytes);

  // They are there now. An empty string, or what went wrong: then none of them is.
  std::string finish();

 private:
  std::string make_folders(const std::filesystem::path& folder);

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // folders, the deeper after those they are in
  std::map<std::string, WholeFile> files_;   // by name
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_NEW_FILES_H_
