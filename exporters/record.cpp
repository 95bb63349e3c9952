// Writes the record of a run. The four parts are: its lines as JSON (with the Markdown table of their fields,
// and base64); its file; the writer with its thread; the spool, which keeps lines in shared memory until they
// are in the file, so that they survive a killed agent.
#include "exporters/record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "exporters/file_place.h"

namespace foreshock {
namespace {

using Json = nlohmann::ordered_json;

// Each to_json() converts an unknown (empty) value to null.
Json to_json(const std::string& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::vector<int64_t>& value) { return value.empty() ? Json() : Json(value); }
Json to_json(const std::map<std::string, double>& values) {
  Json object;  // stays null if there are no values
  for (const auto& [name, value] : values) object[name] = std::isfinite(value) ? Json(value) : Json();
  return object;
}
Json to_json(const std::map<std::string, int64_t>& values) { return values.empty() ? Json() : Json(values); }
template <class Value>
Json to_json(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

bool is_nonfinite(const std::optional<double>& value) { return value && !std::isfinite(*value); }
template <class Value>
bool is_nonfinite(const Value&) {
  return false;
}

}  // namespace

template <class Line>
std::string to_json_line(const Line& line) {
  Json object = {{"schema", kRecordSchema}, {"type", Line::kType}};
  Json nonfinite = Json::array();
  Line::visit(line, [&](const char* name, const auto& value) {
    object[name] = is_nonfinite(value) ? Json() : to_json(value);
    if (is_nonfinite(value)) nonfinite.push_back(name);
  });
  if (!nonfinite.empty()) object["nonfinite"] = nonfinite;
  // Text from a trainer may contain invalid UTF-8.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template std::string to_json_line(const RunLine&);
template std::string to_json_line(const StepLine&);
template std::string to_json_line(const SampleLine&);
template std::string to_json_line(const TensorLine&);
template std::string to_json_line(const ModelLine&);
template std::string to_json_line(const OptimizerLine&);
template std::string to_json_line(const GradientLine&);
template std::string to_json_line(const EventLine&);
template std::string to_json_line(const FindingLine&);
template std::string to_json_line(const VerdictLine&);

std::span<const RecordField> record_fields(std::string_view line_type) {
  std::span<const RecordField> fields;
  // Sets `fields` to those of the line struct whose type is `line_type`.
  const auto find_fields = [&]<class... Lines>(const Lines*...) {
    ((line_type == Lines::kType ? void(fields = Lines::kFields) : void()), ...);
  };
  find_fields(static_cast<const RunLine*>(nullptr), static_cast<const StepLine*>(nullptr),
              static_cast<const SampleLine*>(nullptr), static_cast<const TensorLine*>(nullptr),
              static_cast<const ModelLine*>(nullptr), static_cast<const OptimizerLine*>(nullptr),
              static_cast<const GradientLine*>(nullptr), static_cast<const EventLine*>(nullptr),
              static_cast<const FindingLine*>(nullptr), static_cast<const VerdictLine*>(nullptr));
  return fields;
}

std::string record_markdown() {
  std::string text;
  for (const char* type :
       {"run", "step", "sample", "tensor", "model", "optimizer", "gradient", "event", "finding", "verdict"}) {
    text += std::string(text.empty() ? "" : "\n") + "### `\"type\": \"" + type + "\"`\n\n" +
            "| field | type | unit | meaning |\n| --- | --- | --- | --- |\n";
    for (const RecordField& field : record_fields(type))
      text += std::string("| `") + field.name + "` | " + field.type + " | " + field.unit + " | " +
              field.help + " |\n";
  }
  return text;
}

namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNotADigit = 0xff;

// The value of each base64 digit, by its character.
constexpr std::array<uint8_t, 256> kValues = [] {
  std::array<uint8_t, 256> values{};
  values.fill(kNotADigit);
  for (uint8_t n = 0; n < 64; ++n) values[static_cast<uint8_t>(kDigits[n])] = n;
  return values;
}();

uint32_t byte_at(std::string_view bytes, size_t index) {
  return index < bytes.size() ? static_cast<uint8_t>(bytes[index]) : 0;
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const uint32_t word = byte_at(bytes, at) << 16 | byte_at(bytes, at + 1) << 8 | byte_at(bytes, at + 2);
    const size_t digits = std::min<size_t>(bytes.size() - at, 3) + 1;
    for (size_t n = 0; n < 4; ++n) text += n < digits ? kDigits[word >> (18 - 6 * n) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  size_t digits = text.size();  // number of characters without the '=' at the end, of which two are allowed
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  uint32_t word = 0;
  for (size_t at = 0; at < digits; ++at) {
    const uint8_t value = kValues[static_cast<uint8_t>(text[at])];
    if (value == kNotADigit) return std::nullopt;
    word = word << 6 | value;
    // Of four digits (24 bits, 3 bytes), all but the first complete a byte, with 4, 2 or 0 bits left over.
    if (at % 4 != 0) bytes += static_cast<char>(word >> (6 - 2 * (at % 4)));
  }
  // The last digit has 4 unused bits after one byte, 2 after two bytes. to_base64() sets them to 0.
  const uint32_t unused_bits = digits % 4 == 2 ? word & 15 : digits % 4 == 3 ? word & 3 : 0;
  if (unused_bits != 0) return std::nullopt;
  return bytes;
}

namespace {

// Whether the file begins with kFirstRecordBytes, or, if it is shorter, with a part of them.
bool starts_like_a_record(int file, off_t size) {
  char head[kFirstRecordBytes.size()];
  const auto length = static_cast<size_t>(std::min<off_t>(size, sizeof head));
  return pread(file, head, length, 0) == static_cast<ssize_t>(length) &&
         std::memcmp(head, kFirstRecordBytes.data(), length) == 0;
}

// Returns the number of bytes up to the last newline. If the file cannot be read, returns `size`, so that
// prepare_to_append() cuts nothing off.
off_t bytes_of_whole_lines(int file, off_t size) {
  char block[4096];  // the file is searched backwards, in blocks
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof block));
    if (pread(file, block, static_cast<size_t>(end - begin), begin) != end - begin) return size;
    for (off_t at = end; at > begin; --at)
      if (block[at - begin - 1] == '\n') return at;
    end = begin;
  }
  return 0;
}

// Prepares a regular file of *size bytes for appending: locks it, removes an incomplete last line and sets
// *size to the new size. Returns "", or the reason why the file must not be written.
std::string prepare_to_append(int file, off_t* size) {
  if (flock(file, LOCK_EX | LOCK_NB) != 0) return "another writer holds it";
  if (*size == 0) return "";
  if (!starts_like_a_record(file, *size))
    return "exists and is not a record of foreshock; choose another file";
  *size = bytes_of_whole_lines(file, *size);
  return ftruncate(file, *size) == 0 ? "" : std::strerror(errno);
}

}  // namespace

std::unique_ptr<RecordFile> RecordFile::open(const std::string& path, std::string* error, WriteCall write,
                                             uint64_t max_bytes) {
  const FilePlace place(path);
  // O_NONBLOCK: if the file is a pipe and the pipe is full, a write fails instead of blocking.
  const int file = place.open(O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    *error = "record " + (place.refusal().empty() ? path + ": " + std::strerror(errno) : place.refusal());
    if (file >= 0) close(file);
    return nullptr;
  }
  const bool is_regular = S_ISREG(status.st_mode);
  off_t size = is_regular ? status.st_size : 0;
  const std::string refusal = is_regular ? prepare_to_append(file, &size) : "";
  if (!refusal.empty()) {
    *error = "record " + path + ": " + refusal;
    close(file);
    return nullptr;
  }
  return std::unique_ptr<RecordFile>(
      new RecordFile(file, path, is_regular, status.st_ino, static_cast<uint64_t>(size), write, max_bytes));
}

RecordFile::RecordFile(int file, std::string path, bool is_regular, uint64_t inode, uint64_t size,
                       WriteCall write, uint64_t max_bytes)
    : file_(file),
      path_(std::move(path)),
      is_regular_(is_regular),
      inode_(inode),
      size_(size),
      max_bytes_(max_bytes),
      write_(write) {}

RecordFile::~RecordFile() { close(file_); }

// Renames the file to older_part() and starts a new file at the name of the record. The new file is locked
// before it gets that name, so that no other writer can take it. On failure the present file stays in use.
void RecordFile::begin_new_part() {
  const std::string next = path_ + ".new";
  // An agent that was killed before the second rename() may have left an empty file with this name.
  const int file = ::open(next.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0600);
  struct stat status = {};
  if (file < 0) return;
  const bool is_ours = flock(file, LOCK_EX | LOCK_NB) == 0 && fstat(file, &status) == 0 &&
                       S_ISREG(status.st_mode) && status.st_size == 0;
  const bool has_moved = is_ours && rename(path_.c_str(), older_part(path_).c_str()) == 0;
  if (!has_moved || rename(next.c_str(), path_.c_str()) != 0) {
    if (has_moved) rename(older_part(path_).c_str(), path_.c_str());
    if (is_ours) unlink(next.c_str());
    close(file);
    return;
  }
  close(file_);
  file_ = file;
  inode_ = status.st_ino;
  size_ = 0;
}

RecordFile::Appended RecordFile::append(std::string_view lines) {
  Appended result;
  const bool has_size_limit = max_bytes_ > 0 && is_regular_;
  // Each of the two parts has at most half of the limit. But an empty part takes `lines` of any size, and if
  // begin_new_part() fails, the present part takes them.
  if (has_size_limit && size_ > 0 && size_ + lines.size() > max_bytes_ / 2) begin_new_part();
  size_t written = 0;
  while (written < lines.size() && result.error == 0) {
    const ssize_t n = write_(file_, lines.data() + written, lines.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) result.error = errno;
    if (n == 0) result.error = ENOSPC;  // a device that accepts nothing would keep this loop running forever
  }
  const size_t whole_bytes = written == 0 ? 0 : lines.rfind('\n', written - 1) + 1;  // of whole lines
  size_ += whole_bytes;
  // Removes an incomplete line.
  if (whole_bytes != written && is_regular_ && ftruncate(file_, static_cast<off_t>(size_)) != 0)
    result.error = errno;
  result.bytes = is_regular_ ? whole_bytes : written;  // a part of a line stays in a pipe or device
  return result;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostWaitingBytes = kLongestRecordLine + 1;  // the longest line and its newline
constexpr std::chrono::milliseconds kFlushInterval{1000};

}  // namespace

struct RecordWriter::Shared {
  Shared(std::unique_ptr<RecordFile> record, int spool_file, WriteCall write, uint64_t max)
      : file(std::move(record)),
        path(file != nullptr ? file->path() : ""),
        is_regular(file != nullptr && file->is_regular()),
        write_call(write),
        max_bytes(max),
        spool(spool_file) {
    struct stat status = {};
    can_follow = is_regular && stat(path.c_str(), &status) == 0 && status.st_ino == file->inode();
    device = status.st_dev;
  }

