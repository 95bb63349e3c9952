// Flagged slices of one run (--save-flagged): which of those that were judged go into a file.
#ifndef FORESHOCK_AGENT_FLAGGED_H_
#define FORESHOCK_AGENT_FLAGGED_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "agent/flagged_writer.h"

namespace foreshock {

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
                const RankStatistics& rank, const std::string& segment);

  FlaggedWriter& writer() { return writer_; }
  const FlaggedWriter& writer() const { return writer_; }

 private:
  struct Place {
    std::array<uint64_t, kFlagReasons> seen = {};
    bool has_control = false;
  };

  FlaggedWriter writer_;
  std::map<std::string, Place> places_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_H_
