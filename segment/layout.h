// What lies in a .seg file (the trainer stores) and in its .ctl file (the agent stores). Plain structs of
// fixed size. The agent reads exactly one layout version: raise kLayoutVersion when any struct here changes.
// segment/SEGMENT.md describes the protocol. All words are little-endian, native on every supported platform.
#ifndef FORESHOCK_SEGMENT_LAYOUT_H_
#define FORESHOCK_SEGMENT_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

namespace foreshock {

// FNV-1a, 64 bits: for names, and to compare large data by a small value. For data in several pieces: `hash`
// is that of the pieces before.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

// 16 digits.
inline std::string hexadecimal(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace foreshock

namespace foreshock::segment {

inline constexpr char kSegmentMagic[8] = {'F', 'S', 'H', 'K', 'S', 'E', 'G', '\n'};
inline constexpr char kControlMagic[8] = {'F', 'S', 'H', 'K', 'C', 'T', 'L', '\n'};
inline constexpr uint32_t kLayoutVersion = 10;

inline constexpr uint32_t kPasses = 2;        // 0 forward, 1 backward
inline constexpr uint32_t kSkipReasons = 13;  // in the order of FORESHOCK_SKIP_... in hook.h
inline constexpr uint32_t kLostReasons = 4;
inline constexpr uint32_t kMaxOps = 64;
inline constexpr uint32_t kThreadBlocks = 64;  // the last one is shared by all further threads
inline constexpr uint32_t kStepRecords = 1024;
inline constexpr uint32_t kMaxLayers = 512;
inline constexpr uint32_t kMaxSlots = 60;  // as many consumption records as fit into 4 KiB
inline constexpr uint32_t kRowsPerSlice = 16;
inline constexpr uint32_t kControlBytes = 4096;
inline constexpr uint32_t kMaxScalars = 16;
inline constexpr uint32_t kMaxUnseen = 8;

inline constexpr const char* kSkipReasonNames[kSkipReasons] = {
    "budget", "ring_full", "dropout", "capture", "nested", "fp8",          "mask",
    "layout", "too_large", "off",     "unknown", "device", "device_memory"};

enum class Lost : uint32_t { kTorn, kAgentAbsent, kRefused, kUnsupported };
inline constexpr const char* kLostReasonNames[kLostReasons] = {"torn", "agent_absent", "refused",
                                                               "unsupported"};

enum RegionId : uint32_t {
  kIdentity,
  kOps,
  kThreads,
  kSteps,
  kLayers,
  kSlots,
  kProgress,
  kScalarNames,
  kTensors,  // one TensorRing
  kUnseenNames,
  kCoverage,
  kRegions
};

struct Region {
  uint64_t offset;       // from the start of the file; a multiple of 64
  uint64_t record_size;  // bytes
  uint64_t count;
};

// At offset 0, written before the file gets its name; constant afterwards.
struct Header {
  char magic[8];
  uint32_t layout_version;
  uint32_t reserved;
  uint64_t file_size;
  uint64_t nonce;
  Region regions[kRegions];
};
static_assert(sizeof(Header) == 296);

// Late facts bear their own ready flag, stored last with release order; before it they are not read.
struct Identity {
  uint64_t pid;
  uint64_t launcher_id;    // of the `foreshock run` that started this process; 0: none
  uint64_t start_time_ns;  // CLOCK_REALTIME
  uint64_t sample_seed;
  int32_t rank, local_rank, world_size, attempt;  // -1: unknown
  char run_id[64];
  char host[64];
  char executable[64];  // basename
  uint32_t slots_wanted, slots_given;
  uint64_t slot_bytes;
  double max_slowdown;      // ratio, e.g. 0.01
  uint64_t fixed_interval;  // --every; 0: set by the agent
  uint32_t local_ranks;
  uint32_t late_ready;  // 1: the fields below are valid
  int32_t data_parallel, tensor_parallel, pipeline_parallel, expert_parallel;
  char framework[48];
  int32_t exit_status;  // 0 to 255, what exit() was given
  uint32_t
      has_exited;  // 1: exit() has run, and the field above is valid; not when _exit() or a signal ended it
};

// One per registered operation, in order of their numbers.
struct Op {
  char name[64];
  uint32_t pass;
  uint32_t ready;
};

// One writer each but the last; every word is stored atomically. calls = unsampled + skipped + sampled. Cache
// lines of their own, so that threads do not take them from each other.
struct alignas(64) ThreadBlock {
  uint64_t claimed;  // 1: in use
  uint64_t calls[kMaxOps];
  uint64_t unsampled[kPasses];
  uint64_t sampled[kPasses];
  uint64_t skipped[kPasses][kSkipReasons];
  uint64_t hook_ns;  // time spent in sampled calls, measured
  uint64_t step_ns;  // time spent at step ends and over gradients, measured
};
static_assert(sizeof(ThreadBlock) == 832);

// In StepRecord::given: a scaler leaves steps out on a device, so skipped_steps is not known.
inline constexpr uint32_t kSkipsUnseen = uint32_t{1} << 31;

// In StepRecord::given: this step's cost is paid from the grant of the first look (libmonitor/sampling.h) as
// far as that goes.
inline constexpr uint32_t kFirstLook = uint32_t{1} << 29;
inline constexpr double kFirstLookSeconds = 0.5;  // the grant of a process

// Of it as well: numbers of this step are still on their way from a device. What else is known is there; the
// loss, the norm of the gradient and the steps left out are stored when they have come, and this bit is
// cleared last. It is too where they never come.
inline constexpr uint32_t kNumbersPending = uint32_t{1} << 30;
// A record that so many others have followed is waited for no longer.
inline constexpr uint64_t kMostPendingSteps = 4;

// A record that is overwritten in place: odd while it is written, read header-data-header.
struct StepRecord {
  uint64_t sequence;     // 2n when it holds the n-th record of the run (n from 1), 2n - 1 while being written
  int64_t step;          // absolute; -1 unknown
  uint64_t time_ns;      // CLOCK_REALTIME at the end of the step
  uint64_t duration_ns;  // since the end of the step before
  double loss, learning_rate, gradient_norm;
  uint64_t batch_id;
  uint32_t given;               // FORESHOCK_GIVEN_..., kFirstLook, kSkipsUnseen, kNumbersPending
  uint32_t loss_source;         // FORESHOCK_LOSS_...
  uint32_t step_source;         // FORESHOCK_STEP_...
  uint32_t sampled;             // 1: this step was a sampled one
  uint64_t calls;               // attention calls in this step
  uint64_t skipped_steps;       // optimizer steps left out so far in this process
  uint64_t interval;            // N in force
  uint64_t cost_ns;             // our own time in this step on the threads that train
  double scalars[kMaxScalars];  // what the training itself logs; names in ScalarName
  uint32_t scalars_given;       // bit n: scalars[n] was logged since the step before
  uint32_t reserved;
  int64_t scalar_step[kMaxScalars];  // the step that the training gave with it; -1: none
};

// Written once, `ready` last with release order.
struct ScalarName {
  uint32_t ready;
  char name[44];
};
static_assert(sizeof(ScalarName) == 48);

// Attention that is there and that no hook sees. Written once, `ready` last with release order; the evidence
// may become better.
struct UnseenName {
  uint32_t ready;
  uint32_t evidence;  // FORESHOCK_UNSEEN_... of hook.h
  char name[56];
};
static_assert(sizeof(UnseenName) == 64);

// What ran past the hooks, as far as it was counted. Single words, each stored atomically, but for the name.
// Totals of the process.
struct Coverage {
  // Of CUDA graphs (libmonitor/coverage.h).
  uint64_t graph_launches;           // of graphs that were seen when they were recorded
  uint64_t unknown_launches;         // of others
  uint64_t recorded_calls[kPasses];  // attention calls made while a graph was recorded: they did not run then
  uint64_t launched_calls[kPasses];  // that ran in launched graphs
  // Of launched kernels (libmonitor/coverage.h).
  uint32_t kernel_count_state;           // KernelCountState
  char kernel_count_holder[68];          // who has CUPTI's place; "": not told
  uint64_t kernel_count_steps;           // that were counted
  uint64_t kernels[kPasses];             // launched in them
  uint64_t kernel_count_calls[kPasses];  // that hooks have seen in them
  uint64_t kernel_count_in_graphs;       // calls that ran in graphs in them
  // Losses, norms and the like that lie on devices (libmonitor/device_scalars.h).
  uint64_t numbers_fetched;  // asked for
  uint64_t numbers_late;     // of these, not there in time
  // What there was no room for.
  uint64_t parameters_unnamed;  // when names were told last
  uint64_t norms_untold;        // steps with more gradients than there is room for
  uint64_t reserved;
  uint64_t numbers_skipped[kSkipReasons];  // of these, not sent for
};
static_assert(sizeof(Coverage) == 312);

enum class KernelCountState : uint32_t {
  kNotAsked,
  kWaiting,
  kCounting,
  kDone,
  kNoLibrary,  // the process has no CUPTI
  kTaken,      // by another subscriber
  kProfiler,   // torch.profiler runs
  kRefused     // CUPTI said no
};

// A layer that names were given for. Single words, each stored atomically; `ready` last.
struct Layer {
  uint32_t ready;
  uint32_t reserved;
  char label[32];
  char name[128];            // of the module that holds all its parameters named so far: it only gets shorter
  uint64_t gradient_step;    // of the norm below; 0: none yet
  double gradient_norm;      // before clipping
  uint64_t nonfinite_steps;  // steps whose gradient here held NaN or Inf
  uint64_t last_nonfinite_step;
};

enum class LayerSource : uint32_t { kUnknown, kAnnotation, kParameter, kOrdinal };

// What the agent looks at before it reads anything else: when none of it has moved, no slot has.
inline constexpr uint32_t kDeviceProgress = 7;
struct Progress {
  uint64_t published;  // slices made visible so far by threads
  // By the streams of devices, which cannot count together: each stores the ticket of its last slice into
  // a word of its own.
  uint64_t by_device[kDeviceProgress];
};
static_assert(sizeof(Progress) == 64);

// The header of a slot. The payload follows at `payload[...]`, offsets from the start of the slot.
enum PayloadId : uint32_t {
  kQuery,
  kKey,
  kValue,
  kOut,
  kLogSumExp,
  kMask,
  kGradOut,
  kGradQuery,
  kGradKey,
  kGradValue,
  kKeySums,  // kernels/key_sums.h: key_sum_count() sums over all keys
  kPayloads = 12
};

inline constexpr uint64_t kKeySumBytes = 24;  // a sum and a sum of squares in fp64, a count

// What one slice may be at most, whatever room a trainer has made: a million keys of 128 + 128 dimensions in
// two bytes, 4 million where they are smaller. A trainer needs --memory beyond 512 MiB to make a larger one;
// without a limit one slice of one user could take the memory and the time of an agent that serves others.
inline constexpr uint64_t kMostSliceBytes = uint64_t{1} << 29;
inline constexpr uint64_t kMostSliceKeys = uint64_t{1} << 22;

struct Payload {
  uint64_t offset;  // from the start of the slot; 0: absent
  uint64_t bytes;
};

// What a device tells of the one sequence of a packed batch whose rows it has brought.
struct SequenceTold {
  uint32_t number, queries, keys;
  uint32_t positions;  // of each head, in their order; 0: there was nothing to bring
  uint32_t position[kRowsPerSlice];
};

// What Slot::packed says: a slice whose extent only its device knew, and what FORESHOCK_CAUSAL_... means for
// it.
inline constexpr uint32_t kNotPacked = 0;
constexpr uint32_t packed_word(int32_t causal) { return 1 + static_cast<uint32_t>(causal); }
inline constexpr uint32_t kPackedTopLeft = 2, kPackedBottomRight = 3;

struct Slot {
  uint64_t sequence;  // 2t when it holds ticket t, 2t - 1 while being written, 0 never used
  uint64_t ticket;
  int64_t step;
  uint64_t time_ns;  // CLOCK_REALTIME
  uint64_t call;     // ordinal of the call within its step
  int32_t op;
  uint32_t pass;
  uint32_t dtype;       // of query, key, value, out, grad_out, grad_query
  uint32_t mask_dtype;  // FORESHOCK_DTYPE_NONE: no mask
  uint32_t lse_dtype;
  uint32_t layer_source;
  int32_t layer;  // index into the layer region; -1 unknown; for kOrdinal the ordinal itself
  uint32_t rows, keys, head_dim, value_dim;  // of the whole slice
  uint32_t heads_in_slice;                   // rows = heads_in_slice x positions, head-major
  int64_t batch, kv_head;
  uint64_t query_length, key_length;  // of the whole call; keys <= key_length were copied
  double scale;
  uint32_t key_limit[kRowsPerSlice];  // row r sees keys [0, key_limit[r])
  uint32_t position[kRowsPerSlice];
  uint32_t head[kRowsPerSlice];
  Payload payload[kPayloads];
  uint64_t device_begin_ns, device_end_ns;  // of the gather, by the clock of the device; 0: none was
  // A slice that is larger than a slot lies in several, of consecutive tickets: each holds a range of its
  // keys (payloads kKey, kValue, kMask), the first one everything else as well.
  uint64_t first_ticket;  // of the first part
  uint32_t part, parts;   // parts 0: this slot holds the whole slice
  uint32_t first_key, part_keys;
  uint32_t without_out;  // 1: dropout has changed the output, which is not here (forward only)
  // Not kNotPacked: rows, keys, limits, positions and lengths above are those of a sequence as long as the
  // longest, and the payloads have room for it; what there is begins where they do and is told here.
  uint32_t packed;
  SequenceTold told;
  // 1: a slice of key positions (columns of the scores), of a backward pass without a mask. Rows and keys
  // change places: `rows` counts sampled key positions of one kv-head, whose key, value, grad_key and
  // grad_value are here; `keys` counts query rows, heads_in_slice x query_length, head-major, whose query,
  // out, log_sum_exp and grad_out are. head[] is the first of these heads, position[row] a key position, and
  // key_limit[row] the first query position that sees it. first_key and part_keys then are a range of query
  // rows.
  uint32_t columns;
  // Some forward calls, on the host, without a mask: elements of the output of head[0] that are NaN or Inf,
  // over all query positions, where its inputs are all finite; at most 2^32 - 1.
  uint32_t nonfinite_out;
};
static_assert(sizeof(Slot) == 648);

// -- the control file --

// Written by one pwrite of the whole record. Counters are totals over the life of the segment.
struct Consumption {
  uint64_t consumed;  // the last ticket of this slot that was judged or lost
  uint32_t judged[kPasses];
  uint32_t lost[kPasses][kLostReasons];
  uint64_t reserved[2];
};
static_assert(sizeof(Consumption) == 64);

// What the agent advises the training. Odd sequence while it is written; 0: never was.
struct Advice {
  uint64_t sequence;
  uint32_t level;      // 0 quiet, 1 watch, 2 warn
  int32_t rank;        // whose signal it is
  int64_t since_step;  // at this level
  int64_t from_step;   // no rank of the node has come to it yet: they act together
  double score;        // 1 is where the detector warns
  char detector[32];
  char layer[32];  // "": of no layer
};
static_assert(sizeof(Advice) == 104);
inline constexpr uint32_t kAdviceLevels = 3;

// For some steps more of them are sampled, and the trainer may spend so many times --max-slowdown. A longer
// burst than this is none.
inline constexpr double kBurstSlowdown = 3;
inline constexpr int64_t kMostBurstSteps = 4096;

struct Control {
  char magic[8];
  uint32_t layout_version;
  uint32_t agent_switch;    // 1: on
  uint32_t command_switch;  // 1: on; stored by `foreshock pause|resume`
  uint32_t reserved;
  uint64_t nonce;     // of the segment this belongs to
  uint64_t interval;  // N, from the step below on; 0: not set
  int64_t interval_from_step;
  uint64_t step_cursor;  // the last step record the agent has taken (its n)
  uint64_t agent_pid;
  uint64_t steps_lost;      // overwritten before they were read
  uint64_t tensor_cursor;   // bytes of the ring of tensors that the agent has taken
  uint64_t burst_interval;  // N in the steps [from, until) below; 0: no burst
  int64_t burst_from_step, burst_until_step;
  Advice advice;
  uint64_t agent_ns;  // processor time of the agent for this rank so far, over the cores of the rank
  uint64_t reserved2[2];
};
static_assert(sizeof(Control) == 232);
static_assert(256 + kMaxSlots * sizeof(Consumption) == kControlBytes);
inline constexpr uint32_t kConsumptionOffset = 256;

// Words for the numbers in a segment.

inline constexpr const char* kPassNames[kPasses] = {"forward", "backward"};

// Bits of StepRecord::given and numbers of its sources: those of hook.h.
enum : uint32_t {
  kGivenLoss = 1,
  kGivenLearningRate = 2,
  kGivenGradientNorm = 4,
  kGivenBatchId = 8,
  kGivenUpTensors = 16,
  kGivenUpFailed = 32,
  kGivenOtherTraining = 64
};

constexpr bool knows_skips(const StepRecord& step) { return (step.given & kSkipsUnseen) == 0; }

constexpr bool is_first_look(const StepRecord& step) { return (step.given & kFirstLook) != 0; }

constexpr bool is_pending(const StepRecord& step) { return (step.given & kNumbersPending) != 0; }

constexpr bool given(const StepRecord& step, uint32_t what) { return (step.given & what) != 0; }

constexpr const char* name_of(LayerSource source) {
  constexpr const char* kNames[] = {"unknown", "annotation", "parameter", "ordinal"};
  return static_cast<uint32_t>(source) < std::size(kNames) ? kNames[static_cast<uint32_t>(source)]
                                                           : kNames[0];
}

constexpr const char* step_source_name(uint32_t source) {
  constexpr const char* kNames[] = {"unknown", "reported", "optimizer_state", "counted"};
  return source < std::size(kNames) ? kNames[source] : kNames[0];
}

constexpr const char* loss_source_name(uint32_t source) {
  constexpr const char* kNames[] = {"unknown", "reported", "nll", "backward_root", "logged"};
  return source < std::size(kNames) ? kNames[source] : kNames[0];
}

// How it is known that there is attention nobody sees: FORESHOCK_UNSEEN_... of hook.h.
constexpr const char* unseen_evidence_name(uint32_t evidence) {
  constexpr const char* kNames[] = {"unknown", "used", "imported", "registered"};
  return evidence < std::size(kNames) ? kNames[evidence] : kNames[0];
}

// KernelCountState of layout.h.
constexpr const char* kKernelCountStates[] = {"not_asked",  "waiting", "counting", "done",
                                              "no_library", "taken",   "profiler", "refused"};
constexpr const char* kernel_count_state_name(uint32_t state) {
  return state < std::size(kKernelCountStates) ? kKernelCountStates[state] : kKernelCountStates[0];
}

}  // namespace foreshock::segment

// How far the number of the step goes on from one end of a step that is told to the next: a trainer may tell
// every tenth only.

namespace foreshock {

// Follows from the numbers alone, so it is the same on all ranks that tell the same steps, and in the agent.
// One caller at a time.
class StepStride {
 public:
  // Any number, since the agent hears of it from a trainer; a negative one is unknown.
  void tell(int64_t step) {
    const int64_t went = last_ < 0 || step < 0 ? 1 : step - last_;
    stride_ = std::max<int64_t>(1, std::min(went, went_));
    went_ = went;
    last_ = step;
  }
  // The next end of a step is expected so many steps after the last one: the lesser of the last two, since
  // one jump (a training resumed, a step told at the end of an epoch) is no habit.
  int64_t steps() const { return stride_; }

 private:
  int64_t last_ = -1, went_ = 1, stride_ = 1;
};

}  // namespace foreshock

// What a trainer says of one tensor of its model after an optimizer step. Records of different lengths lie in
// a ring of bytes (the region kTensors): one writer, one reader, nothing is overwritten before it was read.

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
  kHeadsUnknown,   // no call of attention was sampled before: its heads are not known
  kTensorHeadSkips
};
inline constexpr const char* kTensorHeadSkipNames[kTensorHeadSkips] = {
    "sharded", "ring_full", "shape", "too_large", "device", "no_sample_yet"};

inline constexpr uint32_t kTensorDims = 4;
inline constexpr uint64_t kTensorAlign = 64;

// At the front of the region; records begin right after it.
struct TensorRing {
  uint64_t written;   // bytes of all records so far, fillers included; stored last, with release order
  uint64_t interval;  // steps between two snapshots of a tensor; 0: none are taken
  uint64_t tensors, elements;  // named, as far as this rank holds them
  uint64_t taken;              // records of tensors so far
  uint64_t skipped[kTensorSkips];
  uint64_t heads_skipped[kTensorHeadSkips];
  uint64_t due;  // turns so far: taken + skipped + awaited, but for those of the step that is being taken
  uint64_t unfollowed[kTensorUnfollowed];  // tensors of the table that was named last
  uint64_t awaited;                        // turns whose results a device has not brought yet
  uint64_t reserved[3];
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
  kTensorHeadRows,    // TensorHeads
  kTensorPayloads = 8
};

// Places in the payload kTensorReductions; NaN: not known.
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
  uint32_t reserved;
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
  uint64_t checksum;            // kernels/sums.h, over the part in the order of memory
  HistogramForm form;
  uint32_t step_source;              // FORESHOCK_STEP_... of hook.h; 0: not known
  Payload payload[kTensorPayloads];  // offsets from the start of the record
  char layer[32];
  char name[160];
};
static_assert(sizeof(TensorRecord) == 504);

