// Finds the run directories of a tree, and the segments of a run directory, as they appear. A segment is a
// pair of files <name>.seg and <name>.ctl, through which a trainer process and the agent exchange data.
#ifndef FORESHOCK_AGENT_DISCOVERY_H_
#define FORESHOCK_AGENT_DISCOVERY_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/directory.h"
#include "segment/reader.h"

namespace foreshock {

// Finds the segments of one run directory.
class Discovery {
 public:
  // `directory` must outlive this object.
  explicit Discovery(const Directory& directory) : directory_(directory) {}

  struct Refusal {
    std::string name;  // safe to print
    std::string why;
    bool is_waiting;  // file descriptors or memory were short; the next find_new() tries the segment again
  };

  // Returns at most `most` segments that it has not returned before. A segment that cannot be followed is
  // added to `refused` once, and once more if it first had to wait (is_waiting) and then proves unusable.
  std::vector<std::unique_ptr<segment::SegmentReader>> find_new(size_t most, std::vector<Refusal>* refused);
  size_t waiting() const { return waiting_.size(); }  // segments that wait for descriptors or memory
  // Number of segments that the last find_new() did not try, because it had already found `most`.
  size_t untried() const { return untried_; }

 private:
  // Opens a segment, or returns null and sets *why and *is_short (descriptors or memory are short now).
  std::unique_ptr<segment::SegmentReader> open(const std::string& name, bool* is_short,
                                               std::string* why) const;

  const Directory& directory_;
  std::set<std::string> known_;    // existing .seg files that were returned, or refused as unusable
  std::set<std::string> waiting_;  // .seg files that the next find_new() tries again; not in known_
  size_t untried_ = 0;
};

// A run directory found in a tree.
struct FoundRun {
  std::string label;   // path below the root: <run id> or <user>/<run id>
  std::string run_id;  // last component of `label`
  std::unique_ptr<Directory> directory;
};

// Finds the run directories that a trainer or a launcher uses in a tree made by an administrator: ROOT/<run
// id> or ROOT/<user>/<run id>. Everything below ROOT may be made by hostile users.
class Tree {
 public:
  // Most runs followed at the same time: in the tree, and of one user. Further runs wait until others end.
  static constexpr size_t kMostRuns = 256;
  static constexpr size_t kMostRunsOfUser = 64;

  explicit Tree(std::unique_ptr<Directory> root) : root_(std::move(root)) {}

  // Returns run directories that are not followed yet, or that have replaced a followed one of the same name.
  // From then on the tree counts them as followed. A directory with an invalid name counts as refused.
  std::vector<FoundRun> find_new();

  // Must be called if the caller does not follow a returned directory, or stops following it. With `retry`,
  // the next find_new() returns the directory again: another agent serves it, or no file descriptor was free.
  // Without `retry`, find_new() returns it only after a file was created in it.
  void leave(const std::string& label, const Directory& directory, bool retry);

  uint64_t refused() const { return refused_; }

 private:
  struct Seen {
    struct stat status = {};               // of the directory, when it was last examined
    bool followed = false, retry = false;  // neither: the directory is ignored until a file is created in it
    bool settled = false;                  // any later change will give the directory another time stamp
    bool was_found = true;                 // the present find_new() has found the directory
  };
  // Whether a directory must be examined. If it is followed, adds 1 to *runs_of_user.
  bool needs_examination(const std::string& label, const struct stat& now, size_t* runs_of_user);
  // Adds a run directory to found_, unless its name is invalid or too many runs are followed.
  void examine(const std::string& label, std::unique_ptr<Directory> directory, size_t* runs_of_user);
  // Examines the directories in `directory`: the root (`prefix` is "") or a user's ("<user>/").
  void scan(const Directory& directory, const std::string& prefix, size_t* runs_of_user);

  std::unique_ptr<Directory> root_;
  std::map<std::string, Seen> seen_;  // by label
  std::vector<FoundRun> found_;       // result of the present find_new()
  size_t followed_ = 0;               // runs of the whole tree that are followed
  bool was_read_ = true;              // the present find_new() could read every directory
  uint64_t refused_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DISCOVERY_H_
