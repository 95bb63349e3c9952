// The lines of a record: one JSON object each, "schema": 1, "type": run | step | sample | tensor | model |
// optimizer | spectrum | event. Field names, units and meanings stand in one table per type
// (below); docs/record.md is generated from it.
#ifndef FORESHOCK_EXPORTERS_RECORD_LINE_H_
#define FORESHOCK_EXPORTERS_RECORD_LINE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace foreshock {

// In all lines: an empty string, an empty list and an empty optional are unknown and written as null. Times
// are seconds since 1970. A number that is not finite is written as null, and its field is named in
// "nonfinite".

// A rank was found (state "started") or is gone ("ended").
struct RunLine {
  std::string run, state;
  std::optional<int64_t> rank;
  std::optional<double> time;
  std::string foreshock_version, host, executable, framework, instruction_set;
  std::optional<int64_t> pid, local_rank, world_size, attempt;
  std::optional<int64_t> data_parallel, tensor_parallel, pipeline_parallel, expert_parallel;
  std::optional<uint64_t> sample_seed, slots, slot_bytes;
  std::optional<double> max_slowdown;
};

struct StepLine {
  std::string run;
  std::optional<int64_t> rank, step;
  std::optional<double> time, duration_seconds;
  std::optional<double> loss, learning_rate, gradient_norm;
  std::optional<uint64_t> batch_id;
  std::string step_source, loss_source;
  std::optional<bool> sampled;
  std::optional<uint64_t> attention_calls, skipped_steps, sample_interval_steps;
  std::optional<double> overhead_seconds;
  std::map<std::string, double> logged;        // by the training itself, 16 names at most
  std::map<std::string, int64_t> logged_step;  // what it gave as their steps
};

struct SampleLine {
  std::string run;
  std::optional<int64_t> rank;
  std::optional<uint64_t> ticket;
  std::optional<int64_t> step, step_judged;  // taken at, and the last step known when it was judged
  std::optional<double> time;                // taken at
  std::optional<uint64_t> call;              // ordinal of the call within its step
  std::string pass, op;
  std::string layer, layer_name, layer_source;
  std::string dtype, mask;
  std::optional<int64_t> batch, kv_head;
  std::vector<int64_t> heads, positions;  // of each row
  std::optional<int64_t> rows, rows_not_comparable, keys, head_dim, value_dim, query_length, key_length;
  std::optional<double> scale;
  std::optional<int64_t> reference_version;
  std::optional<double> relative_error_mean, relative_error_max;  // of the kernel
  std::optional<double> error_norm,
      plain_error_norm;                   // of the kernel, and of plain attention: the noise floor
  std::optional<double> deviation_ratio;  // the one over the other
  // Of fused attention, the other noise floor, and the ratio to it; norm of the reference.
  std::optional<double> fused_error_norm, fused_ratio, reference_norm;
  // Rows that both errors together, and that of plain attention, are spread over.
  std::optional<double> effective_rows, plain_effective_rows;
  // The bias over several samples is the quotient of the sums: add the sums up, do not average the quotients.
  std::optional<double> bias_ulp, bias_error_sum, bias_ulp_sum;
  std::optional<double> rounded_reference_bias_ulp, rounded_reference_bias_error_sum, floor_bias_ulp;
  std::optional<bool> partial;
  std::optional<double> lse_error_ratio;
  std::optional<double> lse_error_abs_max, logit_abs_max;
  std::optional<double> entropy_nats_min, entropy_nats_mean, near_tie_ratio;
  std::optional<double> grad_out_drift;
  std::optional<uint64_t> nonfinite_values;
  std::optional<double> judge_seconds;  // CPU time it took
};

