// Saves unusual slices as files (--save-flagged): decides which slices are saved, makes the files, and writes
// them in a separate thread. A slice is a copied part of one attention call: a few query rows with all keys,
// or a few key positions (columns) with all rows. The agent has checked it against a reference in fp64. In
// its slot (a piece of shared memory), the trainer will soon store another slice.
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
#include "segment/reader.h"
#include "shadow/judgement.h"

namespace foreshock {

// The checksum in the JSON header of a file: its key, and the digits that stand there while it is computed.
inline constexpr std::string_view kChecksumKey = "\"checksum\":\"", kNoChecksum = "0000000000000000";

// Returns the offset of the checksum's 16 digits, which must be in the first `header` bytes; npos: not there.
inline size_t checksum_offset(std::string_view file, size_t header) {
  const size_t key = file.substr(0, header).find(kChecksumKey);
  const size_t offset = key == file.npos ? file.npos : key + kChecksumKey.size();
  return offset == file.npos || offset + kNoChecksum.size() > header ? file.npos : offset;
}

// Returns the checksum over all bytes of a file, with the digits at `offset` counted as zeros.
inline std::string checksum_of(std::string_view file, size_t offset) {
  const uint64_t before = fnv1a(kNoChecksum, fnv1a(file.substr(0, offset)));
  return hexadecimal(fnv1a(file.substr(offset + kNoChecksum.size()), before));
}

// Reasons to save a slice. A slice has one reason, the first that applies in this order. A control is an
// ordinary slice, to be compared with a flagged one.
enum class FlagReason : int { kNonfinite, kDeviationRatio, kBias, kOutputErrorDrift, kLogit, kControl };
inline constexpr size_t kFlagReasons = 6;
inline constexpr const char* kFlagReasonNames[kFlagReasons] = {
    "nonfinite", "deviation_ratio", "bias", "output_error_drift", "logit", "control"};

// A checked slice of query rows, with its result and the reference. The statistics of its layer and the
// detectors must already include it.
struct JudgedSlice {
  const AttentionSlice& slice;
  const SliceDeviation& deviation;
  const Reference& reference;
  const std::string& layer;  // label; empty: unknown
};

// The same for a checked slice of key positions.
struct JudgedColumns {
  const KeyColumns& columns;
  const ColumnDeviation& deviation;
  const ColumnReference& reference;
  const std::string& layer;
};

// Returns the reason to flag a slice, or nothing for an ordinary slice.
//  nonfinite           the slice, or another row of its heads, has NaN or Inf where the reference is finite
//  deviation_ratio     the slice's error, divided by that of a correct kernel, exceeds 4 times the alarm
//                      limit; or it exceeds the limit and the layer has this alarm, which needs two of the
//                      layer's last 64 slices, since one slice may exceed the limit by chance
//  bias                the layer has a bias alarm or (forward) the bias detector warns, and the slice's own
//                      bias is beyond the limit with the same sign
//  output_error_drift  backward: the detector with this name warns, and out is not the rounded reference
//  logit               forward: a detector of the largest logit warns; the kernel may be correct
// A slice equal to the rounded reference (fp64, rounded once) is never flagged as deviation_ratio, bias or
// output_error_drift.
std::optional<FlagReason> flag_reason(const JudgedSlice& judged, const RankStatistics& rank);

// Returns the reason to flag a slice of key positions, by its dK or dV: nonfinite (also in dQ, or at keys
// that were not sampled), deviation_ratio (the error divided by that of fused attention) or bias. An error in
// the sums of dK or dV over all keys of the call (conservation ratio) flags no slice.
std::optional<FlagReason> flag_reason(const JudgedColumns& judged, const RankStatistics& rank);
// Whether a slice that is not flagged is within the limits, so that it can be saved as a control.
bool is_fit_as_control(const SliceDeviation& deviation);
bool is_fit_as_control(const JudgedColumns& judged);

// A flagged slice becomes a safetensors file with a checksum over the whole file. The file name ends in:
inline constexpr const char* kFlaggedSuffix = ".slice.safetensors";

// Values of the metadata "schema": a slice of query rows, and a slice of key positions (columns).
inline constexpr const char *kSchemaOfRows = "1", *kSchemaOfColumns = "2";

// Returns the metadata key of a figure, a number of the slice's result. A slice of key positions has figures
// of two tensors, so their metadata keys contain the tensor's name.
inline std::string figure_key(JudgedTensor tensor, const Figure& figure) {
  const bool is_of_rows = tensor == JudgedTensor::kOut || tensor == JudgedTensor::kGradQuery;
  const std::string prefix =
      is_of_rows ? "" : std::string(kJudgedTensorNames[static_cast<uint32_t>(tensor)]) + ".";
  return "figure." + prefix + figure.name;
}

// A slice to be written, with copies of its arrays, because its slot is reused before the write has ended.
struct FlaggedSlice {
  struct Array {
    std::string name, type;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::string name;  // name of the file
  FlagReason reason = FlagReason::kControl;
  std::map<std::string, std::string> metadata;
  std::vector<Array> arrays;

