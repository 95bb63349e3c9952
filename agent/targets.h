// Where Prometheus finds agents: the JSON of file_sd and http_sd, and the file.
#ifndef FORESHOCK_AGENT_TARGETS_H_
#define FORESHOCK_AGENT_TARGETS_H_

#include <string>
#include <vector>

namespace foreshock {

struct Target {
  std::string address;  // numeric, or unix:PATH, which Prometheus cannot ask
  int port = 0;
  std::string run;  // label of the one run it serves; empty: several
};

// One line. An address that stands for all of the host is told as the host's name. The run is told as
// __meta_foreshock_run, for relabelling: the series have it already.
std::string targets_json(const std::vector<Target>& targets);

// The file of file_sd: `path`, or, where that is a directory, a file in it for this run on this node. Several
// agents may be told the same path: the first one keeps the file, until it ends. One thread.
class TargetFile {
 public:
  TargetFile(const std::string& path, const std::string& run);
  ~TargetFile();
  TargetFile(const TargetFile&) = delete;
  TargetFile& operator=(const TargetFile&) = delete;

  // Replaces the file when it does not hold this text. "" when it does now, else why not.
  std::string write(const std::string& text);
  // Unless another agent keeps it.
  void remove();
  // In a directory, the files of agents of this host that were killed: nobody holds their lock any more. What
  // is not of an agent's making stays.
  void remove_abandoned() const;

 private:
  bool is_ours();

  std::string path_;
  bool is_in_directory_ = false;
  int lock_ = -1;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TARGETS_H_
