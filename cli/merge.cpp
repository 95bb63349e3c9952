// foreshock merge combines the records (JSON lines) of the nodes of a run in the order of steps. TensorShares
// checks that the records have all parts of each weight tensor; TensorMerger combines the lines of the parts.
// When the run goes back to an earlier step, a new generation begins. The subject of a line is its tensor or
// its model, else its rank.
#include "cli/merge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "agent/record_lines.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/record_index.h"
#include "cli/terminal.h"
#include "cli/words.h"
#include "exporters/record.h"
#include "shadow/histogram.h"

namespace foreshock::cli {
namespace {

constexpr WordOption kOptions[] = {
    {"-o", "OUT.jsonl", "write the record there [standard output]"},
};

constexpr WordsHelp kHelp = {
    "merge A.jsonl B.jsonl ... [-o OUT.jsonl]",
    "combine the records of several nodes of a run, in the order of steps", kOptions,
    "Example: foreshock merge node0.jsonl node1.jsonl -o job.jsonl\n\n"
    "Weights that are sharded over nodes are combined exactly; their Wasserstein distances are those of the "
    "whole tensors, with \"scope\": \"job\". This needs histograms in the records: foreshock run --record "
    "FILE --record-histograms 1GiB. Replicas are compared across nodes."};

constexpr const char* kHasChanged = " has changed while it was read: merge again";

struct Request {
  std::vector<std::string> paths;
  std::string out;  // "": standard output
};

// Returns "" or what is wrong with the command line.
std::string parse(const Words& words, Request* request) {
  request->paths = words.files();
  request->out = words.value("-o");
  if (request->paths.size() < 2)
    return "name the records of two nodes at least: foreshock merge A.jsonl B.jsonl";
  std::error_code ignored;  // equivalent() is false for a file that does not exist, as usually `out`
  for (const std::string& path : request->paths)
    if (!request->out.empty() && std::filesystem::equivalent(path, request->out, ignored))
      return "-o " + request->out + " is one of the records: name another file";
  return request->out.empty() ? "" : why_no_file(request->out);
}

// Writes the lines of the merged record and counts them.
class Output {
 public:
  explicit Output(const std::string& path) : file_(path) {}

  void write(const std::string& line) {
    file_.write(line + '\n');
    ++lines_;
  }
  const std::string& finish() { return file_.finish(); }
  uint64_t lines() const { return lines_; }
  const std::string& problem() const { return file_.problem(); }

 private:
  WholeFile file_;
  uint64_t lines_ = 0;
};

// One call of the command: read() indexes all records, then write() writes their lines in the order of steps.
class Merge {
 public:
  // read() and write() return "" or one line that says what is wrong.
  std::string read(const std::vector<std::string>& paths);
  std::string write(Output* output);
  void print_totals(const Output& output) const;

 private:
  // Lines with the same generation, step, kind and subject. Several nodes may have a line on one tensor or
  // model.
  using Lines = std::vector<IndexedLine>;
  std::string write_tensor(Lines::const_iterator begin, Lines::const_iterator end, Output* output);
  void write_model(Lines::const_iterator begin, Lines::const_iterator end, Output* output);
  std::string write_others(Lines::const_iterator begin, Lines::const_iterator end, Output* output);

