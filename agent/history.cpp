#include "agent/history.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshock {

History::History(std::span<const Column> columns, size_t points) : columns_(columns), most_points_(points) {}

// Point n and the one after it, if they lie in the same point of double the width, become one.
void History::halve() {
  const size_t points = cells_.size() / columns_.size();
  std::vector<Cell> merged(cells_.size());
  size_t last = 0;
  for (size_t n = 0; n < points; ++n) {
    last = static_cast<size_t>(((first_point_ + static_cast<int64_t>(n)) >> 1) - (first_point_ >> 1));
    for (size_t c = 0; c < columns_.size(); ++c) {
      const Cell& from = cell(n, c);
      Cell& to = merged[last * columns_.size() + c];
      const bool larger = to.count == 0 || from.sum > to.sum;
      if (columns_[c].keep == Keep::kMean)
        to.sum += from.sum;
      else if (from.count > 0 && larger)
        to.sum = from.sum;
      to.count += from.count;
    }
  }
  merged.resize((last + 1) * columns_.size());
  cells_ = std::move(merged);
  first_point_ >>= 1;
  ++shift_;
}

void History::make_room(int64_t step) {
  while (static_cast<uint64_t>((step >> shift_) - first_point_) >= most_points_) halve();
  const auto wanted = static_cast<size_t>((step >> shift_) - first_point_) + 1;
  if (cells_.size() < wanted * columns_.size()) cells_.resize(wanted * columns_.size());
}

void History::add(int64_t step, size_t column, double value) {
  if (step < 0 || !std::isfinite(value)) return;
  if (first_point_ < 0) first_point_ = step;
  if ((step >> shift_) < first_point_) return;
  make_room(step);
  Cell& to = cell(static_cast<size_t>((step >> shift_) - first_point_), column);
  const auto narrow = static_cast<float>(value);
  if (columns_[column].keep == Keep::kMean)
    to.sum += narrow;
  else if (to.count == 0 || narrow > to.sum)
    to.sum = narrow;
  ++to.count;
}

void History::copy_to(HistoryTable* table) const {
  const size_t points = cells_.size() / columns_.size();
  table->first_step = first_point_ < 0 ? 0 : first_point_ << shift_;
  table->steps_per_point = int64_t{1} << shift_;
  table->columns.clear();
  for (size_t c = 0; c < columns_.size(); ++c) {
    std::vector<float> values(points, std::numeric_limits<float>::quiet_NaN());
    for (size_t n = 0; n < points; ++n) {
      const Cell& from = cells_[n * columns_.size() + c];
      if (from.count == 0) continue;
      values[n] = columns_[c].keep == Keep::kMean ? from.sum / static_cast<float>(from.count) : from.sum;
    }
    table->columns.emplace_back(columns_[c].name, std::move(values));
  }
}

}  // namespace foreshock
