// Sorts the lines of several records, which are files of JSON lines, by an index, for `foreshock merge`
// (record_index.h). A large index is written to a temporary file in sorted parts ("pieces"), which next()
// merges with a heap.
#include "cli/record_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <type_traits>

namespace foreshock::cli {

static_assert(std::is_trivially_copyable_v<IndexedLine>, "written as bytes");

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

std::optional<int64_t> rank_of(const RecordLine& line) {
  return std::visit(
      [](const auto& each) -> std::optional<int64_t> {
        if constexpr (requires { each.rank; }) return each.rank;
        return std::nullopt;
      },
      line);
}

std::optional<int64_t> step_of(const RecordLine& line) {
  return std::visit(
      [](const auto& each) -> std::optional<int64_t> {
        if constexpr (requires { each.step; }) return each.step;
        return std::nullopt;
      },
      line);
}

// Returns a key that is equal for all lines about one tensor, about one layer, or about the whole model; ""
// for lines of types other than tensor and model.
std::string key_of(const RecordLine& line) {
  if (const auto* tensor = std::get_if<TensorLine>(&line)) {
    // Ranks with other coordinates may hold another tensor with the same name.
    std::string key = "t" + tensor->tensor;
    for (const auto& coordinate :
         {tensor->tensor_parallel, tensor->pipeline_parallel, tensor->expert_parallel, tensor->of_rank})
      key += '\n' + std::to_string(coordinate.value_or(-1));
    return key;
  }
  if (const auto* model = std::get_if<ModelLine>(&line)) return "m" + model->layer;
  return "";
}

// Whether `foreshock merge` made the line: then it describes the whole job, not one node.
bool is_merged(const RecordLine& line) {
  const auto* tensor = std::get_if<TensorLine>(&line);
  const auto* model = std::get_if<ModelLine>(&line);
  return (tensor != nullptr && tensor->scope == "job") || (model != nullptr && model->scope == "job");
}

}  // namespace

// Notes that `record` has lines of this rank. Returns an error if another record has them too, since a rank
// belongs to one node.
std::string RecordIndex::note_rank(int64_t rank, uint32_t record) {
  const auto [known, is_new] = record_of_rank_.emplace(rank, record);
  if (is_new || known->second == record) return "";
  return "rank " + std::to_string(rank) + " is in both " + paths_[known->second] + " and " + paths_[record] +
         ": name each node's record once";
}

// Fills in what the entry is sorted by. `generation` is how often the training had gone back to an earlier
// step; `subject` is the rank, or a number for a tensor, a layer or the whole model. Returns "" or an error.
std::string RecordIndex::fill_entry(const RecordLine& line, ReadingState* state, IndexedLine* entry) {
  const std::string& run = std::visit([](const auto& each) -> const std::string& { return each.run; }, line);
  if (count_ == 0 && run_.empty()) run_ = run;  // the first line of all records
  if (run != run_)
    return paths_[0] + " is of run " + run_ + ", " + paths_[entry->record] + " of run " + run +
           ": only records of one run can be merged";
  if (is_merged(line)) return paths_[entry->record] + " is merged already: name the records of the nodes";
  entry->kind = kind_of(line);
  const std::optional<int64_t> rank = rank_of(line);
  if (rank) {
    if (const std::string problem = note_rank(*rank, entry->record); !problem.empty()) return problem;
    entry->subject = static_cast<uint32_t>(*rank);
  }
  entry->step = step_of(line).value_or(-1);
  if (entry->kind == Kind::kStep && rank) {
    const auto [previous, is_new] = state->last_step.emplace(*rank, entry->step);
    if (!is_new && entry->step <= previous->second) {  // the training has gone back, e.g. to a checkpoint
      ++state->generation;
      state->last_step.clear();  // the other ranks go back too, which must not be counted again
    }
    state->last_step[*rank] = entry->step;
  }
  const auto last = rank ? state->last_step.find(*rank) : state->last_step.end();
  const int64_t last_step = last != state->last_step.end() ? last->second : -1;
  bool is_first_start = false;  // whether `line` is the first "started" line of its rank
  if (const auto* run_line = std::get_if<RunLine>(&line)) {
    world_size_ = std::max(world_size_, run_line->world_size.value_or(0));
    is_first_start = entry->kind == Kind::kStarted && (!rank || state->started.insert(*rank).second);
    if (!is_first_start) {
      // "ended" is sorted after the last step of its rank. So is a later "started", which follows the last
      // step of the rank's previous process.
      entry->step = last_step;
      entry->kind = Kind::kEnded;
    }
  }
  // An event may be written later than its step: the step of a loss event is its onset.
  if (entry->kind == Kind::kEvent) entry->step = std::max(entry->step, last_step);
  entry->generation = is_first_start ? 0 : state->generation;  // first starts are sorted before all else
  if (const std::string key = key_of(line); !key.empty())
    entry->subject = subjects_.emplace(key, static_cast<uint32_t>(subjects_.size())).first->second;
  return "";
}

