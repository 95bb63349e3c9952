// Reads safetensors files, and finds the files of a checkpoint, which an index (a JSON file) may list. open()
// and read() return "" or an error.
#include "lab/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "text/printable.h"

namespace foreshock::lab {
namespace {

using nlohmann::json;

constexpr uint64_t kMostHeader = 100'000'000;  // bytes; the limit of the safetensors library

DType dtype_of(const std::string& name) {
  if (name == "F64") return DType::kFp64;
  if (name == "F32") return DType::kFp32;
  if (name == "BF16") return DType::kBf16;
  if (name == "F16") return DType::kFp16;
  return DType::kNone;
}

// Computes the number of elements of a shape. Returns false if the shape is invalid or the number exceeds
// `limit`.
bool count_of(const std::vector<int64_t>& shape, uint64_t limit, uint64_t* count) {
  *count = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return false;
    if (extent > 0 && *count > limit / static_cast<uint64_t>(extent)) return false;
    *count *= static_cast<uint64_t>(extent);
  }
  return true;
}

// Reads a tensor's entry in the header. Its offset is relative to the data of `data_size` bytes, which
// follows the header. Returns "" or what is wrong, as words to follow "tensor 'NAME' ".
std::string read_entry(const json& entry, uint64_t data_size, StoredTensor* tensor) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets"))
    return "lacks dtype, shape or data_offsets";
  const json &type = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!type.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    return "has an ill-formed entry";
  tensor->type = type.get<std::string>();
  tensor->dtype = dtype_of(tensor->type);
  for (const json& extent : shape) {
    if (!extent.is_number_integer()) return "has an ill-formed shape";
    tensor->shape.push_back(extent.get<int64_t>());
  }
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) return "has ill-formed offsets";
  const uint64_t begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end) return "ends before it begins";
  if (end > data_size) return "lies beyond the end of the file: is it truncated?";
  uint64_t count = 0;
  // A tensor has at most as many elements as the data has bytes.
  if (tensor->dtype != DType::kNone &&
      (!count_of(tensor->shape, data_size, &count) || count * size_of(tensor->dtype) != end - begin))
    return "has a shape that does not fit its data";
  tensor->offset = begin;
  tensor->bytes = end - begin;
  return "";
}

// What a JSON text contains, if it is valid.
struct Outline {
  size_t levels = 0;  // of objects and arrays
  size_t names = 0;   // in the outermost object, also those that occur twice
};
Outline outline_of(const std::string& text) {
  Outline outline;
  size_t level = 0;
  bool is_in_string = false;
  for (size_t n = 0; n < text.size(); ++n) {
    const char c = text[n];
    if (is_in_string) {
      if (c == '\\') ++n;  // the next character does not end the string
      is_in_string = c != '"';
    } else if (c == '{' || c == '[') {
      outline.levels = std::max(outline.levels, ++level);
    } else if (c == '}' || c == ']') {
      level -= level > 0;
    } else {
      is_in_string = c == '"';
      outline.names += c == ':' && level == 1;
    }
  }
  return outline;
}

// Parses a JSON text. Returns an object only if the text is valid and has at most `most_levels` levels, as
// nesting costs memory. Does not use the parser's callback, which visits all earlier entries of an object at
// the end of each entry.
json parse_object(const std::string& text, const Outline& outline, size_t most_levels) {
  if (outline.levels > most_levels) return json();
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return root.is_object() ? root : json();
}

// Returns the name of a tensor that begins inside another one, or "".
std::string overlapping(const std::map<std::string, StoredTensor>& tensors) {
  std::vector<std::pair<const StoredTensor*, const std::string*>> sorted;
  for (const auto& [name, tensor] : tensors)
    if (tensor.bytes > 0) sorted.emplace_back(&tensor, &name);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first->offset < b.first->offset; });
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i].first->offset < sorted[i - 1].first->offset + sorted[i - 1].first->bytes)
      return *sorted[i].second;
  return "";
}

}  // namespace