  RecordIndex index_;
  TensorShares shares_;
  TensorMerger merger_;
  bool has_histograms_ = false;
  uint64_t lines_read_ = 0;  // lines of the records that write() has processed
  // Snapshots (a tensor at one step): written, left out, and written with replicas that differ on two nodes.
  uint64_t tensors_ = 0, left_out_ = 0, mismatches_ = 0;
};

std::string Merge::read(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const std::string problem = index_.add(path, [this](const RecordLine& line, const IndexedLine& at) {
      const auto* tensor = std::get_if<TensorLine>(&line);
      if (tensor == nullptr) return;
      shares_.add(*tensor, at);
      has_histograms_ |= !tensor->histogram.empty();
    });
    if (!problem.empty()) return problem;
  }
  if (std::string problem = index_.sort(); !problem.empty()) return problem;
  return shares_.check(index_);
}

std::string Merge::write_tensor(Lines::const_iterator begin, Lines::const_iterator end, Output* output) {
  std::vector<TensorMerger::NodeLine> nodes;
  for (auto at = begin; at != end; ++at) {
    std::string ignored_reason;
    const std::optional<RecordLine> line = parse_record_line(index_.text(*at), &ignored_reason);
    const auto* tensor = line ? std::get_if<TensorLine>(&*line) : nullptr;
    if (tensor == nullptr) return index_.path(at->record) + kHasChanged;
    // In each record, read() has checked the parts in the tensor's last line; lines with other parts are left
    // out. A line without `elements` is about replicas: only its `ranks` and `odd_ranks` are used.
    if (!tensor->elements || shares_.has_checked_parts(*tensor, *at))
      nodes.push_back({*tensor, index_.path(at->record)});
  }
  const bool is_complete = shares_.is_complete(begin->generation, begin->subject);
  if (is_complete)
    if (std::string problem = merger_.merge_lines(nodes); !problem.empty()) return problem;
  if (!is_complete || !merger_.tensor()) {  // tensor() is empty if a part is missing at this step
    ++left_out_;
    return "";
  }
  ++tensors_;
  output->write(to_json_line(*merger_.tensor()));
  if (merger_.event()) output->write(to_json_line(*merger_.event()));
  mismatches_ += merger_.event().has_value();
  for (const ModelLine& model : merger_.models()) output->write(to_json_line(model));
  return "";
}

std::string Merge::write_others(Lines::const_iterator begin, Lines::const_iterator end, Output* output) {
  for (auto at = begin; at != end; ++at) {
    const std::string text = index_.text(*at);
    if (text.empty()) return index_.path(at->record) + kHasChanged;
    output->write(text);
  }
  return "";
}

// Writes the model line (weights of the whole model) if all nodes have the same one: then each node holds the
// whole model. If the records have histograms, writes nothing: TensorMerger makes the model lines.
void Merge::write_model(Lines::const_iterator begin, Lines::const_iterator end, Output* output) {
  if (has_histograms_ || static_cast<size_t>(end - begin) != index_.records()) return;
  std::optional<ModelLine> common;
  for (auto at = begin; at != end; ++at) {
    std::string ignored_reason;
    const std::optional<RecordLine> line = parse_record_line(index_.text(*at), &ignored_reason);
    const auto* model = line ? std::get_if<ModelLine>(&*line) : nullptr;
    if (model == nullptr || (common && common->histogram_hash != model->histogram_hash)) return;
    common = *model;
  }
  common->scope = "job";
  output->write(to_json_line(*common));
}

std::string Merge::write(Output* output) {
  ProgressBar bar("merge");
  uint32_t generation = 0;  // how often the run has gone back to an earlier step
  Lines group;
  IndexedLine line;  // the first line after `group`
  bool has_line = index_.next(&line);
  for (uint64_t done = 0; has_line && output->problem().empty(); done += group.size()) {
    bar.show(static_cast<double>(done) / static_cast<double>(index_.count()));
    if (line.generation != generation) merger_.begin_generation();
    generation = line.generation;
    group.assign(1, line);
    const auto belongs_to_group = [&] {
      return line.generation == group[0].generation && line.step == group[0].step &&
             line.kind == group[0].kind && line.subject == group[0].subject;
    };
    // Stops at the first line of the next group, or at the end of the index.
    while ((has_line = index_.next(&line)) && belongs_to_group()) group.push_back(line);
    std::string problem;
    if (group[0].kind == IndexedLine::Kind::kTensor)
      problem = write_tensor(group.begin(), group.end(), output);
    else if (group[0].kind == IndexedLine::Kind::kModel)
      write_model(group.begin(), group.end(), output);
    else
      problem = write_others(group.begin(), group.end(), output);
    if (!problem.empty()) return problem;
    lines_read_ += group.size();
  }
  // The caller reports a problem of the output. Without one, next() has returned too few lines.
  if (lines_read_ == index_.count() || !output->problem().empty()) return "";
  return "the temporary file of the index cannot be read";
}

void Merge::print_totals(const Output& output) const {
  // If each rank was started as a training of its own, the recorded world size is 1 or unknown. Then it is
  // left out.
  const auto world_size = static_cast<uint64_t>(index_.world_size());
  std::string text = std::to_string(index_.records()) + " records of run " + index_.run() + ", " +
                     std::to_string(index_.ranks()) +
                     (world_size >= index_.ranks() ? " of " + std::to_string(world_size) : "") +
                     " ranks: " + std::to_string(output.lines()) + " lines, " + std::to_string(tensors_) +
                     " snapshots of tensors of the job";
  if (left_out_ > 0)
    text +=
        "; " + std::to_string(left_out_) + " left out, for they or their histograms are not in every record";
  if (mismatches_ > 0) text += "; replicas differ between nodes " + std::to_string(mismatches_) + " times";
  if (index_.bad_lines() > 0)
    text +=
        "; " + std::to_string(index_.bad_lines()) + " bad lines left out (" + index_.first_problem() + ")";
  if (!index_.torn().empty()) text += "; the last line was cut off when its writer ended: " + index_.torn();
  say(text);
}

constexpr const char* kJob = "job";
constexpr size_t kDims = 4;  // a part has this many numbers in part_offsets, and as many in part_shapes

// Sets the members of `snapshot` that all parts of the tensor have in common, from the line of one part. -1
// stands for a number that the line lacks.
void set_common(const TensorLine& line, TensorSnapshot* snapshot) {
  snapshot->key.name = line.tensor;
  snapshot->key.tensor_parallel = static_cast<int32_t>(line.tensor_parallel.value_or(-1));
  snapshot->key.pipeline_parallel = static_cast<int32_t>(line.pipeline_parallel.value_or(-1));
  snapshot->key.expert_parallel = static_cast<int32_t>(line.expert_parallel.value_or(-1));
  snapshot->key.rank = static_cast<int32_t>(line.of_rank.value_or(-1));
  snapshot->layer = line.layer;
  snapshot->step = line.step.value_or(-1);
  snapshot->time = line.time.value_or(0);
  snapshot->interval = std::max<uint64_t>(line.interval_steps.value_or(1), 1);
  snapshot->attempt = static_cast<int32_t>(line.attempt.value_or(-1));
  snapshot->whole_elements = line.whole_elements.value_or(0);
  snapshot->shape = line.shape;
}

// Adds the line of one node's part, except its histogram, to the snapshot of the whole tensor.
void add_sums(const TensorLine& line, TensorSnapshot* snapshot) {
  const auto elements = static_cast<double>(line.elements.value_or(0));
  snapshot->time = std::min(snapshot->time, line.time.value_or(snapshot->time));
  snapshot->elements += line.elements.value_or(0);
  snapshot->ranks += line.ranks.value_or(0);
  const double rms = line.rms.value_or(std::nan(""));
  snapshot->sum_of_squares += rms * rms * elements;
  if (line.update_mean_abs && line.update_max_abs) {
    const uint64_t updated = line.update_elements.value_or(line.elements.value_or(0));
    snapshot->update_elements += updated;
    snapshot->update_sum_magnitude =
        snapshot->update_sum_magnitude.value_or(0) + *line.update_mean_abs * static_cast<double>(updated);
    snapshot->update_max_magnitude =
        std::max(snapshot->update_max_magnitude.value_or(0), *line.update_max_abs);
  }
  const size_t numbers = std::min(line.part_offsets.size(), line.part_shapes.size());
  for (size_t n = 0; n + kDims <= numbers; n += kDims) {
    const int64_t *offset = &line.part_offsets[n], *shape = &line.part_shapes[n];
    snapshot->parts.push_back(TensorPart{{offset, offset + kDims}, {shape, shape + kDims}});
  }
}

bool is_whole(const TensorLine& line) { return line.elements && line.elements == line.whole_elements; }

// Sets the number of ranks of the merged line to the sum over all nodes, replicas included. Joins the nodes'
// lists of odd ranks: ranks whose values differ from those of the other replicas.
void add_ranks(const std::vector<TensorMerger::NodeLine>& nodes, TensorLine* merged) {
  std::vector<int64_t> odd;
  uint64_t ranks = 0;
  for (const auto& node : nodes) {
    odd.insert(odd.end(), node.line.odd_ranks.begin(), node.line.odd_ranks.end());
    ranks += node.line.ranks.value_or(0);
  }
  merged->odd_ranks = odd;
  merged->ranks = ranks;
}

// Whether all numbers are valid as offsets or sizes. The upper limit keeps the sum of two from overflowing.
bool are_extents(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](int64_t number) { return number >= 0 && number <= int64_t{1} << 48; });
}

