// What lies in a .seg file (the trainer stores) and in its .ctl file (the agent stores). Plain structs of
// fixed size; every record may grow at its end, which is why the offset table carries record sizes.
// segment/SEGMENT.md tells the protocol. All words are little-endian, native on every platform supported.
#ifndef FORESHOCK_SEGMENT_LAYOUT_H_
#define FORESHOCK_SEGMENT_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace foreshock::segment {

inline constexpr char kSegmentMagic[8] = {'F', 'S', 'H', 'K', 'S', 'E', 'G', '\n'};
inline constexpr char kControlMagic[8] = {'F', 'S', 'H', 'K', 'C', 'T', 'L', '\n'};
inline constexpr uint32_t kLayoutVersion = 5;
inline constexpr uint32_t kOldestLayoutVersion = 1;  // that the agent reads

inline constexpr uint32_t kPasses = 2;             // 0 forward, 1 backward
inline constexpr uint32_t kSkipReasons = 13;       // the order of FORESHOCK_SKIP_... in hook.h
inline constexpr uint32_t kFirstSkipReasons = 11;  // that the first versions knew
inline constexpr uint32_t kLostReasons = 4;
inline constexpr uint32_t kMaxOps = 64;
inline constexpr uint32_t kMaxOpsOfVersion2 = 32;
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
  kScalarNames,  // from version 2 on
  kTensors,      // tensor_record.h
  kUnseenNames,
  kCoverage,
  kRegions = 16
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
  uint32_t header_size;
  uint64_t file_size;
  uint64_t nonce;
  Region regions[kRegions];
  uint32_t slot_header_size;  // of the Slot that the writer knew: payloads may begin right after it
  uint32_t reserved;
};
static_assert(sizeof(Header) == 424);
inline constexpr uint32_t kHeaderOfVersion1 = 224;  // up to the eighth region
inline constexpr uint32_t kSlotOfVersion1 = 528;    // up to device_end_ns

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
  uint64_t claimed;                         // 1: in use
  uint64_t older_calls[kMaxOpsOfVersion2];  // where versions 1 and 2 have `calls`; zero since
  uint64_t unsampled[kPasses];
  uint64_t sampled[kPasses];
  uint64_t first_skipped[kPasses][kFirstSkipReasons];
  uint64_t hook_ns;  // time spent in sampled calls, measured
  uint64_t step_ns;  // time spent at step ends and over gradients, measured
  uint64_t later_skipped[kPasses][kSkipReasons - kFirstSkipReasons];  // zero before there were such reasons
  uint64_t calls[kMaxOps];  // at the end, where more of them take nothing's place

  uint64_t& skipped(uint32_t pass, uint32_t reason) {
    return reason < kFirstSkipReasons ? first_skipped[pass][reason]
                                      : later_skipped[pass][reason - kFirstSkipReasons];
  }
};
static_assert(sizeof(ThreadBlock) == 1088);

// In StepRecord::given: a scaler leaves steps out on a device, so skipped_steps is not known.
inline constexpr uint32_t kSkipsUnseen = uint32_t{1} << 31;

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
  uint32_t given;               // FORESHOCK_GIVEN_..., kSkipsUnseen, kNumbersPending
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
  // Of CUDA graphs (libmonitor/graph_ledger.h).
  uint64_t graph_launches;           // of graphs that were seen when they were recorded
  uint64_t unknown_launches;         // of others
  uint64_t recorded_calls[kPasses];  // attention calls made while a graph was recorded: they did not run then
  uint64_t launched_calls[kPasses];  // that ran in launched graphs
  // Of launched kernels (libmonitor/kernel_count.h).
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
inline constexpr uint64_t kCoverageOfVersion5 = offsetof(Coverage, numbers_skipped);  // the least

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
  kPayloads = 12
};
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
  uint32_t part, parts;   // parts 0: this slot holds the whole slice, as every slot of version 1 does
  uint32_t first_key, part_keys;
  uint32_t without_out;  // 1: dropout has changed the output, which is not here (forward only)
  // Not kNotPacked: rows, keys, limits, positions and lengths above are those of a sequence as long as the
  // longest, and the payloads have room for it; what there is begins where they do and is told here.
  uint32_t packed;
  SequenceTold told;
};
static_assert(sizeof(Slot) == 640);

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
  uint64_t reserved2[3];
};
static_assert(sizeof(Control) == 232);
static_assert(256 + kMaxSlots * sizeof(Consumption) == kControlBytes);
inline constexpr uint32_t kConsumptionOffset = 256;

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_LAYOUT_H_
