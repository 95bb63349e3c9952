// Keeps slices that are out of the ordinary: why one is kept, how many, its file, and the thread that writes
// it.
#ifndef FORESHOCK_AGENT_FLAGGED_H_
#define FORESHOCK_AGENT_FLAGGED_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/rank_state.h"
#include "segment/layout.h"
#include "segment/parser.h"
#include "shadow/judgement.h"

namespace foreshock {

inline constexpr std::string_view kChecksumKey = "\"checksum\":\"", kNoChecksum = "0000000000000000";

// Where its 16 digits stand in the first `header` bytes of a file; npos: nowhere.
inline size_t checksum_place(std::string_view file, size_t header) {
  const size_t key = file.substr(0, header).find(kChecksumKey);
  const size_t place = key == file.npos ? file.npos : key + kChecksumKey.size();
  return place == file.npos || place + kNoChecksum.size() > header ? file.npos : place;
}

// Over all bytes, zeros in the place of the digits.
inline std::string checksum_of(std::string_view file, size_t place) {
  const uint64_t before = fnv1a(kNoChecksum, fnv1a(file.substr(0, place)));
  return hexadecimal(fnv1a(file.substr(place + kNoChecksum.size()), before));
}

// Which slices are worth keeping (--save-flagged), and why.

// In the order in which they are looked for: a slice has one reason.
enum class FlagReason : int { kNonfinite, kDeviationRatio, kBias, kOutputErrorDrift, kLogit, kControl };
inline constexpr size_t kFlagReasons = 6;
inline constexpr const char* kFlagReasonNames[kFlagReasons] = {
    "nonfinite", "deviation_ratio", "bias", "output_error_drift", "logit", "control"};

// A slice that was judged, after the statistics of its layer and the detectors have taken it in.
struct JudgedSlice {
  const AttentionSlice& slice;
  const SliceDeviation& deviation;
  const Reference& reference;
  const std::string& layer;  // label; empty: unknown
};

// A slice of key positions, likewise.
struct JudgedColumns {
  const KeyColumns& columns;
  const ColumnDeviation& deviation;
  const ColumnReference& reference;
  const std::string& layer;
};

// What is out of the ordinary about it:
//  nonfinite           NaN or Inf where the reference is finite;
//  deviation_ratio     its error over a noise floor is beyond the limit and so are others of its layer's last
//  64 (one may be so
//                      by chance), or it is far beyond at once;
//  bias                its layer's bias is an alarm, or the detector warns, and this slice errs that way;
//  output_error_drift  the detector warns (backward), and the output is not the exact result merely rounded;
//  logit               a detector of the largest logit warns (forward): the kernel need not be at fault.
// The rounded reference is never flagged for the first four. Nothing: an ordinary slice.
std::optional<FlagReason> flag_reason(const JudgedSlice& judged, const RankStatistics& rank);

// Of dK or dV: nonfinite (also of dQ or at keys that were not sampled), deviation_ratio (the fused ratio, by
// the limits of dK and dV) and bias. What all keys conserve flags no slice.
std::optional<FlagReason> flag_reason(const JudgedColumns& judged, const RankStatistics& rank);

// Whether a slice that is not flagged can stand beside one as it should have been.
bool is_fit_as_control(const SliceDeviation& deviation);
bool is_fit_as_control(const JudgedColumns& judged);

// A flagged slice as a file: safetensors, that any tool reads, with a checksum over all of it.

// The end of every such file's name.
inline constexpr const char* kFlaggedSuffix = ".slice.safetensors";

inline constexpr const char *kSchemaOfRows = "1", *kSchemaOfColumns = "2";

// Where a figure of the judgement stands in the metadata. A slice of key positions has those of two tensors.
inline std::string figure_key(JudgedTensor tensor, const Figure& figure) {
  const bool is_alone = tensor == JudgedTensor::kOut || tensor == JudgedTensor::kGradQuery;
  return std::string("figure.") +
         (is_alone ? "" : kJudgedTensorNames[static_cast<uint32_t>(tensor)] + std::string(".")) + figure.name;
}

// Owns what it holds: it waits for its disk while the slot is used again.
struct FlaggedSlice {
  struct Array {
    std::string name, type;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::string name;  // of the file
  FlagReason reason = FlagReason::kControl;
  std::map<std::string, std::string> metadata;
  std::vector<Array> arrays;

