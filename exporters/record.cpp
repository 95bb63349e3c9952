#include "exporters/record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <variant>

namespace foreshock {
namespace {

constexpr int kSchema = 1;
constexpr size_t kBufferBytes = 1 << 20;
constexpr int64_t kFlushMs = 1000;
constexpr char kFirstBytes[] = R"({"schema":1,)";  // of every record

// -- the tables: what a line holds, in the order in which it is written --

template <class Line>
using Member = std::variant<std::string Line::*, std::optional<bool> Line::*, std::optional<int64_t> Line::*,
                            std::optional<uint64_t> Line::*, std::optional<double> Line::*,
                            std::vector<int64_t> Line::*>;
constexpr const char* kMemberTypes[] = {"string",  "boolean", "integer",
                                        "integer", "number",  "list of integers"};

template <class Line>
struct Field {
  const char* name;
  Member<Line> member;
  const char* unit;
  const char* help;
};

constexpr Field<RunLine> kRunFields[] = {
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
    {"slots", &RunLine::slots, "slices", "Slices that fit into the segment at once."},
    {"slot_bytes", &RunLine::slot_bytes, "bytes", "Size of one of them."},
    {"max_slowdown", &RunLine::max_slowdown, "ratio", "Slowdown that is allowed."},
};

constexpr Field<StepLine> kStepFields[] = {
    {"run", &StepLine::run, "", "Run id."},
    {"rank", &StepLine::rank, "", "Rank in the job."},
    {"step", &StepLine::step, "steps", "Optimizer steps done, this one included, from the start of the run."},
    {"time", &StepLine::time, "s since 1970", "End of the step."},
    {"duration_seconds", &StepLine::duration_seconds, "s", "Since the end of the step before."},
    {"loss", &StepLine::loss, "nats", "Mean over the micro-batches."},
    {"learning_rate", &StepLine::learning_rate, "1", "Of the first parameter group."},
    {"gradient_norm", &StepLine::gradient_norm, "1", "L2 norm before clipping."},
    {"batch_id", &StepLine::batch_id, "", "Opaque number the trainer gave."},
    {"step_source", &StepLine::step_source, "", "reported, optimizer_state or counted."},
    {"loss_source", &StepLine::loss_source, "", "reported, nll or backward_root."},
    {"sampled", &StepLine::sampled, "", "Whether slices were taken in this step."},
    {"attention_calls", &StepLine::attention_calls, "calls", "Attention calls in this step."},
    {"skipped_steps", &StepLine::skipped_steps, "steps", "Steps the trainer has left out so far."},
    {"sample_interval_steps", &StepLine::sample_interval_steps, "steps",
     "Every how many steps one is sampled."},
    {"overhead_seconds", &StepLine::overhead_seconds, "s",
     "Time the monitor took on the threads that train."},
};

constexpr Field<SampleLine> kSampleFields[] = {
    {"run", &SampleLine::run, "", "Run id."},
    {"rank", &SampleLine::rank, "", "Rank in the job."},
    {"ticket", &SampleLine::ticket, "", "Number of the slice within the rank's segment; unique there."},
    {"step", &SampleLine::step, "steps", "Step the slice was taken in."},
    {"step_judged", &SampleLine::step_judged, "steps", "Last step known when it was judged."},
    {"time", &SampleLine::time, "s since 1970", "When it was taken."},
    {"call", &SampleLine::call, "", "Ordinal of the attention call within its step."},
    {"pass", &SampleLine::pass, "", "forward or backward."},
    {"op", &SampleLine::op, "", "Operation that was called."},
    {"layer", &SampleLine::layer, "", "Label of the layer."},
    {"layer_name", &SampleLine::layer_name, "", "Name of the parameter that owns the layer."},
    {"layer_source", &SampleLine::layer_source, "", "annotation, parameter, ordinal or unknown."},
    {"dtype", &SampleLine::dtype, "", "Storage format of query, key, value and output."},
    {"mask", &SampleLine::mask, "", "none, or the storage format of the mask."},
    {"batch", &SampleLine::batch, "", "Which element of the batch."},
    {"kv_head", &SampleLine::kv_head, "", "Which key-value head."},
    {"heads", &SampleLine::heads, "", "Query head of each row."},
    {"positions", &SampleLine::positions, "", "Query position of each row."},
    {"rows", &SampleLine::rows, "rows", "Query rows judged."},
    {"keys", &SampleLine::keys, "keys", "Keys copied."},
    {"head_dim", &SampleLine::head_dim, "", "Length of a query and key vector."},
    {"value_dim", &SampleLine::value_dim, "", "Length of a value vector."},
    {"query_length", &SampleLine::query_length, "positions", "Queries of the whole call."},
    {"key_length", &SampleLine::key_length, "positions", "Keys of the whole call."},
    {"scale", &SampleLine::scale, "1", "What the scores are multiplied by."},
    {"reference_version", &SampleLine::reference_version, "", "Version of the definition of the reference."},
    {"relative_error_mean", &SampleLine::relative_error_mean, "ratio",
     "Error of the kernel against the reference, L2 over L2, mean of the rows."},
    {"relative_error_max", &SampleLine::relative_error_max, "ratio", "The same, largest of the rows."},
    {"plain_relative_error_mean", &SampleLine::plain_relative_error_mean, "ratio",
     "Noise floor: the same error of unfused attention in the same precision, mean of the rows."},
    {"plain_relative_error_max", &SampleLine::plain_relative_error_max, "ratio",
     "The same, largest of the rows."},
    {"deviation_ratio_mean", &SampleLine::deviation_ratio_mean, "ratio",
     "Error of the kernel over the noise floor, mean of the rows."},
    {"deviation_ratio_max", &SampleLine::deviation_ratio_max, "ratio", "The same, largest of the rows."},
    {"bias_ulp", &SampleLine::bias_ulp, "ulp",
     "bias_error_sum over bias_ulp_sum: signed error towards larger magnitude. Of several samples, divide "
     "the sums."},
    {"bias_error_sum", &SampleLine::bias_error_sum, "1",
     "Sum of the errors of the output, each times the sign of the reference."},
    {"bias_ulp_sum", &SampleLine::bias_ulp_sum, "1",
     "Sum of the spacings of the storage format at the reference."},
    {"rounded_reference_bias_ulp", &SampleLine::rounded_reference_bias_ulp, "ulp",
     "Control: the same bias of the reference rounded once."},
    {"rounded_reference_bias_error_sum", &SampleLine::rounded_reference_bias_error_sum, "1",
     "Its sum of errors."},
    {"lse_error_abs_max", &SampleLine::lse_error_abs_max, "nats", "Largest error of the log-sum-exp."},
    {"logit_abs_max", &SampleLine::logit_abs_max, "nats", "Largest magnitude of a scaled score."},
    {"entropy_nats_min", &SampleLine::entropy_nats_min, "nats", "Smallest entropy of the weights of a row."},
    {"entropy_nats_mean", &SampleLine::entropy_nats_mean, "nats", "Mean entropy of the weights of a row."},
    {"near_tie_ratio", &SampleLine::near_tie_ratio, "ratio",
     "Share of rows whose second largest score lies within 1/512 of the largest."},
    {"nonfinite_values", &SampleLine::nonfinite_values, "values",
     "NaN and infinite values in the kernel's result."},
    {"judge_seconds", &SampleLine::judge_seconds, "s", "CPU time the judgement took."},
};

constexpr Field<EventLine> kEventFields[] = {
    {"run", &EventLine::run, "", "Run id."},
    {"rank", &EventLine::rank, "", "Rank in the job."},
    {"step", &EventLine::step, "steps", "Step it happened in."},
    {"time", &EventLine::time, "s since 1970", "When."},
    {"event", &EventLine::event, "",
     "What: loss_spike, divergence, nonfinite, rank_gone, no_attention_seen, monitor_off, ..."},
    {"layer", &EventLine::layer, "", "Label of the layer it happened in."},
    {"layer_name", &EventLine::layer_name, "", "Name of the parameter that owns the layer."},
    {"detail", &EventLine::detail, "", "A sentence for the reader."},
    {"value", &EventLine::value, "", "The value that was judged."},
    {"threshold", &EventLine::threshold, "", "What it was compared with."},
};

constexpr std::span<const Field<RunLine>> fields_of(const RunLine*) { return kRunFields; }
constexpr std::span<const Field<StepLine>> fields_of(const StepLine*) { return kStepFields; }
constexpr std::span<const Field<SampleLine>> fields_of(const SampleLine*) { return kSampleFields; }
constexpr std::span<const Field<EventLine>> fields_of(const EventLine*) { return kEventFields; }

template <class Line>
std::vector<RecordField> describe() {
  std::vector<RecordField> result;
  for (const Field<Line>& field : fields_of(static_cast<const Line*>(nullptr))) {
    result.push_back({field.name, kMemberTypes[field.member.index()], field.unit, field.help});
  }
  return result;
}

// -- one line --

using Json = nlohmann::ordered_json;

Json to_json(const std::string& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::vector<int64_t>& value) { return value.empty() ? Json() : Json(value); }
template <class Value>
Json to_json(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

bool is_nonfinite(const std::optional<double>& value) { return value && !std::isfinite(*value); }
template <class Value>
bool is_nonfinite(const Value&) {
  return false;
}

template <class Line>
std::string write_fields(const char* type, const Line& line) {
  Json object = {{"schema", kSchema}, {"type", type}};
  Json nonfinite = Json::array();
  for (const Field<Line>& field : fields_of(&line)) {
    std::visit(
        [&](auto member) {
          object[field.name] = is_nonfinite(line.*member) ? Json() : to_json(line.*member);
          if (is_nonfinite(line.*member)) nonfinite.push_back(field.name);
        },
        field.member);
  }
  if (!nonfinite.empty()) object["nonfinite"] = nonfinite;
  // Text from a trainer may be any bytes.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// -- the file --

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool starts_like_a_record(int file, off_t size) {
  char head[sizeof kFirstBytes - 1];
  const auto length = static_cast<size_t>(std::min<off_t>(size, sizeof head));
  return pread(file, head, length, 0) == static_cast<ssize_t>(length) &&
         std::memcmp(head, kFirstBytes, length) == 0;
}

// Bytes up to and including the last newline.
off_t whole_lines(int file, off_t size) {
  char piece[4096];
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof piece));
    if (pread(file, piece, static_cast<size_t>(end - begin), begin) != end - begin) return size;
    for (off_t at = end; at > begin; --at) {
      if (piece[at - begin - 1] == '\n') return at;
    }
    end = begin;
  }
  return 0;
}

// Empty when the file may be written to, from *size on.
std::string prepare(int file, off_t* size) {
  if (flock(file, LOCK_EX | LOCK_NB) != 0) return "another writer holds it";
  if (*size == 0) return "";
  if (!starts_like_a_record(file, *size))
    return "exists and is not a record of foreshock; choose another file";
  *size = whole_lines(file, *size);
  return ftruncate(file, *size) == 0 ? "" : std::strerror(errno);
}

}  // namespace