// One snapshot of one weight tensor, of as much of it as the node holds; replicas count once. Of scope "job",
// as `foreshock merge` writes it: of all of it.
struct TensorLine {
  std::string run, scope;
  std::optional<int64_t> step;
  std::optional<double> time;
  std::string tensor, layer, dtype;
  std::vector<int64_t> shape;
  std::optional<int64_t> attempt, tensor_parallel, pipeline_parallel, expert_parallel, of_rank;
  std::optional<uint64_t> elements, whole_elements, parts, ranks;
  std::vector<int64_t> part_offsets, part_shapes;  // four numbers a part; of a tensor in parts
  std::optional<uint64_t> interval_steps;
  std::optional<int64_t> previous_step, initial_step;
  std::optional<double> wasserstein_previous, wasserstein_previous_low, wasserstein_previous_high;
  std::optional<double> wasserstein_initial, wasserstein_initial_low, wasserstein_initial_high;
  std::optional<double> rms, mean_abs, update_mean_abs, update_max_abs;
  std::optional<uint64_t> update_elements, nonfinite_values;
  std::string histogram_hash;
  std::vector<int64_t> odd_ranks;
  std::string histogram;  // base64 of shadow/histogram.h
};

// All values of a layer, or of the model, over one interval.
struct ModelLine {
  std::string run, scope, layer;
  std::optional<int64_t> step;
  std::optional<double> time;
  std::optional<uint64_t> interval_steps, tensors, elements;
  std::optional<double> wasserstein_previous, wasserstein_previous_low, wasserstein_previous_high;
  std::optional<double> wasserstein_initial, wasserstein_initial_low, wasserstein_initial_high;
  std::optional<double> wasserstein_previous_max, wasserstein_initial_max;
  std::string moved_most;
  std::optional<double> rms, update_mean_abs, update_mean_abs_max;
  std::optional<uint64_t> update_elements;
  std::string histogram_hash;
};

// What the optimizer says of one tensor at one step, of as much of it as the node holds; replicas count once.
struct OptimizerLine {
  std::string run;
  std::optional<int64_t> step;
  std::optional<double> time;
  std::string tensor, layer;
  std::optional<uint64_t> elements, whole_elements;
  std::optional<double> rms_staleness, surprise_ratio, epsilon_dominated_ratio, update_ratio, gradient_rms;
  std::optional<uint64_t> nonfinite_gradient_values;
  std::optional<double> learning_rate, beta1, beta2, epsilon, weight_decay;
};

// What training did to the scores of a layer's heads between two looks at its projections.
struct SpectrumLine {
  std::string run;
  std::optional<int64_t> rank, step, steps, heads;
  std::optional<double> time;
  std::string layer;
  std::optional<double> norm_mean, norm_max;
  std::optional<double> stable_rank_mean, stable_rank_min, effective_rank_mean, effective_rank_min;
};

// Something happened: loss_spike, divergence, precursor, nonfinite, ...
struct EventLine {
  std::string run;
  std::optional<int64_t> rank, step;
  std::optional<double> time;
  std::string event, layer, layer_name, detail;
  std::optional<double> value, threshold;
  std::string detector, level;  // of a precursor
  std::optional<double> score;
};

// Where the lines before those of the record at `path` are, if it is kept in two parts.
inline std::string older_part(const std::string& path) { return path + ".1"; }

// Every line of a record begins with it.
inline constexpr std::string_view kFirstRecordBytes = R"({"schema":1,)";

// Whether older_part(path) is there and is a record: any file may have such a name.
bool has_older_part(const std::string& path);

// A longer line is not written and not read: bytes.
inline constexpr size_t kLongestRecordLine = 4 << 20;

// One field of a line, for docs and tests.
struct RecordField {
  std::string name, type, unit, help;
};
std::vector<RecordField> record_fields(
    const std::string& line_type);  // "run", "step", "sample", "tensor", "model", "event"

// The tables as Markdown, for docs/record.md.
std::string record_markdown();

// One line, without its newline.
std::string to_json_line(const RunLine& line);
std::string to_json_line(const StepLine& line);
std::string to_json_line(const SampleLine& line);
std::string to_json_line(const TensorLine& line);
std::string to_json_line(const ModelLine& line);
std::string to_json_line(const OptimizerLine& line);
std::string to_json_line(const SpectrumLine& line);
std::string to_json_line(const EventLine& line);

// The tables of record_line.h: what every type of line holds, in the order in which it is written. Only what
// writes, reads or documents lines includes this.

inline constexpr int kRecordSchema = 1;