  // While is_writing, only the thread in write_ready_lines() uses these three. Null: see follow_path().
  std::unique_ptr<RecordFile> file;
  dev_t device;     // the file system of `file`
  bool can_follow;  // the file system gives a file the same number by its path and by its descriptor
  const std::string path;
  const bool is_regular;
  const WriteCall write_call;
  const uint64_t max_bytes;
  std::mutex mutex;  // guards everything below; must be held when a function is called, except work()
  std::condition_variable changed;
  RecordSpool spool;
  std::string waiting;           // lines that are not in the file
  size_t ready_bytes = 0;        // size of the first part of `waiting`, passed to the spool and written next
  uint64_t size = 0, inode = 0;  // of the file, after the last attempt
  uint64_t requested = 0, done = 0;  // numbers of the last requested and the last finished attempt to write
  bool is_writing = false, is_ending = false;
  Clock::time_point began;    // start of the present attempt
  bool is_disturbed = false;  // follow_path() has found something
  bool is_failing = false;    // from an attempt that fails or hangs to the next one that writes everything
  bool has_reported_hang = false;
  std::string error;  // for take_error()
  uint64_t errors = 0, lines_lost = 0;

  bool put(const std::string& line);  // adds a line to `waiting`; returns false if too many bytes wait
  void make_lines_ready();
  // Whether the spool has the ready lines, which then survive if the agent is killed.
  bool spool_has_ready_lines() const { return is_regular && spool.is_whole(); }
  void fail(const std::string& why);
  void check_for_hang();
  std::string follow_path();
  void write_ready_lines(std::unique_lock<std::mutex>* lock);
  void respool();
  void work();
};

bool RecordWriter::Shared::put(const std::string& line) {
  if (waiting.size() + line.size() + 1 > kMostWaitingBytes) return false;
  waiting += line;
  waiting += '\n';
  return true;
}

// Makes all waiting lines part of the next attempt. Copies them to the spool if the record is a regular file.
void RecordWriter::Shared::make_lines_ready() {
  if (ready_bytes == waiting.size()) return;
  if (is_regular) spool.add(std::string_view(waiting).substr(ready_bytes), {inode, size + ready_bytes});
  ready_bytes = waiting.size();
}

void RecordWriter::Shared::fail(const std::string& why) {
  ++errors;
  if (!is_failing) error = "record " + path + ": " + why + "; the run goes on without it";
  is_failing = true;
}

void RecordWriter::Shared::check_for_hang() {
  if (!is_writing || has_reported_hang || Clock::now() - began < kPatience) return;
  fail("its disk does not answer");
  has_reported_hang = true;
}

// Clears the spool and copies all waiting lines to it, with their present position in the record.
void RecordWriter::Shared::respool() {
  spool.clear();
  ready_bytes = 0;
  make_lines_ready();
}

// Finds out whether another program has moved, removed, replaced or truncated the file since the last
// attempt. If so, opens the record that has its name now, or a new one. Sets `file` to null if there is
// neither; then the next attempt tries again. Returns a sentence for the reader; "": nothing has happened.
std::string RecordWriter::Shared::follow_path() {
  struct stat there = {};
  if (!can_follow) return "";
  const bool is_there = stat(path.c_str(), &there) == 0;
  if (!is_there && errno != ENOENT && errno != ENOTDIR) return "";  // for example, no permission to look
  std::string found = "another program has ";
  if (!is_there)
    found += "moved or removed it";
  else if (file == nullptr || there.st_ino != file->inode() || there.st_dev != device)
    found += "replaced it";
  else if (static_cast<uint64_t>(there.st_size) < file->size())
    found += "truncated it";
  else
    return "";
  file.reset();  // before open(), since it holds the lock of the file
  std::string problem;
  // A symbolic link is not followed, since another user may have put it there.
  if (lstat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode))
    file = RecordFile::open(path, &problem, write_call, max_bytes);
  if (file != nullptr && (stat(path.c_str(), &there) != 0 || there.st_ino != file->inode())) file.reset();
  if (file == nullptr) return found + ", and the record cannot go on at this path";
  device = there.st_dev;
  return found + "; it goes on without the lines that are gone";
}

