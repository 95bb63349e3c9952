// The directory of the flagged slices, under a quota that is never exceeded. What lies there is the user's:
// nothing finished is ever removed, so the first ones are kept, which show how it began.
#ifndef FORESHOCK_AGENT_FLAGGED_FOLDER_H_
#define FORESHOCK_AGENT_FLAGGED_FOLDER_H_

#include <cstdint>
#include <string>

namespace foreshock {

// Of all slices in the directory, whoever wrote them. One thread; several agents may share a directory, and
// each may then be one file beyond the quota.
class FlaggedFolder {
 public:
  static constexpr uint64_t kMostFiles = 1000;
  static constexpr int64_t kAbandonedSeconds = 600;  // a half-written file so old is nobody's any more

  FlaggedFolder(std::string path, uint64_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {}

  virtual ~FlaggedFolder() = default;

  enum class Outcome { kWritten, kFull, kFailed };
  // The whole file or none. The directory is made (0700) if need be, its parent is not. `name` has no slash
  // and ends in kFlaggedSuffix. Unless it is written, *error is why, in one line.
  virtual Outcome write(const std::string& name, const std::string& bytes, std::string* error) const;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const uint64_t most_bytes_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_FOLDER_H_
