// A file that is still being written: whatever ends the process takes it along.
#ifndef FORESHOCK_CLI_UNFINISHED_FILE_H_
#define FORESHOCK_CLI_UNFINISHED_FILE_H_

#include <string>

namespace foreshock::cli {

// Removes the file when it ends, and when a signal (but SIGKILL) ends the process before. From the first one
// on a limit on the size of files (ulimit -f) is an error of write(), no signal. All of them from one thread.
class UnfinishedFile {
 public:
  // An empty one in this directory, under a name of its own, its owner's alone.
  explicit UnfinishedFile(const std::string& directory);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // To write it, closed by who takes it; -1: there is none, and errno says why.
  int descriptor() const { return descriptor_; }

  // Gives it its name, and it stays. False: errno says why.
  bool finish(const std::string& name);

 private:
  void leave_out();

  std::string path_;  // "": there is none, or it has its name
  int descriptor_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_UNFINISHED_FILE_H_