std::string printable(const std::string& text) {
  constexpr size_t kMost = 200;  // bytes
  return foreshock::printable(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

int open_regular(const std::string& path, uint64_t* size, std::string* problem) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // does not wait at a FIFO
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) {
    *problem = "cannot read " + printable(path) + ": " + std::strerror(errno);
  } else if (!S_ISREG(status.st_mode)) {
    *problem = printable(path) + " is not a regular file";
  } else {
    *size = static_cast<uint64_t>(status.st_size);
    return file;
  }
  if (file >= 0) close(file);
  return -1;
}

bool read_all(int file, uint64_t offset, uint64_t count, char* to) {
  while (count > 0) {
    const ssize_t got = pread(file, to, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
  return true;
}

Safetensors::~Safetensors() {
  if (file_ >= 0) close(file_);
}

void Safetensors::swap(Safetensors* other) {
  std::swap(path_, other->path_);
  std::swap(file_, other->file_);
  std::swap(size_, other->size_);
  std::swap(tensors_, other->tensors_);
  std::swap(metadata_, other->metadata_);
}

std::string Safetensors::open(const std::string& path) {
  *this = Safetensors();  // closes the present file
  path_ = path;
  std::string problem;
  file_ = open_regular(path, &size_, &problem);
  return file_ < 0 ? problem : read_header();
}

std::string Safetensors::read_header() {
  const std::string shown = printable(path_);
  uint64_t length = 0;
  if (size_ < sizeof length || !read_all(file_, 0, sizeof length, reinterpret_cast<char*>(&length)))
    return shown + " is not a safetensors file: it has no header";
  if (length > kMostHeader || length > size_ - sizeof length)
    return shown + " is not a safetensors file, or truncated: its header would have " +
           std::to_string(length) + " bytes";
  std::string text(length, '\0');
  if (!read_all(file_, sizeof length, length, text.data())) return "cannot read " + shown;
  const Outline outline = outline_of(text);
  const json root = parse_object(text, outline, /*most_levels=*/3);  // {name: {"shape": [...]}}
  if (!root.is_object()) return shown + " has no readable header";
  // Programs differ in which of two tensors of one name they read.
  if (root.size() != outline.names) return shown + " names a tensor twice";
  const uint64_t data_offset = sizeof length + length;
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items())
        if (entry.is_object() && value.is_string()) metadata_[key] = value.get<std::string>();
      continue;
    }
    StoredTensor tensor;
    const std::string problem = read_entry(entry, size_ - data_offset, &tensor);
    if (!problem.empty()) return shown + ": tensor '" + printable(name) + "' " + problem;
    tensor.offset += data_offset;
    tensors_[name] = std::move(tensor);
  }
  const std::string inside = overlapping(tensors_);
  return inside.empty() ? "" : shown + ": tensor '" + printable(inside) + "' begins inside another";
}

