// foreshock export: a record as files that other tools read.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/say.h"
#include "exporters/csv.h"
#include "exporters/event_file.h"
#include "exporters/record_scalars.h"

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
  explicit CsvFolder(fs::path folder) : folder_(std::move(folder)) {}

  std::string add(const RecordLine& line) {
    std::ofstream& file = files_[type_of(line)];
    if (!file.is_open()) {
      const fs::path path = folder_ / (std::string(type_of(line)) + ".csv");
      if (fs::exists(path)) return path.string() + ": is there already; choose another directory";
      file.open(path, std::ios::binary);
      if (!file.is_open()) return path.string() + ": cannot be written";
      file << csv_header(line);
    }
    file << csv_row(line);
    return "";
  }

  std::string finish() {
    for (auto& [type, file] : files_)
      if (!file.flush()) return (folder_ / type).string() + ".csv: not all of it could be written";
    return "";
  }

 private:
  fs::path folder_;
  std::map<std::string, std::ofstream> files_;
};

// One folder per run and rank, as TensorBoard shows one curve per folder.
class TensorBoardFolder {
 public:
  explicit TensorBoardFolder(fs::path folder) : folder_(std::move(folder)) {}

  std::string add(const RecordLine& line) { return write(scalars_.take(line)); }

  std::string finish() {
    std::string problem = write(scalars_.finish());
    for (auto& [path, file] : files_)
      if (problem.empty() && !file->flush()) problem = path + ": not all of it could be written";
    return problem;
  }

 private:
  std::string write(const std::vector<Scalar>& scalars) {
    for (const Scalar& scalar : scalars) {
      const fs::path folder = folder_ / file_name_of(scalar.run) / ("rank_" + std::to_string(scalar.rank));
      const std::string path = folder / "events.out.tfevents.0.foreshock";
      std::unique_ptr<EventFile>& file = files_[path];
      if (file == nullptr) {
        std::string problem;
        std::error_code ignored;
        fs::create_directories(folder, ignored);
        file = EventFile::create(path, scalar.time, &problem);
        if (file == nullptr) return problem;
      }
      file->scalar(scalar.time, scalar.step, scalar.tag, scalar.value);
    }
    return "";
  }

  fs::path folder_;
  RecordScalars scalars_;
  std::map<std::string, std::unique_ptr<EventFile>> files_;
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
  std::error_code error;
  if (reader != nullptr) fs::create_directories(folder, error);
  if (error) problem = folder + ": " + error.message();
  Folder to(folder);
  uint64_t taken = 0;
  while (problem.empty()) {
    const std::optional<RecordLine> line = reader->next();
    if (!line) break;
    problem = to.add(*line);
    ++taken;
  }
  if (problem.empty()) problem = to.finish();
  if (problem.empty() && taken == 0)
    problem = record + ": no line of it is a record's" +
              (reader->bad_lines() > 0 ? " (" + reader->first_problem() + ")" : "");
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
  const std::string& record = arguments.command()[0];
  return csv.empty() ? copy_record<TensorBoardFolder>(record, board) : copy_record<CsvFolder>(record, csv);
}

}  // namespace foreshock::cli