template <class Line>
using Member =
    std::variant<std::string Line::*, std::optional<bool> Line::*, std::optional<int64_t> Line::*,
                 std::optional<uint64_t> Line::*, std::optional<double> Line::*, std::vector<int64_t> Line::*,
                 std::map<std::string, double> Line::*, std::map<std::string, int64_t> Line::*>;
inline constexpr const char* kMemberTypes[] = {
    "string", "boolean",          "integer",           "integer",
    "number", "list of integers", "object of numbers", "object of integers"};

template <class Line>
struct Field {
  const char* name;
  Member<Line> member;
  const char* unit;
  const char* help;
};

inline constexpr Field<RunLine> kRunFields[] = {
    {"run", &RunLine::run, "", "Run id."},
    {"state", &RunLine::state, "", "started or ended."},
    {"rank", &RunLine::rank, "", "Rank in the job."},
    {"time", &RunLine::time, "s since 1970", "When."},
    {"foreshock_version", &RunLine::foreshock_version, "", "Version of the agent."},
    {"host", &RunLine::host, "", "Name of the node."},
    {"executable", &RunLine::executable, "", "Base name of the trainer's program."},
    {"framework", &RunLine::framework, "", "Framework and its version."},
    {"instruction_set", &RunLine::instruction_set, "",
     "CPU instruction set the reference was computed with."},
    {"pid", &RunLine::pid, "", "Process id of the trainer."},
    {"local_rank", &RunLine::local_rank, "", "Rank within the node."},
    {"world_size", &RunLine::world_size, "ranks", "Ranks of the whole job."},
    {"attempt", &RunLine::attempt, "", "Restarts of the run so far."},
    {"data_parallel", &RunLine::data_parallel, "", "Coordinate in the data-parallel group."},
    {"tensor_parallel", &RunLine::tensor_parallel, "", "Coordinate in the tensor-parallel group."},
    {"pipeline_parallel", &RunLine::pipeline_parallel, "", "Coordinate in the pipeline."},
    {"expert_parallel", &RunLine::expert_parallel, "", "Coordinate in the expert-parallel group."},
    {"sample_seed", &RunLine::sample_seed, "", "Seed that decides what is sampled."},
    {"slots", &RunLine::slots, "slots", "Slots for slices in the segment; a long slice takes several."},
    {"slot_bytes", &RunLine::slot_bytes, "bytes", "Size of one of them."},
    {"max_slowdown", &RunLine::max_slowdown, "ratio", "Slowdown that is allowed."},
};

inline constexpr Field<StepLine> kStepFields[] = {
    {"run", &StepLine::run, "", "Run id."},
    {"rank", &StepLine::rank, "", "Rank in the job."},
    {"step", &StepLine::step, "steps",
     "Number of optimizer steps since the start of the run, this one included."},
    {"time", &StepLine::time, "s since 1970", "End of the step."},
    {"duration_seconds", &StepLine::duration_seconds, "s", "Time since the end of the previous step."},
    {"loss", &StepLine::loss, "nats", "Mean over the micro-batches."},
    {"learning_rate", &StepLine::learning_rate, "1", "Learning rate of the first parameter group."},
    {"gradient_norm", &StepLine::gradient_norm, "1",
     "L2 norm before clipping (exceptions: frameworks.md, clipping)."},
    {"batch_id", &StepLine::batch_id, "", "Number of the batch, if the trainer reports one."},
    {"step_source", &StepLine::step_source, "", "reported, optimizer_state or counted."},
    {"loss_source", &StepLine::loss_source, "", "reported, nll, backward_root or logged."},
    {"sampled", &StepLine::sampled, "", "Whether slices were taken in this step."},
    {"attention_calls", &StepLine::attention_calls, "calls", "Attention calls in this step."},
    {"skipped_steps", &StepLine::skipped_steps, "steps",
     "Steps the trainer has left out so far; null if a scaler's result on a device could not be read."},
    {"sample_interval_steps", &StepLine::sample_interval_steps, "steps",
     "Steps from one sampled step to the next."},
    {"overhead_seconds", &StepLine::overhead_seconds, "s", "Time foreshock took on the training threads."},
    {"logged", &StepLine::logged, "",
     "Values that the training itself logged since the previous step, by name; null if not finite."},
    {"logged_step", &StepLine::logged_step, "",
     "The step that the training logged with them, in its own count."},
};

