// foreshock lab: measures the errors of emulated attention algorithms and number formats against fp64. A
// sweep is a list of points. A point has one value per axis: an algorithm, a format, an input and so on. A
// named sweep (lab/study.h) has fixed points; the options choose the points of a "custom" sweep.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/terminal.h"
#include "cli/words.h"
#include "lab/number_format.h"
#include "lab/study.h"

namespace foreshock::cli {
namespace {

using lab::Point;

// The functions below set a member of a point from the text of an option. They return false for invalid text.

template <std::string Point::*member>
bool set_text(const std::string& text, Point* point) {
  point->*member = text;
  return !text.empty();
}

template <int Point::*member>
bool set_int(const std::string& text, Point* point) {
  return lab::read_number(text, &(point->*member));
}

bool set_scale(const std::string& text, Point* point) { return lab::read_number(text, &point->scale); }

bool set_first_seed(const std::string& text, Point* point) {
  int seed = 0;
  if (!lab::read_number(text, &seed) || seed < 0) return false;
  point->first_seed = static_cast<uint64_t>(seed);
  return true;
}

bool set_key_order(const std::string& text, Point* point) {
  point->reverse = text == "reverse";
  return point->reverse || text == "forward";
}

bool set_pass(const std::string& text, Point* point) {
  point->backward = text == "backward";
  return point->backward || text == "forward";
}

// An option that sets one property of the points.
struct Axis {
  const char* flag;
  const char* value_name;  // in the help
  bool (*set)(const std::string& text, Point* point);
  bool in_named_sweeps;  // false: the option may be given for "custom" only
  const char* help;      // what the values are, and in parentheses the default
};

constexpr Axis kAxes[] = {
    {"--algorithm", "NAMES", set_text<&Point::algorithm>, false, "see --list (plain)"},
    {"--format", "NAMES", set_text<&Point::format>, false,
     "fp64 fp32 tf32 bf16 fp16 e4m3 e5m2, or p<precision>e<min>:<max exponent> (bf16)"},
    {"--accumulator", "NAMES", set_text<&Point::accumulator>, false, "see --list (fp32; fp64 for fp64)"},
    {"--rounding", "NAMES", set_text<&Point::rounding>, false, "rne, rtz, stochastic (rne)"},
    {"--input", "LAWS", set_text<&Point::input>, false,
     "normal uniform outlier one_signed flat shifted, ties:T[:GAP] (normal)"},
    {"--n", "COUNTS", set_int<&Point::n>, false, "keys, classes, columns; side of an image (1024)"},
    {"--d", "COUNTS", set_int<&Point::d>, false, "head dimension, channels, depth (64)"},
    {"--rows", "COUNT", set_int<&Point::rows>, true, "query rows, output channels (256)"},
    {"--block-q", "COUNTS", set_int<&Point::block_q>, false, "rows of a tile (64)"},
    {"--block-k", "COUNTS", set_int<&Point::block_k>, false, "keys of a tile (64)"},
    {"--splits", "COUNTS", set_int<&Point::splits>, false, "parts of split_k (4)"},
    {"--key-order", "ORDERS", set_key_order, false, "forward or reverse (forward)"},
    {"--scale", "FACTORS", set_scale, false, "multiplies the query (1)"},
    {"--pass", "PASSES", set_pass, false, "forward or backward (forward)"},
    {"--delta", "SOURCES", set_text<&Point::delta>, false, "backward: delta from out or probabilities (out)"},
    {"--reference", "SOURCES", set_text<&Point::reference>, false, "of stored or original inputs (stored)"},
    {"--seeds", "COUNT", set_int<&Point::seeds>, true, "runs per point (8; 16 where a bias is sought)"},
    {"--first-seed", "NUMBER", set_first_seed, true, "the others follow it (1)"},
};

constexpr WordOption kOtherOptions[] = {
    {"--json", "FILE", "write the points as JSON"},
    {"--report", "FILE", "write a page with charts, one self-contained file"},
    {"--threads", "COUNT", "all cores when not given; results do not depend on it"},
    {"--list", nullptr, "algorithms and accumulators"},
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (char c : list) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// An axis that the command line has, with the values from its comma-separated list.
struct GivenAxis {
  const Axis* axis;
  std::vector<std::string> values;
};

// Replaces the points by every combination of a point and a value of the axis. Returns "" or an error.
std::string apply(const GivenAxis& given, std::vector<Point>* points) {
  std::vector<Point> all;
  for (const Point& point : *points)
    for (const std::string& value : given.values) {
      all.push_back(point);
      if (!given.axis->set(value, &all.back()))
        return std::string(given.axis->flag) + " does not take '" + value + "': " + given.axis->help;
    }
  *points = std::move(all);
  return "";
}

// Returns the memory that can be allocated without swapping; INFINITY if unknown.
double available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  double kilobytes = 0;
  while (meminfo >> name >> kilobytes) {
    if (name == "MemAvailable:") return 1024 * kilobytes;
    meminfo.ignore(256, '\n');  // the rest of the line
  }
  return INFINITY;
}

std::string gibibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g GiB", bytes / (1 << 30));
  return text;
}

// Returns an error if a point cannot be measured or needs too much memory, else "". Lowers the number of
// threads, each of which measures one point at a time, until their points fit into memory together.
std::string check_points_and_limit_threads(LabRequest* request) {
  const double usable_bytes = 0.8 * available_bytes();  // leaves a fifth to other programs
  double largest_point = 0;                             // bytes
  for (const LabSweep& sweep : request->sweeps)
    for (const Point& point : sweep.points) {
      const std::string problem = lab::why_not(point);
      if (!problem.empty()) return problem;
      largest_point = std::max(largest_point, lab::bytes_needed(point));
    }
  if (largest_point > usable_bytes)
    return "a point needs " + gibibytes(largest_point) + " of memory, there are " + gibibytes(usable_bytes) +
           ": lower --n or --rows";
  // The quotient is a double, since usable_bytes may be infinite.
  const double threads_that_fit = std::min<double>(request->threads, usable_bytes / largest_point);
  request->threads = std::max(1, static_cast<int>(threads_that_fit));
  return "";
}

std::string sweep_names() {
  std::string names;
  for (const lab::Sweep& sweep : lab::sweeps()) names += std::string(sweep.name) + ", ";
  return names + "custom";
}

// Fills in request->sweeps with the sweeps `names`. Without names: with "custom" if an axis is for "custom"
// only, else with the default sweeps. Applies the axes to all points. Returns "" or an error.
std::string choose_sweeps(const std::vector<std::string>& names, const std::vector<GivenAxis>& axes,
                          LabRequest* request) {
  const bool has_custom_axis = std::any_of(
      axes.begin(), axes.end(), [](const GivenAxis& given) { return !given.axis->in_named_sweeps; });
  std::vector<std::string> wanted = names;
  if (wanted.empty() && has_custom_axis) wanted = {"custom"};
  if (wanted.empty()) wanted.assign(lab::default_sweeps().begin(), lab::default_sweeps().end());
  for (const std::string& name : wanted) {
    LabSweep chosen{lab::find_sweep(name), {Point{}}};  // "custom": null, and one point with default values
    if (!chosen.sweep && name != "custom") return "unknown sweep '" + name + "': " + sweep_names();
    if (chosen.sweep) chosen.points = chosen.sweep->points();
    for (Point& point : chosen.points) point.sweep = name;
    for (const GivenAxis& given : axes) {
      if (chosen.sweep && !given.axis->in_named_sweeps)
        return std::string(given.axis->flag) + " belongs to custom sweeps: leave out '" + name + "'";
      // In a named sweep, an axis replaces a value of the fixed points.
      if (chosen.sweep && given.values.size() > 1)
        return std::string(given.axis->flag) + " takes one value here";
      const std::string problem = apply(given, &chosen.points);
      if (!problem.empty()) return problem;
    }
    request->sweeps.push_back(std::move(chosen));
  }
  return "";
}

void print_lab_help() {
  const size_t columns = terminal_columns(80);
  std::vector<WordOption> sweeps, axes;
  for (const lab::Sweep& sweep : lab::sweeps())
    sweeps.push_back({sweep.name.data(), nullptr, sweep.question.data()});
  sweeps.push_back({"custom", nullptr, "every combination of the axes below"});
  for (const Axis& axis : kAxes) axes.push_back({axis.flag, axis.value_name, axis.help});
  std::printf(
      "foreshock lab [SWEEP...] [options]\nemulate algorithms and number formats against fp64\n\n"
      "Example: foreshock lab ties bias --report bias.html\n\n"
      "Sweeps [fig3 fig4 fig5 fig6]\n%s\nAxes, which take lists with commas\n%s\nOutput\n%s",
      words_help(sweeps, columns).c_str(), words_help(axes, columns).c_str(),
      words_help(kOtherOptions, columns).c_str());
}

int wrong_lab_use(const std::string& problem) {
  say(problem, "foreshock lab");
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
  if (wanted.sweep) result.claims = wanted.sweep->claims(result.measurements);  // which claims of papers hold
  return result;
}

// Writes an output file; does nothing if `path` is "". Returns the exit status: 0, or 1 if writing failed.
int write(const std::string& path, const std::string& content) {
  if (path.empty()) return 0;
  const std::string problem = write_whole_file(path, content);
  if (problem.empty()) return 0;
  say(problem, "foreshock lab");
  return 1;
}

}  // namespace

