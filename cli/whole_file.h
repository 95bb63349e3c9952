// Writes a file so that it is either the old one or the new one, whole, whenever the process is stopped.
#ifndef FORESHOCK_CLI_WHOLE_FILE_H_
#define FORESHOCK_CLI_WHOLE_FILE_H_

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cli/unfinished_file.h"

namespace foreshock::cli {

// An empty string, or why no file can be written at `path`: to be told before the work is done.
std::string why_no_file(const std::string& path);

// A file that is written piece by piece, beside the one whose place it takes at the end. Links stay: what
// they lead to is written. A device, a pipe, or what is our own standard output or error (/dev/stdout) is
// merely written to, at once.
class WholeFile {
 public:
  // "" and "-": standard output.
  explicit WholeFile(const std::string& path);
  ~WholeFile();  // without finish() everything is as it was
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(std::string_view bytes);

  // Everything is on its way to the disk, and nobody sees it yet.
  void close();

  // It is there now, once and for all. Returns problem().
  const std::string& finish();

  // The first thing that went wrong, "" when nothing has: one line.
  const std::string& problem() const { return problem_; }

 private:
  int open_stream();
  int open_file();
  void fail(const std::string& why);

  const std::string path_;
  std::string target_;  // where it leads to
  std::optional<UnfinishedFile> unfinished_;
  FILE* file_ = nullptr;
  std::string problem_;
};

// An empty string, or what went wrong.
std::string write_whole_file(const std::string& path, std::string_view content);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_WHOLE_FILE_H_
