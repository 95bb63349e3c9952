// Parses the JSON lines of a record (the file of --record), reads its files line by line, and writes lines as
// CSV. The file may have an older part, which is then read first. record.h defines the types of lines;
// Line::visit(line, f) calls f(name, value) for each field.
#include "exporters/record_reader.h"

#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "exporters/record.h"
#include "text/printable.h"

namespace foreshock {
namespace {

using Json = nlohmann::json;

// Each take() sets *value if the JSON value has the type of *value, and returns whether it has this type.
bool take(const Json& json, std::string* value) {
  if (json.is_string()) *value = json.get<std::string>();
  return json.is_string();
}
bool take(const Json& json, std::optional<bool>* value) {
  if (json.is_boolean()) *value = json.get<bool>();
  return json.is_boolean();
}
// nlohmann::json parses every integer that is not negative as unsigned.
bool take(const Json& json, std::optional<int64_t>* value) {
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() ||
                     json.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (fits) *value = json.get<int64_t>();
  return fits;
}
bool take(const Json& json, std::optional<uint64_t>* value) {
  if (json.is_number_unsigned()) *value = json.get<uint64_t>();
  return json.is_number_unsigned();
}
bool take(const Json& json, std::optional<double>* value) {
  if (json.is_number()) *value = json.get<double>();
  return json.is_number();
}
bool take(const Json& json, std::vector<int64_t>* value) {
  if (!json.is_array()) return false;
  for (const Json& item : json) {
    std::optional<int64_t> number;
    if (!take(item, &number)) return false;
    value->push_back(*number);
  }
  return true;
}

// Does the same as take() for a member of a JSON object of numbers, in which null stands for NaN or Inf.
bool take_member(const Json& json, double* value) {
  if (json.is_number()) *value = json.get<double>();
  if (json.is_null()) *value = std::numeric_limits<double>::quiet_NaN();
  return json.is_number() || json.is_null();
}
bool take_member(const Json& json, int64_t* value) {
  std::optional<int64_t> number;
  if (!take(json, &number)) return false;
  *value = *number;
  return true;
}
template <class Value>
bool take(const Json& json, std::map<std::string, Value>* value) {
  if (!json.is_object()) return false;
  for (const auto& [name, item] : json.items())
    if (!take_member(item, &(*value)[name])) return false;
  return true;
}

void set_nan(std::optional<double>* value) { *value = std::numeric_limits<double>::quiet_NaN(); }
template <class Value>
void set_nan(Value*) {}  // "nonfinite" lists only fields of type double

bool is_in_list(const Json& names, const char* name) {
  if (!names.is_array()) return false;
  for (const Json& listed : names)
    if (listed.is_string() && listed.get_ref<const std::string&>() == name) return true;
  return false;
}

// Whether `text` begins like a file of gzip, zstd, xz or bzip2.
bool is_compressed(std::string_view text) {
  const auto begins = [text](const char* begin) { return text.starts_with(begin); };
  return begins("\x1f\x8b") || begins("\x28\xb5\x2f\xfd") || begins("\xfd\x37zXZ") || begins("BZh");
}

// Converts the JSON object to a line of type `Line`. A missing or null field stays unset; a field whose name
// is in the list "nonfinite" becomes NaN. If a value has the wrong type, returns nothing and sets *why.
template <class Line>
std::optional<RecordLine> read_fields(const Json& object, std::string* why) {
  Line line;
  const auto nonfinite = object.find("nonfinite");
  bool good = true;
  Line::visit(line, [&](const char* name, auto& value) {
    const auto field = object.find(name);
    if (nonfinite != object.end() && is_in_list(*nonfinite, name)) return set_nan(&value);
    if (field == object.end() || field->is_null() || take(*field, &value)) return;
    good = false;
    *why = std::string("a value of the wrong kind in ") + name;
  });
  return good ? std::optional<RecordLine>(std::move(line)) : std::nullopt;
}

}  // namespace

std::optional<RecordLine> parse_record_line(std::string_view text, std::string* why) {
  const Json object = Json::parse(text.begin(), text.end(), nullptr, false);
  const auto complain = [&](const char* what) {
    *why = what;
    return std::nullopt;
  };
  if (object.is_discarded())
    return complain(is_compressed(text) ? "compressed: unpack it first" : "not JSON");
  if (!object.is_object()) return complain("not a JSON object");
  const auto schema = object.find("schema"), type = object.find("type");
  if (schema == object.end() || type == object.end() || !type->is_string())
    return complain("no schema or type: not a line of a record");
  if (*schema != kRecordSchema)
    return complain("a schema that this foreshock does not know; use a newer one");
  const auto& name = type->get_ref<const std::string&>();
  if (name == "run") return read_fields<RunLine>(object, why);
  if (name == "step") return read_fields<StepLine>(object, why);
  if (name == "sample") return read_fields<SampleLine>(object, why);
  if (name == "tensor") return read_fields<TensorLine>(object, why);
  if (name == "model") return read_fields<ModelLine>(object, why);
  if (name == "optimizer") return read_fields<OptimizerLine>(object, why);
  if (name == "gradient") return read_fields<GradientLine>(object, why);
  if (name == "event") return read_fields<EventLine>(object, why);
  if (name == "finding") return read_fields<FindingLine>(object, why);
  if (name == "verdict") return read_fields<VerdictLine>(object, why);
  if (name == "spectrum") return complain("");  // written until layout 17
  return complain("a type that this foreshock does not know; use a newer one");
}

// Only a file that begins like a record counts as an older part.
bool has_older_part(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(older_part(path), ignored)) return false;
  std::ifstream file(older_part(path), std::ios::binary);
  std::string head(kFirstRecordBytes.size(), '\0');
  return file.read(head.data(), static_cast<std::streamsize>(head.size())) && head == kFirstRecordBytes;
}

