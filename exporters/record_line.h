// The lines of a record: one JSON object each, "schema": 1, "type": run | step | sample | tensor | model |
// optimizer | spectrum | event. Field names, units and meanings stand in one table per type
// (record_fields.h); docs/record.md is generated from it.
#ifndef FORESHOCK_EXPORTERS_RECORD_LINE_H_
#define FORESHOCK_EXPORTERS_RECORD_LINE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
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
  // Rows that both errors together, and that of plain attention, are spread over.
  std::optional<double> effective_rows, plain_effective_rows;
  // The bias over several samples is the quotient of the sums: add the sums up, do not average the quotients.
  std::optional<double> bias_ulp, bias_error_sum, bias_ulp_sum;
  std::optional<double> rounded_reference_bias_ulp, rounded_reference_bias_error_sum;
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
  std::string histogram;  // base64 of shadow/stored_histogram.h
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

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_LINE_H_
