#include "cli/launcher_id.h"

#include <unistd.h>

#include "agent/node.h"

namespace foreshock::cli {
namespace {

constexpr uint64_t kNamespaceOfNode = 0xEFFFFFFC;  // PROC_PID_INIT_INO; the others follow on it
constexpr int kBitsOfPid = 22;                     // PID_MAX_LIMIT

}  // namespace

uint64_t launcher_id(pid_t pid, uint64_t pid_namespace) {
  const uint64_t container = pid_namespace > kNamespaceOfNode ? pid_namespace - kNamespaceOfNode : 0;
  return container << kBitsOfPid | static_cast<uint64_t>(pid);
}

uint64_t launcher_id() { return launcher_id(getpid(), pid_namespace()); }

}  // namespace foreshock::cli
