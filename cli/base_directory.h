// Where the runs of this user on this node lie: on tmpfs, because a store into a shared mapping of a file on
// disk can block the trainer in the kernel.
#ifndef FORESHOCK_CLI_BASE_DIRECTORY_H_
#define FORESHOCK_CLI_BASE_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace foreshock::cli {

struct BaseDirectory {
  std::string path;     // absolute; "" when there is none
  std::string problem;  // why there is none, and what to do
};

// FORESHOCK_DIR if set (itself when it is private to us, else foreshock-<uid> under it), else
// /dev/shm/foreshock-<uid>, else $XDG_RUNTIME_DIR/foreshock. Created with mode 0700 when missing.
BaseDirectory choose_base_directory();

// The candidates of choose_base_directory, for commands that only look. Nothing is created.
std::vector<std::string> base_directory_candidates();

// "" when `path` is (after creating it if need be) a directory of ours alone on tmpfs, else the reason.
std::string prepare_base_directory(const std::string& path);

// Bytes a user may still write on the file system of `path`; 0 when unknown.
uint64_t free_bytes(const std::string& path);

// Below this nothing is monitored: a segment without any slot takes about a quarter of it.
inline constexpr uint64_t kLeastFreeBytes = 4u << 20;

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_BASE_DIRECTORY_H_