// Payload of some heads of a query or key projection.
enum TensorSides : uint32_t { kQuerySide = 1, kKeySide = 2 };

// Followed by the numbers of the kv-heads (uint32, up to a multiple of 8 bytes), then, of each side that is
// there, queries first, count x head_dim x width values in the format of the tensor. Of the query heads that
// read a kv-head the first one is there.
struct TensorHeads {
  uint32_t sides;  // of TensorSides
  uint32_t head_dim, width;
  uint32_t kv_heads;  // of the layer
  uint32_t count;     // of them here
  uint32_t reserved;
};
static_assert(sizeof(TensorHeads) == 24);

// Where the values begin.
constexpr uint64_t values_offset(uint32_t count) { return sizeof(TensorHeads) + (count + 1) / 2 * 8; }

// What a trainer's optimizer says of one tensor at one step: a payload of the tensor's record, fp64 numbers.
//

// Places in the payload; NaN: not known. Sums are over the rank's part, and over what is finite; those of the
// second moment are kernels/sums.h.
enum OptimizerNumber : uint32_t {
  kGradientSumOfSquares,  // of the gradient that the optimizer took (after clipping)
  kGradientElements,      // finite ones
  kGradientNonFinite,
  kMomentElements,  // with a usable gradient and second moment
  kMomentUnusable,
  kStalenessSum,
  kEpsilonDominated,
  kSurprised,
  kSurpriseElements,
  kSeenLearningRate,  // of the tensor's group
  kSeenBeta1,
  kSeenBeta2,
  kSeenEpsilon,
  kSeenWeightDecay,
  kOptimizerNumbers
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_LAYOUT_H_