inline constexpr Field<SampleLine> kSampleFields[] = {
    {"run", &SampleLine::run, "", "Run id."},
    {"rank", &SampleLine::rank, "", "Rank in the job."},
    {"ticket", &SampleLine::ticket, "", "Number of the slice, unique in the rank's segment."},
    {"step", &SampleLine::step, "steps", "Step the slice was taken in."},
    {"step_judged", &SampleLine::step_judged, "steps", "Last known step when it was judged."},
    {"time", &SampleLine::time, "s since 1970", "When it was taken."},
    {"call", &SampleLine::call, "", "Ordinal of the attention call within its step."},
    {"pass", &SampleLine::pass, "", "forward or backward."},
    {"op", &SampleLine::op, "", "Operation that was called."},
    {"layer", &SampleLine::layer, "", "Label of the layer."},
    {"layer_name", &SampleLine::layer_name, "", "Module with the parameters of the layer."},
    {"layer_source", &SampleLine::layer_source, "", "annotation, parameter, ordinal or unknown."},
    {"dtype", &SampleLine::dtype, "", "Storage format of query, key, value and output."},
    {"mask", &SampleLine::mask, "", "none, or the storage format of the mask."},
    {"batch", &SampleLine::batch, "", "Index in the batch, or of the packed sequence."},
    {"kv_head", &SampleLine::kv_head, "", "Index of the key-value head."},
    {"heads", &SampleLine::heads, "", "Query head of each row."},
    {"positions", &SampleLine::positions, "", "Query position of each row."},
    {"rows", &SampleLine::rows, "rows", "Query rows judged."},
    {"rows_not_comparable", &SampleLine::rows_not_comparable, "rows",
     "Rows without an error: they see no key, or their inputs are not finite."},
    {"keys", &SampleLine::keys, "keys", "Keys copied."},
    {"head_dim", &SampleLine::head_dim, "", "Length of a query and key vector."},
    {"value_dim", &SampleLine::value_dim, "", "Length of a value vector."},
    {"query_length", &SampleLine::query_length, "positions",
     "Queries of the whole call; of packed sequences, of this one."},
    {"key_length", &SampleLine::key_length, "positions", "Keys of the whole call, or of this sequence."},
    {"scale", &SampleLine::scale, "1", "Factor of the scores."},
    {"reference_version", &SampleLine::reference_version, "", "Version of the definition of the reference."},
    {"relative_error_mean", &SampleLine::relative_error_mean, "ratio",
     "Error of the kernel against the reference, L2 over L2, mean of the rows."},
    {"relative_error_max", &SampleLine::relative_error_max, "ratio", "Largest relative error of a row."},
    {"error_norm", &SampleLine::error_norm, "1", "L2 norm of the kernel's error over the slice."},
    {"plain_error_norm", &SampleLine::plain_error_norm, "1",
     "Noise floor: L2 norm of the error of unfused attention in the same precision."},
    {"deviation_ratio", &SampleLine::deviation_ratio, "ratio",
     "Error of the kernel over the noise floor. Absent of a backward slice where too few rows decide it: "
     "effective_rows below 3 and plain_effective_rows below 8."},
    {"fused_error_norm", &SampleLine::fused_error_norm, "1",
     "The other noise floor: error_norm of fused attention in the same precision, with scores in fp32."},
    {"fused_ratio", &SampleLine::fused_ratio, "ratio",
     "Error of the kernel over the error of fused attention. Absent where deviation_ratio would be."},
    {"reference_norm", &SampleLine::reference_norm, "1", "Norm of the reference over the rows compared."},
    {"effective_rows", &SampleLine::effective_rows, "rows",
     "Number of rows over which the two errors are spread: (sum of e)^2 over sum of e^2, with the squared "
     "errors e of both in a row."},
    {"plain_effective_rows", &SampleLine::plain_effective_rows, "rows",
     "The same number for the error of unfused attention alone."},
    {"bias_ulp", &SampleLine::bias_ulp, "ulp",
     "bias_error_sum over bias_ulp_sum: mean signed error, positive away from zero. For several samples, "
     "divide the sums."},
    {"bias_error_sum", &SampleLine::bias_error_sum, "1",
     "Sum of the output's errors, each times the sign of the reference."},
    {"bias_ulp_sum", &SampleLine::bias_ulp_sum, "1",
     "Sum of the spacings of the storage format at the reference."},
    {"rounded_reference_bias_ulp", &SampleLine::rounded_reference_bias_ulp, "ulp",
     "Control: the same bias of the reference rounded once."},
    {"rounded_reference_bias_error_sum", &SampleLine::rounded_reference_bias_error_sum, "1",
     "Its sum of errors."},
    {"floor_bias_ulp", &SampleLine::floor_bias_ulp, "ulp",
     "Control: the same bias of unfused attention, or of fused attention where unfused errs four times "
     "more."},
    {"partial", &SampleLine::partial, "",
     "Backward: the call saw a part of the keys that its log-sum-exp covers, as with context parallelism."},
    {"lse_error_abs_max", &SampleLine::lse_error_abs_max, "nats", "Largest error of the log-sum-exp."},
    {"lse_error_ratio", &SampleLine::lse_error_ratio, "ratio",
     "Largest error of the log-sum-exp over what rounding the scores once explains, doubled. Above 1 it is "
     "wrong."},
    {"logit_abs_max", &SampleLine::logit_abs_max, "nats", "Largest magnitude of a scaled score."},
    {"entropy_nats_min", &SampleLine::entropy_nats_min, "nats", "Smallest entropy of the weights of a row."},
    {"entropy_nats_mean", &SampleLine::entropy_nats_mean, "nats", "Mean entropy of the weights of a row."},
    {"near_tie_ratio", &SampleLine::near_tie_ratio, "ratio",
     "Share of rows whose second largest score is within 1/512 of the largest."},
    {"grad_out_drift", &SampleLine::grad_out_drift, "1",
     "Backward: sum of the output's gradient times the output's error, which is the effect of the error on "
     "the loss."},
    {"nonfinite_values", &SampleLine::nonfinite_values, "values",
     "Number of NaN and infinite values in the kernel's result."},
    {"judge_seconds", &SampleLine::judge_seconds, "s", "CPU time of the judgement."},
};

