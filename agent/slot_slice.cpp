#include "agent/slot_slice.h"

#include <cstdio>

#include "segment/layout.h"

namespace foreshock {
namespace {

template <class T>
const T* data_of(segment::Bytes bytes) {
  return bytes.empty() ? nullptr : reinterpret_cast<const T*>(bytes.data());
}

}  // namespace

AttentionSlice slice_of(const segment::SlotView& view) {
  const segment::Slot& slot = view.header;
  AttentionSlice slice;
  slice.dtype = static_cast<DType>(slot.dtype);
  slice.rows = static_cast<int>(slot.rows);
  slice.keys = static_cast<int>(slot.keys);
  slice.head_dim = static_cast<int>(slot.head_dim);
  slice.value_dim = static_cast<int>(slot.value_dim);
  slice.scale = slot.scale;
  slice.key_limit = slot.key_limit;
  slice.query = data_of<void*>(view.payload[segment::kQuery]);
  slice.key = data_of<void*>(view.payload[segment::kKey]);
  slice.value = data_of<void*>(view.payload[segment::kValue]);
  slice.out = data_of<void*>(view.payload[segment::kOut]);
  slice.log_sum_exp = data_of<void*>(view.payload[segment::kLogSumExp]);
  slice.log_sum_exp_dtype = static_cast<DType>(slot.lse_dtype);
  slice.mask = data_of<void*>(view.payload[segment::kMask]);
  slice.mask_dtype = static_cast<DType>(slot.mask_dtype);
  slice.grad_out = data_of<void*>(view.payload[segment::kGradOut]);
  slice.grad_query = data_of<void*>(view.payload[segment::kGradQuery]);
  return slice;
}

LayerOfCall layer_of(const segment::SegmentReader& segment, const segment::Slot& slot,
                     const RankStatistics& rank) {
  const auto source = static_cast<segment::LayerSource>(slot.layer_source);
  LayerOfCall layer = {"", "", segment::name_of(source)};
  if (slot.layer < 0) return layer;
  if (source == segment::LayerSource::kOrdinal) {
    // Where layers have names, an ordinal (a forward call of an evaluation, say) is one of them under another
    // name.
    if (rank.layer_source == segment::name_of(segment::LayerSource::kParameter) ||
        rank.layer_source == segment::name_of(segment::LayerSource::kAnnotation))
      return {"", "", segment::name_of(segment::LayerSource::kUnknown)};
    // Not a layer's number but a place in the step, and called so: it can never be mistaken for a name.
    char label[16];
    std::snprintf(label, sizeof label, "call%03d", slot.layer);
    layer.label = label;
    return layer;
  }
  const segment::Layer record = segment.layer(static_cast<uint32_t>(slot.layer));
  if (record.ready != 1) return layer;
  layer.label = segment::text_of(record.label);
  layer.name = segment::text_of(record.name);
  return layer;
}

}  // namespace foreshock
