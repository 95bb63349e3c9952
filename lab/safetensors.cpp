#include "lab/safetensors.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace foreshock::lab {
namespace {

using nlohmann::json;

DType dtype_of(const std::string& name) {
  if (name == "F64") return DType::kFp64;
  if (name == "F32") return DType::kFp32;
  if (name == "BF16") return DType::kBf16;
  if (name == "F16") return DType::kFp16;
  return DType::kNone;
}

// The elements a shape has, or nothing if the product leaves `limit`.
bool count_of(const std::vector<int64_t>& shape, uint64_t limit, uint64_t* count) {
  *count = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return false;
    if (extent > 0 && *count > limit / static_cast<uint64_t>(extent)) return false;
    *count *= static_cast<uint64_t>(extent);
  }
  return true;
}

std::string add_tensor(const std::string& name, const json& entry, Safetensors* file) {
  const std::string bad = "tensor '" + name + "' ";
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets"))
    return bad + "lacks dtype, shape or data_offsets";
  if (!entry["dtype"].is_string() || !entry["shape"].is_array() || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2)
    return bad + "has an ill-formed entry";
  StoredTensor tensor;
  tensor.dtype = dtype_of(entry["dtype"].get<std::string>());
  if (tensor.dtype == DType::kNone)
    return "";  // other tensors may be of any type; ours are asked for by name
  for (const json& extent : entry["shape"]) {
    if (!extent.is_number_integer()) return bad + "has an ill-formed shape";
    tensor.shape.push_back(extent.get<int64_t>());
  }
  for (const json& offset : entry["data_offsets"])
    if (!offset.is_number_unsigned()) return bad + "has ill-formed offsets";
  const uint64_t begin = entry["data_offsets"][0].get<uint64_t>(),
                 end = entry["data_offsets"][1].get<uint64_t>();
  uint64_t count = 0;
  if (begin > end || end > file->bytes.size() || !count_of(tensor.shape, file->bytes.size(), &count) ||
      count * size_of(tensor.dtype) != end - begin)
    return bad + "does not fit its data";
  tensor.offset = begin;
  file->tensors[name] = tensor;
  return "";
}

}  // namespace

std::string read_safetensors(const std::string& path, Safetensors* file) {
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) return "cannot read " + path;
  const uint64_t size = static_cast<uint64_t>(stream.tellg());
  uint64_t header_size = 0;
  stream.seekg(0);
  if (size < sizeof header_size || !stream.read(reinterpret_cast<char*>(&header_size), sizeof header_size) ||
      header_size > size - sizeof header_size)
    return path + " is no safetensors file";
  std::string header(header_size, '\0');
  file->bytes.resize(size - sizeof header_size - header_size);
  stream.read(header.data(), static_cast<std::streamsize>(header.size()));
  if (!stream.read(file->bytes.data(), static_cast<std::streamsize>(file->bytes.size())))
    return "cannot read " + path;
  const json root = json::parse(header, nullptr, false);
  if (!root.is_object()) return path + " has no readable header";
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) continue;
      for (const auto& [key, value] : entry.items())
        if (value.is_string()) file->metadata[key] = value.get<std::string>();
    } else if (const std::string problem = add_tensor(name, entry, file); !problem.empty()) {
      return problem;
    }
  }
  return "";
}

}  // namespace foreshock::lab