inline constexpr Field<TensorLine> kTensorFields[] = {
    {"run", &TensorLine::run, "", "Run id."},
    {"scope", &TensorLine::scope, "",
     "node: what the ranks of one node hold; job: all of it, put together by `foreshock merge`."},
    {"step", &TensorLine::step, "steps", "Step after which the tensor was looked at."},
    {"time", &TensorLine::time, "s since 1970", "When, on the first rank."},
    {"tensor", &TensorLine::tensor, "", "Name of the parameter."},
    {"layer", &TensorLine::layer, "", "Label of its layer."},
    {"dtype", &TensorLine::dtype, "", "Storage format."},
    {"shape", &TensorLine::shape, "", "Shape of the whole tensor; dimensions beyond four are multiplied."},
    {"attempt", &TensorLine::attempt, "", "Restarts of the run so far."},
    {"tensor_parallel", &TensorLine::tensor_parallel, "",
     "Coordinate of the ranks that hold it whole: others may hold another tensor of that name."},
    {"pipeline_parallel", &TensorLine::pipeline_parallel, "", "Likewise."},
    {"expert_parallel", &TensorLine::expert_parallel, "", "Likewise."},
    {"of_rank", &TensorLine::of_rank, "",
     "The rank that holds it, where its coordinates are not known: no other is taken for a replica."},
    {"elements", &TensorLine::elements, "values", "Values in scope, those of replicas once."},
    {"whole_elements", &TensorLine::whole_elements, "values", "Values of the whole tensor."},
    {"parts", &TensorLine::parts, "", "Different parts that were put together: 1 where it is not sharded."},
    {"part_offsets", &TensorLine::part_offsets, "",
     "Where each part begins, four numbers a part, in ascending order."},
    {"part_shapes", &TensorLine::part_shapes, "", "Their shapes, likewise."},
    {"ranks", &TensorLine::ranks, "ranks", "Ranks whose record was there when it was put together."},
    {"interval_steps", &TensorLine::interval_steps, "steps",
     "Steps between two snapshots. A new interval begins a new series: previous values are null."},
    {"previous_step", &TensorLine::previous_step, "steps", "Step of the snapshot one interval before."},
    {"initial_step", &TensorLine::initial_step, "steps",
     "Step of its first snapshot in the run, over all attempts that the agent has followed. Null when it is "
     "not "
     "known, as after the agent was started again in mid-run: then there is an event "
     "weight_initial_unknown."},
    {"wasserstein_previous", &TensorLine::wasserstein_previous, "1",
     "Wasserstein distance W1 of its values to those of the snapshot before; exact for 16-bit formats."},
    {"wasserstein_previous_low", &TensorLine::wasserstein_previous_low, "1", "Certified lower bound of it."},
    {"wasserstein_previous_high", &TensorLine::wasserstein_previous_high, "1",
     "Certified upper bound of it."},
    {"wasserstein_initial", &TensorLine::wasserstein_initial, "1", "W1 to that first snapshot."},
    {"wasserstein_initial_low", &TensorLine::wasserstein_initial_low, "1", "Certified lower bound of it."},
    {"wasserstein_initial_high", &TensorLine::wasserstein_initial_high, "1", "Certified upper bound of it."},
    {"rms", &TensorLine::rms, "1", "Root of the mean square of its values."},
    {"mean_abs", &TensorLine::mean_abs, "1", "Mean magnitude of its finite values."},
    {"update_mean_abs", &TensorLine::update_mean_abs, "1",
     "Mean magnitude of the change that this one optimizer step made, over `update_elements` of the values."},
    {"update_max_abs", &TensorLine::update_max_abs, "1", "Largest magnitude of that change, over the same."},
    {"update_elements", &TensorLine::update_elements, "values",
     "How many of the values were kept over the step and compared: all of them, or, of a tensor larger than "
     "--memory, a part that is spread evenly over it."},
    {"nonfinite_values", &TensorLine::nonfinite_values, "values", "NaN and infinite values among them."},
    {"histogram_hash", &TensorLine::histogram_hash, "",
     "FNV-1a of the stored histogram, in hexadecimal: equal histograms have equal ones."},
    {"odd_ranks", &TensorLine::odd_ranks, "",
     "Ranks whose values differ from their data-parallel replicas' in any bit; all of them where two differ "
     "and no third one decides."},
    {"histogram", &TensorLine::histogram, "",
     "The distribution of its values, with --record-histograms: base64 of what shadow/histogram.h "
     "describes."},
};