// Makes one attempt to write the ready bytes. Releases the lock while it writes, so that lines can be added.
void RecordWriter::Shared::write_ready_lines(std::unique_lock<std::mutex>* lock) {
  const uint64_t number = requested;
  const std::string lines = waiting.substr(0, ready_bytes);
  is_writing = true;
  began = Clock::now();
  lock->unlock();
  const std::string disturbance = follow_path();
  const RecordFile::Appended appended =
      file != nullptr ? file->append(lines) : RecordFile::Appended{.error = ESTALE};
  lock->lock();
  is_writing = has_reported_hang = false;
  if (file != nullptr) size = file->size();
  waiting.erase(0, appended.bytes);
  ready_bytes -= appended.bytes;
  const bool is_another_file = file != nullptr && inode != file->inode();  // a new part, or follow_path()
  if (file != nullptr) inode = file->inode();
  is_disturbed |= !disturbance.empty();
  if (appended.error != 0) {
    fail(disturbance.empty() ? std::strerror(appended.error) : disturbance);
  } else {
    if (!disturbance.empty()) {
      ++errors;
      error = "record " + path + ": " + disturbance;
    } else if (is_failing) {
      error = "record " + path + ": can be written again; " +
              (lines_lost == 0 ? "nothing is lost" : std::to_string(lines_lost) + " lines are lost");
    }
    is_failing = false;
  }
  // If lines are left, the written ones may stay in the spool, since RecordSpool::missing() omits them by
  // their offset. In another file the offsets are different, so the spool is filled again.
  if (ready_bytes == 0)
    spool.clear();
  else if (is_another_file)
    respool();
  done = number;
  changed.notify_all();
}