namespace {

constexpr std::streamsize kMostSkipped = std::streamsize{64} << 20;  // bytes of a line without an end

}  // namespace

// The buffer holds the longest line, the 0 byte that getline() appends, and one spare byte. getline() does
// not store the newline.
RecordReader::RecordReader(std::ifstream file, std::ifstream newer_part)
    : file_(std::move(file)), newer_part_(std::move(newer_part)), buffer_(kLongestLine + 2) {}

std::unique_ptr<RecordReader> RecordReader::open(const std::string& path, std::string* error,
                                                 bool with_older_part) {
  // Reading a device may never end, and opening a named pipe waits for a writer. Other pipes are read: those
  // of a shell, which are reached by a link such as /dev/stdin.
  struct stat named = {}, status = {};
  const bool is_named_pipe = lstat(path.c_str(), &named) == 0 && S_ISFIFO(named.st_mode);
  const bool is_other = stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
                        !S_ISFIFO(status.st_mode) && !S_ISDIR(status.st_mode);
  if (is_named_pipe || is_other) {
    *error = "record " + path + ": not a regular file; make a file of it first";
    return nullptr;
  }
  errno = 0;  // std::ifstream does not report why it failed, but leaves errno
  std::ifstream file(path, std::ios::binary);
  // A folder can be opened, but reading it fails and sets errno.
  if (file.is_open() && file.peek() == std::ifstream::traits_type::eof() && errno != 0) file.close();
  if (!file.is_open()) {
    *error = "record " + path + ": " + std::strerror(errno != 0 ? errno : EIO);
    return nullptr;
  }
  file.clear();  // peek() has set eofbit if the file is empty
  std::ifstream older;
  if (with_older_part && has_older_part(path)) older.open(older_part(path), std::ios::binary);
  if (!older.is_open()) return std::unique_ptr<RecordReader>(new RecordReader(std::move(file), {}));
  return std::unique_ptr<RecordReader>(new RecordReader(std::move(older), std::move(file)));
}

bool RecordReader::seek(uint64_t offset) {
  file_.clear();
  file_.seekg(0, std::ios::end);
  const std::streamoff size = file_.tellg();
  if (size < 0 || offset > static_cast<uint64_t>(size)) return false;
  file_.seekg(static_cast<std::streamoff>(offset));
  next_offset_ = offset;
  return file_.good();
}