std::string RecordIndex::add(const std::string& path, const Visitor& visit) {
  std::string problem;
  std::error_code ignored;
  // A record is read twice: by add(), and later by text().
  if (std::filesystem::is_fifo(path, ignored) || std::filesystem::is_socket(path, ignored))
    return path + " can be read only once: make a file of it first";
  const std::unique_ptr<RecordReader> reader = RecordReader::open(path, &problem);
  if (reader == nullptr) return problem;
  const auto record = static_cast<uint32_t>(paths_.size());
  paths_.push_back(path);
  std::vector<SourceFile>& files = files_.emplace_back();
  uint64_t begin = 0;
  if (has_older_part(path)) {  // with --record-size, a record has two files; offsets count through both
    begin = std::filesystem::file_size(older_part(path), ignored);
    files.push_back({std::ifstream(older_part(path), std::ios::binary), 0, 0});
  }
  files.push_back({std::ifstream(path, std::ios::binary), begin, begin});
  const uint64_t count_before = count_;
  ReadingState state;
  while (const std::optional<RecordLine> line = reader->next()) {
    IndexedLine entry;
    entry.record = record;
    entry.offset = reader->offset();
    entry.bytes = reader->bytes();
    if (problem = fill_entry(*line, &state, &entry); !problem.empty()) return problem;
    lines_.push_back(entry);
    ++count_;
    visit(*line, entry);
    if (lines_.size() >= most_in_memory_)
      if (problem = write_piece(); !problem.empty()) return problem;
  }
  if (count_ == count_before) return reader->no_valid_line_error(path);
  if (reader->ends_torn()) torn_ += (torn_.empty() ? "" : ", ") + path;
  if (reader->bad_lines() > 0 && bad_lines_ == 0) first_problem_ = path + ", " + reader->first_problem();
  bad_lines_ += reader->bad_lines();
  return "";
}

std::string RecordIndex::write_piece() {
  const char* folder = std::getenv("TMPDIR");
  std::string path =
      std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp") + "/foreshock-merge-XXXXXX";
  if (temporary_ == nullptr) {
    const int file = mkstemp(path.data());
    if (file < 0) return path + ": " + std::strerror(errno) + "; set TMPDIR to a folder with room";
    unlink(path.c_str());  // the file exists until it is closed
    temporary_.reset(fdopen(file, "w+b"));
  }
  std::sort(lines_.begin(), lines_.end());
  const uint64_t begin = pieces_.empty() ? 0 : pieces_.back().end;
  const bool is_written =
      temporary_ != nullptr &&
      std::fwrite(lines_.data(), sizeof(IndexedLine), lines_.size(), temporary_.get()) == lines_.size() &&
      std::fflush(temporary_.get()) == 0;
  if (!is_written)
    return path.substr(0, path.rfind('/')) + ": no room for the index; set TMPDIR to another folder";
  pieces_.push_back({begin, begin + lines_.size(), {}, 0});
  lines_.clear();
  return "";
}

std::string RecordIndex::sort() {
  if (pieces_.empty()) {  // all lines are in memory
    std::sort(lines_.begin(), lines_.end());
    return "";
  }
  if (std::string problem = write_piece(); !problem.empty()) return problem;  // the lines that are left
  for (size_t n = 0; n < pieces_.size(); ++n)
    if (fill_block(&pieces_[n])) heap_.push_back(n);
  std::make_heap(heap_.begin(), heap_.end(), Later{&pieces_});
  return "";
}

// Reads the next block of a piece if all lines of the present one have been returned. Returns false at the
// end of the piece, or if it cannot be read.
bool RecordIndex::fill_block(Piece* piece) {
  if (piece->next < piece->block.size()) return true;
  // All pieces share the memory for lines.
  const size_t most_in_block = std::max<size_t>(most_in_memory_ / pieces_.size(), 1);
  piece->block.resize(std::min<uint64_t>(piece->end - piece->unread, most_in_block));
  piece->next = 0;
  if (piece->block.empty()) return false;
  const bool is_read =
      std::fseek(temporary_.get(), static_cast<long>(piece->unread * sizeof(IndexedLine)), SEEK_SET) == 0 &&
      std::fread(piece->block.data(), sizeof(IndexedLine), piece->block.size(), temporary_.get()) ==
          piece->block.size();
  piece->unread += piece->block.size();
  if (!is_read) piece->block.clear();
  return is_read;
}

bool RecordIndex::next(IndexedLine* line) {
  if (pieces_.empty()) {
    if (next_ >= lines_.size()) return false;
    *line = lines_[next_++];
    return true;
  }
  if (heap_.empty()) return false;
  const Later later = {&pieces_};
  std::pop_heap(heap_.begin(), heap_.end(), later);  // moves the piece with the next line to the back
  Piece& piece = pieces_[heap_.back()];
  *line = piece.block[piece.next++];
  if (fill_block(&piece))
    std::push_heap(heap_.begin(), heap_.end(), later);
  else
    heap_.pop_back();
  return true;
}

std::string RecordIndex::text(const IndexedLine& line) {
  std::vector<SourceFile>& files = files_[line.record];
  // A record has one file, or an older and a newer one.
  SourceFile& source = line.offset >= files.back().begin ? files.back() : files.front();
  std::ifstream& file = source.file;
  uint64_t& position = source.position;
  std::string text(line.bytes, '\0');
  // Bytes up to a line that begins nearby are read, since a seek would discard the read-ahead buffer.
  constexpr uint64_t kNear = 4096;
  if (file.good() && position <= line.offset && line.offset - position <= kNear) {
    file.ignore(static_cast<std::streamsize>(line.offset - position));
  } else {
    file.clear();
    file.seekg(static_cast<std::streamoff>(line.offset - source.begin));
  }
  position = line.offset + line.bytes;
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) return "";
  return text;
}

}  // namespace foreshock::cli
