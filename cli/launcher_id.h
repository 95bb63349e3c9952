// The number by which a run directory knows a `foreshock run`.
#ifndef FORESHOCK_CLI_LAUNCHER_ID_H_
#define FORESHOCK_CLI_LAUNCHER_ID_H_

#include <sys/types.h>

#include <cstdint>

namespace foreshock::cli {

// Of this process: no other one that lives on this node has it, whichever container it is in. Below 2^53,
// never 0.
uint64_t launcher_id();

// The same of any process. `pid_namespace`: its inode; 0: unknown.
uint64_t launcher_id(pid_t pid, uint64_t pid_namespace);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_LAUNCHER_ID_H_
