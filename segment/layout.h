// The layout of a .seg file, which the trainer writes, and of its .ctl file, which the agent writes: plain
// structs of fixed size. The agent reads exactly one layout version, so kLayoutVersion must be raised when
// any struct here changes. segment/SEGMENT.md describes the protocol. All words are little-endian, which is
// the native order on every supported platform. A slice is the copied part of an attention call: some query
// rows with all keys that they see, or some key positions (columns) with all query rows. A slot is a piece of
// the file that holds a slice, or a part of one. Each use of a slot has a number, its ticket, from 1 on.
#ifndef FORESHOCK_SEGMENT_LAYOUT_H_
#define FORESHOCK_SEGMENT_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

#include "segment/key_window.h"

namespace foreshock {

// 64-bit FNV-1a hash, for names and for comparing large data. `hash`: the hash of the pieces before `bytes`.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

// Formats `hash` as 16 hexadecimal digits.
inline std::string hexadecimal(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// Estimates by how much the step number grows from one reported step to the next. It may be more than 1,
// since a trainer may report only every tenth step. The estimate depends only on the step numbers, so it is
// the same in the agent and on all ranks that report the same steps. One caller at a time.
class StepStride {
 public:
  // Adds the number of a reported step. The trainer chooses it, so any number is allowed; negative: unknown.
  void add(int64_t step) {
    const int64_t difference = last_ < 0 || step < 0 ? 1 : step - last_;
    stride_ = std::max<int64_t>(1, std::min(difference, difference_));
    difference_ = difference;
    last_ = step;
  }
  // Returns the steps expected until the next report: the smaller of the last two differences, at least 1. So
  // a single jump (a resumed training, a report at the end of an epoch) is ignored.
  int64_t steps() const { return stride_; }

 private:
  int64_t last_ = -1, difference_ = 1;  // the last step number (negative: none); the last difference
  int64_t stride_ = 1;                  // the result of steps()
};

}  // namespace foreshock

namespace foreshock::segment {

inline constexpr char kSegmentMagic[8] = {'F', 'S', 'H', 'K', 'S', 'E', 'G', '\n'};
inline constexpr char kControlMagic[8] = {'F', 'S', 'H', 'K', 'C', 'T', 'L', '\n'};
inline constexpr uint32_t kLayoutVersion = 19;

inline constexpr uint32_t kPasses = 2;  // 0 forward, 1 backward
inline constexpr uint32_t kSkipReasons = 14;
inline constexpr uint32_t kLostReasons = 4;
inline constexpr uint32_t kMaxOps = 64;         // registered attention operations
inline constexpr uint32_t kThreadBlocks = 64;   // one per thread; threads from the 64th on share the last one
inline constexpr uint32_t kStepRecords = 1024;  // a ring: later records overwrite the oldest ones
inline constexpr uint32_t kMaxLayers = 512;
inline constexpr uint32_t kMaxSlots = 60;      // with this many Consumption records the .ctl file has 4 KiB
inline constexpr uint32_t kRowsPerSlice = 16;  // most rows, or key positions in a slice of columns
inline constexpr uint32_t kControlBytes = 4096;
inline constexpr uint32_t kMaxScalars = 16;  // scalars that the training logs
inline constexpr uint32_t kMaxUnseen = 8;    // UnseenName records

// Reasons why a call of a sampled step was not copied, in the order of FORESHOCK_SKIP_... in hook.h.
inline constexpr const char* kSkipReasonNames[kSkipReasons] = {
    "budget", "ring_full", "dropout", "capture", "nested", "fp8",           "mask",
    "layout", "too_large", "off",     "unknown", "device", "device_memory", "set_up"};

// Reasons why a slice in a slot was not judged. kTorn: the trainer died while writing the slice. kDamaged:
// its checksum differs, or it is missing: another process has written into the file. kRefused: the parser
// rejected the slice. kUnsupported: the reference cannot compute it.
enum class Lost : uint32_t { kTorn, kDamaged, kRefused, kUnsupported };
inline constexpr const char* kLostReasonNames[kLostReasons] = {"torn", "damaged", "refused", "unsupported"};

// Why a sampled backward call gave no slice of key positions (dK, dV) beside its slice of rows: the values of
// Slot::columns_skip.
enum ColumnsSkip : uint32_t {
  kColumnsTaken,      // it gave one, or its slots were not free after all
  kColumnsNotChosen,  // only a share of the calls gives one (libmonitor/call.h, takes_columns())
  kColumnsGradients,  // the call came without dK and dV, or in another format or shape than keys and values
  kColumnsLogSumExp,  // the call came without log_sum_exp
  kColumnsEmpty,      // never in a slot; the agent counts slices here without a comparable column
  kColumnsPacked,     // a packed batch whose offsets are on a device
  kColumnsTooLarge,   // all query rows of the heads of a kv-head exceed the slots
  kColumnsRingFull,   // too few slots were free
  kColumnsSkips
};
inline constexpr const char* kColumnsSkipNames[kColumnsSkips] = {
    "taken",  "not_chosen", "no_gradients", "no_log_sum_exp", "nothing_to_compare",
    "packed", "too_large",  "ring_full"};

// The regions of a segment. Each is an array of one struct of this file, except kSlots and kTensors.
enum RegionId : uint32_t {
  kIdentity,
  kOps,
  kThreads,
  kSteps,
  kLayers,
  kSlots,  // each record is a Slot and the space for its payloads
  kProgress,
  kScalarNames,
  kTensors,  // one TensorRing and the space for its records
  kUnseenNames,
  kCoverage,
  kRegions
};

struct Region {
  uint64_t offset;       // from the start of the file; a multiple of 64
  uint64_t record_size;  // bytes
  uint64_t count;
};

// The header, at offset 0. Written before the file is renamed to its final name, and constant afterwards.
struct Header {
  char magic[8];
  uint32_t layout_version;
  uint32_t reserved;
  uint64_t file_size;
  uint64_t nonce;  // distinguishes the segments of a rank
  Region regions[kRegions];
};
static_assert(sizeof(Header) == 296);

// The identity of the process. The topology and `framework` are written after the other fields, and
// late_ready after them with release order. Topology and `framework` must not be read before late_ready is 1.
struct Identity {
  uint64_t pid;
  uint64_t launcher_id;    // id of the `foreshock run` that started this process; 0: none
  uint64_t start_time_ns;  // CLOCK_REALTIME
  uint64_t sample_seed;
  int32_t rank, local_rank, world_size, attempt;  // -1: unknown
  char run_id[64];
  char host[64];
  char executable[64];                 // basename
  uint32_t slots_wanted, slots_given;  // wanted: 0 if slices are off; given: 0 also if memory was too small
  uint64_t slot_bytes;
  double max_slowdown;      // ratio, e.g. 0.01
  uint64_t fixed_interval;  // steps between sampled steps (--every); 0: the agent sets it
  uint32_t local_ranks;     // ranks on this host
  uint32_t late_ready;      // 1: the topology and `framework` are valid
  int32_t data_parallel, tensor_parallel, pipeline_parallel, expert_parallel;  // the topology
  char framework[48];
  int32_t exit_status;  // argument of exit(), 0 to 255
  // 1: exit() has run and exit_status is valid. Stays 0 if _exit() or a signal ended the process.
  uint32_t has_exited;
};

// A registered attention operation. Slot::op is its index in the region kOps.
struct Op {
  char name[64];
  uint32_t pass;
  uint32_t ready;  // 1: name and pass are valid
};

// Counters of a thread. The sum of calls equals the sum of unsampled, skipped and sampled. Every block but
// the last has a single writer; every word is stored atomically. For speed, blocks share no cache lines, and
// the first cache line has all that the end of each step reads.
struct alignas(64) ThreadBlock {
  uint64_t claimed;    // 1: a thread counts here, or did so before it ended
  uint64_t all_calls;  // the sum over `calls`
  uint64_t unsampled[kPasses];
  uint64_t sampled[kPasses];
  uint64_t hook_ns;         // the monitor's time in sampled calls
  uint64_t step_ns;         // the monitor's time at step ends and on gradients
  uint64_t calls[kMaxOps];  // attention calls of each operation
  uint64_t skipped[kPasses][kSkipReasons];
};
static_assert(sizeof(ThreadBlock) == 832 && offsetof(ThreadBlock, calls) == 64);

// Bit of StepRecord::given: skipped_steps is unknown, since a gradient scaler on a device decides whether an
// optimizer step is skipped.
inline constexpr uint32_t kSkipsUnseen = uint32_t{1} << 31;

// Bit of StepRecord::given: the step belongs to the first look (libmonitor/sampling.h), the first sampled
// steps of a process. A grant of time pays for them instead of --max-slowdown, until it is spent.
inline constexpr uint32_t kFirstLook = uint32_t{1} << 29;
inline constexpr double kFirstLookSeconds = 0.5;  // the grant of a process

// Bit of StepRecord::given: loss, gradient norm and skipped steps of this record are not final, since some of
// them have not arrived from a device yet. When all have arrived or the trainer stops waiting, the record is
// written again, with these numbers and without this bit. All other fields are valid from the start.
inline constexpr uint32_t kNumbersPending = uint32_t{1} << 30;
// If more than this many records follow a pending record, the reader no longer waits for its numbers.
inline constexpr uint64_t kMostPendingSteps = 4;

// A record of the ring of steps, overwritten in place by one write. A copy is whole if its checksum fits;
// a reader may have read it while it was being written, or another process may have changed it. Completing a
// pending record does not change its `sequence`.
struct StepRecord {
  uint64_t sequence;                          // 2n if it holds the segment's n-th record (n from 1); 0: none
  int64_t step;                               // absolute; -1: unknown
  uint64_t time_ns;                           // CLOCK_REALTIME at the end of the step
  uint64_t duration_ns;                       // since the end of the previous step
  double loss, learning_rate, gradient_norm;  // valid if `given` has their bits
  uint64_t batch_id;
  uint32_t given;          // bits kGiven... (below), kFirstLook, kSkipsUnseen, kNumbersPending
  uint32_t loss_source;    // FORESHOCK_LOSS_...
  uint32_t step_source;    // FORESHOCK_STEP_...
  uint32_t sampled;        // 1: this step was a sampled one
  uint64_t calls;          // attention calls in this step
  uint64_t skipped_steps;  // optimizer steps skipped so far in this process
  uint64_t interval;       // sampling interval in this step
  uint64_t cost_ns;        // the monitor's time in this step on the training threads
  uint32_t scalars_given;  // bit n: scalars[n] was logged since the previous step
  uint32_t checksum;       // checksum_of() (segment/checksum.h)
  // If scalars_given is 0, the arrays below keep the values of an older record.
  double scalars[kMaxScalars];       // numbers that the training itself logs; names in ScalarName
  int64_t scalar_step[kMaxScalars];  // the step that the training logged with scalars[n]; -1: none
};

// The name by which StepRecord::scalars has the factor between the root of the backward pass and the mean
// cross-entropy (LossTracker::factor()).
inline constexpr const char* kLossFactorName = "foreshock loss factor";

// The name of a logged scalar. Written once, `ready` last with release order.
struct ScalarName {
  uint32_t ready;
  char name[44];
};
static_assert(sizeof(ScalarName) == 48);

// The name of a module or operation with attention that the hooks do not intercept. Written once, `ready`
// last with release order. Later only `evidence` may change, to a smaller (better) value.
struct UnseenName {
  uint32_t ready;
  uint32_t evidence;  // FORESHOCK_UNSEEN_... of hook.h
  char name[56];
};
static_assert(sizeof(UnseenName) == 64);

// Counts of what the hooks miss: attention calls in CUDA graphs and in unknown kernels, and numbers that are
// on a device, such as the loss. All words but kernel_count_holder are stored atomically.
struct Coverage {
  // CUDA graphs (libmonitor/coverage.h): a launch runs the recorded calls without calling a hook.
  uint64_t graph_launches;           // launches of graphs whose recording was seen
  uint64_t unknown_launches;         // launches of other graphs
  uint64_t recorded_calls[kPasses];  // attention calls recorded into graphs (not run at that time)
  uint64_t launched_calls[kPasses];  // attention calls that ran in launched graphs
  // Launched kernels (libmonitor/coverage.h), counted in a few steps with CUPTI, NVIDIA's tracing library.
  uint32_t kernel_count_state;           // KernelCountState
  char kernel_count_holder[68];          // kTaken: name of the other CUPTI subscriber; "": unknown
  uint64_t kernel_count_steps;           // steps in which kernels were counted
  uint64_t kernels[kPasses];             // attention kernels launched in these steps
  uint64_t kernel_count_calls[kPasses];  // attention calls that hooks have seen in these steps
  uint64_t kernel_count_in_graphs;       // attention calls that ran in graphs in these steps
  // Losses, norms and other numbers on devices (libmonitor/device_scalars.h).
  uint64_t numbers_fetched;  // copies requested
  uint64_t numbers_late;     // of these, not received in time
  // Counts of items beyond a limit.
  uint64_t parameters_unnamed;  // parameters for whose names the table had no space
  uint64_t norms_untold;        // steps without norms, since they had too many gradients for the table
  uint64_t skipped_in_row;      // optimizer steps that a gradient scaler has skipped since the last step
  // Numbers requested but not copied, by reason; without losses, since the training itself may read these.
  uint64_t numbers_skipped[kSkipReasons];
  // The model's inventory of attention (foreshock_name_mixers). inventory_is_known is stored last.
  uint32_t inventory_is_known;  // 0: the layers with attention are not known; the next three are then unset
  uint32_t attention_layers;    // layers of the model with attention, also those without a Layer record
  uint32_t other_mixers;        // modules that mix positions without attention: linear attention, state space
  uint32_t writes_failed;       // writes that failed or were cut short, and truncations that were noticed
  char mixer_names[112];        // classes of these modules, separated by ", "
};
static_assert(sizeof(Coverage) == 448);

enum class KernelCountState : uint32_t {
  kNotAsked,  // the user did not request a count
  kWaiting,   // the warm-up steps have not ended
  kCounting,
  kDone,
  kNoLibrary,  // the process has no CUPTI
  kTaken,      // another subscriber uses CUPTI
  kProfiler,   // torch.profiler runs; tries again at the next step
  kRefused     // CUPTI returned an error
};

// Bits of Layer::attention. The first two come from the model's inventory (foreshock_name_mixers), the others
// from the layer's calls that were to be sampled.
enum LayerAttention : uint32_t {
  kHasAttention = 1,          // the layer has attention
  kTrainsAttention = 2,       // parameters of its attention need gradients
  kForwardSeen = 4,           // a forward call of this layer was seen
  kBackwardSeen = 8,          // a backward call of this layer was seen
  kForwardNeedsGradient = 16  // a forward call of this layer needed a gradient
};

// A named layer. Every word is stored atomically, `ready` last.
struct Layer {
  uint32_t ready;
  uint32_t attention;  // bits of LayerAttention
  char label[32];
  char name[128];            // leading components that all its parameters' names share; only gets shorter
  uint64_t gradient_step;    // step of gradient_norm; 0: none yet
  double gradient_norm;      // before clipping
  uint64_t nonfinite_steps;  // steps whose gradient here held NaN or Inf
  uint64_t last_nonfinite_step;
  // By pass: bit n is set if a call of the layer was to be sampled and was skipped for FORESHOCK_SKIP_... n.
  uint32_t skipped[kPasses];
};
static_assert(sizeof(Layer) == 208);

// How the layer of a slice was found.
enum class LayerSource : uint32_t {
  kUnknown,          // not found
  kAnnotation,       // the caller named it
  kParameter,        // the attention's inputs come from a parameter with this layer
  kOrdinal,          // no parameter was found: the ordinal of the call in its step stands for the layer
  kUnnamedParameter  // not found: the inputs come from a parameter that has no name
};

// Counters that the agent reads first. If they have not changed, no slot has changed.
inline constexpr uint32_t kDeviceProgress = 7;  // devices; with `published` they take 64 bytes
struct Progress {
  uint64_t published;  // slices that threads have published so far
  // Device streams cannot share a counter, so each stores the ticket of its last slice into a separate word.
  // When a device has been set up, before its first slice, it stores a marker, in which bit 63 is set.
  uint64_t by_device[kDeviceProgress];
};
static_assert(sizeof(Progress) == 64);

// Indices of Slot::payload.
enum PayloadId : uint32_t {
  kQuery,
  kKey,
  kValue,
  kOut,
  kLogSumExp,
  kMask,  // [rows][keys], in a slice of key positions too, where these words are exchanged (Slot::columns)
  kGradOut,
  kGradQuery,
  kGradKey,
  kGradValue,
  kKeySums,  // sums over all keys of each column of dK and dV, then the count of NaN and Inf in dQ
  kKept,     // what dropout has kept of the attention weights; as large as a mask of its format
  kPayloads
};

inline constexpr uint64_t kKeySumBytes = 24;  // of an element of kKeySums, a ColumnSum (kernels/key_sums.h)

// Limits of one slice, so that one user's slice cannot take all memory and time of an agent that serves other
// users too. A million keys fit if key and value have 128 dimensions of two bytes each; with fewer
// dimensions, 4 million. A trainer could exceed the limits only with --memory above 512 MiB.
inline constexpr uint64_t kMostSliceBytes = uint64_t{1} << 29;
inline constexpr uint64_t kMostSliceKeys = uint64_t{1} << 22;

struct Payload {
  uint64_t offset;  // from the start of the slot; 0: absent
  uint64_t bytes;
};

// The extent of the sampled sequence of a packed batch, which concatenates sequences of different lengths.
// The lengths are only on the device, so the device writes this struct together with the rows.
struct SequenceTold {
  uint32_t number, queries, keys;    // index of the sequence in the batch; its numbers of queries and of keys
  uint32_t positions;                // sampled positions of each head; 0: no rows were copied
  uint32_t position[kRowsPerSlice];  // the sampled query positions, from the start of the sequence
};

// Values of Slot::packed: a slice of an ordinary batch; of a packed batch whose sequence the device chose.
inline constexpr uint32_t kNotPacked = 0, kPacked = 1;

// The header of a slot. Its payloads come after it.
struct Slot {
  uint64_t sequence;  // 2t if it holds ticket t, 2t - 1 while it is written, 0: never used
  uint64_t ticket;
  int64_t step;
  uint64_t time_ns;  // CLOCK_REALTIME
  uint64_t call;     // ordinal of the call within its step
  int32_t op;        // index in the region kOps
  uint32_t pass;     // 0 forward, 1 backward
  uint32_t dtype;    // format (FORESHOCK_... of hook.h) of all payloads but mask, kept, log_sum_exp, key sums
  uint32_t mask_dtype;    // FORESHOCK_DTYPE_NONE (0): no mask
  uint32_t lse_dtype;     // format of log_sum_exp; 0: absent
  uint32_t layer_source;  // LayerSource
  int32_t layer;  // index in the region kLayers; -1: unknown; with LayerSource::kOrdinal the ordinal itself
  uint32_t rows, keys, head_dim, value_dim;  // of the whole slice
  uint32_t heads_in_slice;                   // rows = heads_in_slice x positions, head-major
  int64_t batch, kv_head;
  uint64_t query_length, key_length;  // of the whole call; keys <= key_length were copied
  double scale;
  double soft_cap;      // foreshock_attention_call; 0: none
  double dropout;       // the probability; 0 without kKept
  uint32_t kept_dtype;  // format of kKept; 0: absent
  uint32_t reserved2;
  KeyWindow window;                    // of the call
  uint32_t seen_begin[kRowsPerSlice];  // row r sees keys [seen_begin[r], seen_end[r])
  uint32_t seen_end[kRowsPerSlice];
  uint32_t position[kRowsPerSlice];  // query position of row r
  uint32_t head[kRowsPerSlice];      // query head of row r
  Payload payload[kPayloads];
  uint64_t device_begin_ns, device_end_ns;  // of the copying kernel, by the clock of the device; 0: none
  // A slice larger than a slot is stored in several slots with consecutive tickets. Each slot holds a range
  // of the slice's keys (payloads kKey, kValue, kMask, kKept). The first slot also holds all other payloads.
  uint64_t first_ticket;          // ticket of part 0
  uint32_t part, parts;           // parts 0: this slot holds the whole slice
  uint32_t first_key, part_keys;  // if parts > 1: range of keys in this slot
  uint32_t
      without_out;  // 1 (forward only): the output is left out: dropout has changed it, and kKept is absent
  // For a packed batch, the rows, keys, keys seen, positions, lengths and payload sizes above are those of
  // the longest possible sequence. `told` has the real extent. The data is at the start of each payload.
  uint32_t packed;
  SequenceTold told;
  // 1: a slice of key positions (columns of the scores), from a backward pass. Rows and keys are exchanged.
  // `rows` counts sampled key positions of one kv-head, with payloads key, value, grad_key and
  // grad_value. `keys` counts query rows, heads_in_slice x query_length, head-major, with payloads query,
  // out, log_sum_exp and grad_out. Mask and kKept have a line of `keys` numbers for each of `rows`. head[row]
  // is the first of these heads for every row, position[row] a key position, and the query positions
  // [seen_begin[row], seen_end[row]) see it. first_key and part_keys are then query rows.
  uint32_t columns;
  // The number of NaN and Inf in the output of head[0] over all query positions, at most 2^32 - 1. Counted in
  // some forward calls on the host without a mask, if all inputs of this head are finite; else 0.
  uint32_t nonfinite_out;
  uint32_t columns_skip;  // ColumnsSkip, in a backward slice of rows; else 0
  uint32_t checksum;  // checksum_of() (segment/checksum.h); 0: none, since a device has written the payload
};
static_assert(sizeof(Slot) == 768);

// -- the control file --

// The agent's progress for one slot, written by one pwrite. Its counts cover the life of the segment.
struct Consumption {
  uint64_t consumed;  // the last ticket of this slot that was judged or lost
  uint32_t judged[kPasses];
  uint32_t lost[kPasses][kLostReasons];
  uint64_t reserved[2];
};
static_assert(sizeof(Consumption) == 64);

// The agent's advice to the training (foreshock_advice in hook.h).
struct Advice {
  uint64_t sequence;   // odd while it is written; 0: no advice yet
  uint32_t level;      // 0 quiet, 1 watch, 2 warn
  int32_t rank;        // the rank whose detector has this level; -1: no rank
  int64_t since_step;  // first step of this level
  int64_t from_step;   // a step that no rank of the node has reached, so all can act at it
  double score;        // 1: the detector warns
  char detector[32];
  char layer[32];  // "": the signal belongs to no layer
};
static_assert(sizeof(Advice) == 104);
inline constexpr uint32_t kAdviceLevels = 3;

// In a burst the trainer samples more steps, and may spend kBurstSlowdown times --max-slowdown. The trainer
// ignores a burst longer than kMostBurstSteps.
inline constexpr double kBurstSlowdown = 3;
inline constexpr int64_t kMostBurstSteps = 4096;

// CPU time that the agent has spent on one rank so far, divided by the rank's share of the node's cores.
struct AgentCost {
  uint64_t ns;          // on all work, without slices of the first look (kFirstLook)
  uint64_t slices_ns;   // on all slices, of query rows and of key positions, in the first look too
  uint64_t slices;      // number of slices of query rows that were judged or refused in slices_ns
  uint64_t tensors_ns;  // on tensors (weights, optimizer states); a part of ns

