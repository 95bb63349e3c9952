#include "cli/summary_precursors.h"

#include <algorithm>
#include <map>
#include <vector>

#include "cli/summary_words.h"

namespace foreshock::cli {
namespace {

constexpr size_t kMostLines = 4;

const Json& list_of(const Json& rank, const char* name) {
  static const Json kNone = Json::array();
  const Json::json_pointer place(std::string("/precursors/") + name);
  return rank.contains(place) && rank[place].is_array() ? rank[place] : kNone;
}

std::string in_layer(const Json& of) {
  const std::string layer = text(of, "/layer");
  return layer.empty() ? "" : " in " + layer;
}

std::string on_rank(const Json& ranks, const Json& rank) {
  return ranks.size() == 1 ? "" : " on rank " + count(number(rank, "/rank"));
}

std::string times(double warnings) {
  return warnings == 1 ? "once, at" : count(warnings) + " times, last at";
}

std::vector<std::string> warnings_of(const Json& ranks) {
  std::vector<std::string> lines;
  for (const Json& rank : ranks)
    for (const Json& each : list_of(rank, "detectors"))
      if (const double warnings = number(each, "/warnings").value_or(0); warnings > 0)
        lines.push_back(text(each, "/detector") + " warned " + times(warnings) + " step " +
                        count(number(each, "/last_warn_step")) + in_layer(each) + on_rank(ranks, rank));
  return lines;
}

// The earliest of each detector: it stands for its other layers.
std::string what_came_before(const Json& event) {
  std::map<std::string, const Json*> earliest;
  const auto lead = [](const Json& of) { return number(of, "/lead_steps").value_or(0); };
  if (event.contains("preceded_by"))
    for (const Json& each : event["preceded_by"]) {
      const Json*& known = earliest[text(each, "/detector")];
      if (known == nullptr || lead(each) > lead(*known)) known = &each;
    }
  std::string list;
  for (const auto& [detector, each] : earliest)
    list += (list.empty() ? "" : ", ") + detector + in_layer(*each) + " (" + count(lead(*each)) + " steps)";
  return list.empty() ? "no detector before it" : "before it " + list;
}

std::vector<std::string> loss_events_of(const Json& ranks) {
  std::vector<std::string> lines;
  for (const Json& rank : ranks)
    for (const Json& each : list_of(rank, "loss_events"))
      lines.push_back(text(each, "/event") + " at step " + count(number(each, "/step")) +
                      on_rank(ranks, rank) + "; " + what_came_before(each));
  return lines;
}

std::string facts(const char* name, const std::vector<std::string>& lines) {
  std::string all;
  for (size_t n = 0; n < std::min(lines.size(), kMostLines); ++n) all += fact(n == 0 ? name : "", lines[n]);
  if (lines.size() > kMostLines)
    all += fact("", "and " + count(static_cast<double>(lines.size() - kMostLines)) + " more");
  return all;
}

}  // namespace

std::string precursors_facts(const Json& ranks) {
  return facts("detectors", warnings_of(ranks)) + facts("loss events", loss_events_of(ranks));
}

}  // namespace foreshock::cli
