#include "detect/detector.h"

namespace foreshock {
namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang 14 needs it

}  // namespace

Detector::Detector(DetectorId id) : id_(id) {
  switch (info_of(id).look) {
    case Look::kDrift:
      statistic_ = Drift();
      break;
    case Look::kRise:
    case Look::kDrop:
      statistic_ = Shift();
      break;
    case Look::kLimit:
      statistic_ = Limit();
      break;
    case Look::kForecast:
    case Look::kGrowth:
      statistic_ = Growth();
      break;
  }
}

Reading Detector::observe(int64_t step, double value, double control) {
  if (!std::isfinite(value) || !std::isfinite(control)) return {rule_.level(), 0};
  const DetectorInfo& info = info_of(id_);
  const double score =
      std::visit(Overloaded{[&](Drift& drift) { return drift.observe(info, value, control); },
                            [&](Shift& shift) { return shift.observe(info, value); },
                            [&](Limit& limit) { return limit.observe(info, value); },
                            [&](Growth& growth) { return growth.observe(info, step, value); }},
                 statistic_);
  return {rule_.observe(score, info.watch), score};
}

}  // namespace foreshock
