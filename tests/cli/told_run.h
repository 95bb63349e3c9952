// Hand-made records for the tests of `foreshock report`.
#ifndef FORESHOCK_TESTS_CLI_TOLD_RUN_H_
#define FORESHOCK_TESTS_CLI_TOLD_RUN_H_

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cli/report_builder.h"

namespace foreshock::cli {

inline StepLine step_line(int64_t step, std::optional<double> loss, int64_t rank = 0) {
  StepLine line;
  line.run = "me";
  line.rank = rank;
  line.step = step;
  line.loss = loss;
  line.learning_rate = 3e-4;
  line.skipped_steps = 0;
  return line;
}

// A loss that is well: the fourth decimal moves.
inline double usual_loss(int64_t step) { return 1 + 1e-4 * std::sin(static_cast<double>(step)); }

inline SampleLine sample_line(int64_t step, const std::string& layer) {
  SampleLine line;
  line.run = "me";
  line.rank = 0;
  line.step = step;
  line.pass = "forward";
  line.layer = layer;
  line.fused_ratio = 0.5;
  return line;
}

inline EventLine event_line(const std::string& event, int64_t step, const std::string& layer = "",
                            int64_t rank = 0) {
  EventLine line;
  line.run = "me";
  line.rank = rank;
  line.step = step;
  line.event = event;
  line.layer = layer;
  return line;
}

inline EventLine level_line(const std::string& detector, const std::string& level, int64_t step,
                            const std::string& layer = "") {
  EventLine line = event_line("precursor", step, layer);
  line.detector = detector;
  line.level = level;
  return line;
}

class ToldRun : public ::testing::Test {
 protected:
  void take(const RecordLine& line) { EXPECT_EQ(builder_.take(line), ""); }
  void steps(int64_t first, int64_t last, int64_t rank = 0) {
    for (int64_t step = first; step <= last; ++step) take(step_line(step, usual_loss(step), rank));
  }
  // Three losses that make a spike, and some that are well again.
  void spike(int64_t onset, int64_t rank = 0) {
    for (int64_t step = onset; step < onset + 3; ++step) take(step_line(step, 9.0, rank));
    steps(onset + 3, onset + 120, rank);
  }
  static const ReportFact& fact(const ReportEvent& event, const std::string& name) {
    for (const ReportFact& each : event.facts)
      if (each.name == name) return each;
    ADD_FAILURE() << "no fact " << name;
    static const ReportFact kNone;
    return kNone;
  }

  ReportBuilder builder_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_TESTS_CLI_TOLD_RUN_H_