// Reads the next line into the buffer and sets *text to it, or to a null view if the line is too long. Sets
// *whole to whether the line ended with a newline. Returns false at the end of the (newer) file.
bool RecordReader::read_line(std::string_view* text, bool* whole) {
  if (file_.eof() && !newer_part_.is_open()) return false;
  file_.getline(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  const auto read = static_cast<size_t>(file_.gcount());
  *whole = !file_.eof();
  offset_ = next_offset_;  // counted over both parts
  next_offset_ += read;
  if (read == 0 && !*whole) {  // the file has ended; if it was the older part, the newer part follows
    if (!newer_part_.is_open()) return false;
    file_ = std::move(newer_part_);
    newer_part_ = {};
    return read_line(text, whole);
  }
  if (file_.fail() && *whole) {  // the line is longer than the buffer: skip its rest
    file_.clear();
    file_.ignore(kMostSkipped, '\n');
    if (file_.gcount() == kMostSkipped) file_.setstate(std::ios::eofbit);  // the reader ends
    next_offset_ += static_cast<uint64_t>(file_.gcount());
    *text = {};
    return true;
  }
  *text = {buffer_.data(), *whole ? read - 1 : read};  // gcount() also counts the newline
  bytes_ = text->size();
  return true;
}

void RecordReader::note_bad(const std::string& why) {
  if (bad_lines_++ == 0) first_problem_ = "line " + std::to_string(lines_) + ": " + why;
}

std::string RecordReader::no_valid_line_error(const std::string& path) const {
  const std::string& why = bad_lines_ > 0 ? first_problem_ : torn_problem_;
  return path + ": no line of it is a record's" + (why.empty() ? "" : " (" + why + ")");
}

std::optional<RecordLine> RecordReader::next() {
  std::string_view text;
  bool whole = true;
  while (read_line(&text, &whole)) {
    ++lines_;
    if (text.data() == nullptr) {
      note_bad("too long");
      continue;
    }
    if (text.empty() || text == "\r") continue;
    std::string why;
    if (std::optional<RecordLine> line = parse_record_line(text, &why)) return line;
    if (why.empty()) continue;
    if (whole) {
      note_bad(why);
    } else {  // the last line, whose writer was killed or is still writing, does not count as bad
      ends_torn_ = true;
      torn_problem_ = "line " + std::to_string(lines_) + ": " + why;
    }
  }
  return std::nullopt;
}

namespace {

template <class Number>
std::string number_text(Number value) {
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end.ptr};
}

std::string cell(const std::string& value) { return csv_text(value); }
std::string cell(const std::optional<bool>& value) { return value ? (*value ? "true" : "false") : ""; }
std::string cell(const std::optional<double>& value) {
  if (!value) return "";
  return std::isfinite(*value) ? number_text(*value) : "nan";
}
template <class Integer>
std::string cell(const std::optional<Integer>& value) {
  return value ? number_text(*value) : "";
}
// Returns, for example, "name=1.5 other=2".
template <class Value>
std::string cell(const std::map<std::string, Value>& values) {
  std::string text;
  for (const auto& [name, value] : values)
    text += (text.empty() ? "" : " ") + name + "=" + cell(std::optional<Value>(value));
  return csv_text(text);
}
std::string cell(const std::vector<int64_t>& value) {
  std::string text;
  for (int64_t number : value) {
    if (!text.empty()) text += " ";
    text += number_text(number);
  }
  return text;
}

// Returns a CSV row of the texts that cell_of(field name, value) returns for the fields of `line`.
template <class Line, class Cell>
std::string row(const Line& line, const Cell& cell_of) {
  std::string text;
  Line::visit(line, [&](const char* name, const auto& value) {
    if (name != std::string_view(Line::kFields[0].name)) text += ',';
    text += cell_of(name, value);
  });
  return text + "\n";
}

}  // namespace

const char* type_of(const RecordLine& line) {
  return std::visit([](const auto& typed) { return typed.kType; }, line);
}

std::string csv_text(std::string_view text) {
  constexpr std::string_view kFormulaBegins = "=+-@\t\r";
  const bool is_formula = !text.empty() && kFormulaBegins.find(text[0]) != kFormulaBegins.npos;
  const std::string shown = (is_formula ? "'" : "") + printable(text, /*keeps_newlines=*/true);
  if (shown.find_first_of(",\"\n") == std::string::npos) return shown;
  std::string quoted = "\"";
  for (char c : shown) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_header(const RecordLine& line) {
  const auto name_of = [](const char* name, const auto&) { return std::string(name); };
  return std::visit([&](const auto& typed) { return row(typed, name_of); }, line);
}

std::string csv_row(const RecordLine& line) {
  const auto cell_of = [](const char*, const auto& value) { return cell(value); };
  return std::visit([&](const auto& typed) { return row(typed, cell_of); }, line);
}

}  // namespace foreshock