  uint64_t bytes() const;  // of the arrays
};

// A copy of a slot's slice, with everything that is known of it. `segment`: name of the segment it came from.
FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedSlice& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment);
FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedColumns& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment);

// The bytes of the file.
std::string flagged_file(const FlaggedSlice& slice);

// The directory of the flagged slices, under a quota that is never exceeded. What lies there is the user's:
// nothing finished is ever removed, so the first ones are kept, which show how it began.

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

// Writes flagged slices on a thread of its own: a disk that is slow or hangs holds up that thread alone.

// Why a slice that was flagged is in no file.
enum class FlaggedDrop : int { kAlike, kBusy, kQuota, kError };
inline constexpr size_t kFlaggedDrops = 4;
inline constexpr const char* kFlaggedDropNames[kFlaggedDrops] = {"alike", "busy", "quota", "error"};

struct FlaggedCounts {
  std::array<uint64_t, kFlagReasons> saved = {};
  std::array<uint64_t, kFlaggedDrops> dropped = {};
  std::string problem;  // the last one, in one line; empty: none
};

class FlaggedWriter {
 public:
  static constexpr uint64_t kMostWaitingBytes = uint64_t{64} << 20;

  explicit FlaggedWriter(std::unique_ptr<const FlaggedFolder> folder);
  // Waits a little for what is still to be written, not for a disk that hangs.
  ~FlaggedWriter();
  FlaggedWriter(const FlaggedWriter&) = delete;
  FlaggedWriter& operator=(const FlaggedWriter&) = delete;

  // Never waits. What finds too much waiting already is dropped, kBusy. The thread begins with the first one.
  void offer(FlaggedSlice slice);
  void drop(FlaggedDrop why);

  // Until everything offered is written or dropped. False: not within this time.
  bool wait(std::chrono::milliseconds most);

  FlaggedCounts counts() const;
  const std::string& path() const;

 private:
  struct Shared;  // with the thread, which may outlive this
  static void work(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// Flagged slices of one run (--save-flagged): which of those that were judged go into a file.

// One thread. A layer that stays wrong would fill any quota within minutes with the same again: of slices of
// one rank, layer, pass and reason the first four are kept, and then the 8th, 16th, 32nd, ... And of each
// flagged rank, layer and pass one ordinary slice, the first that comes after: what the kernel made of like
// inputs when all was well.
class FlaggedSlices {
 public:
  static constexpr uint64_t kFirst = 4;
  static constexpr size_t kMostPlaces = 65536;  // that are told apart

  FlaggedSlices(std::string path, uint64_t most_bytes)
      : writer_(std::make_unique<FlaggedFolder>(std::move(path), most_bytes)) {}

  // After the statistics and detectors of `rank` have taken in the slice of `slot`. Costs a copy if it is
  // kept.
  void consider(const segment::Slot& slot, const JudgedSlice& judged, const LayerOfCall& layer,
                const RankStatistics& rank, const std::string& segment) {
    consider_either(slot, judged, layer, rank, segment);
  }
  void consider(const segment::Slot& slot, const JudgedColumns& judged, const LayerOfCall& layer,
                const RankStatistics& rank, const std::string& segment) {
    consider_either(slot, judged, layer, rank, segment);
  }

  FlaggedWriter& writer() { return writer_; }
  const FlaggedWriter& writer() const { return writer_; }

 private:
  struct Place {
    std::array<uint64_t, kFlagReasons> seen = {};
    bool has_control = false;
  };

  template <class Judged>
  void consider_either(const segment::Slot& slot, const Judged& judged, const LayerOfCall& layer,
                       const RankStatistics& rank, const std::string& segment);

  FlaggedWriter writer_;
  std::map<std::string, Place> places_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_H_