inline constexpr Field<ModelLine> kModelFields[] = {
    {"run", &ModelLine::run, "", "Run id."},
    {"scope", &ModelLine::scope, "", "node or job, as of tensors."},
    {"layer", &ModelLine::layer, "", "Label of the layer; null: the whole model."},
    {"step", &ModelLine::step, "steps", "Step that the interval began with; each tensor has its own in it."},
    {"time", &ModelLine::time, "s since 1970", "Of its last tensor."},
    {"interval_steps", &ModelLine::interval_steps, "steps", "Steps between two snapshots of a tensor."},
    {"tensors", &ModelLine::tensors, "tensors", "Tensors whose values are put together."},
    {"elements", &ModelLine::elements, "values", "Their values, those of replicas once."},
    {"wasserstein_previous", &ModelLine::wasserstein_previous, "1",
     "W1 of all these values to those of the interval before."},
    {"wasserstein_previous_low", &ModelLine::wasserstein_previous_low, "1", "Certified lower bound of it."},
    {"wasserstein_previous_high", &ModelLine::wasserstein_previous_high, "1", "Certified upper bound of it."},
    {"wasserstein_initial", &ModelLine::wasserstein_initial, "1", "W1 to the first snapshots."},
    {"wasserstein_initial_low", &ModelLine::wasserstein_initial_low, "1", "Certified lower bound of it."},
    {"wasserstein_initial_high", &ModelLine::wasserstein_initial_high, "1", "Certified upper bound of it."},
    {"wasserstein_previous_max", &ModelLine::wasserstein_previous_max, "1",
     "W1 of the tensor that moved most since the interval before."},
    {"wasserstein_initial_max", &ModelLine::wasserstein_initial_max, "1",
     "W1 of the tensor that moved most since the first snapshot."},
    {"moved_most", &ModelLine::moved_most, "", "The tensor that moved most since the interval before."},
    {"rms", &ModelLine::rms, "1", "Root of the mean square of all values."},
    {"update_mean_abs", &ModelLine::update_mean_abs, "1",
     "Mean magnitude of the change that one optimizer step made."},
    {"update_mean_abs_max", &ModelLine::update_mean_abs_max, "1", "Of the tensor that changes most."},
    {"update_elements", &ModelLine::update_elements, "values",
     "How many of the values both are of: those whose change is known."},
    {"histogram_hash", &ModelLine::histogram_hash, "",
     "FNV-1a of the stored histogram of all values, in hexadecimal."},
};

