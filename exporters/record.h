// The record of a run, the file in which the agent keeps what it measured: its lines, and the writer of the
// file. Each line is a JSON object with "schema": 1 and "type": run | step | sample | tensor | model |
// optimizer | gradient | event | finding | verdict. Field names, units and meanings are in one
// list per type; docs/record.md is generated from them. A separate thread writes the file, so that a hung
// disk does not delay the agent. Lines that are not in the file yet are also in a spool in shared memory, so
// that they survive a killed agent.
#ifndef FORESHOCK_EXPORTERS_RECORD_H_
#define FORESHOCK_EXPORTERS_RECORD_H_

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace foreshock {

inline constexpr int kRecordSchema = 1;

// Types of values. An empty text, list, object or optional means unknown and is written as null. Times are in
// seconds since 1970. A number that is not finite is written as null, and "nonfinite" lists its field.
using RecordText = std::string;
using RecordFlag = std::optional<bool>;
using RecordInteger = std::optional<int64_t>;
using RecordCount = std::optional<uint64_t>;
using RecordNumber = std::optional<double>;
using RecordIntegers = std::vector<int64_t>;
using RecordNumbers = std::map<std::string, double>;
using RecordIntegerMap = std::map<std::string, int64_t>;

// Return the JSON type of a field. The argument only selects the overload.
constexpr const char* name_of_type(const RecordText*) { return "string"; }
constexpr const char* name_of_type(const RecordFlag*) { return "boolean"; }
constexpr const char* name_of_type(const RecordInteger*) { return "integer"; }
constexpr const char* name_of_type(const RecordCount*) { return "integer"; }
constexpr const char* name_of_type(const RecordNumber*) { return "number"; }
constexpr const char* name_of_type(const RecordIntegers*) { return "list of integers"; }
constexpr const char* name_of_type(const RecordNumbers*) { return "object of numbers"; }
constexpr const char* name_of_type(const RecordIntegerMap*) { return "object of integers"; }

// One field of a line, for docs and tests. `type` is the JSON type.
struct RecordField {
  const char *name, *type, *unit, *help;
};

// Every field is declared once, in the FIELDS list of its line below: X(type, name, unit, help).
// FORESHOCK_RECORD_LINE turns the list into a struct with a member per field, the table kFields, and
// visit(line, v), which calls v(name, member) for each field, in the order of the list.
#define FORESHOCK_RECORD_MEMBER(type, name, unit, help) type name;
#define FORESHOCK_RECORD_ENTRY(type, name, unit, help) \
  {#name, name_of_type(static_cast<const type*>(nullptr)), unit, help},
#define FORESHOCK_RECORD_VISIT(type, name, unit, help) v(#name, line.name);
#define FORESHOCK_RECORD_LINE(Line, type_name, FIELDS)                         \
  struct Line {                                                                \
    FIELDS(FORESHOCK_RECORD_MEMBER)                                            \
    static constexpr const char* kType = type_name;                            \
    static constexpr RecordField kFields[] = {FIELDS(FORESHOCK_RECORD_ENTRY)}; \
    template <class Self, class Visitor>                                       \
    static void visit(Self& line, Visitor&& v) {                               \
      FIELDS(FORESHOCK_RECORD_VISIT)                                           \
    }                                                                          \
  }

// The agent has found a rank of the run (state "started"), or the rank's process has ended ("ended").
#define FORESHOCK_RUN_FIELDS(X)                                                                  \
  X(RecordText, run, "", "Run id.")                                                              \
  X(RecordText, state, "", "started or ended.")                                                  \
  X(RecordInteger, rank, "", "Rank in the job.")                                                 \
  X(RecordNumber, time, "s since 1970", "When.")                                                 \
  X(RecordText, foreshock_version, "", "Version of the agent.")                                  \
  X(RecordText, host, "", "Name of the node.")                                                   \
  X(RecordText, executable, "", "Base name of the trainer's program.")                           \
  X(RecordText, framework, "", "Framework and its version.")                                     \
  X(RecordText, instruction_set, "", "CPU instruction set the reference was computed with.")     \
  X(RecordInteger, pid, "", "Process id of the trainer.")                                        \
  X(RecordInteger, local_rank, "", "Rank within the node.")                                      \
  X(RecordInteger, world_size, "ranks", "Ranks of the whole job.")                               \
  X(RecordInteger, attempt, "", "Restarts of the run so far.")                                   \
  X(RecordCount, sample_seed, "", "Seed that decides what is sampled.")                          \
  X(RecordCount, slots, "slots", "Slots for slices in the segment; a long slice takes several.") \
  X(RecordCount, slot_bytes, "bytes", "Size of one of them.")                                    \
  X(RecordNumber, max_slowdown, "ratio", "Slowdown that is allowed.")
FORESHOCK_RECORD_LINE(RunLine, "run", FORESHOCK_RUN_FIELDS);

// One optimizer step that has ended.
#define FORESHOCK_STEP_FIELDS(X)                                                                        \
  X(RecordText, run, "", "Run id.")                                                                     \
  X(RecordInteger, rank, "", "Rank in the job.")                                                        \
  X(RecordInteger, step, "steps",                                                                       \
    "Number of optimizer steps since the start of the run, this one included.")                         \
  X(RecordNumber, time, "s since 1970", "End of the step.")                                             \
  X(RecordNumber, duration_seconds, "s", "Time since the end of the previous step.")                    \
  X(RecordNumber, loss, "nats", "Mean over the micro-batches.")                                         \
  X(RecordNumber, learning_rate, "1", "Learning rate of the first parameter group.")                    \
  X(RecordNumber, gradient_norm, "1", "L2 norm before clipping (exceptions: frameworks.md, clipping).") \
  X(RecordCount, batch_id, "", "Number of the batch, if the trainer reports one.")                      \
  X(RecordText, step_source, "", "reported, optimizer_state or counted.")                               \
  X(RecordText, loss_source, "", "reported, nll, backward_root or logged.")                             \
  X(RecordFlag, sampled, "", "Whether slices were taken in this step.")                                 \
  X(RecordCount, attention_calls, "calls", "Attention calls in this step.")                             \
  X(RecordCount, skipped_steps, "steps",                                                                \
    "Steps the trainer has left out so far; null if a scaler's result on a device could not be read.")  \
  X(RecordCount, sample_interval_steps, "steps", "Steps from one sampled step to the next.")            \
  X(RecordNumber, overhead_seconds, "s", "Time foreshock took on the training threads.")                \
  X(RecordNumbers, logged, "",                                                                          \
    "Values that the training itself logged since the previous step, by name; null if not finite.")     \
  X(RecordIntegerMap, logged_step, "", "The step that the training logged with them, in its own count.")
FORESHOCK_RECORD_LINE(StepLine, "step", FORESHOCK_STEP_FIELDS);

// One tensor of a slice compared with its fp64 reference. A slice is a part of one attention call: some query
// rows or key positions. To combine the bias of several slices, divide the total of bias_error_sum by the
// total of bias_ulp_sum; do not average the quotients.
#define FORESHOCK_SAMPLE_FIELDS(X)                                                                           \
  X(RecordText, run, "", "Run id.")                                                                          \
  X(RecordInteger, rank, "", "Rank in the job.")                                                             \
  X(RecordCount, ticket, "", "Number of the slice, unique in the rank's segment.")                           \
  X(RecordInteger, step, "steps", "Step the slice was taken in.")                                            \
  X(RecordInteger, step_judged, "steps", "Last known step when it was judged.")                              \
  X(RecordNumber, time, "s since 1970", "When it was taken.")                                                \
  X(RecordCount, call, "", "Ordinal of the attention call within its step.")                                 \
  X(RecordText, pass, "", "forward or backward.")                                                            \
  X(RecordText, tensor, "",                                                                                  \
    "What is judged: out, grad_query, grad_key or grad_value. A slice of key positions has two lines, of "   \
    "grad_key and grad_value, with one ticket.")                                                             \
  X(RecordText, op, "", "Operation that was called.")                                                        \
  X(RecordText, layer, "", "Label of the layer.")                                                            \
  X(RecordText, layer_name, "", "Module with the parameters of the layer.")                                  \
  X(RecordText, layer_source, "",                                                                            \
    "annotation, parameter or ordinal; without a layer unnamed_parameter (the attention reads a parameter "  \
    "that has no name) or unknown (no parameter was found).")                                                \
  X(RecordText, dtype, "", "Storage format of query, key, value and output.")                                \
  X(RecordText, mask, "", "none, or the storage format of the mask.")                                        \
  X(RecordInteger, batch, "", "Index in the batch, or of the packed sequence.")                              \
  X(RecordInteger, kv_head, "", "Index of the key-value head.")                                              \
  X(RecordIntegers, heads, "",                                                                               \
    "Query head of each row. For grad_key and grad_value: the query heads that are summed over.")            \
  X(RecordIntegers, positions, "",                                                                           \
    "Query position of each row. For grad_key and grad_value: the key positions.")                           \
  X(RecordInteger, rows, "rows", "Query rows judged, or key positions.")                                     \
  X(RecordInteger, rows_not_comparable, "rows",                                                              \
    "Rows without an error: they see no key, or their inputs are not finite.")                               \
  X(RecordInteger, keys, "keys",                                                                             \
    "Number of keys copied. For grad_key and grad_value: number of query rows of all heads.")                \
  X(RecordInteger, head_dim, "", "Length of a query and key vector.")                                        \
  X(RecordInteger, value_dim, "", "Length of a value vector.")                                               \
  X(RecordInteger, query_length, "positions",                                                                \
    "Number of queries of the whole call. In a call with packed sequences: of this sequence.")               \
  X(RecordInteger, key_length, "positions", "Number of keys of the whole call, or of this sequence.")        \
  X(RecordNumber, scale, "1", "Factor of the scores.")                                                       \
  X(RecordInteger, reference_version, "", "Version of the definition of the reference.")                     \
  X(RecordNumber, relative_error_mean, "ratio",                                                              \
    "L2 norm of (kernel - reference) divided by the L2 norm of the reference, mean of the rows.")            \
  X(RecordNumber, relative_error_max, "ratio", "Largest relative error of a row.")                           \
  X(RecordNumber, error_norm, "1", "L2 norm of the kernel's error over the slice.")                          \
  X(RecordNumber, plain_error_norm, "1",                                                                     \
    "Noise floor: L2 norm of the error of plain (unfused) attention in the same precision.")                 \
  X(RecordNumber, deviation_ratio, "ratio",                                                                  \
    "Error of the kernel divided by the noise floor. Absent in a backward slice if few rows have nearly "    \
    "all of the error: effective_rows is below 3 and plain_effective_rows is below 8.")                      \
  X(RecordNumber, fused_error_norm, "1",                                                                     \
    "The other noise floor: error_norm of fused attention in the same precision, with scores in fp32.")      \
  X(RecordNumber, fused_ratio, "ratio",                                                                      \
    "Error of the kernel divided by the error of fused attention, by which alarms judge. Of attention that " \
    "is written out in PyTorch operations: at most deviation_ratio / sqrt(3). Absent by the same rule. "     \
    "Such slices of grad_query are added up by layer; the slice that completes 8 effective rows has the "    \
    "ratio of all.")                                                                                         \
  X(RecordNumber, conservation_ratio, "ratio",                                                               \
    "Of grad_key and grad_value: distance of their sum over all keys of the kv-head from its exact value "   \
    "(0 for grad_key; the sum of the output's gradient for grad_value), divided by the distance that "       \
    "roundings explain. Meaningless for partial calls.")                                                     \
  X(RecordNumber, reference_norm, "1", "Norm of the reference over the rows compared.")                      \
  X(RecordNumber, effective_rows, "rows",                                                                    \
    "Number of rows over which the error is spread: (sum of e)^2 / sum of e^2. The e of a row is the "       \
    "squared error of the kernel plus the squared error of unfused attention.")                              \
  X(RecordNumber, plain_effective_rows, "rows",                                                              \
    "The same number with the error of unfused attention alone.")                                            \
  X(RecordNumber, bias_ulp, "ulp",                                                                           \
    "bias_error_sum divided by bias_ulp_sum: mean signed error, positive away from zero. For several "       \
    "samples, divide the totals of the two sums.")                                                           \
  X(RecordNumber, bias_error_sum, "1", "Sum of the tensor's errors, each times the sign of the reference.")  \
  X(RecordNumber, bias_ulp_sum, "1", "Sum of the spacings of the storage format at the reference.")          \
  X(RecordNumber, rounded_reference_bias_ulp, "ulp",                                                         \
    "Control: the same bias of the reference rounded once.")                                                 \
  X(RecordNumber, rounded_reference_bias_error_sum, "1", "Sum of errors of that control.")                   \
  X(RecordNumber, floor_bias_ulp, "ulp",                                                                     \
    "Control: the same bias of fused attention. Absent for attention that is written out in operations.")    \
  X(RecordNumber, unexplained_bias_ulp, "ulp",                                                               \
    "How far bias_ulp is from the interval that 0 and its controls span; attention that is written out has " \
    "unfused attention as a further control.")                                                               \
  X(RecordFlag, partial, "",                                                                                 \
    "Backward: the call saw a part of the keys that its log-sum-exp covers, as with context parallelism.")   \
  X(RecordInteger, rows_partial, "rows",                                                                     \
    "Of grad_query: rows whose log-sum-exp covers more keys than the call has.")                             \
  X(RecordFlag, nonfinite_result, "",                                                                        \
    "true: the tensor has NaN or Inf where the reference has none, at the rows or elsewhere in the head.")   \
  X(RecordFlag, nonfinite_grad_query, "",                                                                    \
    "Of grad_key, true: the call's grad_query has NaN or Inf, and should have none.")                        \
  X(RecordText, key_positions_skipped, "",                                                                   \
    "Of grad_query: why the call gave no slice of key positions (dK, dV) too. not_chosen: only a share of "  \
    "the calls gives one; no_gradients, no_log_sum_exp: the call came without them; mask: it leaves no "     \
    "key to compare; packed: on a device; too_large, ring_full.")                                            \
  X(RecordNumber, lse_error_abs_max, "nats", "Largest error of the log-sum-exp.")                            \
  X(RecordNumber, lse_error_ratio, "ratio",                                                                  \
    "Largest error of the log-sum-exp, divided by twice the error that one rounding of the scores can "      \
    "cause. A value above 1 means that the log-sum-exp is wrong.")                                           \
  X(RecordNumber, logit_abs_max, "nats", "Largest magnitude of a scaled score, without the mask.")           \
  X(RecordNumber, entropy_nats_min, "nats", "Smallest entropy of the weights of a row.")                     \
  X(RecordNumber, entropy_nats_mean, "nats", "Mean entropy of the weights of a row.")                        \
  X(RecordNumber, near_tie_ratio, "ratio",                                                                   \
    "Share of rows whose two largest scores differ by at most 1/512 (in nats).")                             \
  X(RecordNumber, grad_out_drift, "1",                                                                       \
    "Backward: sum of the output's gradient times the output's error, which is the effect of the error on "  \
    "the loss.")                                                                                             \
  X(RecordCount, nonfinite_output_values, "values", "Of nonfinite_values: those of output and log-sum-exp.") \
  X(RecordCount, nonfinite_gradient_values, "values", "Of nonfinite_values: those of the judged gradient.")  \
  X(RecordCount, nonfinite_values, "values",                                                                 \
    "Number of NaN and infinite values in the slice: inputs (query, key, value, gradient of the output), "   \
    "output, log-sum-exp and judged gradient. For grad_key and grad_value: inputs and gradient; the "        \
    "gradient of all keys of the head if the trainer has summed it.")                                        \
  X(RecordNumber, judge_seconds, "s", "CPU time of the judgement.")
FORESHOCK_RECORD_LINE(SampleLine, "sample", FORESHOCK_SAMPLE_FIELDS);

// One snapshot of one weight tensor: of the parts on this node or of the whole tensor (field `scope`).
#define FORESHOCK_TENSOR_FIELDS(X)                                                                           \
  X(RecordText, run, "", "Run id.")                                                                          \
  X(RecordText, scope, "",                                                                                   \
    "node: the line covers the parts that the ranks of one node hold. job: it covers all parts; `foreshock " \
    "merge` has joined them.")                                                                               \
  X(RecordInteger, step, "steps", "Step after which the tensor was measured.")                               \
  X(RecordNumber, time, "s since 1970", "When the first rank measured it.")                                  \
  X(RecordText, tensor, "", "Name of the parameter.")                                                        \
  X(RecordText, layer, "", "Label of its layer.")                                                            \
  X(RecordText, dtype, "", "Storage format.")                                                                \
  X(RecordIntegers, shape, "", "Shape of the whole tensor; dimensions beyond four are multiplied.")          \
  X(RecordInteger, attempt, "", "Restarts of the run so far.")                                               \
  X(RecordInteger, tensor_parallel, "",                                                                      \
    "Tensor-parallel coordinate of the ranks that together hold the whole tensor. Ranks with another "       \
    "coordinate may hold another tensor with the same name.")                                                \
  X(RecordInteger, pipeline_parallel, "", "Pipeline-parallel coordinate of these ranks.")                    \
  X(RecordInteger, expert_parallel, "", "Expert-parallel coordinate of these ranks.")                        \
  X(RecordInteger, of_rank, "",                                                                              \
    "The rank that holds the whole tensor, if its coordinates are unknown. No other rank is then treated "   \
    "as its replica.")                                                                                       \
  X(RecordCount, elements, "values", "Number of values in this scope. Values of replicas are counted once.") \
  X(RecordCount, whole_elements, "values", "Values of the whole tensor.")                                    \
  X(RecordCount, parts, "", "Number of different parts that were joined; 1 if the tensor is not sharded.")   \
  X(RecordIntegers, part_offsets, "",                                                                        \
    "Offset of each part in the tensor: four numbers for each part, in ascending order.")                    \
  X(RecordIntegers, part_shapes, "", "Shape of each part: four numbers for each part, in the same order.")   \
  X(RecordCount, ranks, "ranks",                                                                             \
    "Number of ranks that hold the tensor or a part of it and whose data had arrived when the line was "     \
    "written.")                                                                                              \
  X(RecordCount, interval_steps, "steps",                                                                    \
    "Steps between two snapshots. A new interval begins a new series: previous values are null.")            \
  X(RecordInteger, previous_step, "steps", "Step of the snapshot one interval before.")                      \
  X(RecordInteger, initial_step, "steps",                                                                    \
    "Step of its first snapshot in the run, over all attempts that the agent has followed. Null when it is " \
    "not known, as after the agent was started again in mid-run: then there is an event "                    \
    "weight_initial_unknown.")                                                                               \
  X(RecordNumber, wasserstein_previous, "1",                                                                 \
    "Wasserstein distance W1 of its values to those of the snapshot before; exact for 16-bit formats.")      \
  X(RecordNumber, wasserstein_previous_low, "1", "Certified lower bound of it.")                             \
  X(RecordNumber, wasserstein_previous_high, "1", "Certified upper bound of it.")                            \
  X(RecordNumber, wasserstein_initial, "1", "W1 to that first snapshot.")                                    \
  X(RecordNumber, wasserstein_initial_low, "1", "Certified lower bound of it.")                              \
  X(RecordNumber, wasserstein_initial_high, "1", "Certified upper bound of it.")                             \
  X(RecordNumber, rms, "1", "Root of the mean square of its values.")                                        \
  X(RecordNumber, mean_abs, "1", "Mean magnitude of its finite values.")                                     \
  X(RecordNumber, update_mean_abs, "1",                                                                      \
    "Mean magnitude of the change that this one optimizer step made, over `update_elements` of the values.") \
  X(RecordNumber, update_max_abs, "1",                                                                       \
    "Largest magnitude of that change, over the same `update_elements` values.")                             \
  X(RecordCount, update_elements, "values",                                                                  \
    "Number of values that were kept over the step and compared: all values, or, if the tensor is larger "   \
    "than --memory, a part of them that is spread evenly over it.")                                          \
  X(RecordCount, sample_elements, "values",                                                                  \
    "Number of values, spread evenly over the tensor, that were kept since the snapshot before and "         \
    "compared; at most 32 for each part.")                                                                   \
  X(RecordCount, sample_unmoved, "values",                                                                   \
    "Number of the `sample_elements` values whose bits are those of the snapshot before.")                   \
  X(RecordCount, nonfinite_values, "values", "NaN and infinite values among the `elements` values.")         \
  X(RecordText, histogram_hash, "",                                                                          \
    "FNV-1a of the stored histogram, in hexadecimal: equal histograms have equal ones.")                     \
  X(RecordIntegers, odd_ranks, "",                                                                           \
    "Ranks whose values differ from their data-parallel replicas' in any bit; without a majority (as with "  \
    "two replicas), all of them.")                                                                           \
  X(RecordText, histogram, "",                                                                               \
    "The distribution of its values, with --record-histograms: base64 of what shadow/histogram.h "           \
    "describes.")
FORESHOCK_RECORD_LINE(TensorLine, "tensor", FORESHOCK_TENSOR_FIELDS);

// All weights of a layer, or of the model, over one interval, in which each tensor is measured once.
#define FORESHOCK_MODEL_FIELDS(X)                                                                       \
  X(RecordText, run, "", "Run id.")                                                                     \
  X(RecordText, scope, "", "node or job, as in lines of type tensor.")                                  \
  X(RecordText, layer, "", "Label of the layer; null: the whole model.")                                \
  X(RecordInteger, step, "steps",                                                                       \
    "First step of the interval. Each tensor is measured once in the interval, at a step of its own.")  \
  X(RecordNumber, time, "s since 1970", "When the last of its tensors was measured.")                   \
  X(RecordCount, interval_steps, "steps", "Steps between two snapshots of a tensor.")                   \
  X(RecordCount, tensors, "tensors", "Number of tensors whose values are pooled.")                      \
  X(RecordCount, elements, "values", "Number of their values. Values of replicas are counted once.")    \
  X(RecordNumber, wasserstein_previous, "1", "W1 of all these values to those of the interval before.") \
  X(RecordNumber, wasserstein_previous_low, "1", "Certified lower bound of it.")                        \
  X(RecordNumber, wasserstein_previous_high, "1", "Certified upper bound of it.")                       \
  X(RecordNumber, wasserstein_initial, "1", "W1 to the first snapshots.")                               \
  X(RecordNumber, wasserstein_initial_low, "1", "Certified lower bound of it.")                         \
  X(RecordNumber, wasserstein_initial_high, "1", "Certified upper bound of it.")                        \
  X(RecordNumber, wasserstein_previous_max, "1",                                                        \
    "W1 of the tensor that moved most since the interval before.")                                      \
  X(RecordNumber, wasserstein_initial_max, "1",                                                         \
    "W1 of the tensor that moved most since the first snapshot.")                                       \
  X(RecordText, moved_most, "", "The tensor that moved most since the interval before.")                \
  X(RecordNumber, rms, "1", "Root of the mean square of all values.")                                   \
  X(RecordNumber, update_mean_abs, "1", "Mean magnitude of the change that one optimizer step made.")   \
  X(RecordNumber, update_mean_abs_max, "1", "The same mean for the tensor that changed most.")          \
  X(RecordCount, update_elements, "values",                                                             \
    "Number of values over which update_mean_abs and update_mean_abs_max are taken: the values whose "  \
    "change is known.")                                                                                 \
  X(RecordText, histogram_hash, "", "FNV-1a of the stored histogram of all values, in hexadecimal.")
FORESHOCK_RECORD_LINE(ModelLine, "model", FORESHOCK_MODEL_FIELDS);

// The optimizer's state of one tensor at one step, over the parts on this node. Replicas are counted once.
#define FORESHOCK_OPTIMIZER_FIELDS(X)                                                                      \
  X(RecordText, run, "", "Run id.")                                                                        \
  X(RecordInteger, step, "steps", "Step that had just been taken.")                                        \
  X(RecordNumber, time, "s since 1970", "When.")                                                           \
  X(RecordText, tensor, "", "Name of the parameter; see also the line of type tensor of the same step.")   \
  X(RecordText, layer, "", "Label of its layer.")                                                          \
  X(RecordCount, elements, "values",                                                                       \
    "Number of values that the figures of this line cover: all parts on this node.")                       \
  X(RecordCount, whole_elements, "values", "Number of values of the whole tensor.")                        \
  X(RecordNumber, rms_staleness, "1",                                                                      \
    "sqrt(mean(g^2 / max(v, eps^2))), v being Adam's second moment after the step, bias-corrected.")       \
  X(RecordNumber, surprise_ratio, "ratio",                                                                 \
    "Share of values with g^2 > 50 v, v being the bias-corrected second moment that the step found.")      \
  X(RecordNumber, epsilon_dominated_ratio, "ratio", "Share of values with sqrt(v) < eps.")                 \
  X(RecordNumber, update_ratio, "ratio",                                                                   \
    "Norm of what the step changed over the norm of the values after it.")                                 \
  X(RecordNumber, gradient_rms, "1",                                                                       \
    "Root of the mean square of the gradient that the optimizer used, after clipping; only finite values " \
    "count.")                                                                                              \
  X(RecordCount, nonfinite_gradient_values, "values", "NaN and infinite values of the gradient.")          \
  X(RecordText, gradient, "",                                                                              \
    "present; absent: the parameter requires a gradient and the optimizer has none; not_required: it is "  \
    "frozen.")                                                                                             \
  X(RecordInteger, optimizer_step, "steps",                                                                \
    "Number of steps that the optimizer itself has counted for this parameter.")                           \
  X(RecordNumber, learning_rate, "1", "Learning rate of the parameter's group.")                           \
  X(RecordNumber, beta1, "1", "beta1 of the parameter's group.")                                           \
  X(RecordNumber, beta2, "1", "beta2 of the parameter's group.")                                           \
  X(RecordNumber, epsilon, "1", "epsilon of the parameter's group.")                                       \
  X(RecordNumber, weight_decay, "1", "Weight decay of the parameter's group.")
FORESHOCK_RECORD_LINE(OptimizerLine, "optimizer", FORESHOCK_OPTIMIZER_FIELDS);

// What one look saw of the gradient of a parameter in one step of one rank (docs/gradients.md).
#define FORESHOCK_GRADIENT_FIELDS(X)                                                                         \
  X(RecordText, run, "", "Run id.")                                                                          \
  X(RecordInteger, rank, "", "Rank in the job.")                                                             \
  X(RecordInteger, step, "steps", "Step in which the gradient was used.")                                    \
  X(RecordNumber, time, "s since 1970", "When the optimizer's step began.")                                  \
  X(RecordText, tensor, "", "Name of the parameter.")                                                        \
  X(RecordText, layer, "", "Label of its layer.")                                                            \
  X(RecordText, dtype, "", "Format of the gradient: fp32, bf16 or fp16.")                                    \
  X(RecordIntegers, shape, "values", "Shape of the parameter.")                                              \
  X(RecordIntegers, part, "values", "Offset and shape of the rank's part of it; empty: the rank has all.")   \
  X(RecordInteger, mesh, "",                                                                                 \
    "Number of the ranks that share a distributed tensor: 1: all ranks of the job; a larger one: a hash of " \
    "them. Ranks with the same number that hold the same part hold copies of it.")                           \
  X(RecordIntegers, coordinates, "", "The rank's tensor, pipeline and expert coordinates; -1: unknown.")     \
  X(RecordInteger, world_size, "ranks", "Ranks of the whole job.")                                           \
  X(RecordCount, parameters, "parameters", "Parameters of this look.")                                       \
  X(RecordCount, contributions, "", "How often backward passes have added to the gradient in the step.")     \
  X(RecordFlag, whole, "", "Whether all contributions were seen.")                                           \
  X(RecordNumbers, sketches, "",                                                                             \
    "Inner products 0 to 3 with vectors of signs, and the norm, of local (the sum of the contributions; "    \
    "norm: the sum of their norms), last (the last of them), before (the gradient left from earlier steps)," \
    " used (the gradient at the optimizer's step) and value (the parameter).")
FORESHOCK_RECORD_LINE(GradientLine, "gradient", FORESHOCK_GRADIENT_FIELDS);

// An event of the run, which the agent or a detector has found.
#define FORESHOCK_EVENT_FIELDS(X)                                                                            \
  X(RecordText, run, "", "Run id.")                                                                          \
  X(RecordInteger, rank, "", "Rank in the job.")                                                             \
  X(RecordInteger, step, "steps", "Step it happened in.")                                                    \
  X(RecordNumber, time, "s since 1970", "When the agent saw it.")                                            \
  X(RecordText, event, "",                                                                                   \
    "What happened. loss_spike, divergence, loss_rise: events of the loss; step is the onset. precursor: a " \
    "detector's level has changed. nonfinite: NaN or infinite values in the output or a gradient of "        \
    "attention. nonfinite_gradient: in the gradient of a layer. nonfinite_gradient_norm: the gradient norm " \
    "of a step was NaN or infinite. weight_mismatch: replicas of a weight differ; `value` is a rank whose "  \
    "values differ, or null if nodes differ. resumed: the step count went back, from `value`. "              \
    "detectors_begin_anew: the detectors start empty, as an earlier agent's state was lost or unusable. "    \
    "weight_initial_unknown: a tensor has no first snapshot to compare with, because the run started "       \
    "before this agent, the tensor is now divided into other shards, or there was no room. burst: a "        \
    "detector's level has become watch or warn; from this step on, one step in `value` steps is sampled "    \
    "for a while. scaler_skips: a gradient scaler has skipped `value` optimizer steps since this step. "     \
    "backward_without_step: attention had `value` backward calls since this step. "                          \
    "no_step_taken and other names of docs/detectors.md#conditions: a condition has started; step is its "   \
    "first. "                                                                                                \
    "Further events are possible.")                                                                          \
  X(RecordText, layer, "", "Label of the layer it happened in.")                                             \
  X(RecordText, detail, "", "A sentence for the reader.")                                                    \
  X(RecordNumber, value, "", "The value that was judged. For some events another number; see `event`.")      \
  X(RecordText, detector, "", "Of a precursor: which detector; docs/detectors.md.")                          \
  X(RecordText, level, "", "Of a precursor: quiet, watch or warn, to which the level has changed.")          \
  X(RecordNumber, score, "1", "Of a precursor: 1 is where the detector warns.")
FORESHOCK_RECORD_LINE(EventLine, "event", FORESHOCK_EVENT_FIELDS);

// A finding: something that is wrong in the run (agent/findings.h). The summary, the page and the report show
// the same findings.
#define FORESHOCK_FINDING_FIELDS(X)                                                                          \
  X(RecordText, run, "", "Run id.")                                                                          \
  X(RecordText, state, "", "began: the agent has just found it. final: as it stood at the end of the run.")  \
  X(RecordNumber, time, "s since 1970", "When the line was written.")                                        \
  X(RecordInteger, step, "steps", "Last step of any rank when the line was written.")                        \
  X(RecordText, finding, "", "Kind of finding, as in the section of the runbook on findings.")               \
  X(RecordText, headline, "", "The verdict of a run whose most severe finding this is.")                     \
  X(RecordText, text, "", "The finding as a sentence.")                                                      \
  X(RecordText, action, "", "What to do first.")                                                             \
  X(RecordText, layer, "", "Label of the layer; null if it is unknown, or the finding is not of one layer.") \
  X(RecordText, tensor, "", "What is wrong: out, grad_query, grad_key or grad_value. Null: not attention.")  \
  X(RecordInteger, rank, "", "Rank in the job; null: all ranks.")                                            \
  X(RecordInteger, since_step, "steps", "First step that showed it.")                                        \
  X(RecordInteger, last_step, "steps", "Last step that showed it.")                                          \
  X(RecordNumber, now, "", "Size in the last samples, in `unit`.")                                           \
  X(RecordNumber, largest, "", "Largest size since `since_step`, in `unit`.")                                \
  X(RecordText, unit, "", "times: multiples of what rounding explains. ulp: spacings of the format.")        \
  X(RecordNumber, relative_error, "ratio", "Largest relative_error_mean of a sample that showed it.")
FORESHOCK_RECORD_LINE(FindingLine, "finding", FORESHOCK_FINDING_FIELDS);

// The verdict on a run on one node, written when a command has ended. The final findings come directly
// before.
#define FORESHOCK_VERDICT_FIELDS(X)                                                                   \
  X(RecordText, run, "", "Run id.")                                                                   \
  X(RecordText, state, "", "How the command ended: finished, failed, preempted or interrupted.")      \
  X(RecordNumber, time, "s since 1970", "When the line was written.")                                 \
  X(RecordText, verdict, "", "The verdict in the first line of the summary: `healthy`, for example.") \
  X(RecordInteger, step, "steps", "Last step of any rank.")                                           \
  X(RecordCount, findings, "findings", "Number of findings.")                                         \
  X(RecordText, gap, "", "First attention layers that were not checked, why, and what to do.")        \
  X(RecordCount, replicas_compared, "", "Comparisons of weights between data-parallel replicas.")
FORESHOCK_RECORD_LINE(VerdictLine, "verdict", FORESHOCK_VERDICT_FIELDS);

// Returns the path of the older part of the record at `path`, which exists if a size limit split the record.
inline std::string older_part(const std::string& path) { return path + ".1"; }

inline constexpr std::string_view kFirstRecordBytes = R"({"schema":1,)";  // every line begins with these

// Whether older_part(path) exists and is a record: an unrelated file may have this name.
bool has_older_part(const std::string& path);

inline constexpr size_t kLongestRecordLine = 4 << 20;  // in bytes; a reader rejects longer lines

// Returns the fields of a type of line ("run", "step", ...); empty for an unknown type.
std::span<const RecordField> record_fields(std::string_view line_type);

std::string record_markdown();  // returns the fields of all types as Markdown tables, for docs/record.md

// Converts one of the structs above to its JSON, without a newline.
template <class Line>
std::string to_json_line(const Line& line);

std::string to_base64(std::string_view bytes);  // encodes bytes as base64 (RFC 4648) with padding

// Decodes base64. Returns nothing if to_base64() could not have written `text`.
std::optional<std::string> from_base64(std::string_view text);

// The signature of write(2), which tests replace.
using WriteCall = ssize_t (*)(int file, const void* bytes, size_t count);

// The file of a record. It contains whole lines and has one writer. It may also be a pipe or a device, which
// cannot be locked or truncated. Thread-compatible.
class RecordFile {
 public:
  // Creates the file, or opens a record to append to it after its last whole line. Returns null and a
  // one-line *error if the file cannot be opened, is not a record, or another writer has locked it. With a
  // `max_bytes` above 0, the record is kept in two parts of at most half of `max_bytes` each: before a part
  // would become larger, it is renamed to older_part(path), replacing that file, and a new one is started.
  static std::unique_ptr<RecordFile> open(const std::string& path, std::string* error, WriteCall write,
                                          uint64_t max_bytes = 0);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  // The result of append(). If a line could be written only in part, the part is removed from a regular file,
  // so that a later call can write the whole line. In a pipe or device the part stays and is counted in
  // `bytes`; the later call must pass the rest.
  struct Appended {
    size_t bytes = 0;  // how many bytes, from the start of `lines`, are in the file
    int error = 0;     // errno if bytes are missing, else 0
  };
  Appended append(std::string_view lines);

  const std::string& path() const { return path_; }
  bool is_regular() const { return is_regular_; }  // can be truncated
  uint64_t size() const { return size_; }          // bytes of whole lines
  uint64_t inode() const { return inode_; }

 private:
  RecordFile(int file, std::string path, bool is_regular, uint64_t inode, uint64_t size, WriteCall write,
             uint64_t max_bytes);
  void begin_new_part();

  int file_;
  const std::string path_;
  const bool is_regular_;
  uint64_t inode_, size_;
  const uint64_t max_bytes_;
  const WriteCall write_;
};

// Writes the record. Only one thread may call it. It starts a second thread that writes the file. Lines wait
// in memory, up to 4 MiB, and are written once a second. If the disk is full or hangs, the file keeps whole
// lines only. The lines that it lacks wait for the next attempt to write; lines beyond 4 MiB count as lost.
class RecordWriter {
 public:
  static constexpr std::chrono::milliseconds kPatience{2000};  // a longer write counts as hung
  // flush() waits no longer for a file that hangs. A launcher takes an agent that waits longer as hung.
  static constexpr std::chrono::milliseconds kLongestFlush{4000};

  // Opens the file as RecordFile::open() does, and appends the lines of the spool that are not in the file.
  // `spool`: the descriptor for RecordSpool, or -1. Makes the process ignore SIGXFSZ: if the file exceeds the
  // size limit of the process, write() then fails and the process goes on.
  static std::unique_ptr<RecordWriter> open(const std::string& path, std::string* error, int spool = -1,
                                            WriteCall write = ::write, uint64_t max_bytes = 0);
  // Writes the waiting lines, for at most kPatience. If the file hangs, the writing thread is detached, and
  // the waiting lines are lost unless the spool has them.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  template <class Line>
  void write(const Line& line) {
    append(to_json_line(line));
  }

  // Waits until all lines are written or cannot be written. Returns whether all were written.
  bool flush() { return write_out(kLongestFlush); }
  // Starts to write all lines, without waiting; to a new file if another program has taken the file away.
  void begin_flush();

  // Copies the lines passed to write() so far to the spool, where they survive a killed agent. Must be called
  // before the trainer may reuse the shared memory from which the lines were made. If the spool fails, or the
  // record is a pipe or a device, waits until the lines are in the file, at most 2 * kPatience. This wait is
  // omitted if the last write has failed or hangs.
  void copy_to_spool();

  // Returns one line after the first of consecutive failed attempts to write, and after the next one that
  // succeeds; each line once. Otherwise returns "".
  std::string take_error();

  bool is_failing() const;  // whether the last attempt failed, or the present one hangs

  // Bytes of whole lines in the file and in the spool: if this agent is killed, the next one writes the lines
  // of the spool to the file. 0 if the file is not a regular file.
  uint64_t size() const;

  uint64_t errors() const;      // attempts to write that failed
  uint64_t lines_lost() const;  // lines that will never be written
  // Whether lines are lost, would be if this process were killed, or another program took the file away.
  bool is_incomplete() const;

 private:
  struct Shared;  // shared with the writing thread, which may outlive this object
  explicit RecordWriter(std::shared_ptr<Shared> shared);
  void append(const std::string& line);
  bool write_out(std::chrono::milliseconds max_wait);  // returns whether all lines were written
  bool start_thread();                                 // returns whether the writing thread exists

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::chrono::steady_clock::time_point last_flush_;  // when begin_flush() was called last
};

// A position in a record: the file, by its inode, and a byte offset in the file.
struct RecordPosition {
  uint64_t inode = 0;
  uint64_t offset = 0;
};

// A file in shared memory for lines that are not yet in the record. The first line of the spool is a heading:
// the position at which the other lines belong in the record. Thread-compatible.
class RecordSpool {
 public:
  // About twice what can wait in RecordWriter, since written lines may stay in the spool until clear().
  static constexpr size_t kMostBytes = size_t{8} << 20;

  // Takes ownership of a descriptor opened for reading and appending. -1 (no file): add() always fails.
  explicit RecordSpool(int file);
  ~RecordSpool();
  RecordSpool(const RecordSpool&) = delete;
  RecordSpool& operator=(const RecordSpool&) = delete;

  // Returns the lines of an earlier agent that are not in the record, whose end is at `end`. Returns all
  // lines of the spool if they belong to another file or begin after `end`. Call clear() before the first
  // add(): under the heading of the earlier agent, new lines would have a wrong position.
  std::string missing(const RecordPosition& end) const;

  // Adds lines. `position`: that of the first of them in the record, directly after the lines added before.
  // Returns false on failure; later calls then also fail until the next clear().
  bool add(std::string_view lines, const RecordPosition& position);

  // Empties the spool. Must be called only if all its lines are in the record or will be added again.
  void clear();

  // Whether the spool exists and has all lines passed to add() since the last clear().
  bool is_whole() const { return is_whole_; }

 private:
  const int file_;
  size_t size_ = 0;  // bytes in the file, the heading included
  bool is_whole_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_H_
