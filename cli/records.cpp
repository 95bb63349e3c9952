// Implements foreshock export and foreshock detect. export converts a record, the JSON lines that the agent
// has written, into files for other tools. detect runs the agent's detectors and the rules of the conditions
// over a record. say() prints a line to stderr.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/condition_list.h"
#include "agent/detection.h"
#include "agent/publish.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/terminal.h"
#include "exporters/record_reader.h"
#include "exporters/tensorboard.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

// Returns a file name made of the first 64 bytes of a text from a record, which may contain any characters.
// Replaces all but letters, digits, '_', '-' and '.' by '_'. If the name is empty or begins with a dot, puts
// '_' before it.
std::string file_name_of(const std::string& text) {
  std::string name = text.substr(0, 64);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.') c = '_';
  if (name.empty() || name[0] == '.') name.insert(0, "_");
  return name;
}

// Writes one CSV file per type of line: run.csv, step.csv, sample.csv and so on. In this class and the next,
// add() and finish() return "" or one line with the error.
class CsvFolder {
 public:
  explicit CsvFolder(const fs::path& folder) : files_(folder) {}

  std::string add(const RecordLine& line) {
    const std::string name = std::string(type_of(line)) + ".csv";
    return files_.write(name, (files_.has(name) ? "" : csv_header(line)) + csv_row(line));
  }
  std::string finish() { return files_.finish(); }
  bool empty() const { return files_.empty(); }

 private:
  NewFiles files_;
};

// Writes an event file in one folder per run and rank, because TensorBoard shows one curve per folder. It
// recognizes event files by "tfevents" in their name.
class TensorBoardFolder {
 public:
  explicit TensorBoardFolder(const fs::path& folder) : files_(folder) {}

  std::string add(const RecordLine& line) { return write(scalars_.take(line)); }

  std::string finish() {
    const std::string problem = write(scalars_.finish());
    return problem.empty() ? files_.finish() : problem;
  }
  bool empty() const { return files_.empty(); }  // no line had a value to draw

 private:
  std::string write(const std::vector<Scalar>& scalars) {
    for (const Scalar& scalar : scalars) {
      const std::string name = file_name_of(scalar.run) + "/rank_" + std::to_string(scalar.rank) +
                               "/events.out.tfevents.0.foreshock";
      // An event file begins with the version of its format.
      std::string bytes = files_.has(name) ? "" : framed_record(version_event(scalar.time));
      bytes +=
          framed_record(scalar_event(scalar.time, scalar.step, scalar.tag, static_cast<float>(scalar.value)));
      if (std::string problem = files_.write(name, bytes); !problem.empty()) return problem;
    }
    return "";
  }

  NewFiles files_;
  RecordScalars scalars_;  // makes the scalars of a step; finish() returns those of the last step
};

void print_exported(const RecordReader& reader, uint64_t exported) {
  std::string text = std::to_string(exported) + " lines exported";
  if (reader.bad_lines() > 0)
    text += ", " + std::to_string(reader.bad_lines()) + " left out (" + reader.first_problem() + ")";
  if (reader.ends_torn()) text += "; the last line was cut off when its writer ended";
  say(text);
}

// Converts a record into files below `folder`. `Folder`: CsvFolder or TensorBoardFolder. Returns the exit
// status.
template <class Folder>
int convert_record(const std::string& record, const std::string& folder) {
  std::string problem;  // "": no error so far
  const std::unique_ptr<RecordReader> reader = RecordReader::open(record, &problem);
  Folder files(folder);
  uint64_t exported = 0;  // lines
  while (problem.empty()) {
    const std::optional<RecordLine> line = reader->next();
    if (!line) break;
    problem = files.add(*line);
    ++exported;
  }
  if (problem.empty() && exported == 0) problem = reader->no_valid_line_error(record);
  if (problem.empty()) problem = files.finish();
  if (problem.empty() && files.empty())  // TensorBoard only: CSV files have every line
    problem = record + ": no line has a value of a step to draw; --csv takes every line";
  if (!problem.empty()) {
    say(problem);
    return 1;
  }
  print_exported(*reader, exported);
  return 0;
}

using Json = nlohmann::json;

struct Detected {                 // what detect_in() reads and finds
  Watches watches;                // the detectors of all ranks
  std::vector<EventLine> events;  // events of these detectors
  uint64_t lines = 0;             // lines of the record
};

// Writes one CSV line for every input value of a detector, with enough digits to be read back exactly.
// `place` is the layer or weight tensor that the value belongs to; empty if there is none or it is unknown.
class ScoreTable {
 public:
  // Returns "" or an error.
  std::string open(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path + ": is there already; choose another file";
    file_.emplace(path).write("run,rank,step,detector,place,value,score,level\n");
    return file_->problem();
  }
  void add(const std::string& run, int64_t rank, const std::vector<WatchReading>& readings) {
    char numbers[96];
    for (const WatchReading& each : readings) {
      std::snprintf(numbers, sizeof numbers, "%.17g,%.17g,%s", each.value, each.reading.score,
                    name_of(each.reading.level));
      file_->write(csv_text(run) + ',' + std::to_string(rank) + ',' + std::to_string(each.step) + ',' +
                   info_of(each.detector).name + ',' + csv_text(each.place) + ',' + numbers + '\n');
    }
  }
  std::string finish() { return file_->finish(); }

 private:
  std::optional<WholeFile> file_;
};

