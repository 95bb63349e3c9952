#include "lab/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

namespace foreshock::lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSuffix = ".safetensors";
constexpr const char* kIndexSuffix = ".safetensors.index.json";
constexpr uint64_t kMostIndex = 100'000'000;

std::string file_name(const std::string& path) { return printable(fs::path(path).filename().string()); }

// Adds a file with all its tensors, or with those of `wanted` only.
std::string add_file(const std::string& path, const std::set<std::string>* wanted, Checkpoint* checkpoint) {
  Safetensors opened;
  if (const std::string problem = opened.open(path); !problem.empty()) return problem;
  const size_t index = checkpoint->files.size();
  checkpoint->files.push_back(std::move(opened));  // tensors keep their addresses: a map's nodes move along
  const Safetensors& file = checkpoint->files.back();
  for (const auto& [name, tensor] : file.tensors()) {
    if (wanted && !wanted->contains(name)) continue;
    const auto [known, fresh] = checkpoint->tensors.emplace(name, Checkpoint::Place{index, &tensor});
    if (!fresh)
      return "tensor '" + printable(name) + "' is both in " +
             printable(checkpoint->files[known->second.file].path()) + " and in " + file_name(path) +
             ": name one file, or an index";
  }
  return "";
}

// file -> the tensors it holds, from the index.
std::string read_index(const std::string& path, std::map<std::string, std::set<std::string>>* shards) {
  std::string problem;
  uint64_t size = 0;
  const int file = open_regular(path, &size, &problem);
  if (file < 0) return problem;
  std::string text(std::min(size, kMostIndex), '\0');
  const bool read = size <= kMostIndex && read_all(file, 0, text.size(), text.data());
  close(file);
  if (!read) return printable(path) + " is not an index: it cannot be read, or is too large";
  // Only what is needed is kept, however deep the rest is.
  const json root = json::parse(
      text,
      [](int depth, json::parse_event_t event, json&) {
        return depth <= 1 ||
               (event != json::parse_event_t::object_start && event != json::parse_event_t::array_start);
      },
      false);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
    return printable(path) + " is not an index of a checkpoint: it has no weight_map";
  for (const auto& [name, shard] : root["weight_map"].items()) {
    const std::string in = shard.is_string() ? shard.get<std::string>() : "";
    if (in.empty() || in.find('/') != std::string::npos)
      return printable(path) + ": tensor '" + printable(name) + "' is in no file beside the index";
    (*shards)[in].insert(name);
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
  if ((i < a.size()) != (j < b.size())) return j < b.size();
  return a < b;
}

}  // namespace foreshock::lab