std::vector<RecordField> record_fields(const std::string& line_type) {
  if (line_type == "run") return describe<RunLine>();
  if (line_type == "step") return describe<StepLine>();
  if (line_type == "sample") return describe<SampleLine>();
  if (line_type == "event") return describe<EventLine>();
  return {};
}

std::string record_markdown() {
  std::string text;
  for (const char* type : {"run", "step", "sample", "event"}) {
    text += std::string(text.empty() ? "" : "\n") + "### `\"type\": \"" + type + "\"`\n\n" +
            "| field | type | unit | meaning |\n| --- | --- | --- | --- |\n";
    for (const RecordField& field : record_fields(type)) {
      text += "| `" + field.name + "` | " + field.type + " | " + field.unit + " | " + field.help + " |\n";
    }
  }
  return text;
}

std::string to_json_line(const RunLine& line) { return write_fields("run", line); }
std::string to_json_line(const StepLine& line) { return write_fields("step", line); }
std::string to_json_line(const SampleLine& line) { return write_fields("sample", line); }
std::string to_json_line(const EventLine& line) { return write_fields("event", line); }

std::unique_ptr<RecordWriter> RecordWriter::open(const std::string& path, std::string* error) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    *error = "record " + path + ": " + std::strerror(errno);
    if (file >= 0) close(file);
    return nullptr;
  }
  const bool regular = S_ISREG(status.st_mode);
  off_t size = regular ? status.st_size : 0;
  const std::string refusal = regular ? prepare(file, &size) : "";
  if (!refusal.empty()) {
    *error = "record " + path + ": " + refusal;
    close(file);
    return nullptr;
  }
  std::signal(SIGXFSZ, SIG_IGN);
  return std::unique_ptr<RecordWriter>(new RecordWriter(file, regular, path, static_cast<uint64_t>(size)));
}

