// Reads cores, CPU time and user names of this machine and process; sets priority and limit of open files.
#ifndef FORESHOCK_AGENT_NODE_H_
#define FORESHOCK_AGENT_NODE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace foreshock {

// Returns the number of cores that the ranks of this node and the agent share: the cores of this process's
// affinity mask, or the CPU quota of its cgroups if that is lower. At least 1.
int cores_of_node();

// Returns the smallest CPU quota, in cores, of this process's cgroups (v1 and v2) and their parents; infinity
// without a quota. `cgroups`: the file that lists these cgroups (/proc/self/cgroup). `root`: where they are
// mounted (/sys/fs/cgroup); in a cgroup namespace (container), the mount point is this process's cgroup.
double cgroup_cores(const std::string& cgroups, const std::string& root);

// Returns the inode number that identifies this process's pid namespace, or 0 if it cannot be read. The same
// pid means different processes in different namespaces, and containers normally have separate namespaces.
uint64_t pid_namespace();
// Returns the CPU time of this process (all threads), in seconds.
double process_cpu_seconds();
// Returns a user's name in /etc/passwd as a valid label value (Prometheus), else the user's number.
std::string user_name(uid_t user);

// Raises the limit of open files to at most 16384. The agent opens two files per live rank and three per run.
void raise_descriptor_limit();
// Gives this thread and the threads that it starts later the lowest CPU priority. If this process leads its
// session, also lowers the priority of the session, which Linux schedules as one group (autogroup).
void lower_priority();

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_NODE_H_
