#include "segment/tensor_parser.h"

#include <algorithm>

namespace foreshock::segment {
namespace {

constexpr int64_t kStepsEnd = int64_t{1} << 62;
constexpr uint64_t kMostElements = uint64_t{1} << 48;  // counts of that many fit where W1 is computed
constexpr uint64_t kMostOfRank = uint64_t{1} << 38;    // a TiB of fp32
constexpr uint32_t kFirstHeader =
    504;  // of the first release that wrote such records; they grow at their end
constexpr uint32_t kFp32 = 2, kBf16 = 3, kFp16 = 4;

constexpr uint64_t element_bytes(uint32_t dtype) { return dtype == kFp32 ? 4 : 2; }

const char* check_shapes(const TensorRecord& record) {
  if (record.dims > kTensorDims) return "tensor with too many dimensions";
  uint64_t elements = 1;
  for (uint32_t n = 0; n < kTensorDims; ++n) {
    const int64_t shape = record.shape[n], offset = record.offset[n], part = record.part[n];
    if (shape < 0 || offset < 0 || part < 0 || offset > shape || part > shape - offset)
      return "part outside its tensor";
    if (n >= record.dims && shape != 1) return "tensor with a dimension that it has not";
    if (part != 0 && elements > kMostElements / static_cast<uint64_t>(part))
      return "tensor of an impossible size";
    elements *= static_cast<uint64_t>(part);
  }
  uint64_t whole = 1;
  for (const int64_t shape : record.shape) {
    if (shape != 0 && whole > kMostElements / static_cast<uint64_t>(shape))
      return "tensor of an impossible size";
    whole *= static_cast<uint64_t>(shape);
  }
  if (elements > kMostOfRank) return "part of an impossible size";
  return record.elements == elements ? nullptr : "elements differ from the shape";
}

const char* check_histogram(const TensorRecord& record) {
  const uint64_t bytes = record.payload[kTensorHistogram].bytes;
  switch (record.form) {
    case HistogramForm::kNone:
      return bytes == 0 ? nullptr : "histogram of no form";
    case HistogramForm::kValues:
      return bytes == record.elements * element_bytes(record.dtype) ? nullptr : "values of another size";
    case HistogramForm::kPatterns:
      return record.dtype == kFp32 ? "patterns of fp32" : nullptr;
    case HistogramForm::kBins:
      return record.dtype != kFp32 ? "bins of a 16-bit format" : nullptr;
  }
  return "unknown form of histogram";
}

const char* check_record(const TensorRecord& record) {
  if (record.kind != TensorKind::kSnapshot) return "unknown kind of tensor record";
  if (record.dtype != kFp32 && record.dtype != kBf16 && record.dtype != kFp16)
    return "unknown storage format";
  if (record.step < 0 || record.step >= kStepsEnd) return "tensor of an unknown step";
  if (record.interval == 0 || record.interval > kMostTensorInterval)
    return "tensor with an impossible interval";
  if (record.tensors == 0) return "tensor of none";
  if (const char* why = check_shapes(record)) return why;
  return check_histogram(record);
}

}  // namespace

const char* parse_tensor_length(Bytes bytes, uint64_t left, uint64_t to_end, uint64_t* length,
                                bool* is_filler) {
  uint32_t kind = 0;
  if (bytes.size() < sizeof *length + sizeof kind) return "tensor record too short";
  std::memcpy(length, bytes.data(), sizeof *length);
  std::memcpy(&kind, bytes.data() + sizeof *length, sizeof kind);
  *is_filler = kind == static_cast<uint32_t>(TensorKind::kFiller);
  if (*length == 0 || *length % kTensorAlign != 0 || *length > left || *length > to_end)
    return "tensor record of an impossible length";
  if (*is_filler && *length != to_end) return "filler in the middle of the ring";
  return nullptr;
}

const char* parse_tensor(Bytes bytes, TensorView* view) {
  *view = {};
  TensorRecord& record = view->record;
  if (bytes.size() < kFirstHeader) return "tensor record too short";
  std::memcpy(&record, bytes.data(), kFirstHeader);
  if (record.bytes != bytes.size()) return "tensor record of another length";
  if (record.header_size < kFirstHeader || record.header_size > bytes.size())
    return "tensor record with an impossible header";
  std::memcpy(&record, bytes.data(), std::min<size_t>(record.header_size, sizeof record));
  if (const char* why = check_record(record)) return why;
  for (uint32_t id = 0; id < kTensorPayloads; ++id) {
    const Payload& payload = record.payload[id];
    if (payload.bytes == 0) continue;
    if (payload.offset < record.header_size || payload.offset % 8 != 0 || payload.offset > bytes.size() ||
        payload.bytes > bytes.size() - payload.offset)
      return "payload outside the tensor record";
    view->payload[id] = bytes.subspan(payload.offset, payload.bytes);
  }
  return nullptr;
}

}  // namespace foreshock::segment
