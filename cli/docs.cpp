// foreshock docs: prints generated pages of docs/ for `./dev docs`. main.cpp prints the page "options".
#include <cstdio>

#include "agent/detection.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "detect/conditions.h"
#include "detect/detector.h"
#include "exporters/metrics.h"
#include "exporters/record.h"

namespace foreshock::cli {

namespace {

// Returns how the detector computes its score, as text for the table.
const char* method_of(const DetectorInfo& info) {
  switch (info.look) {
    case Look::kDrift:
      return "two-sided CUSUM over the learned spread";
    case Look::kRise:
      return "z of the recent mean of the logarithm, upwards";
    case Look::kDrop:
      return "z of the recent mean of the logarithm, downwards";
    case Look::kLimit:
      return "second largest of the last values";
    case Look::kForecast:
      return "straight line: t of its slope, and where it leads";
    case Look::kGrowth:
      return "straight line through the logarithms: t of its slope";
  }
  return "";
}

// Whether the detector is on by default: its benchmark (bench/precursors) has shown that it is reliable.
bool is_default(const DetectorInfo& info) {
  const Measured* measured = measured_of(info.name);
  return measured != nullptr && measured->is_proven();
}

std::string conditions_markdown() {
  std::string text =
      "\n## Conditions\n\n"
      "Faults of the training's loop, found by fixed rules (`detect/conditions.h`) on the same lines. "
      "`fault`: the\n"
      "verdict of the run. `look`: true, but it may be intended; a run with such a condition is \"healthy; 1 "
      "thing\n"
      "worth a look\". Each is an event of the record, with its name and its sentence.\n\n"
      "| condition | kind | holds if | found after | do first |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const ConditionInfo& info : kConditionTable)
    text += std::string("| `") + info.name + "` | " + name_of(info.kind) + " | " + info.help + " | " +
            info.delay + " | " + info.action + " |\n";
  return text;
}

std::string detectors_markdown() {
  std::string text =
      "| detector | warns if | method | values learned or looked at | score threshold | least effect | "
      "status |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  char numbers[96];
  for (const DetectorInfo& info : kDetectorTable) {
    std::snprintf(numbers, sizeof numbers, "%d values | %g | ", static_cast<int>(info.learning), info.warn);
    text += std::string("| `") + info.name + "` | " + info.help + " | " + method_of(info) + " | " + numbers;
    std::snprintf(numbers, sizeof numbers, "%g", info.least);
    text += (info.least > 0 ? numbers : "–");  // 0: the detector has no smallest effect
    text += is_default(info) ? " | default |\n" : " | experimental |\n";
  }
  return text + conditions_markdown();
}

}  // namespace

int docs(const std::vector<std::string>& words) {
  const std::string page = words.size() == 1 ? words[0] : "";
  std::string text;
  if (page == "detectors") text = detectors_markdown();
  if (page == "metrics") text = metrics_markdown();
  if (page == "record") text = record_markdown();
  if (text.empty()) return wrong_use("usage: foreshock docs detectors|metrics|options|record");
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace foreshock::cli
