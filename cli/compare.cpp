// foreshock compare: measures the distances between the weights of checkpoints; writes table, JSON and page.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/terminal.h"
#include "cli/words.h"
#include "lab/comparison.h"
#include "lab/comparison_report.h"
#include "lab/number_format.h"

namespace foreshock::cli {
namespace {

constexpr WordOption kCompareOptions[] = {
    {"--pair", "NAME A B", "add this pair; may be repeated, also without A B [C ...]", 3},
    {"--top", "COUNT", "print this many tensors of each pair, the most distant first; 0: all [10]"},
    {"--json", "FILE", "write all results as JSON"},
    {"--report", "FILE", "write a page with charts, one file without outside resources"},
    {"--threads", "COUNT", "threads; results do not depend on it [all cores]"},
};

constexpr WordsHelp kHelp = {
    "compare A B [C ...] [options]",
    "measure how far apart the weights of checkpoints are, for each tensor and pooled: B, C, ... each "
    "against A",
    kCompareOptions,
    "Example: foreshock compare before.safetensors after.safetensors\n\n"
    "A checkpoint is a safetensors file, the index of a sharded one (model.safetensors.index.json), or a "
    "directory.\n\n"
    "W1 is the Wasserstein distance of the values, d the difference of each value. W1/mean |d| is near 1 for "
    "a drift and near 0 for noise."};

int fail(const std::string& problem) {  // returns the exit status
  say(problem, "foreshock compare");
  return 2;
}

struct Request {
  std::vector<std::string> paths;  // of checkpoints, without duplicates; `pairs` refers to them by index
  std::vector<lab::PairOfCheckpoints> pairs;
  std::string json_path, page_path;  // "": the output is not wanted
  uint64_t threads = std::max(1u, std::thread::hardware_concurrency());
  uint64_t top = 10;  // tensors printed for each pair; 0: all
};

// Returns the index of `path` in `*paths`. Adds the path if it is missing.
size_t index_of(const std::string& path, std::vector<std::string>* paths) {
  const auto found = std::find(paths->begin(), paths->end(), path);
  if (found != paths->end()) return static_cast<size_t>(found - paths->begin());
  paths->push_back(path);
  return paths->size() - 1;
}

// Reads a whole number. Returns false if it is not from `least` to 2^20, far more than threads or tensors.
bool to_count(const std::string& text, uint64_t least, uint64_t* count) {
  return lab::read_number(text, count) && *count >= least && *count <= 1 << 20;
}

// Fills `request` from the words of the command line. Returns "", or what is wrong with them.
std::string parse(const Words& words, Request* request) {
  for (const Words::Given& given : words.given()) {
    const std::string& value = given.values[0];  // the only one, except for --pair
    if (given.flag == "--pair")
      request->pairs.push_back(
          {value, index_of(given.values[1], &request->paths), index_of(given.values[2], &request->paths)});
    if (given.flag == "--threads" && !to_count(value, 1, &request->threads))
      return "--threads takes a number from 1 up";
    if (given.flag == "--top" && !to_count(value, 0, &request->top)) return "--top takes a number";
    if (given.flag != "--json" && given.flag != "--report") continue;
    // Both take the path of a file.
    (given.flag == "--json" ? request->json_path : request->page_path) = value;
    if (const std::string problem = why_no_file(value); !problem.empty()) return problem;
  }
  const std::vector<std::string>& positional = words.files();
  if (positional.size() == 1 || (positional.empty() && request->pairs.empty()))
    return "name at least two checkpoints: foreshock compare A B";
  std::vector<lab::PairOfCheckpoints> against_first;  // A B, A C, ...: shown before the pairs of --pair
  for (size_t i = 1; i < positional.size(); ++i)
    against_first.push_back(
        {positional[i], index_of(positional[0], &request->paths), index_of(positional[i], &request->paths)});
  request->pairs.insert(request->pairs.begin(), against_first.begin(), against_first.end());
  return "";
}

// Writes the file, unless `path` is "". Returns the exit status: 1 if the file could not be written, else 0.
int write(const std::string& path, const std::string& content) {
  if (path.empty()) return 0;
  const std::string problem = write_whole_file(path, content);
  if (problem.empty()) return 0;
  say(problem, "foreshock compare");
  return 1;
}

// Opens the checkpoints and compares each pair. Returns "" or an error.
std::string measure(const Request& request, lab::Comparison* comparison) {
  std::vector<lab::Checkpoint> checkpoints(request.paths.size());
  for (size_t i = 0; i < checkpoints.size(); ++i)
    if (const std::string problem = lab::open_checkpoint(request.paths[i], &checkpoints[i]); !problem.empty())
      return problem;
  ProgressBar bar("compare");
  return lab::compare(
      checkpoints, request.pairs, static_cast<int>(request.threads), [&bar](double done) { bar.show(done); },
      comparison);
}

}  // namespace

int compare(const std::vector<std::string>& words) {
  Words parsed_words;
  std::string problem = parsed_words.parse(words, "compare", kCompareOptions);
  if (!problem.empty()) return fail(problem);
  if (parsed_words.wants_help()) return print_help(kHelp), 0;
  Request request;
  problem = parse(parsed_words, &request);
  if (!problem.empty()) return fail(problem);
  allow_many_files();  // all files of the checkpoints stay open
  lab::Comparison comparison;
  problem = measure(request, &comparison);
  if (!problem.empty()) return fail(problem);
  for (const lab::PairResult& result : comparison.pairs) {
    if (!result.tensors.empty()) continue;
    const auto path = [&](size_t index) { return lab::printable(comparison.paths[index]); };
    return fail(path(result.pair.a) + " and " + path(result.pair.b) +
                " have no tensor of one name and shape in common");
  }
  std::fputs(lab::table_of(comparison, request.top).c_str(), stdout);
  const int json_status = write(request.json_path, lab::to_json(comparison));
  if (request.page_path.empty()) return json_status;  // to_page() takes long, so it is not called in vain
  return json_status | write(request.page_path, lab::to_page(comparison));
}

}  // namespace foreshock::cli
