#include "cli/record_index.h"

#include <algorithm>
#include <filesystem>

namespace foreshock::cli {
namespace {

using Kind = IndexedLine::Kind;

Kind kind_of(const RecordLine& line) {
  if (const auto* run = std::get_if<RunLine>(&line))
    return run->state == "started" ? Kind::kStarted : Kind::kEnded;
  if (std::holds_alternative<StepLine>(line)) return Kind::kStep;
  if (std::holds_alternative<SampleLine>(line)) return Kind::kSample;
  if (std::holds_alternative<EventLine>(line)) return Kind::kEvent;
  if (std::holds_alternative<TensorLine>(line)) return Kind::kTensor;
  return std::holds_alternative<ModelLine>(line) ? Kind::kModel : Kind::kOther;
}

template <class Line>
constexpr bool has_rank = requires(const Line& line) {
  line.rank;
};
template <class Line>
constexpr bool has_step = requires(const Line& line) {
  line.step;
};

std::optional<int64_t> rank_of(const RecordLine& line) {
  return std::visit(
      [](const auto& each) -> std::optional<int64_t> {
        if constexpr (has_rank<std::decay_t<decltype(each)>>) return each.rank;
        return std::nullopt;
      },
      line);
}

std::optional<int64_t> step_of(const RecordLine& line) {
  return std::visit(
      [](const auto& each) -> std::optional<int64_t> {
        if constexpr (has_step<std::decay_t<decltype(each)>>) return each.step;
        return std::nullopt;
      },
      line);
}

// One text for what can be put together; "" for lines that nothing else belongs to.
std::string key_of(const RecordLine& line) {
  if (const auto* tensor = std::get_if<TensorLine>(&line)) {
    std::string key = "t" + tensor->tensor;
    for (const auto& at :
         {tensor->tensor_parallel, tensor->pipeline_parallel, tensor->expert_parallel, tensor->of_rank})
      key += '\n' + std::to_string(at.value_or(-1));
    return key;
  }
  if (const auto* model = std::get_if<ModelLine>(&line)) return "m" + model->layer;
  return "";
}

bool is_merged(const RecordLine& line) {
  const auto* tensor = std::get_if<TensorLine>(&line);
  const auto* model = std::get_if<ModelLine>(&line);
  return (tensor != nullptr && tensor->scope == "job") || (model != nullptr && model->scope == "job");
}

}  // namespace

// A rank belongs to one node.
std::string RecordIndex::take_rank(int64_t rank, uint32_t record) {
  const auto [of, is_new] = record_of_rank_.emplace(rank, record);
  if (is_new || of->second == record) return "";
  return "rank " + std::to_string(rank) + " is in both " + paths_[of->second] + " and " + paths_[record] +
         ": name each node's record once";
}

std::string RecordIndex::place(const RecordLine& line, Position* position, IndexedLine* to) {
  const std::string& run = std::visit([](const auto& each) -> const std::string& { return each.run; }, line);
  if (lines_.empty() && run_.empty()) run_ = run;
  if (run != run_)
    return paths_[0] + " is of run " + run_ + ", " + paths_[to->record] + " of run " + run +
           ": only records of one run can be merged";
  if (is_merged(line)) return paths_[to->record] + " is merged already: name the records of the nodes";
  to->kind = kind_of(line);
  const std::optional<int64_t> rank = rank_of(line);
  if (rank) {
    if (const std::string problem = take_rank(*rank, to->record); !problem.empty()) return problem;
    to->of = static_cast<uint32_t>(*rank);
  }
  to->step = step_of(line).value_or(-1);
  if (to->kind == Kind::kStep && rank) {
    const auto [last, is_new] = position->last_step.emplace(*rank, to->step);
    if (!is_new && to->step <= last->second) {
      ++position->generation;
      position->last_step.clear();
    }
    position->last_step[*rank] = to->step;
  }
  const auto last = rank ? position->last_step.find(*rank) : position->last_step.end();
  const int64_t now = last != position->last_step.end() ? last->second : -1;
  bool is_first = false;
  if (const auto* of_run = std::get_if<RunLine>(&line)) {
    world_size_ = std::max(world_size_, of_run->world_size.value_or(0));
    is_first = to->kind == Kind::kStarted && (!rank || position->started.insert(*rank).second);
    if (!is_first) to->step = now;
    // After the last step that its process before has made.
    if (to->kind == Kind::kStarted && !is_first) to->kind = Kind::kEnded;
  }
  if (to->kind == Kind::kEvent) to->step = std::max(to->step, now);
  to->generation = is_first ? 0 : position->generation;
  if (const std::string key = key_of(line); !key.empty())
    to->of = keys_.emplace(key, static_cast<uint32_t>(keys_.size())).first->second;
  return "";
}

std::string RecordIndex::add(const std::string& path, const Visitor& visit) {
  std::string problem;
  std::error_code ignored;
  if (std::filesystem::is_fifo(path, ignored) || std::filesystem::is_socket(path, ignored))
    return path + " can be read only once: make a file of it first";
  const std::unique_ptr<RecordReader> reader = RecordReader::open(path, &problem);
  if (reader == nullptr) return problem;
  const auto record = static_cast<uint32_t>(paths_.size());
  paths_.push_back(path);
  files_.emplace_back(path, std::ios::binary);
  const size_t before = lines_.size();
  Position position;
  while (const std::optional<RecordLine> line = reader->next()) {
    IndexedLine to;
    to.record = record;
    to.offset = reader->offset();
    to.bytes = reader->bytes();
    if (problem = place(*line, &position, &to); !problem.empty()) return problem;
    lines_.push_back(to);
    visit(*line, to);
  }
  if (lines_.size() == before) return reader->why_nothing(path);
  if (reader->ends_torn()) torn_ += (torn_.empty() ? "" : ", ") + path;
  if (reader->bad_lines() > 0 && bad_lines_ == 0) first_problem_ = path + ", " + reader->first_problem();
  bad_lines_ += reader->bad_lines();
  return "";
}

void RecordIndex::sort() { std::sort(lines_.begin(), lines_.end()); }

std::string RecordIndex::text(const IndexedLine& line) {
  std::ifstream& file = files_[line.record];
  file.clear();
  std::string text(line.bytes, '\0');
  file.seekg(static_cast<std::streamoff>(line.offset));
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) return "";
  return text;
}

}  // namespace foreshock::cli
