#include <algorithm>
#include <charconv>
#include <cstdio>
#include <thread>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/terminal.h"
#include "lab/comparison.h"
#include "lab/comparison_report.h"

namespace foreshock::cli {
namespace {

constexpr const char* kHelp =
    "foreshock compare A B [C ...] [options]\n"
    "how far apart the weights of checkpoints are, tensor by tensor and pooled: B, C, ... each against A\n\n"
    "A checkpoint is a safetensors file, the index of a sharded one (model.safetensors.index.json), or a "
    "directory.\n\n"
    "  --pair NAME A B     put this pair beside the others; as many as wanted, also without A B [C ...]\n"
    "  --top COUNT         show so many tensors of each pair, those that moved farthest; 0: all (10)\n"
    "  --json FILE         write everything as JSON\n"
    "  --report FILE       write a page with charts, one self-contained file\n"
    "  --threads COUNT     all cores when not given; results do not depend on it\n\n"
    "W1 is the Wasserstein distance of the values, d the difference of each value. W1/mean |d| is near 1 for "
    "a drift\n"
    "and near 0 for noise; independent draws of one law (two seeds) are a noise floor apart.\n";

int failed(const std::string& problem) {
  std::fprintf(stderr, "foreshock compare: %s\n", problem.c_str());
  return 2;
}

struct Request {
  std::vector<std::string> paths;  // each once
  std::vector<lab::PairOfCheckpoints> pairs;
  std::string json_path, page_path;
  uint64_t threads = std::max(1u, std::thread::hardware_concurrency());
  uint64_t top = 10;
};

size_t index_of(const std::string& path, std::vector<std::string>* paths) {
  const auto found = std::find(paths->begin(), paths->end(), path);
  if (found == paths->end()) return paths->push_back(path), paths->size() - 1;
  return static_cast<size_t>(found - paths->begin());
}

bool to_count(const std::string& text, uint64_t least, uint64_t* count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc() && end == text.data() + text.size() && *count >= least && *count <= 1 << 20;
}

std::string set_option(const std::string& flag, const std::string& value, Request* request) {
  if (flag == "--threads")
    return to_count(value, 1, &request->threads) ? "" : "--threads takes a number from 1 up";
  if (flag == "--top") return to_count(value, 0, &request->top) ? "" : "--top takes a number";
  if (flag != "--json" && flag != "--report")
    return "unknown option '" + flag + "': foreshock compare --help";
  (flag == "--json" ? request->json_path : request->page_path) = value;
  return why_no_file(value);
}

std::string parse(const std::vector<std::string>& words, Request* request) {
  std::vector<std::string> positional;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("-")) {
      positional.push_back(words[i]);
    } else if (words[i] == "--pair") {
      if (i + 3 >= words.size()) return "--pair takes a name and two checkpoints";
      request->pairs.push_back(
          {words[i + 1], index_of(words[i + 2], &request->paths), index_of(words[i + 3], &request->paths)});
      i += 3;
    } else {
      const size_t equals = words[i].find('=');
      const bool attached = equals != std::string::npos;
      if (!attached && i + 1 == words.size()) return words[i] + " needs a value: foreshock compare --help";
      const std::string flag = words[i].substr(0, equals),
                        value = attached ? words[i].substr(equals + 1) : words[++i];
      if (const std::string problem = set_option(flag, value, request); !problem.empty()) return problem;
    }
  }
  if (positional.size() == 1 || (positional.empty() && request->pairs.empty()))
    return "name at least two checkpoints: foreshock compare A B";
  std::vector<lab::PairOfCheckpoints> against_first;
  for (size_t i = 1; i < positional.size(); ++i)
    against_first.push_back(
        {positional[i], index_of(positional[0], &request->paths), index_of(positional[i], &request->paths)});
  request->pairs.insert(request->pairs.begin(), against_first.begin(), against_first.end());
  return "";
}

int write(const std::string& path, const std::string& content) {
  if (path.empty()) return 0;
  const std::string problem = write_whole_file(path, content);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "foreshock compare: %s\n", problem.c_str());
  return 1;
}

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
  const auto has = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (has("--help") || has("-h")) return std::fputs(kHelp, stdout), 0;
  Request request;
  std::string problem = parse(words, &request);
  if (!problem.empty()) return failed(problem);
  allow_many_files();  // shards are kept open
  lab::Comparison comparison;
  problem = measure(request, &comparison);
  if (!problem.empty()) return failed(problem);
  for (const lab::PairResult& result : comparison.pairs) {
    if (!result.tensors.empty()) continue;
    const auto path = [&](size_t index) { return lab::printable(comparison.paths[index]); };
    return failed(path(result.pair.a) + " and " + path(result.pair.b) +
                  " have no tensor of one name and shape in common");
  }
  std::fputs(lab::table_of(comparison, request.top).c_str(), stdout);
  const int json = write(request.json_path, lab::to_json(comparison));
  return json | (request.page_path.empty() ? 0 : write(request.page_path, lab::to_page(comparison)));
}

}  // namespace foreshock::cli
