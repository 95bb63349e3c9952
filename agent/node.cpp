// Reads the cores, CPU time, users and limits of this machine and process, and sets priority and limits.
#include "agent/node.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "exporters/metrics.h"

namespace foreshock {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

double cores_of_v2_cgroup(const std::string& directory) {
  double quota = 0, period = 0;  // without a quota cpu.max begins with "max", not a number
  std::ifstream limit(directory + "/cpu.max");
  return limit >> quota >> period && period > 0 ? quota / period : kUnlimited;
}

double cores_of_v1_cgroup(const std::string& directory) {
  double quota = 0, period = 0;
  std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  return quota > 0 && period > 0 ? quota / period : kUnlimited;  // a quota of -1 means no limit
}

// Returns the smallest limit of the cgroup root + path and of every cgroup above it up to `root`. cores_of()
// returns the limit of one cgroup: no limit if its directory is not visible here.
double smallest_limit(const std::string& root, const std::string& path,
                      double (*cores_of)(const std::string&)) {
  std::string directory = root + path;
  for (double cores = kUnlimited;; directory.resize(directory.rfind('/'))) {
    cores = std::min(cores, cores_of(directory));
    if (directory.size() <= root.size()) return cores;
  }
}

}  // namespace

int cores_of_node() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = cgroup_cores("/proc/self/cgroup", "/sys/fs/cgroup");  // infinite without a limit
  return quota < cores ? std::max(static_cast<int>(quota), 1) : cores;
}

// `cgroups`: the file that lists this process's cgroups. `root`: the directory where cgroups are mounted; in
// a cgroup namespace it is this process's own cgroup.
double cgroup_cores(const std::string& cgroups, const std::string& root) {
  double cores = smallest_limit(root, "", cores_of_v2_cgroup);
  std::ifstream file(cgroups);
  for (std::string line; std::getline(file, line);) {  // "number:controllers:path", for v2 "0::path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    if (line.starts_with("0::")) cores = std::min(cores, smallest_limit(root, path, cores_of_v2_cgroup));
    // A hierarchy of v1 is mounted in a directory with the names of its controllers, such as cpu,cpuacct.
    if (std::string(",").append(controllers).append(",").find(",cpu,") != std::string::npos)
      cores = std::min(cores, smallest_limit(root + "/" + controllers, path, cores_of_v1_cgroup));
  }
  return cores;
}

uint64_t pid_namespace() {
  struct stat status = {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

double process_cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Reads /etc/passwd itself: getpwuid() would load NSS libraries, which a statically linked program cannot do.
std::string user_name(uid_t user) {
  std::ifstream users("/etc/passwd");
  for (std::string line; std::getline(users, line);) {
    std::istringstream fields(line);
    std::string name, password, number;
    if (std::getline(fields, name, ':') && std::getline(fields, password, ':') &&
        std::getline(fields, number, ':') && number == std::to_string(user))
      return label_text(name);  // valid as the label of a metric
  }
  return std::to_string(user);
}

void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 1 << 14;  // two files per live rank, three per run
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// With the kernel's autogroup, nice values count only within a session, so the session gets a nice value too.
// This value is 10 and not 19 because the HTTP thread is in the same session: on two busy cores, one scrape
// in ten took over 100 ms (at most 535) with 19, and none over 50 ms with 10 (Linux 6.18). If another process
// leads the session (the agent was started by hand or by a job's script), the session is not changed, since
// its other processes would become slower too.
void lower_priority() {
  setpriority(PRIO_PROCESS, 0, 19);  // on Linux, only of this thread and of those that it starts later
  if (getsid(0) == getpid()) std::ofstream("/proc/self/autogroup") << "10";
}

}  // namespace foreshock
