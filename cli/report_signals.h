// What the detectors of one rank were given lately, series by series: the curves of a report.
#ifndef FORESHOCK_CLI_REPORT_SIGNALS_H_
#define FORESHOCK_CLI_REPORT_SIGNALS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "detect/watch.h"

namespace foreshock::cli {

struct SignalPoint {
  int64_t step = 0;
  double value = 0, score = 0;
};

// Thread-compatible.
class Signals {
 public:
  static constexpr size_t kMostPoints = 512;   // of a series; the oldest go
  static constexpr size_t kMostSeries = 8192;  // further ones are left out

  // Of one line of the record, whose layer is `layer` ("": of none).
  void take(const std::string& layer, const std::vector<WatchReading>& readings);

  // Of all series of `detector` in `layer` the one that scored highest at steps from `first` to `event`: its
  // finite values from `first` to `last`. Empty: none has any.
  std::vector<SignalPoint> around(DetectorId detector, const std::string& layer, int64_t first, int64_t event,
                                  int64_t last) const;

  // Layers of which `detector` has had a value in the whole run.
  const std::set<std::string>& layers(DetectorId detector) const;
  // The same of any detector.
  std::set<std::string> layers() const;

  // Another attempt begins.
  void forget_points() { series_.clear(); }

 private:
  struct Series {
    std::string layer;
    std::deque<SignalPoint> points;
  };
  std::map<std::pair<int, std::string>, Series> series_;  // by detector and place
  std::set<std::string> layers_[kDetectors];
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_SIGNALS_H_