// The writing thread: makes an attempt whenever one is requested.
void RecordWriter::Shared::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return requested != done || is_ending; });
    if (requested == done) return;
    write_ready_lines(&lock);
  }
}

std::unique_ptr<RecordWriter> RecordWriter::open(const std::string& path, std::string* error, int spool,
                                                 WriteCall write, uint64_t max_bytes) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of the file size then fails with EFBIG
  auto shared =
      std::make_shared<Shared>(RecordFile::open(path, error, write, max_bytes), spool, write, max_bytes);
  if (shared->file == nullptr) return nullptr;
  shared->size = shared->file->size();
  shared->inode = shared->file->inode();
  // The spool may have lines of an earlier agent that was killed.
  if (shared->is_regular) shared->waiting = shared->spool.missing({shared->inode, shared->size});
  shared->ready_bytes = shared->waiting.size();
  std::unique_lock lock(shared->mutex);
  shared->write_ready_lines(&lock);                // clears the spool if it writes everything
  if (shared->ready_bytes > 0) shared->respool();  // replaces the heading of the earlier agent
  return std::unique_ptr<RecordWriter>(new RecordWriter(shared));
}

RecordWriter::RecordWriter(std::shared_ptr<Shared> shared)
    : shared_(std::move(shared)), last_flush_(Clock::now()) {}