// Whether two ranges of indexes have no index in common.
bool are_disjoint(int64_t begin, int64_t size, int64_t other_begin, int64_t other_size) {
  return begin >= other_begin + other_size || other_begin >= begin + size;
}

}  // namespace

int merge(const std::vector<std::string>& words) {
  Words parsed_words;
  if (const std::string problem = parsed_words.parse(words, "merge", kOptions); !problem.empty())
    return wrong_use(problem);
  if (parsed_words.wants_help()) return print_help(kHelp), 0;
  Request request;
  if (const std::string problem = parse(parsed_words, &request); !problem.empty()) return wrong_use(problem);
  Merge merge;
  if (const std::string problem = merge.read(request.paths); !problem.empty()) return wrong_use(problem);
  Output output(request.out);
  if (const std::string problem = merge.write(&output); !problem.empty()) return wrong_use(problem);
  if (const std::string problem = output.finish(); !problem.empty()) return say(problem), 1;
  merge.print_totals(output);
  return 0;
}

// Returns the first line of each distinct part; the others are replicas. Sets event_ if replicas differ.
std::vector<const TensorMerger::NodeLine*> TensorMerger::distinct_parts(const std::vector<NodeLine>& nodes) {
  std::vector<const NodeLine*> result;
  for (const NodeLine& node : nodes) {
    if (!node.line.elements) continue;  // a replica that was reported late: its line has no values
    const auto same = std::find_if(result.begin(), result.end(), [&](const NodeLine* other) {
      return other->line.part_offsets == node.line.part_offsets &&
             other->line.part_shapes == node.line.part_shapes && other->line.elements == node.line.elements;
    });
    if (same == result.end()) {
      result.push_back(&node);
    } else if ((*same)->line.histogram_hash != node.line.histogram_hash) {
      EventLine event;
      event.run = node.line.run;
      event.step = node.line.step;
      event.time = node.line.time;
      event.event = "weight_mismatch";
      event.layer = node.line.layer;
      event.detail =
          node.line.tensor + " differs between the nodes of " + (*same)->path + " and " + node.path;
      event_ = event;
    }
  }
  // Sorts the parts so that rounding of the sums does not depend on the order of the records.
  std::sort(result.begin(), result.end(),
            [](const NodeLine* a, const NodeLine* b) { return a->line.part_offsets < b->line.part_offsets; });
  return result;
}

