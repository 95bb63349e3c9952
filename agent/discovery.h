// Finds the run directories of a tree, and the segments of a run directory, as they appear.
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

// The segments of one run directory.
class Discovery {
 public:
  // The directory outlives this.
  explicit Discovery(const Directory& directory) : directory_(directory) {}

  struct Refusal {
    std::string name;  // fit to be printed
    std::string why;
    bool is_waiting;  // only for now
  };

  // Segments not handed out before, at most `most`. What cannot be followed is added to `refused`, once; once
  // more, when what had to wait cannot be followed either.
  std::vector<std::unique_ptr<segment::SegmentReader>> look(size_t most, std::vector<Refusal>* refused);

  // Segments that the last look had no descriptors for: each look tries them again.
  size_t waiting() const { return waiting_.size(); }
  // Segments that the last look did not come to, since it had found as many as it may.
  size_t unread() const { return unread_; }

 private:
  std::unique_ptr<segment::SegmentReader> open(const std::string& name, bool* is_short,
                                               std::string* why) const;

  const Directory& directory_;
  std::set<std::string> known_;    // of those that are still there
  std::set<std::string> waiting_;  // none of those
  size_t unread_ = 0;
};

// A tree of run directories that an administrator has made: ROOT/<run id> or ROOT/<user>/<run id>. Finds
// those that a trainer or a launcher has begun to use. Everything in it may be hostile.
struct FoundRun {
  std::string label;   // <run id> or <user>/<run id>: where it lies in the tree
  std::string run_id;  // the last part
  std::unique_ptr<Directory> directory;
};

class Tree {
 public:
  // At once; more are left for when one of these has gone. One user cannot take the places of all.
  static constexpr size_t kMostRuns = 256;
  static constexpr size_t kMostRunsOfOne = 64;

  explicit Tree(std::unique_ptr<Directory> root) : root_(std::move(root)) {}

  // Directories to be followed that are not yet, or that stand where another one stood. A name that is no fit
  // label is refused: counted, never followed.
  std::vector<FoundRun> look();

  // What look() handed out and is not followed (any more): it is handed out again when something is made in
  // it, or at once when it was only `busy` (another agent holds it).
  void leave(const std::string& label, const Directory& directory, bool busy);

  uint64_t refused() const { return refused_; }

 private:
  struct Seen {
    struct stat status = {};
    bool followed = false, busy = false;  // neither: left until something is made in it
    bool settled = false;  // the last change was so long ago that the next one has another time stamp
    bool here = true;      // in the present round
  };
  // Whether there is a reason to look into a directory again.
  bool is_news(const std::string& label, const struct stat& now, size_t* of_one);
  void consider(const std::string& label, std::unique_ptr<Directory> directory, size_t* of_one);
  void look_into(const Directory& directory, const std::string& prefix, size_t* of_one);

  std::unique_ptr<Directory> root_;
  std::map<std::string, Seen> seen_;  // by label
  std::vector<FoundRun> found_;
  size_t followed_ = 0;
  bool was_read_ = true;  // in the present round, all that had to be
  uint64_t refused_ = 0;
};

// Whether a trainer or a launcher has left something here. `was_read`: whether that could be seen.
bool is_run_directory(const Directory& directory, bool* was_read);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DISCOVERY_H_
