// foreshock export: a record as files that other tools read.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/many_files.h"
#include "cli/new_files.h"
#include "cli/say.h"
#include "exporters/record_reader.h"
#include "exporters/tensorboard.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

// What a record's text may become in the name of a file: it may have come from anywhere.
std::string file_name_of(const std::string& text) {
  std::string name = text.substr(0, 64);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.') c = '_';
  if (name.empty() || name[0] == '.') name.insert(0, "_");
  return name;
}

// Both writers: add() and finish() give "" or one line that says what went wrong.

// One file per type of line: run.csv, step.csv, sample.csv, event.csv.
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

// One folder per run and rank, as TensorBoard shows one curve per folder.
class TensorBoardFolder {
 public:
  explicit TensorBoardFolder(const fs::path& folder) : files_(folder) {}

  std::string add(const RecordLine& line) { return write(scalars_.take(line)); }

  std::string finish() {
    const std::string problem = write(scalars_.finish());
    return problem.empty() ? files_.finish() : problem;
  }
  bool empty() const { return files_.empty(); }

 private:
  std::string write(const std::vector<Scalar>& scalars) {
    for (const Scalar& scalar : scalars) {
      const std::string name = file_name_of(scalar.run) + "/rank_" + std::to_string(scalar.rank) +
                               "/events.out.tfevents.0.foreshock";
      std::string bytes = files_.has(name) ? "" : framed_record(version_event(scalar.time));
      bytes +=
          framed_record(scalar_event(scalar.time, scalar.step, scalar.tag, static_cast<float>(scalar.value)));
      if (std::string problem = files_.write(name, bytes); !problem.empty()) return problem;
    }
    return "";
  }

  NewFiles files_;
  RecordScalars scalars_;
};

void tell(const RecordReader& reader, uint64_t taken) {
  std::string text = std::to_string(taken) + " lines exported";
  if (reader.bad_lines() > 0)
    text += ", " + std::to_string(reader.bad_lines()) + " left out (" + reader.first_problem() + ")";
  if (reader.ends_torn()) text += "; the last line was cut off when its writer ended";
  say(text);
}

template <class Folder>
int copy_record(const std::string& record, const std::string& folder) {
  std::string problem;
  const std::unique_ptr<RecordReader> reader = RecordReader::open(record, &problem);
  Folder to(folder);
  uint64_t taken = 0;
  while (problem.empty()) {
    const std::optional<RecordLine> line = reader->next();
    if (!line) break;
    problem = to.add(*line);
    ++taken;
  }
  if (problem.empty() && taken == 0) problem = reader->why_nothing(record);
  if (problem.empty()) problem = to.finish();
  if (problem.empty() && to.empty())
    problem = record + ": no line has a value of a step to draw; --csv takes every line";
  if (!problem.empty()) {
    say(problem);
    return 1;
  }
  tell(*reader, taken);
  return 0;
}

}  // namespace

int export_record(const Arguments& arguments) {
  const std::string csv = arguments.text(OptionId::kCsv), board = arguments.text(OptionId::kTensorBoard);
  if (arguments.command().size() != 1 || csv.empty() == board.empty())
    return wrong_use("type: foreshock export --tensorboard DIR|--csv DIR RECORD.jsonl");
  allow_many_files();  // one for each rank
  const std::string& record = arguments.command()[0];
  return csv.empty() ? copy_record<TensorBoardFolder>(record, board) : copy_record<CsvFolder>(record, csv);
}

}  // namespace foreshock::cli
