// What the agent needs to know of the machine and of itself.
#ifndef FORESHOCK_AGENT_NODE_H_
#define FORESHOCK_AGENT_NODE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace foreshock {

// Cores that the ranks of this node and the agent share: affinity, bounded by the cgroup's quota. At least 1.
int cores_of_node();

// The tightest quota of our cgroups (both versions) and of those above them; infinite without one. `cgroups`
// is the file that names ours: outside a cgroup namespace (Slurm, systemd) the limit is not at the root.
double cgroup_cores(const std::string& cgroups, const std::string& root);

// The number of the pid namespace that this process is in; 0 where the kernel does not say. A pid names a
// process within its namespace only: containers have one each.
uint64_t pid_namespace();

// CPU time of this process, all threads, in seconds.
double process_cpu_seconds();

// CPU time of the calling thread, in seconds.
double thread_cpu_seconds();

// The name of a user, fit for a label; the number where it has none.
std::string user_name(uid_t user);

// Raises the limit of descriptors as far as the node allows, and we have use for: two for each rank that
// lives, three for each run.
void raise_descriptor_limit();

// Makes the calling thread give way to everything else on the node.
void be_nice();

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_NODE_H_