  bool operator==(const AgentCost&) const = default;
};

// The start of the .ctl file. Consumption records follow at kConsumptionOffset.
struct Control {
  char magic[8];
  uint32_t layout_version;
  uint32_t agent_switch;    // 1: on. The trainer samples while both switches are on.
  uint32_t command_switch;  // 1: on; stored by `foreshock pause|resume`
  uint32_t reserved;
  uint64_t nonce;     // Header::nonce of the segment
  uint64_t interval;  // one step in `interval` is sampled, from interval_from_step on; 0: not set
  int64_t interval_from_step;
  uint64_t step_cursor;  // n of the last step record that the agent has consumed
  uint64_t agent_pid;
  uint64_t steps_lost;      // step records overwritten before they were read
  uint64_t tensor_cursor;   // bytes of the ring of tensors that the agent has consumed
  uint64_t burst_interval;  // sampling interval in [burst_from_step, burst_until_step); 0: no burst
  int64_t burst_from_step, burst_until_step;
  Advice advice;
  AgentCost agent;
};
static_assert(sizeof(Control) == 240);
static_assert(256 + kMaxSlots * sizeof(Consumption) == kControlBytes);
inline constexpr uint32_t kConsumptionOffset = 256;

inline constexpr const char* kPassNames[kPasses] = {"forward", "backward"};

// Bits of StepRecord::given, equal to FORESHOCK_GIVEN_... in hook.h (kGaveUp... to FORESHOCK_GIVEN_UP_...).
enum : uint32_t {
  kGivenLoss = 1,
  kGivenLearningRate = 2,
  kGivenGradientNorm = 4,
  kGivenBatchId = 8,
  kGaveUpTensors = 16,      // tensors are not reported any more; reporting them was too expensive or failed
  kGaveUpFailed = 32,       // with kGaveUpTensors: reporting them failed
  kGivenOtherTraining = 64  // first step of another optimizer; the earlier optimizer was destroyed
};

constexpr bool knows_skips(const StepRecord& step) { return (step.given & kSkipsUnseen) == 0; }
constexpr bool is_first_look(const StepRecord& step) { return (step.given & kFirstLook) != 0; }
constexpr bool is_pending(const StepRecord& step) { return (step.given & kNumbersPending) != 0; }
constexpr bool given(const StepRecord& step, uint32_t bit) { return (step.given & bit) != 0; }

constexpr const char* name_of(LayerSource source) {
  constexpr const char* kNames[] = {"unknown", "annotation", "parameter", "ordinal", "unnamed_parameter"};
  const auto index = static_cast<uint32_t>(source);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

constexpr const char* step_source_name(uint32_t source) {
  constexpr const char* kNames[] = {"unknown", "reported", "optimizer_state", "counted"};
  return source < std::size(kNames) ? kNames[source] : kNames[0];
}

constexpr const char* loss_source_name(uint32_t source) {
  constexpr const char* kNames[] = {"unknown", "reported", "nll", "backward_root", "logged"};
  return source < std::size(kNames) ? kNames[source] : kNames[0];
}

// Names of FORESHOCK_UNSEEN_... in hook.h.
constexpr const char* unseen_evidence_name(uint32_t evidence) {
  constexpr const char* kNames[] = {"unknown", "used", "imported"};
  return evidence < std::size(kNames) ? kNames[evidence] : kNames[0];
}

// Names of KernelCountState.
constexpr const char* kKernelCountStates[] = {"not_asked",  "waiting", "counting", "done",
                                              "no_library", "taken",   "profiler", "refused"};
constexpr const char* kernel_count_state_name(uint32_t state) {
  return state < std::size(kKernelCountStates) ? kKernelCountStates[state] : kKernelCountStates[0];
}

// Records of weight tensors. They have different lengths and are stored in a ring of bytes, the region
// kTensors, with one writer and one reader. A record is not overwritten before it has been read. A tensor has
// its turn in one step of each interval. The measurement in that step is a snapshot.

// Reasons why a tensor was not measured although its turn had come. They index TensorRing::skipped.
enum TensorSkip : uint32_t {
  kTensorBudget,
  kTensorRingFull,      // the agent has not read the records in the ring yet
  kTensorTooLarge,      // the record is too large for the ring, or the measurement for memory on the device
  kTensorDevice,        // the device of its values cannot be used, or never replied
  kTensorFormat,        // unsupported format: fp64, integers, packed formats
  kTensorLayout,        // its values are not dense, or differ from the named tensor
  kTensorUnknown,       // not reported when its turn came, e.g. because its optimizer skipped the step
  kTensorCapture,       // the stream of its device was being captured into a graph
  kTensorDeviceMemory,  // its device had too little free memory
  kTensorDeviceFull,    // all result buffers of its device were in use
  kTensorSetUp,         // its device is set up at the end of the step
  kTensorSkips
};
inline constexpr const char* kTensorSkipNames[kTensorSkips] = {
    "budget",  "ring_full", "too_large",     "device",      "format", "layout",
    "unknown", "capture",   "device_memory", "device_full", "set_up"};

// Reasons why a tensor that an optimizer steps is never measured.
enum TensorUnfollowed : uint32_t {
  kUnfollowedOff,        // --weights off
  kUnfollowedNoRoom,     // too little shared memory for a ring
  kUnfollowedTooMany,    // the table of tensors is full
  kUnfollowedFlat,       // the tensor is a flat copy of many parameters (FSDP1)
  kUnfollowedPlacement,  // the position of this rank's part in the tensor is unknown
  kUnfollowedPace,       // its optimizer does not step once per counted step
  kTensorUnfollowed
};
inline constexpr const char* kTensorUnfollowedNames[kTensorUnfollowed] = {
    "off", "no_room", "too_many", "flat_parameter", "placement", "own_pace"};

inline constexpr uint32_t kTensorDims = 4;
inline constexpr uint64_t kTensorAlign = 64;

// The head of the region kTensors; records begin right after it.
struct TensorRing {
  uint64_t written;   // bytes of all records so far, fillers included; stored last, with release order
  uint64_t interval;  // steps between two snapshots of a tensor; 0: no snapshots
  uint64_t tensors, elements;  // named tensors that this rank holds parts of, and the elements of these parts
  uint64_t snapshots_taken;    // since the segment was created
  uint64_t skipped[kTensorSkips];
  // Tensors whose turn has come: snapshots_taken + skipped + awaited + those still to come in this step.
  uint64_t due;
  uint64_t unfollowed[kTensorUnfollowed];  // by reason: tensors of the trainer's latest list of names
  uint64_t awaited;                        // due tensors whose results are still on a device
  uint64_t reserved[8];
};
static_assert(sizeof(TensorRing) == 256);
// Bytes of the smallest region kTensors, which has counters but no records. It has kTensorAlign bytes beside
// the counters, since the reader computes places in the ring modulo the ring's size, which must not be 0.
inline constexpr uint64_t kLeastTensorsBytes = sizeof(TensorRing) + kTensorAlign;

enum class TensorKind : uint32_t {
  kFiller = 0,  // fills the end of the ring; the next record begins at its front
  kSnapshot = 1,
  kGradientLook = 2,  // a look at a gradient, in the payload kTensorGradientLook
};

// The format of the payload kTensorHistogram.
enum class HistogramForm : uint32_t {
  kNone = 0,
  kValues = 1,    // the values of a small tensor, in the order of memory
  kPatterns = 2,  // 16-bit formats: for each bit pattern that occurs, distance from the previous one, count
  // fp32: for each bin that is not empty, distance from the previous one, count, sum of the values' lower 12
  // bits. The values of a bin have the same upper 20 bits (kernels/histogram.h).
  kBins = 3,
};

enum TensorPayloadId : uint32_t {
  kTensorHistogram,
  kTensorReductions,        // fp64 numbers, indexed by TensorReduction
  kTensorOptimizer,         // fp64 numbers, indexed by OptimizerNumber
  kTensorGradientLook = 4,  // GradientLook
  kTensorPayloads = 8       // more than there are ids: the other entries are spare
};

// Indices in the payload kTensorReductions; NaN: unknown. The update is the change that this one step made.
enum TensorReduction : uint32_t {
  kSumOfSquares,        // of the values after the step; NaN and Inf included
  kUpdateSumMagnitude,  // sum of the update's absolute values
  kUpdateSumOfSquares,
  kUpdateMaxMagnitude,
  kUpdateElements,  // elements in the update's sums and maximum: all, or some spread evenly over the part
  kComparedSumOfSquares,  // as kSumOfSquares, but only of the kUpdateElements elements
  kSampleElements,  // elements, spread evenly over the part, that were compared with the snapshot before
  kSampleUnmoved,   // of these, elements with the same bits
  kTensorReductionCount
};

struct TensorRecord {
  uint64_t bytes;  // of the whole record, a multiple of 64
  TensorKind kind;
  uint32_t reserved;
  int64_t step;
  uint64_t time_ns;   // CLOCK_REALTIME
  uint64_t interval;  // TensorRing::interval at this step
  uint64_t snapshot;  // number of this tensor's snapshot in this process, from 1
  uint32_t number;    // index of the tensor among those that its rank has named
  uint32_t tensors;   // number of these tensors of which the rank holds a part
  uint32_t dims;
  uint32_t dtype;
  int64_t shape[kTensorDims];   // of the whole tensor
  int64_t offset[kTensorDims];  // index in the whole tensor at which the rank's part begins
  int64_t part[kTensorDims];    // shape of the part
  uint64_t elements;            // of the part
  uint64_t checksum;            // kernels/sums.h, over the part in the order of memory
  HistogramForm form;
  uint32_t step_source;              // FORESHOCK_STEP_... of hook.h; 0: unknown
  Payload payload[kTensorPayloads];  // offsets from the start of the record
  char layer[32];
  char name[160];
};
static_assert(sizeof(TensorRecord) == 504);

// A linear sketch of a tensor (kernels/sketch.h): the inner products with four vectors of signs. `norm` is
// the norm of the elements that were read, or, for a sum of gradients, the sum of their norms. NaN: unknown.
inline constexpr uint32_t kSketchProducts = 4;
struct GradientSketch {
  double products[kSketchProducts];
  double norm;
};

// What one look at a parameter saw of its gradient in one step of one rank.
struct GradientLook {
  GradientSketch local;   // sum of what the backward passes of the step have added to the gradient
  GradientSketch last;    // the last of these contributions
  GradientSketch before;  // the gradient that was left from earlier steps when the look began
  GradientSketch used;    // the gradient with which the optimizer's step began
  GradientSketch value;   // the parameter itself at that time
  uint32_t contributions;
  uint32_t is_whole;    // 1: all contributions were seen
  uint32_t parameters;  // parameters of this look
  uint32_t mesh;        // ranks with the same number, other than 0, hold copies of equal parts; 1: all ranks
};
static_assert(sizeof(GradientLook) == 216);

// Indices in the payload kTensorOptimizer: the optimizer's state of one tensor at one step, as fp64 numbers;
// NaN is unknown. Sums are over the finite elements of the rank's part. g is the gradient, v^ Adam's second
// moment with bias correction, w^ is v^ before this step; kernels/sums.h has the definitions.
enum OptimizerNumber : uint32_t {
  kGradientSumOfSquares,  // of the gradient that the optimizer used (after clipping)
  kGradientElements,      // finite elements of the gradient
  kGradientNonFinite,
  kMomentElements,    // elements with a usable gradient and second moment
  kMomentUnusable,    // elements with a NaN, infinite or negative second moment
  kStalenessSum,      // sum of g^2 / max(v^, epsilon^2)
  kEpsilonDominated,  // elements with sqrt(v^) below epsilon
  kSurprised,         // elements with g^2 above 50 w^
  kSurpriseElements,  // elements compared for kSurprised; 0 in the first step
  kSeenLearningRate,  // this and the next four: settings of the tensor's parameter group
  kSeenBeta1,
  kSeenBeta2,
  kSeenEpsilon,
  kSeenWeightDecay,
  kSeenStep,      // the optimizer's own count of steps for the tensor
  kSeenGradient,  // FORESHOCK_GRADIENT_... of hook.h
  kOptimizerNumbers
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_LAYOUT_H_
