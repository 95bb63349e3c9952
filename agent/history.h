// Values by step over a whole run, however long, in bounded memory.
#ifndef FORESHOCK_AGENT_HISTORY_H_
#define FORESHOCK_AGENT_HISTORY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "exporters/http_routes.h"

namespace foreshock {

// Points of one width in steps, a power of two, that begin at its multiples. When there are too many, two
// neighbours become one. Thread-compatible.
class History {
 public:
  enum class Keep { kMean, kMax };  // what becomes of several values of one point
  struct Column {
    std::string_view name;  // of static life
    Keep keep;
  };

  // At most `points` points, 2 at least.
  History(std::span<const Column> columns, size_t points);

  // Steps before the first one added, and values that are not finite, are left out: events tell of those.
  void add(int64_t step, size_t column, double value);

  // Fills in the steps and columns.
  void copy_to(HistoryTable* table) const;

 private:
  struct Cell {
    float sum = 0;  // or the largest
    uint32_t count = 0;
  };

  void make_room(int64_t step);
  void halve();
  Cell& cell(size_t point, size_t column) { return cells_[point * columns_.size() + column]; }

  std::span<const Column> columns_;
  size_t most_points_;
  int64_t first_point_ = -1;  // its steps begin at first_point_ << shift_; -1: nothing yet
  int shift_ = 0;
  std::vector<Cell> cells_;  // by point, then column
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_HISTORY_H_
