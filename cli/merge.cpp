#include "cli/merge.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/progress_bar.h"
#include "cli/record_index.h"
#include "cli/say.h"
#include "cli/tensor_merger.h"
#include "cli/tensor_shares.h"
#include "cli/whole_file.h"

namespace foreshock::cli {
namespace {

constexpr const char* kHelp =
    "foreshock merge A.jsonl B.jsonl ... [-o OUT.jsonl]\n"
    "the records of the nodes of one run as one record of the job, in the order of steps\n\n"
    "  -o OUT.jsonl        write it there; by default to standard output\n\n"
    "Weights that are sharded over nodes are put together exactly, and their Wasserstein distances are those "
    "of the\n"
    "whole tensors, with \"scope\": \"job\". That takes histograms in the records: foreshock run --record "
    "FILE\n"
    "--record-histograms 1GiB. Replicas are compared across nodes.\n";

constexpr const char* kHasChanged = " has changed while it was read: merge again";

struct Request {
  std::vector<std::string> paths;
  std::string out;
};

std::string parse(const std::vector<std::string>& words, Request* request) {
  for (size_t at = 0; at < words.size(); ++at) {
    if (words[at] == "-o") {
      if (++at == words.size() || words[at].empty()) return "give -o a file: -o OUT.jsonl";
      request->out = words[at];
    } else if (words[at] == "--") {
      request->paths.insert(request->paths.end(), words.begin() + static_cast<ptrdiff_t>(at) + 1,
                            words.end());
      break;
    } else if (words[at].starts_with("-")) {
      return "there is no option '" + words[at] + "': foreshock merge --help";
    } else {
      request->paths.push_back(words[at]);
    }
  }
  if (request->paths.size() < 2)
    return "name the records of two nodes at least: foreshock merge A.jsonl B.jsonl";
  std::error_code ignored;
  for (const std::string& path : request->paths)
    if (!request->out.empty() && std::filesystem::equivalent(path, request->out, ignored))
      return "-o " + request->out + " is one of the records: name another file";
  return request->out.empty() ? "" : why_no_file(request->out);
}

// The lines of the merged record.
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

class Merge {
 public:
  // All return "" or one line that says what is wrong.
  std::string read(const std::vector<std::string>& paths);
  std::string write(Output* output);
  void tell(const Output& output) const;

 private:
  using Lines = std::vector<IndexedLine>;
  std::string write_tensor(Lines::const_iterator begin, Lines::const_iterator end, Output* output);
  void write_model(Lines::const_iterator begin, Lines::const_iterator end, Output* output);
  std::string write_others(Lines::const_iterator begin, Lines::const_iterator end, Output* output);

  RecordIndex index_;
  TensorShares shares_;
  TensorMerger merger_;
  bool has_histograms_ = false;
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
  index_.sort();
  return shares_.check(index_);
}

std::string Merge::write_tensor(Lines::const_iterator begin, Lines::const_iterator end, Output* output) {
  std::vector<TensorMerger::NodeLine> nodes;
  for (auto at = begin; at != end; ++at) {
    std::string why;
    const std::optional<RecordLine> line = parse_record_line(index_.text(*at), &why);
    const auto* tensor = line ? std::get_if<TensorLine>(&*line) : nullptr;
    if (tensor == nullptr) return index_.path(at->record) + kHasChanged;
    if (!tensor->elements || shares_.is_usual(*tensor, *at))
      nodes.push_back({*tensor, index_.path(at->record)});
  }
  if (shares_.is_complete(begin->generation, begin->of))
    if (std::string problem = merger_.take(nodes); !problem.empty()) return problem;
  if (!shares_.is_complete(begin->generation, begin->of) || !merger_.tensor()) {
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

// Without histograms nothing can be put together; but where all nodes hold the same, that is the whole.
void Merge::write_model(Lines::const_iterator begin, Lines::const_iterator end, Output* output) {
  if (has_histograms_ || static_cast<size_t>(end - begin) != index_.records()) return;
  std::optional<ModelLine> common;
  for (auto at = begin; at != end; ++at) {
    std::string why;
    const std::optional<RecordLine> line = parse_record_line(index_.text(*at), &why);
    const auto* model = line ? std::get_if<ModelLine>(&*line) : nullptr;
    if (model == nullptr || (common && common->histogram_hash != model->histogram_hash)) return;
    common = *model;
  }
  common->scope = "job";
  output->write(to_json_line(*common));
}

std::string Merge::write(Output* output) {
  ProgressBar bar("merge");
  const Lines& lines = index_.lines();
  uint32_t generation = 0;
  for (auto at = lines.begin(); at != lines.end() && output->problem().empty();) {
    bar.show(static_cast<double>(at - lines.begin()) / static_cast<double>(lines.size()));
    if (at->generation != generation) merger_.begin_anew();
    generation = at->generation;
    const auto is_other = [&](const IndexedLine& line) {
      return line.generation != at->generation || line.step != at->step || line.kind != at->kind ||
             line.of != at->of;
    };
    const auto end = std::find_if(at + 1, lines.end(), is_other);
    std::string problem;
    if (at->kind == IndexedLine::Kind::kTensor)
      problem = write_tensor(at, end, output);
    else if (at->kind == IndexedLine::Kind::kModel)
      write_model(at, end, output);
    else
      problem = write_others(at, end, output);
    if (!problem.empty()) return problem;
    at = end;
  }
  return "";
}

void Merge::tell(const Output& output) const {
  // Records of ranks that do not know of each other say 1, or nothing.
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

}  // namespace

int merge(const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), "--help") != words.end() ||
      std::find(words.begin(), words.end(), "-h") != words.end())
    return std::fputs(kHelp, stdout), 0;
  Request request;
  if (const std::string problem = parse(words, &request); !problem.empty()) return wrong_use(problem);
  Merge merge;
  if (const std::string problem = merge.read(request.paths); !problem.empty()) return wrong_use(problem);
  Output output(request.out);
  if (const std::string problem = merge.write(&output); !problem.empty()) return wrong_use(problem);
  if (const std::string problem = output.finish(); !problem.empty()) return say(problem), 1;
  merge.tell(output);
  return 0;
}

}  // namespace foreshock::cli