// Runs the detectors over all lines of a record. `scores`: null if no table is wanted.
void detect_in(RecordReader& reader, ScoreTable* scores, Detected* detected) {
  std::vector<WatchReading> readings;
  if (scores != nullptr) detected->watches.collect(&readings);  // each observe() below replaces `readings`
  while (const std::optional<RecordLine> line = reader.next()) {
    ++detected->lines;
    std::visit(
        [&](const auto& each) {
          for (const EventLine& event : detected->watches.observe(each)) detected->events.push_back(event);
          // last_rank(): the rank whose detectors took this line; lines on tensors have no rank of their own
          if (scores != nullptr) scores->add(each.run, detected->watches.last_rank(), readings);
        },
        *line);
  }
}

Json event_json(const EventLine& event) {  // events of detectors always have a rank and a step
  return {{"run", event.run},
          {"rank", *event.rank},
          {"step", *event.step},
          {"event", event.event},
          {"layer", text_or_null(event.layer)},
          {"value", number_or_null(event.value)},
          {"detector", text_or_null(event.detector)},
          {"level", text_or_null(event.level)},
          {"score", number_or_null(event.score)}};
}

// Returns the answer of `foreshock detect --json`.
Json detect_json(const Detected& detected) {
  Json events = Json::array(), ranks = Json::array();
  for (const EventLine& event : detected.events) events.push_back(event_json(event));
  for (const auto& [key, watch] : detected.watches.all()) {  // key: run and rank
    Json rank = precursors_json(watch);
    rank["run"] = key.first;
    rank["rank"] = key.second;
    ranks.push_back(rank);
  }
  Json conditions = Json::array();
  for (const auto& [run, found] : detected.watches.conditions())
    for (Json each : conditions_json(conditions_of(found))) {
      each["run"] = run;
      conditions.push_back(each);
    }
  return {{"schema", 1}, {"events", events}, {"conditions", conditions}, {"ranks", ranks}};
}

void print_events(const Detected& detected) {
  std::printf("%10s %5s  %-24s %-8s %-6s %7s\n", "step", "rank", "event", "layer", "level", "score");
  for (const EventLine& event : detected.events) {
    // An event of a detector is shown by the detector's name.
    const std::string& what = event.detector.empty() ? event.event : event.detector;
    std::printf("%10lld %5lld  %-24s %-8s %-6s", static_cast<long long>(*event.step),
                static_cast<long long>(*event.rank), printable(what).c_str(), printable(event.layer).c_str(),
                event.level.c_str());
    event.score ? std::printf(" %7.2f\n", *event.score) : std::printf("\n");
  }
}

void print_loss_events(const Detected& detected) {
  for (const auto& [key, watch] : detected.watches.all())
    for (const LossEventSeen& seen : watch.loss_events()) {
      std::printf("\nrank %lld: %s at step %lld\n", static_cast<long long>(key.second), name_of(seen.kind),
                  static_cast<long long>(seen.onset_step));
      if (seen.preceded_by.empty()) std::printf("  no detector spoke before it\n");
      for (const Episode& each : seen.preceded_by)
        std::printf("  %lld steps before: %s%s%s (%s)\n",
                    static_cast<long long>(seen.onset_step - each.since_step), info_of(each.detector).name,
                    each.place.empty() ? "" : " of ", printable(each.place).c_str(), name_of(each.most));
    }
}

void print_conditions(const Detected& detected) {
  for (const auto& [run, found] : detected.watches.conditions())
    for (const Condition& each : conditions_of(found))
      std::printf("\n%s (%s): %s\n", info_of(each.id).name, name_of(info_of(each.id).kind),
                  text_of(each).c_str());
}

void print_bad_lines(const RecordReader& reader) {
  if (reader.bad_lines() > 0)
    say(std::to_string(reader.bad_lines()) + " lines left out (" + reader.first_problem() + ")");
  if (reader.ends_torn()) say("the last line was cut off when its writer ended");
}

}  // namespace

int export_record(const Arguments& arguments) {
  const std::string csv_folder = arguments.text(OptionId::kCsv),
                    board_folder = arguments.text(OptionId::kTensorBoard);
  const bool has_one_folder = csv_folder.empty() != board_folder.empty();
  if (arguments.command().size() != 1 || !has_one_folder)
    return wrong_use("type: foreshock export --tensorboard DIR|--csv DIR RECORD.jsonl");
  allow_many_files();                                  // TensorBoard: one open file for each rank
  const std::string& record = arguments.command()[0];  // the word after the options
  return csv_folder.empty() ? convert_record<TensorBoardFolder>(record, board_folder)
                            : convert_record<CsvFolder>(record, csv_folder);
}

int detect(const Arguments& arguments) {
  if (arguments.command().size() != 1)
    return wrong_use("type: foreshock detect [--json] [--scores FILE.csv] RECORD.jsonl");
  const std::string& record = arguments.command()[0];                 // the word after the options
  const std::string scores_path = arguments.text(OptionId::kScores);  // "": no table is wanted
  ScoreTable scores;
  Detected detected;
  std::string problem;
  const std::unique_ptr<RecordReader> reader = RecordReader::open(record, &problem);
  if (problem.empty() && !scores_path.empty()) problem = scores.open(scores_path);
  if (problem.empty()) {
    detect_in(*reader, scores_path.empty() ? nullptr : &scores, &detected);
    if (detected.lines == 0) problem = reader->no_valid_line_error(record);
  }
  if (problem.empty() && !scores_path.empty()) problem = scores.finish();
  if (!problem.empty()) {
    say(problem);
    return 1;
  }
  if (arguments.has_flag(OptionId::kJson)) {
    // One line; invalid UTF-8 is replaced.
    std::puts(
        printable_json(detect_json(detected).dump(-1, ' ', false, Json::error_handler_t::replace)).c_str());
  } else {
    print_events(detected);
    print_loss_events(detected);
    print_conditions(detected);
  }
  print_bad_lines(*reader);
  for (const std::string& text : left_out(detected.watches)) say(text);  // series and ranks beyond the limits
  return 0;
}

}  // namespace foreshock::cli