  uint64_t bytes() const;  // total size of the arrays
};

// Copies the slice in a slot, with its result and origin. `segment` is the name of the slot's segment, the
// shared file of one trainer process.
FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedSlice& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment);
FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedColumns& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment);

// Writes flagged slices into a directory under a quota of bytes and files, which counts all slices in the
// directory. Finished files are never removed, so the first slices, which show how a fault started, stay. One
// thread. If several agents share the directory, each may exceed the quota by one file.
class FlaggedFolder {
 public:
  static constexpr uint64_t kMostFiles = 1000;
  static constexpr int64_t kAbandonedSeconds = 600;  // an unfinished file of this age is removed

  FlaggedFolder(std::string path, uint64_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {}

  virtual ~FlaggedFolder() = default;  // virtual, since a test overrides write()

  enum class Outcome { kWritten, kFull, kFailed };
  // Writes the file atomically. Creates the directory (0700) if it is missing, but not its parent. `name`
  // must have no slash and must end in kFlaggedSuffix. If the result is kFull (the quota is used up) or
  // kFailed, sets *error to the reason in one line.
  virtual Outcome write(const std::string& name, const std::string& bytes, std::string* error) const;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const uint64_t most_bytes_;
};

// Reasons why a flagged slice was not written to a file. kAlike: enough similar slices were saved before.
// kBusy: too many bytes wait for the disk. kQuota: the quota is used up. kError: writing failed.
enum class FlaggedDrop : int { kAlike, kBusy, kQuota, kError };
inline constexpr size_t kFlaggedDrops = 4;
inline constexpr const char* kFlaggedDropNames[kFlaggedDrops] = {"alike", "busy", "quota", "error"};

struct FlaggedCounts {
  std::array<uint64_t, kFlagReasons> saved = {};
  std::array<uint64_t, kFlaggedDrops> dropped = {};
  std::string problem;  // the last error, or its end, in one line; empty: no error
};

// Writes flagged slices in a separate thread, so that a slow or hanging disk delays only that thread.
class FlaggedWriter {
 public:
  static constexpr uint64_t kMostWaitingBytes = uint64_t{64} << 20;

  explicit FlaggedWriter(std::unique_ptr<const FlaggedFolder> folder);
  // Waits a short time for slices that are still to be written, but not for a hanging disk.
  ~FlaggedWriter();
  FlaggedWriter(const FlaggedWriter&) = delete;
  FlaggedWriter& operator=(const FlaggedWriter&) = delete;

  // Queues a slice without waiting; drops it (kBusy) if the queue is full. The first call starts the thread.
  void offer(FlaggedSlice slice);
  // Counts a dropped slice.
  void drop(FlaggedDrop why);
  // Waits until every offered slice is written or dropped. Returns false if `max_wait` is not long enough.
  bool wait(std::chrono::milliseconds max_wait);

  FlaggedCounts counts() const;
  const std::string& path() const;

 private:
  struct Shared;  // shared with the thread, which may outlive this object
  static void work(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// Chooses the checked slices of one run to be saved. A layer that stays faulty would fill any quota with
// similar slices. So for each rank, layer, pass and reason the first kAlwaysSaved (4) slices are saved, and
// then the 8th, 16th, 32nd, ... After the first flagged slice, one ordinary slice of the same rank, layer and
// pass (a "place") is saved as a control: it shows the kernel's correct result for similar inputs. One
// thread.
class FlaggedSlices {
 public:
  static constexpr uint64_t kAlwaysSaved = 4;
  static constexpr size_t kMostPlaces = 65536;

  FlaggedSlices(std::string path, uint64_t most_bytes)
      : writer_(std::make_unique<FlaggedFolder>(std::move(path), most_bytes)) {}

  // Decides whether to save the slice in `slot`, and saves it. The statistics and detectors of `rank` must
  // already include the slice. `judged` is a JudgedSlice or JudgedColumns.
  template <class Judged>
  void consider(const segment::Slot& slot, const Judged& judged, const LayerOfCall& layer,
                const RankStatistics& rank, const std::string& segment);

  FlaggedWriter& writer() { return writer_; }
  const FlaggedWriter& writer() const { return writer_; }

 private:
  struct Place {                                      // one rank, layer and pass
    std::array<uint64_t, kFlagReasons> flagged = {};  // flagged slices so far, by reason
    bool has_control = false;                         // a control was queued for writing
  };

  FlaggedWriter writer_;
  std::map<std::string, Place> places_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_H_
