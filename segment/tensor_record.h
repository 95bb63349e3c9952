// What a trainer says of one tensor of its model after an optimizer step. Records of different lengths lie in
// a ring of bytes (the region kTensors): one writer, one reader, nothing is overwritten before it was read.
#ifndef FORESHOCK_SEGMENT_TENSOR_RECORD_H_
#define FORESHOCK_SEGMENT_TENSOR_RECORD_H_

#include <cstdint>

#include "segment/layout.h"

namespace foreshock::segment {

// Why a tensor whose turn it was is left out: a closed set, also the order of the counters.
enum TensorSkip : uint32_t {
  kTensorBudget,
  kTensorRingFull,      // the agent has not read what lies there
  kTensorTooLarge,      // its record would not fit into the ring at all
  kTensorDevice,        // its values lie on a device that cannot be asked, or that never answered
  kTensorFormat,        // none that is counted here: fp64, integers, packed formats
  kTensorLayout,        // its values are no dense block of memory, or not what was named
  kTensorUnknown,       // it was not shown: its optimizer left the step out, or is not as we know them
  kTensorCapture,       // the stream of its device was being captured into a graph
  kTensorDeviceMemory,  // too little memory was free on its device
  kTensorDeviceFull,    // nothing was free there now of what results wait in; or it was being set up
  kTensorSkips
};
inline constexpr uint32_t kTensorFirstSkips = kTensorCapture;  // those that have always been counted
inline constexpr const char* kTensorSkipNames[kTensorSkips] = {
    "budget", "ring_full", "too_large", "device",        "format",
    "layout", "unknown",   "capture",   "device_memory", "device_full"};

// Why a tensor that an optimizer steps never has a turn.
enum TensorUnfollowed : uint32_t {
  kUnfollowedOff,        // --weights off
  kUnfollowedNoRoom,     // too little shared memory for a ring
  kUnfollowedTooMany,    // beyond what a table holds
  kUnfollowedFlat,       // made of many parameters: of FSDP1, say
  kUnfollowedPlacement,  // which part of it is on this rank cannot be told
  kUnfollowedPace,       // of an optimizer that steps at another pace than the one that counts the steps
  kTensorUnfollowed
};
inline constexpr const char* kTensorUnfollowedNames[kTensorUnfollowed] = {
    "off", "no_room", "too_many", "flat_parameter", "placement", "own_pace"};

// Why a projection of queries or keys was shown without the rows of its heads.
enum TensorHeadSkip : uint32_t {
  kHeadsSharded,   // only a part of it is on this rank
  kHeadsRingFull,  // there was no room for them in this piece of the ring
  kHeadsShape,     // its shape is not what its name and the sampled calls of attention ask for
  kHeadsTooLarge,  // they and the rest of the record would not fit into the ring at all
  kHeadsDevice,    // the tensor lies on a device, and is too large for its values to be fetched
  kTensorHeadSkips
};
inline constexpr uint32_t kTensorFirstHeadSkips = kHeadsDevice;
inline constexpr const char* kTensorHeadSkipNames[kTensorHeadSkips] = {"sharded", "ring_full", "shape",
                                                                       "too_large", "device"};

inline constexpr uint32_t kTensorDims = 4;
inline constexpr uint64_t kTensorAlign = 64;

// At the front of the region; records begin right after it.
struct TensorRing {
  uint64_t written;   // bytes of all records so far, fillers included; stored last, with release order
  uint64_t interval;  // steps between two snapshots of a tensor; 0: none are taken
  uint64_t tensors, elements;  // named, as far as this rank holds them
  uint64_t taken;              // records of tensors so far
  uint64_t skipped[kTensorFirstSkips];
  uint64_t heads_skipped[kTensorFirstHeadSkips];
  uint64_t due;  // turns so far: taken + skipped + awaited, but for those of the step that is being taken
  uint64_t unfollowed[kTensorUnfollowed];  // tensors of the table that was named last
  // Behind here 0 of a trainer that does not know them.
  uint64_t later_skipped[kTensorSkips - kTensorFirstSkips];
  uint64_t later_heads_skipped[kTensorHeadSkips - kTensorFirstHeadSkips];
  uint64_t awaited;  // turns whose results a device has not brought yet
  uint64_t reserved[4];

  const uint64_t& skips(uint32_t reason) const {
    return reason < kTensorFirstSkips ? skipped[reason] : later_skipped[reason - kTensorFirstSkips];
  }
  const uint64_t& head_skips(uint32_t reason) const {
    return reason < kTensorFirstHeadSkips ? heads_skipped[reason]
                                          : later_heads_skipped[reason - kTensorFirstHeadSkips];
  }
};
static_assert(sizeof(TensorRing) == 256);
// A region of this size counts and holds no record.
inline constexpr uint64_t kTensorHeadOnly = sizeof(TensorRing) + kTensorAlign;

enum class TensorKind : uint32_t {
  kFiller = 0,  // up to the end of the ring: the next record begins at its front
  kSnapshot = 1,
};

// How a tensor's values are told.
enum class HistogramForm : uint32_t {
  kNone = 0,
  kValues = 1,    // themselves, of a small tensor, in the order of memory
  kPatterns = 2,  // 16-bit formats: pairs of numbers, distance to the next pattern and its count
  kBins = 3,      // fp32: triples, distance to the next word of kernels/histogram.h, its count and residual
};

enum TensorPayloadId : uint32_t {
  kTensorHistogram,
  kTensorReductions,  // fp64 numbers, TensorReduction says which
  kTensorOptimizer,   // tensor_optimizer.h
  kTensorHeadRows,    // tensor_heads.h
  kTensorPayloads = 8
};

// Places in the payload kTensorReductions; NaN: not known. They may be appended to.
enum TensorReduction : uint32_t {
  kSumOfSquares,        // of the values after the step; NaN and Inf included
  kUpdateSumMagnitude,  // of the change that this one step made
  kUpdateSumOfSquares,
  kUpdateMaxMagnitude,
  kUpdateElements,       // the update's three are of so many of the part's elements, spread evenly over it
  kUpdatedSumOfSquares,  // of the values of these after the step
  kTensorReductionCount
};

struct TensorRecord {
  uint64_t bytes;  // of the whole record, a multiple of 64
  TensorKind kind;
  uint32_t header_size;  // of the TensorRecord that the writer knew
  int64_t step;
  uint64_t time_ns;   // CLOCK_REALTIME
  uint64_t interval;  // in force
  uint64_t snapshot;  // number of this tensor's snapshot in this process, from 1
  uint32_t number;    // of the tensor among those that its rank has named
  uint32_t tensors;   // how many of them the rank holds a part of
  uint32_t dims;
  uint32_t dtype;
  int64_t shape[kTensorDims];   // of the whole tensor
  int64_t offset[kTensorDims];  // where the rank's part begins
  int64_t part[kTensorDims];    // shape of the part
  uint64_t elements;            // of the part
  uint64_t checksum;            // kernels/checksum.h, over the part in the order of memory
  HistogramForm form;
  uint32_t step_source;              // FORESHOCK_STEP_... of hook.h; 0: not known
  Payload payload[kTensorPayloads];  // offsets from the start of the record
  char layer[32];
  char name[160];
};
static_assert(sizeof(TensorRecord) == 504);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_TENSOR_RECORD_H_
