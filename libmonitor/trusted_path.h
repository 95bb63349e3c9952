// Finds out whether other users could replace a file that is to run in a training: an adapter, the library,
// the helper. The rule is that of OpenSSH: the file, every folder above it and every symbolic link on the way
// must belong to this user or to root, and must not be writable by group or others. A folder with the sticky
// bit, such as /tmp, may be writable, since a user cannot replace the entries of another user in it. What is
// writable by its group is accepted if the owner is the group's only member: on Debian, Ubuntu and Fedora
// each user has such a group, and Ubuntu's umask (002) makes every file writable by it.
#ifndef FORESHOCK_LIBMONITOR_TRUSTED_PATH_H_
#define FORESHOCK_LIBMONITOR_TRUSTED_PATH_H_

#include <sys/types.h>

namespace foreshock {

enum class Distrust {
  kNone,        // only this user and root can replace the file, or it does not exist
  kOwner,       // `where` belongs to user `owner`
  kWritable,    // `where` is writable by its group or by others
  kUnreadable,  // `where` cannot be examined, or the path is too long or has too many links
};

struct PathTrust {
  Distrust distrust = Distrust::kNone;
  uid_t owner = 0;        // of `where`
  char where[4096] = "";  // the first folder, link or file that is not trusted
};

// The files that list users and groups. They are read directly: the C library may ask a server, and load
// libraries for that. A user or group that is listed nowhere here has no private group.
struct AccountFiles {
  const char* users = "/etc/passwd";
  const char* groups = "/etc/group";
};

// Examines `path` from the root on. A component that does not exist ends the walk, since only a
// user who may write the trusted folder above can create it. In a user namespace, root may own files without
// being visible (they belong to the overflow user), so that user counts as root there. Allocates nothing;
// makes a system call for each component. For set-up only.
PathTrust path_trust(const char* path, const AccountFiles& accounts = {});

inline bool is_trusted(const char* path) { return path_trust(path).distrust == Distrust::kNone; }

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_TRUSTED_PATH_H_