RecordWriter::~RecordWriter() {
  write_out(kPatience);
  std::unique_lock lock(shared_->mutex);
  shared_->is_ending = true;
  shared_->changed.notify_all();
  const bool is_done = shared_->requested == shared_->done;
  lock.unlock();
  if (!thread_.joinable()) return;
  is_done ? thread_.join() : thread_.detach();  // if not done, the thread hangs in a write to the file
}

bool RecordWriter::start_thread() {
  if (thread_.joinable()) return true;
  sigset_t all, own_mask;  // the new thread blocks all signals, so that the agent's main thread gets them
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &own_mask);
  try {
    thread_ = std::thread([shared = shared_] { shared->work(); });
  } catch (const std::system_error&) {  // no thread can be created: the caller has to wait for the disk
  }
  pthread_sigmask(SIG_SETMASK, &own_mask, nullptr);
  return thread_.joinable();
}

void RecordWriter::begin_flush() {
  last_flush_ = Clock::now();
  std::unique_lock lock(shared_->mutex);
  shared_->check_for_hang();
  shared_->make_lines_ready();
  if (shared_->waiting.empty() && !shared_->is_regular) return;  // of a regular file, looks at its path
  ++shared_->requested;
  if (start_thread())
    shared_->changed.notify_all();
  else
    shared_->write_ready_lines(&lock);
}

bool RecordWriter::write_out(std::chrono::milliseconds max_wait) {
  begin_flush();
  std::unique_lock lock(shared_->mutex);
  const uint64_t requested = shared_->requested;
  shared_->changed.wait_for(lock, max_wait, [&] { return shared_->done >= requested; });
  shared_->check_for_hang();
  return shared_->waiting.empty();
}

void RecordWriter::copy_to_spool() {
  {
    const std::unique_lock lock(shared_->mutex);
    if (shared_->ready_bytes == shared_->waiting.size()) return;
    shared_->make_lines_ready();
    if (shared_->spool_has_ready_lines() || shared_->is_failing) return;
  }
  // The spool does not have the lines, so they must be in the file before the caller goes on.
  // Waits for twice kPatience: check_for_hang(), at the end of write_out(), finds a hang only if the thread
  // started the attempt more than kPatience ago, and the thread may begin late.
  write_out(2 * kPatience);
}

