// Reads facts about the machine and this process: cores, CPU time, users, limits.
#ifndef FORESHOCK_AGENT_NODE_H_
#define FORESHOCK_AGENT_NODE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace foreshock {

// Returns the number of cores that the ranks of this node and the agent share: the affinity mask, limited by
// the cgroup's quota. At least 1.
int cores_of_node();

// Returns the smallest CPU quota, in cores, of this process's cgroups (v1 and v2) and their parents; infinite
// without a quota. `cgroups` is the file that lists this process's cgroups (/proc/self/cgroup); their folders
// are below `root` (/sys/fs/cgroup). In a container, the folder of the only cgroup is `root` itself.
double cgroup_cores(const std::string& cgroups, const std::string& root);

// Returns the number of this process's pid namespace, or 0 if the kernel does not report it. A pid is valid
// only within its namespace, and every container has a separate one.
uint64_t pid_namespace();
// Return the CPU time of this process (all threads) and of the calling thread, in seconds.
double process_cpu_seconds();
double thread_cpu_seconds();
// Returns the name of a user in /etc/passwd as a valid label, or the user's number if there is no entry.
std::string user_name(uid_t user);

// Raises the limit of open files to at most 16384. The agent opens two files per live rank and three per run.
void raise_descriptor_limit();
// Gives the calling thread the lowest CPU priority, which threads that it starts later inherit.
void be_nice();

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_NODE_H_
