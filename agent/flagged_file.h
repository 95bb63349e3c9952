// A flagged slice as a file: safetensors, that any tool reads, with a checksum over all of it.
#ifndef FORESHOCK_AGENT_FLAGGED_FILE_H_
#define FORESHOCK_AGENT_FLAGGED_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "agent/flagged_checksum.h"
#include "agent/flagged_reason.h"
#include "agent/slot_slice.h"
#include "segment/parser.h"

namespace foreshock {

// The end of every such file's name.
inline constexpr const char* kFlaggedSuffix = ".slice.safetensors";

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

// The bytes of the file.
std::string flagged_file(const FlaggedSlice& slice);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_FILE_H_