inline constexpr Field<OptimizerLine> kOptimizerFields[] = {
    {"run", &OptimizerLine::run, "", "Run id."},
    {"step", &OptimizerLine::step, "steps", "Step that had just been taken."},
    {"time", &OptimizerLine::time, "s since 1970", "When."},
    {"tensor", &OptimizerLine::tensor, "",
     "Name of the parameter; see also the line of type tensor of the same step."},
    {"layer", &OptimizerLine::layer, "", "Label of its layer."},
    {"elements", &OptimizerLine::elements, "values", "That the figures are of: all parts on this node."},
    {"whole_elements", &OptimizerLine::whole_elements, "values", "Of the whole tensor."},
    {"rms_staleness", &OptimizerLine::rms_staleness, "1",
     "sqrt(mean(g^2 / max(v, eps^2))), v being Adam's second moment after the step, bias-corrected."},
    {"surprise_ratio", &OptimizerLine::surprise_ratio, "ratio",
     "Share of values with g^2 > 50 v, v being the bias-corrected second moment that the step found."},
    {"epsilon_dominated_ratio", &OptimizerLine::epsilon_dominated_ratio, "ratio",
     "Share of values with sqrt(v) < eps."},
    {"update_ratio", &OptimizerLine::update_ratio, "ratio",
     "Norm of what the step changed over the norm of the values after it."},
    {"gradient_rms", &OptimizerLine::gradient_rms, "1",
     "Of the gradient that the optimizer took, after clipping; finite values."},
    {"nonfinite_gradient_values", &OptimizerLine::nonfinite_gradient_values, "values",
     "Of the gradient, NaN or infinite."},
    {"learning_rate", &OptimizerLine::learning_rate, "1", "Of the parameter's group."},
    {"beta1", &OptimizerLine::beta1, "1", "Of the group."},
    {"beta2", &OptimizerLine::beta2, "1", "Of the group."},
    {"epsilon", &OptimizerLine::epsilon, "1", "Of the group."},
    {"weight_decay", &OptimizerLine::weight_decay, "1", "Of the group."},
};

inline constexpr Field<SpectrumLine> kSpectrumFields[] = {
    {"run", &SpectrumLine::run, "", "Run id."},
    {"rank", &SpectrumLine::rank, "", "Rank in the job."},
    {"step", &SpectrumLine::step, "steps", "Step after which the projections were looked at."},
    {"steps", &SpectrumLine::steps, "steps", "Since the look before: the increment is of these."},
    {"heads", &SpectrumLine::heads, "heads", "Heads that are in the figures."},
    {"time", &SpectrumLine::time, "s since 1970", "When."},
    {"layer", &SpectrumLine::layer, "", "Label of the layer."},
    {"norm_mean", &SpectrumLine::norm_mean, "1",
     "Frobenius norm of a head's first-order increment of W_Q W_K^T, mean over heads."},
    {"norm_max", &SpectrumLine::norm_max, "1", "Largest of them."},
    {"stable_rank_mean", &SpectrumLine::stable_rank_mean, "1",
     "Sum of squared singular values over the largest one."},
    {"stable_rank_min", &SpectrumLine::stable_rank_min, "1", "Smallest of a head."},
    {"effective_rank_mean", &SpectrumLine::effective_rank_mean, "1",
     "exp(-sum p ln p), p being shares of the squared singular values."},
    {"effective_rank_min", &SpectrumLine::effective_rank_min, "1", "Smallest of a head."},
};

