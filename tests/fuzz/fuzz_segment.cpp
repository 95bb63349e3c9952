// libFuzzer target: everything that the agent does with bytes that a trainer left. The first byte chooses the
// entry, so that short inputs reach each parser; the rest is its input.
#include <cstdlib>
#include <cstring>

#include "segment/reader.h"

namespace {

using namespace foreshock::segment;

// What comes out must be usable without further checks: touch every byte that a caller would.
void use(const SlotView& view) {
  volatile unsigned sum = 0;
  for (const Bytes& payload : view.payload)
    for (std::byte byte : payload) sum = sum + static_cast<unsigned>(byte);
  if (view.header.rows > kRowsPerSlice) std::abort();
  for (uint32_t row = 0; row < view.header.rows; ++row)
    if (view.header.seen_end[row] > view.header.keys) std::abort();
}

// A whole slice, as the agent gets it.
void use_settled(SlotView view) {
  if (settle_packed(&view) != nullptr) return;
  use(view);
  uint64_t sizes[kPayloads];
  payload_sizes(view.header, sizes);
  for (uint32_t id = 0; id < kPayloads; ++id)
    if (view.payload[id].size() != sizes[id]) std::abort();
}

void use(const TensorView& view) {
  volatile unsigned sum = 0;
  for (const Bytes& payload : view.payload)
    for (std::byte byte : payload) sum = sum + static_cast<unsigned>(byte);
  if (view.record.tensors == 0 || view.record.elements > uint64_t{1} << 48) std::abort();
}

// Records one after the other, as from a ring of exactly that size.
void parse_tensors(Bytes ring) {
  for (uint64_t at = 0, length = 0; at < ring.size(); at += length) {
    bool is_filler = false;
    if (parse_tensor_length(ring.subspan(at), ring.size() - at, ring.size() - at, &length, &is_filler) !=
        nullptr)
      return;
    TensorView view;
    if (!is_filler && parse_tensor(ring.subspan(at, length), &view) == nullptr) use(view);
  }
}

void parse_whole_file(Bytes file) {
  Header header;
  if (parse_header(file, file.size(), &header) != nullptr) return;
  const auto region = [&](RegionId id) {
    const Region& shape = header.regions[id];
    return file.subspan(shape.offset, shape.record_size * shape.count);
  };
  parse_threads(region(kThreads));
  uint64_t lost = 0;
  parse_steps(region(kSteps), 3, &lost);
  if (header.regions[kScalarNames].count > 0) text_of(record_at<ScalarName>(region(kScalarNames), 0).name);
  for (uint64_t n = 0; n < header.regions[kLayers].count; ++n)
    text_of(record_at<Layer>(region(kLayers), n).label);
  if (header.regions[kTensors].count > 0) parse_tensors(region(kTensors).subspan(sizeof(TensorRing)));
  const Region& slots = header.regions[kSlots];
  const auto slot = [&](uint64_t n) {
    return region(kSlots).subspan(n % slots.count * slots.record_size, slots.record_size);
  };
  for (uint64_t n = 0; n < slots.count; ++n) {
    SlotView view;
    if (parse_slot(slot(n), &view) != nullptr) continue;
    use(view);
    if (view.header.parts < 2) {
      use_settled(view);
      continue;
    }
    JoinedSlice joined;
    const char* why = joined.begin(view, slots.record_size * slots.count);
    for (uint64_t part = 1; why == nullptr && part < view.header.parts; ++part) {
      SlotView tail;
      why = parse_slot(slot(n + part), &tail);
      if (why == nullptr) why = joined.add(tail);
    }
    if (why == nullptr) use_settled(joined.take());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] >= 0x80 ? 4 : data[0] % 4) {
    case 0:
      parse_whole_file(bytes);
      break;
    case 1: {
      SlotView view;
      if (parse_slot(bytes, &view) != nullptr) break;
      use(view);
      if (view.header.parts < 2) use_settled(view);
      break;
    }
    case 2: {
      uint64_t lost = 0;
      parse_steps(bytes, data[0], &lost);
      break;
    }
    case 4:
      parse_tensors(bytes);
      break;
    case 3:
      parse_threads(bytes);
      break;
  }
  return 0;
}