std::string Safetensors::read(const StoredTensor& tensor, uint64_t from, uint64_t count, char* to) const {
  if (read_all(file_, tensor.offset + from, count, to)) return "";
  return "cannot read " + printable(path_) + " any more: it was changed, or its disk fails";
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".safetensors";
constexpr const char* kIndexSuffix = ".safetensors.index.json";
constexpr uint64_t kMostIndex = 100'000'000;  // bytes; as kMostHeader

std::string file_name(const std::string& path) { return printable(fs::path(path).filename().string()); }

// Opens a file and adds those of its tensors that `wanted` names (null: all) to the checkpoint.
std::string add_file(const std::string& path, const std::set<std::string>* wanted, Checkpoint* checkpoint) {
  Safetensors opened;
  if (const std::string problem = opened.open(path); !problem.empty()) return problem;
  const size_t index = checkpoint->files.size();
  // checkpoint->tensors will point into this file's map: if `files` moves the map, its entries stay in place.
  checkpoint->files.push_back(std::move(opened));
  const Safetensors& file = checkpoint->files.back();
  for (const auto& [name, tensor] : file.tensors()) {
    if (wanted && !wanted->contains(name)) continue;
    const auto [known, is_new] = checkpoint->tensors.emplace(name, Checkpoint::Place{index, &tensor});
    if (!is_new)
      return "tensor '" + printable(name) + "' is both in " +
             printable(checkpoint->files[known->second.file].path()) + " and in " + file_name(path) +
             ": name one file, or an index";
  }
  return "";
}

// Reads an index, whose weight_map names the file of each tensor. Sets *shards to the tensors' names by file.
std::string read_index(const std::string& path, std::map<std::string, std::set<std::string>>* shards) {
  std::string problem;
  uint64_t size = 0;
  const int file = open_regular(path, &size, &problem);
  if (file < 0) return problem;
  std::string text(std::min(size, kMostIndex), '\0');
  const bool read = size <= kMostIndex && read_all(file, 0, text.size(), text.data());
  close(file);
  if (!read) return printable(path) + " is not an index: it cannot be read, or is too large";
  constexpr size_t kMostLevels = 16;  // {"weight_map": {...}} has two; other entries may have more
  const json root = parse_object(text, outline_of(text), kMostLevels);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
    return printable(path) + " is not an index of a checkpoint: it has no weight_map";
  for (const auto& [name, shard] : root["weight_map"].items()) {
    const std::string file_of_shard = shard.is_string() ? shard.get<std::string>() : "";
    if (file_of_shard.empty() || file_of_shard.find('/') != std::string::npos)
      return printable(path) + ": tensor '" + printable(name) + "' is in no file beside the index";
    (*shards)[file_of_shard].insert(name);
  }
  return "";
}

std::string open_index(const std::string& path, Checkpoint* checkpoint) {
  std::map<std::string, std::set<std::string>> shards;
  if (const std::string problem = read_index(path, &shards); !problem.empty()) return problem;
  for (const auto& [shard, names] : shards) {
    const std::string file = (fs::path(path).parent_path() / shard).string();
    if (const std::string problem = add_file(file, &names, checkpoint); !problem.empty())
      return problem + " (" + file_name(path) + " names it)";
    for (const std::string& name : names)
      if (!checkpoint->tensors.contains(name))
        return printable(path) + " names tensor '" + printable(name) + "' in " + file_name(file) +
               ", which lacks it";
  }
  return "";
}

std::string open_directory(const std::string& path, Checkpoint* checkpoint) {
  std::vector<std::string> files, indexes;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(kIndexSuffix)) indexes.push_back(at->path().string());
    if (name.ends_with(kSuffix)) files.push_back(at->path().string());
  }
  if (error) return "cannot read " + printable(path) + ": " + error.message();
  if (indexes.size() == 1) return open_index(indexes[0], checkpoint);
  if (indexes.size() > 1) return printable(path) + " has several indexes: name the one you mean";
  if (files.empty()) return printable(path) + " has no .safetensors file";
  std::sort(files.begin(), files.end());
  for (const std::string& file : files)
    if (const std::string problem = add_file(file, nullptr, checkpoint); !problem.empty()) return problem;
  return "";
}

}  // namespace

std::string open_checkpoint(const std::string& path, Checkpoint* checkpoint) {
  checkpoint->path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) return open_directory(path, checkpoint);
  if (path.ends_with(".json")) return open_index(path, checkpoint);
  return add_file(path, nullptr, checkpoint);
}

// Compares names in which each series of digits counts as one number.
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    while (i < a.size() && a[i] == '0') ++i;
    while (j < b.size() && b[j] == '0') ++j;
    size_t i_end = i, j_end = j;
    while (i_end < a.size() && digit(a[i_end])) ++i_end;
    while (j_end < b.size() && digit(b[j_end])) ++j_end;
    if (i_end - i != j_end - j) return i_end - i < j_end - j;
    if (const int order = a.compare(i, i_end - i, b, j, j_end - j); order != 0) return order < 0;
    i = i_end, j = j_end;
  }
  if ((i < a.size()) != (j < b.size())) return j < b.size();  // a name is less than its continuation
  return a < b;                                               // they differ at most in leading zeros
}

}  // namespace foreshock::lab