RecordWriter::RecordWriter(int file, bool regular, std::string path, uint64_t size)
    : file_(file), regular_(regular), path_(std::move(path)), size_(size), last_flush_ms_(now_ms()) {}

RecordWriter::~RecordWriter() {
  flush();
  close(file_);
}

void RecordWriter::append(const std::string& line) {
  const auto fits = [&] { return buffer_.size() + line.size() + 1 <= kBufferBytes; };
  // While the disk is full, only the clock below makes a new attempt.
  if (!fits() && !failing_) flush();
  if (fits()) {
    buffer_ += line;
    buffer_ += '\n';
  } else {
    ++lines_lost_;
  }
  if (now_ms() - last_flush_ms_ >= kFlushMs) flush();
}

bool RecordWriter::flush() {
  last_flush_ms_ = now_ms();
  size_t written = 0;
  int cause = 0;
  while (written < buffer_.size() && cause == 0) {
    const ssize_t n = ::write(file_, buffer_.data() + written, buffer_.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) cause = errno;
    if (n == 0) cause = ENOSPC;
  }
  // A torn line is taken back and waits with the rest.
  const size_t whole = written == 0 ? 0 : buffer_.rfind('\n', written - 1) + 1;
  size_ += whole;
  if (cause != 0 && whole != written && regular_ && ftruncate(file_, static_cast<off_t>(size_)) != 0)
    cause = errno;
  buffer_.erase(0, regular_ ? whole : written);
  if (cause == 0) {
    failing_ = false;
    return true;
  }
  ++errors_;
  if (!failing_) error_ = "record " + path_ + ": " + std::strerror(cause) + "; the run goes on without it";
  failing_ = true;
  return false;
}

std::string RecordWriter::take_error() { return std::exchange(error_, {}); }

}  // namespace foreshock