// Combines the parts of a tensor into `snapshot`. Returns "" or the reason why they cannot be combined.
std::string TensorMerger::combine(const std::vector<const NodeLine*>& parts, TensorSnapshot* snapshot) const {
  set_common(parts[0]->line, snapshot);
  for (const NodeLine* part : parts) {
    const TensorLine& line = part->line;
    const std::optional<std::string> bytes = from_base64(line.histogram);
    Histogram histogram;
    if (!bytes || !restore(*bytes, &histogram) ||
        histogram.finite + histogram.non_finite() != line.elements.value_or(0))
      return part->path + ": the histogram of " + line.tensor + " at step " + std::to_string(snapshot->step) +
             " cannot be read";
    if (line.interval_steps != parts[0]->line.interval_steps || line.dtype != parts[0]->line.dtype ||
        line.shape != parts[0]->line.shape)
      return line.tensor + " at step " + std::to_string(snapshot->step) + ": " + parts[0]->path + " and " +
             part->path + " describe different tensors";
    merge(histogram, &snapshot->histogram);
    add_sums(line, snapshot);
  }
  return "";
}

// Sets the distances from the previous and the first snapshot of the tensor, and the lines in models_.
// `initial_step`: the step of the first snapshot according to the agents. If the first snapshot in series_
// has another step, drops that snapshot, so that the distance from the first one stays unknown.
void TensorMerger::set_distances(std::optional<int64_t> initial_step, TensorSnapshot* snapshot) {
  if (generation_begins_) {
    // A generation that starts with the run has its first snapshot within the first interval of steps.
    continues_run_ = snapshot->step > static_cast<int64_t>(snapshot->interval);
    series_.restart(/*keeps_initial=*/continues_run_);
    generation_begins_ = false;
  }
  if (initial_step.value_or(-1) != series_.initial_step(snapshot->key)) series_.forget_initial(snapshot->key);
  series_.add(/*is_first=*/!continues_run_, snapshot);
  series_.expect_none_before(snapshot->step);  // lines come in the order of steps
  for (const PoolSnapshot& pool : series_.completed()) {
    models_.push_back(model_line(tensor_->run, pool));
    models_.back().scope = kJob;
  }
}

