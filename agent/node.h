// What the agent needs to know of the machine and of itself.
#ifndef FORESHOCK_AGENT_NODE_H_
#define FORESHOCK_AGENT_NODE_H_

namespace foreshock {

// Cores that the ranks of this node and the agent share: affinity, bounded by the cgroup's quota. At least 1.
int cores_of_node();

// CPU time of this process, all threads, in seconds.
double process_cpu_seconds();

// CPU time of the calling thread, in seconds.
double thread_cpu_seconds();

// Makes the calling thread give way to everything else on the node.
void be_nice();

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_NODE_H_
