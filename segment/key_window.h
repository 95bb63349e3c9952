// Which keys the queries of an attention call see without a mask. Trainer and agent compute it here.
#ifndef FORESHOCK_SEGMENT_KEY_WINDOW_H_
#define FORESHOCK_SEGMENT_KEY_WINDOW_H_

#include <algorithm>
#include <cstdint>

namespace foreshock::segment {

// Positions [begin, end).
struct PositionRange {
  int64_t begin, end;
  constexpr bool is_empty() const { return begin >= end; }
};

// Each query has an own key: query i has key i or, if is_bottom_right is 1, key i + keys - queries, so that
// the last query has the last key. An own key may lie outside of the keys. A query sees the keys from `left`
// before to `right` after its own key; -1: all keys of that side. With a causal mask `right` is 0.
struct KeyWindow {
  int64_t left = -1, right = -1;  // -1..kMostWindow
  uint32_t is_bottom_right = 0;
  uint32_t reserved = 0;
};
inline constexpr int64_t kMostWindow = int64_t{1} << 32;  // more than the positions of any call

// The keys of `length` from `before` before to `after` after the position `own`; -1: all of that side.
constexpr PositionRange positions_around(int64_t own, int64_t before, int64_t after, int64_t length) {
  return {before < 0 ? 0 : std::clamp(own - before, int64_t{0}, length),
          after < 0 ? length : std::clamp(own + after + 1, int64_t{0}, length)};
}

// Returns the keys that the query at this position sees.
constexpr PositionRange keys_seen(const KeyWindow& window, int64_t queries, int64_t keys, int64_t query) {
  const int64_t own = query + (window.is_bottom_right != 0 ? keys - queries : 0);
  return positions_around(own, window.left, window.right, keys);
}

// Returns the queries that see the key at this position.
constexpr PositionRange queries_seeing(const KeyWindow& window, int64_t queries, int64_t keys, int64_t key) {
  const int64_t own = key - (window.is_bottom_right != 0 ? keys - queries : 0);
  return positions_around(own, window.right, window.left, queries);
}

// Whether a query sees no key. Both ends of keys_seen() grow with the position, so it is the first or last.
constexpr bool has_query_without_keys(const KeyWindow& window, int64_t queries, int64_t keys) {
  return keys_seen(window, queries, keys, 0).is_empty() ||
         keys_seen(window, queries, keys, queries - 1).is_empty();
}

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_KEY_WINDOW_H_
