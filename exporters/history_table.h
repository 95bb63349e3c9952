// Values by step, for the charts of the status page: the body of /api/v1/history.
#ifndef FORESHOCK_EXPORTERS_HISTORY_TABLE_H_
#define FORESHOCK_EXPORTERS_HISTORY_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshock {

// Point n of every column stands for the steps [first_step + n * steps_per_point, ... + steps_per_point).
// NaN: unknown.
struct HistoryTable {
  std::string run;
  int64_t rank = 0;
  std::string layer;  // "": of the whole rank
  int64_t first_step = 0, steps_per_point = 1;
  std::vector<std::pair<std::string_view, std::vector<float>>> columns;  // names of static life
};

// {"schema": 1, "tables": [{"run", "rank", "layer", "first_step", "steps_per_point", "columns": {name:
// [...]}}]}; unknown is null, numbers have five digits, columns without any known value are left out. Of one
// `run`, or of all if that is empty.
std::string history_json(const std::vector<HistoryTable>& tables, std::string_view run = "");

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HISTORY_TABLE_H_
