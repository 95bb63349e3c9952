#include "cli/tensor_shares.h"

#include <algorithm>

namespace foreshock::cli {
namespace {

constexpr size_t kDims = 4;  // numbers of a part

// Numbers that a place in a tensor can have; their sums fit.
bool are_places(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](int64_t number) { return number >= 0 && number <= int64_t{1} << 48; });
}

bool is_apart(int64_t begin, int64_t size, int64_t other, int64_t other_size) {
  return begin >= other + other_size || other >= begin + size;
}

}  // namespace

TensorShares::Share TensorShares::share_of(const TensorLine& line) {
  return {line.part_offsets, line.part_shapes, line.elements.value_or(0)};
}

void TensorShares::add(const TensorLine& line, const IndexedLine& at) {
  if (!line.elements || !line.whole_elements) return;  // of a late replica
  Tensor& tensor = tensors_[{at.of, at.generation}];
  tensor.name = line.tensor;
  tensor.whole = *line.whole_elements;
  tensor.of_record[at.record] = share_of(line);
  if (tensor.of_record.size() == 1 && *line.elements < *line.whole_elements && line.histogram.empty())
    tensor.has_histograms = false;
  if (!line.histogram.empty()) tensor.has_histograms = true;
}

bool TensorShares::overlap(const Share& a, const Share& b) {
  for (size_t i = 0; i + kDims <= a.offsets.size(); i += kDims)
    for (size_t j = 0; j + kDims <= b.offsets.size(); j += kDims) {
      bool apart = false;
      for (size_t d = 0; d < kDims; ++d)
        apart |= is_apart(a.offsets[i + d], a.shapes[i + d], b.offsets[j + d], b.shapes[j + d]);
      if (!apart) return true;
    }
  return false;
}

std::string TensorShares::check(const RecordIndex& index, Tensor* tensor) {
  std::vector<std::pair<uint32_t, const Share*>> different;  // record and what it holds; replicas once
  uint64_t elements = 0;
  for (const auto& [record, share] : tensor->of_record) {
    if (share.elements == tensor->whole) {
      tensor->is_complete = true;
      return "";
    }
    if (share.offsets.size() != share.shapes.size() || share.offsets.size() % kDims != 0 ||
        !are_places(share.offsets) || !are_places(share.shapes))
      return index.path(record) + ": the parts of " + tensor->name + " cannot be read";
    const bool is_new = std::none_of(different.begin(), different.end(),
                                     [&share = share](const auto& each) { return *each.second == share; });
    if (!is_new) continue;
    for (const auto& [other, theirs] : different)
      if (overlap(*theirs, share))
        return "parts of " + tensor->name + " in " + index.path(other) + " and " + index.path(record) +
               " overlap: are they of one run?";
    different.emplace_back(record, &share);
    elements += share.elements;
  }
  if (elements != tensor->whole)
    return tensor->name + ": " + std::to_string(elements) + " of its " + std::to_string(tensor->whole) +
           " values are in these records; name the record of every node";
  if (!tensor->has_histograms)
    return index.path(tensor->of_record.begin()->first) + " has no histograms to put " + tensor->name +
           " together by: run with --record-histograms 1GiB";
  tensor->is_complete = true;
  return "";
}

std::string TensorShares::check(const RecordIndex& index) {
  std::string problem;
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    const uint32_t tensor = at->first.first;
    bool is_complete = false;
    std::string why;
    for (; at != tensors_.end() && at->first.first == tensor; ++at) {
      const std::string of_generation = check(index, &at->second);
      is_complete |= of_generation.empty();
      if (why.empty()) why = of_generation;
    }
    if (!is_complete && problem.empty()) problem = why;
  }
  return problem;
}

bool TensorShares::is_complete(uint32_t generation, uint32_t tensor) const {
  const auto found = tensors_.find({tensor, generation});
  return found != tensors_.end() && found->second.is_complete;
}

bool TensorShares::is_usual(const TensorLine& line, const IndexedLine& at) const {
  const auto found = tensors_.find({at.of, at.generation});
  if (found == tensors_.end()) return false;
  const auto share = found->second.of_record.find(at.record);
  return share != found->second.of_record.end() && share->second == share_of(line);
}

}  // namespace foreshock::cli
