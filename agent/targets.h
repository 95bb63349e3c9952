// Where Prometheus finds agents: the JSON of file_sd and http_sd.
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

// Replaces the file when it does not hold this text. False when it cannot be written.
bool write_targets(const std::string& path, const std::string& text);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TARGETS_H_