inline constexpr Field<EventLine> kEventFields[] = {
    {"run", &EventLine::run, "", "Run id."},
    {"rank", &EventLine::rank, "", "Rank in the job."},
    {"step", &EventLine::step, "steps", "Step it happened in."},
    {"time", &EventLine::time, "s since 1970", "When the agent saw it."},
    {"event", &EventLine::event, "",
     "What: loss_spike, divergence or loss_rise (step: the onset); precursor (a detector's level has "
     "changed); "
     "nonfinite, nonfinite_gradient, nonfinite_gradient_norm; resumed (the step count went back, from "
     "value); "
     "detectors_begin_anew (what they had learned was lost with an agent); weight_initial_unknown (of some "
     "tensor there is no first snapshot to compare with: the run started before this agent, it is held in "
     "other parts, or there was no room); burst (a detector has risen: from step on one step in value is "
     "sampled for a while); ..."},
    {"layer", &EventLine::layer, "", "Label of the layer it happened in."},
    {"layer_name", &EventLine::layer_name, "", "Module with the parameters of the layer."},
    {"detail", &EventLine::detail, "", "A sentence for the reader."},
    {"value", &EventLine::value, "", "The value that was judged."},
    {"threshold", &EventLine::threshold, "", "What it was compared with."},
    {"detector", &EventLine::detector, "", "Of a precursor: which detector; docs/detectors.md."},
    {"level", &EventLine::level, "", "Of a precursor: quiet, watch or warn, to which the level has changed."},
    {"score", &EventLine::score, "1", "Of a precursor: 1 is where the detector warns."},
};

constexpr std::span<const Field<RunLine>> fields_of(const RunLine*) { return kRunFields; }
constexpr std::span<const Field<StepLine>> fields_of(const StepLine*) { return kStepFields; }
constexpr std::span<const Field<SampleLine>> fields_of(const SampleLine*) { return kSampleFields; }
constexpr std::span<const Field<TensorLine>> fields_of(const TensorLine*) { return kTensorFields; }
constexpr std::span<const Field<ModelLine>> fields_of(const ModelLine*) { return kModelFields; }
constexpr std::span<const Field<OptimizerLine>> fields_of(const OptimizerLine*) { return kOptimizerFields; }
constexpr std::span<const Field<SpectrumLine>> fields_of(const SpectrumLine*) { return kSpectrumFields; }
constexpr std::span<const Field<EventLine>> fields_of(const EventLine*) { return kEventFields; }

// What "type" says of each.
constexpr const char* type_of(const RunLine*) { return "run"; }
constexpr const char* type_of(const StepLine*) { return "step"; }
constexpr const char* type_of(const SampleLine*) { return "sample"; }
constexpr const char* type_of(const TensorLine*) { return "tensor"; }
constexpr const char* type_of(const ModelLine*) { return "model"; }
constexpr const char* type_of(const OptimizerLine*) { return "optimizer"; }
constexpr const char* type_of(const SpectrumLine*) { return "spectrum"; }
constexpr const char* type_of(const EventLine*) { return "event"; }

// Calls visit(name, value) for every field of `line` (Line or const Line), in the order of the table; the
// value is a reference to the member itself.
template <class Line, class Visitor>
void visit_fields(Line& line, Visitor&& visit) {
  for (const auto& field : fields_of(&line))
    std::visit([&](auto member) { visit(field.name, line.*member); }, field.member);
}

// Bytes as text in RFC 4648 base64, padded.

std::string to_base64(std::string_view bytes);

// Nothing for anything that to_base64() cannot have written.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_LINE_H_
