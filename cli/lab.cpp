#include "cli/lab.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "cli/lab_request.h"
#include "cli/progress_bar.h"
#include "cli/whole_file.h"
#include "lab/study.h"
#include "lab/study_json.h"
#include "lab/table.h"

namespace foreshock::cli {
namespace {

int wrong_use(const std::string& problem) {
  std::fprintf(stderr, "foreshock lab: %s\n", problem.c_str());
  return 2;
}

void list_names() {
  std::printf("algorithms\n");
  for (const lab::Algorithm& a : lab::algorithms())
    std::printf("  %-36s %-14s %s\n", a.name.data(), lab::name_of(a.family).data(), a.summary.data());
  std::printf("accumulators\n");
  for (const lab::Accumulator& a : lab::accumulators()) std::printf("  %s\n", a.name.data());
}

lab::SweepResult measure(const LabSweep& wanted, int threads) {
  lab::SweepResult result;
  result.name = wanted.points.front().sweep;
  result.sweep = wanted.sweep;
  ProgressBar bar(result.name);
  result.measurements = lab::measure(wanted.points, threads, [&bar](double done) { bar.show(done); });
  if (wanted.sweep) result.claims = wanted.sweep->claims(result.measurements);
  return result;
}

int write(const std::string& path, const std::string& content) {
  if (path.empty()) return 0;
  const std::string problem = write_whole_file(path, content);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "foreshock lab: %s\n", problem.c_str());
  return 1;
}

}  // namespace

int lab(const std::vector<std::string>& words) {
  LabRequest request;
  const std::string problem = parse_lab_request(words, &request);
  if (!problem.empty()) return wrong_use(problem);
  if (request.help) return std::fputs(lab_help().c_str(), stdout), 0;
  if (request.list) return list_names(), 0;

  const auto start = std::chrono::steady_clock::now();
  lab::Study study;
  for (const LabSweep& wanted : request.sweeps) {
    study.sweeps.push_back(measure(wanted, request.threads));
    std::fputs(lab::table_of(study.sweeps.back(), isatty(STDOUT_FILENO)).c_str(), stdout);
    std::fflush(stdout);
  }
  study.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int json = write(request.json_path, lab::to_json(study));
  return json | write(request.page_path, lab::to_page(study));
}

}  // namespace foreshock::cli