std::string TensorMerger::merge_lines(const std::vector<NodeLine>& nodes) {
  tensor_.reset();
  models_.clear();
  event_.reset();
  std::vector<const NodeLine*> parts = distinct_parts(nodes);
  // If one node holds the whole tensor, its line alone is used.
  const auto whole =
      std::find_if(parts.begin(), parts.end(), [](const auto* part) { return is_whole(part->line); });
  const bool has_whole = whole != parts.end();
  if (has_whole) parts = {*whole};
  uint64_t elements = 0;
  bool has_histograms = true;
  for (const NodeLine* part : parts) {
    elements += *part->line.elements;
    has_histograms &= !part->line.histogram.empty();
  }
  const bool is_complete = !parts.empty() && elements == parts[0]->line.whole_elements;
  if (!is_complete || (!has_histograms && !has_whole)) return "";
  if (has_whole && !has_histograms) {  // the node's own distances are those of the whole tensor
    tensor_ = parts[0]->line;
  } else {
    TensorSnapshot snapshot;
    if (const std::string problem = combine(parts, &snapshot); !problem.empty()) return problem;
    tensor_ = parts[0]->line;
    const std::string dtype = tensor_->dtype;               // the snapshot does not have it
    set_distances(parts[0]->line.initial_step, &snapshot);  // also needed for models_ and later snapshots
    if (!is_whole(*tensor_)) tensor_ = tensor_line(tensor_->run, snapshot, /*with_histogram=*/false);
    tensor_->dtype = dtype;
  }
  tensor_->scope = kJob;
  tensor_->histogram.clear();
  add_ranks(nodes, &*tensor_);
  return "";
}

TensorShares::Share TensorShares::share_of(const TensorLine& line) {
  return {line.part_offsets, line.part_shapes, line.elements.value_or(0)};
}

