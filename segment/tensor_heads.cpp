#include "segment/tensor_heads.h"

#include <cstring>

namespace foreshock::segment {

const char* parse_tensor_heads(std::span<const std::byte> payload, uint64_t element_bytes,
                               TensorHeadsView* view) {
  *view = {};
  TensorHeads& head = view->head;
  if (payload.size() < sizeof head || payload.size() > kMostTensorHeadsBytes)
    return "heads of an impossible size";
  std::memcpy(&head, payload.data(), sizeof head);
  if (head.sides == 0 || head.sides > (kQuerySide | kKeySide)) return "heads of no known side";
  if (head.count == 0 || head.count > head.kv_heads || head.head_dim == 0 || head.width == 0)
    return "heads of an impossible number";
  // Each factor is bounded before it is used, so that no product overflows.
  const uint64_t room = payload.size();
  if (head.count > room / sizeof(uint32_t) || values_offset(head.count) > room)
    return "more heads than bytes";
  const uint64_t values = uint64_t{head.head_dim} * head.width;
  if (values > room || values * head.count > room) return "more values of heads than bytes";
  const uint64_t side = values * head.count * element_bytes;
  const uint64_t sides = head.sides == (kQuerySide | kKeySide) ? 2 : 1;
  if (values_offset(head.count) + sides * side != room) return "heads of another size";
  view->numbers.resize(head.count);
  std::memcpy(view->numbers.data(), payload.data() + sizeof head, head.count * sizeof(uint32_t));
  for (uint32_t n = 0; n < head.count; ++n)
    if (view->numbers[n] >= head.kv_heads || (n > 0 && view->numbers[n] <= view->numbers[n - 1]))
      return "heads out of order";
  std::span<const std::byte> rest = payload.subspan(values_offset(head.count));
  if (head.sides & kQuerySide) view->queries = rest.first(side);
  if (head.sides & kKeySide) view->keys = rest.last(side);
  return nullptr;
}

}  // namespace foreshock::segment