void RecordWriter::append(const std::string& line) {
  std::unique_lock lock(shared_->mutex);
  bool is_put = shared_->put(line);
  if (!is_put && !shared_->is_failing) {  // too many lines wait: writes them, unless the last attempt failed
    lock.unlock();
    write_out(kPatience);
    lock.lock();
    is_put = shared_->put(line);
  }
  shared_->lines_lost += !is_put;
  lock.unlock();
  if (Clock::now() - last_flush_ >= kFlushInterval) begin_flush();
}

bool RecordWriter::is_incomplete() const {
  const std::unique_lock lock(shared_->mutex);
  const bool would_lose_lines =
      shared_->is_failing && !shared_->waiting.empty() && !shared_->spool_has_ready_lines();
  return shared_->is_disturbed || shared_->lines_lost > 0 || would_lose_lines;
}

bool RecordWriter::is_failing() const {
  const std::unique_lock lock(shared_->mutex);
  return shared_->is_failing;
}

std::string RecordWriter::take_error() {
  const std::unique_lock lock(shared_->mutex);
  return std::exchange(shared_->error, {});
}

uint64_t RecordWriter::size() const {
  const std::unique_lock lock(shared_->mutex);
  if (!shared_->is_regular) return 0;
  return shared_->size + (shared_->spool_has_ready_lines() ? shared_->ready_bytes : 0);
}

uint64_t RecordWriter::errors() const {
  const std::unique_lock lock(shared_->mutex);
  return shared_->errors;
}

uint64_t RecordWriter::lines_lost() const {
  const std::unique_lock lock(shared_->mutex);
  return shared_->lines_lost;
}

namespace {

// The first line of a spool. It has the record's inode, and the offset in the record at which the other lines
// of the spool belong.
constexpr char kHeading[] = "foreshock spool %016" PRIx64 " %016" PRIx64 "\n";
constexpr size_t kHeadingBytes = sizeof "foreshock spool 0123456789abcdef 0123456789abcdef\n" - 1;

std::string heading_of(const RecordPosition& position) {
  char text[kHeadingBytes + 1];
  std::snprintf(text, sizeof text, kHeading, position.inode, position.offset);
  return text;
}

bool read_heading(const std::string& text, RecordPosition* position) {
  return std::sscanf(text.c_str(), "foreshock spool %16" SCNx64 " %16" SCNx64, &position->inode,
                     &position->offset) == 2 &&
         text.starts_with(heading_of(*position));
}

size_t size_of(int file) {
  struct stat status = {};
  return file >= 0 && fstat(file, &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
}

}  // namespace

RecordSpool::RecordSpool(int file) : file_(file), size_(size_of(file)), is_whole_(file >= 0) {}

RecordSpool::~RecordSpool() {
  if (file_ >= 0) close(file_);
}

// Returns the lines of the spool that the record lacks. `end`: the record's inode and its size.
std::string RecordSpool::missing(const RecordPosition& end) const {
  std::string bytes(std::min(size_, kMostBytes), '\0');
  const ssize_t got = bytes.empty() ? 0 : pread(file_, bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  bytes.resize(bytes.rfind('\n') + 1);  // the last line may be incomplete; without a newline nothing is left
  RecordPosition begin;
  if (!read_heading(bytes, &begin)) return "";
  std::string lines = bytes.substr(kHeadingBytes);
  // If the record has the first of these lines, leaves them out. A record in another file has none of them.
  if (begin.inode == end.inode && begin.offset <= end.offset) lines.erase(0, end.offset - begin.offset);
  return lines;
}

bool RecordSpool::add(std::string_view lines, const RecordPosition& position) {
  if (!is_whole_) return false;
  const std::string bytes = (size_ == 0 ? heading_of(position) : "") + std::string(lines);
  is_whole_ = size_ + bytes.size() <= kMostBytes &&
              write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (is_whole_) size_ += bytes.size();
  return is_whole_;
}

void RecordSpool::clear() {
  if (file_ < 0 || (size_ == 0 && is_whole_)) return;
  is_whole_ = ftruncate(file_, 0) == 0;
  if (is_whole_) size_ = 0;
}

}  // namespace foreshock