void TensorShares::add(const TensorLine& line, const IndexedLine& at) {
  if (!line.elements || !line.whole_elements) return;  // a replica that was reported late
  Tensor& tensor = tensors_[{at.subject, at.generation}];
  tensor.name = line.tensor;
  tensor.whole_elements = *line.whole_elements;
  tensor.share_by_record[at.record] = share_of(line);
  // has_histograms becomes false if no record has histograms of the parts. Only lines of the first record can
  // clear it; any histogram sets it.
  const bool is_part = *line.elements < *line.whole_elements;
  if (tensor.share_by_record.size() == 1 && is_part && line.histogram.empty()) tensor.has_histograms = false;
  if (!line.histogram.empty()) tensor.has_histograms = true;
}

// Whether a part of `a` and a part of `b` have an element in common. Parts are boxes of kDims dimensions; two
// boxes have no element in common if their ranges are disjoint in any dimension.
bool TensorShares::overlap(const Share& a, const Share& b) {
  for (size_t i = 0; i + kDims <= a.offsets.size(); i += kDims)
    for (size_t j = 0; j + kDims <= b.offsets.size(); j += kDims) {
      bool are_apart = false;
      for (size_t d = 0; d < kDims; ++d)
        are_apart |= are_disjoint(a.offsets[i + d], a.shapes[i + d], b.offsets[j + d], b.shapes[j + d]);
      if (!are_apart) return true;
    }
  return false;
}

// Sets tensor->is_complete: all its values are in the records. Returns "" if so, else a line with the reason.
std::string TensorShares::check_tensor(const RecordIndex& index, Tensor* tensor) {
  // Records with distinct shares. Of several replicas only the first is kept.
  std::vector<std::pair<uint32_t, const Share*>> distinct;
  uint64_t elements = 0;
  for (const auto& [record, share] : tensor->share_by_record) {
    if (share.elements == tensor->whole_elements) {
      tensor->is_complete = true;
      return "";
    }
    if (share.offsets.size() != share.shapes.size() || share.offsets.size() % kDims != 0 ||
        !are_extents(share.offsets) || !are_extents(share.shapes))
      return index.path(record) + ": the parts of " + tensor->name + " cannot be read";
    const bool is_new = std::none_of(distinct.begin(), distinct.end(),
                                     [&share = share](const auto& entry) { return *entry.second == share; });
    if (!is_new) continue;
    for (const auto& [other, theirs] : distinct)
      if (overlap(*theirs, share))
        return "parts of " + tensor->name + " in " + index.path(other) + " and " + index.path(record) +
               " overlap: are they of one run?";
    distinct.emplace_back(record, &share);
    elements += share.elements;
  }
  if (elements != tensor->whole_elements)
    return tensor->name + ": " + std::to_string(elements) + " of its " +
           std::to_string(tensor->whole_elements) +
           " values are in these records; name the record of every node";
  if (!tensor->has_histograms)
    return index.path(tensor->share_by_record.begin()->first) + " has no histograms to put " + tensor->name +
           " together by: run with --record-histograms 1GiB";
  tensor->is_complete = true;
  return "";
}

std::string TensorShares::check(const RecordIndex& index) {
  std::string problem;  // the reason for the first tensor that is incomplete in every generation
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    const uint32_t tensor = at->first.first;
    bool is_complete = false;
    std::string why;
    for (; at != tensors_.end() && at->first.first == tensor; ++at) {  // the generations of the tensor
      const std::string why_here = check_tensor(index, &at->second);
      is_complete |= why_here.empty();
      if (why.empty()) why = why_here;
    }
    if (!is_complete && problem.empty()) problem = why;
  }
  return problem;
}

bool TensorShares::is_complete(uint32_t generation, uint32_t tensor) const {
  const auto found = tensors_.find({tensor, generation});
  return found != tensors_.end() && found->second.is_complete;
}

bool TensorShares::has_checked_parts(const TensorLine& line, const IndexedLine& at) const {
  const auto found = tensors_.find({at.subject, at.generation});
  if (found == tensors_.end()) return false;
  const auto share = found->second.share_by_record.find(at.record);
  return share != found->second.share_by_record.end() && share->second == share_of(line);
}

}  // namespace foreshock::cli
