#include "cli/stored_slice_file.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "agent/flagged.h"
#include "shadow/stored_slice.h"

namespace foreshock::cli {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 30;  // a slice is no larger than a trainer's slots

std::string text_of(const std::map<std::string, std::string>& metadata, const std::string& name) {
  const auto found = metadata.find(name);
  return found != metadata.end() ? found->second : "";
}

bool read_number(const std::string& text, double* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*number);
}

std::string read_arrays(const lab::Safetensors& file, StoredSlice* stored) {
  for (const auto& [name, tensor] : file.tensors()) {
    std::vector<char>& bytes = stored->data[name];
    bytes.resize(tensor.bytes);
    if (const std::string problem = file.read(tensor, 0, bytes.size(), bytes.data()); !problem.empty())
      return problem;
  }
  return "";
}

// Over the whole file, as it lies there.
bool is_as_written(const lab::Safetensors& file) {
  uint64_t size = 0, length = 0;
  std::string problem, bytes;
  const int descriptor = lab::open_regular(file.path(), &size, &problem);
  if (descriptor < 0) return false;
  bytes.resize(size);
  const bool is_read = lab::read_all(descriptor, 0, size, bytes.data());
  close(descriptor);
  if (!is_read || size < sizeof length) return false;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > size - sizeof length) return false;
  const size_t place = checksum_place(bytes, sizeof length + length);
  return place != bytes.npos && checksum_of(bytes, place) == bytes.substr(place, kNoChecksum.size());
}

}  // namespace

std::string StoredSlice::fact(const std::string& name) const {
  return lab::printable(text_of(metadata, name));
}

bool is_slice_file(const lab::Safetensors& file) {
  return text_of(file.metadata(), "format") == "foreshock slice";
}

std::string read_slice(const std::string& path, StoredSlice* stored) {
  lab::Safetensors file;
  if (const std::string problem = file.open(path); !problem.empty()) return problem;
  const std::string shown = lab::printable(path);
  if (!is_slice_file(file)) return shown + " is no flagged slice";
  stored->metadata = file.metadata();
  if (const std::string schema = stored->fact("schema"); schema != "1")
    return shown + " has schema '" + schema + "', this foreshock reads 1: use the one that wrote it";
  double scale = 0;
  if (!read_number(text_of(stored->metadata, "scale"), &scale)) return shown + ": its scale is no number";
  if (file.size() > kMostBytes) return shown + " is too large to be a slice";
  if (const std::string problem = read_arrays(file, stored); !problem.empty()) return problem;
  StoredArrays arrays;
  for (const auto& [name, tensor] : file.tensors())
    arrays[name] = {tensor.type, tensor.shape, stored->data[name].data(), tensor.bytes};
  if (const std::string problem = slice_from(arrays, scale, &stored->slice); !problem.empty())
    return shown + ": " + problem;
  stored->is_unchanged = is_as_written(file);
  return "";
}

}  // namespace foreshock::cli