std::string parse_lab_request(const std::vector<std::string>& words, LabRequest* request) {
  std::vector<GivenAxis> axes;
  request->threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<WordOption> options(std::begin(kOtherOptions), std::end(kOtherOptions));
  for (const Axis& axis : kAxes) options.push_back({axis.flag, axis.value_name, axis.help});
  Words parsed_words;
  if (const std::string problem = parsed_words.parse(words, "lab", options); !problem.empty()) return problem;
  request->help = parsed_words.wants_help();
  request->list = parsed_words.has("--list");
  if (request->help || request->list) return "";
  for (const Words::Given& given : parsed_words.given()) {
    const std::string& value = given.values[0];
    const auto axis =
        std::find_if(std::begin(kAxes), std::end(kAxes), [&](const Axis& a) { return given.flag == a.flag; });
    if (axis != std::end(kAxes)) {
      axes.push_back({axis, split(value)});
    } else if (given.flag == "--threads") {
      if (!lab::read_number(value, &request->threads) || request->threads < 1)
        return "--threads takes a number from 1 up";
    } else {  // --json or --report; checked before the measurements, so that they are not lost
      if (const std::string problem = why_no_file(value); !problem.empty()) return problem;
      (given.flag == "--json" ? request->json_path : request->page_path) = value;
    }
  }
  const std::string problem = choose_sweeps(/*names=*/parsed_words.files(), axes, request);
  return problem.empty() ? check_points_and_limit_threads(request) : problem;
}

int lab(const std::vector<std::string>& words) {
  LabRequest request;
  const std::string problem = parse_lab_request(words, &request);
  if (!problem.empty()) return wrong_lab_use(problem);
  if (request.help) return print_lab_help(), 0;
  if (request.list) return list_names(), 0;

  const auto start = std::chrono::steady_clock::now();
  lab::Study study;
  for (const LabSweep& wanted : request.sweeps) {
    study.sweeps.push_back(measure(wanted, request.threads));
    std::fputs(lab::table_of(study.sweeps.back(), isatty(STDOUT_FILENO)).c_str(), stdout);
    std::fflush(stdout);
  }
  study.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int json_status = write(request.json_path, lab::to_json(study));
  return json_status | write(request.page_path, lab::to_page(study));
}

}  // namespace foreshock::cli
