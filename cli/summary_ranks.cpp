#include "cli/summary_ranks.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;

// Ranks of one job end within a step of each other: one may be killed before its last step is told.
constexpr int64_t kSameStep = 1;
constexpr size_t kMostNamed = 4;

int64_t whole(const Json& rank, const char* key, int64_t fallback) {
  return rank.contains(key) && rank[key].is_number() ? rank[key].get<int64_t>() : fallback;
}

std::string counted(size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

}  // namespace

std::string ranks_text(const Json& ranks) {
  std::set<int64_t> numbers, attempts;
  for (const Json& rank : ranks) {
    numbers.insert(whole(rank, "rank", -1));
    attempts.insert(whole(rank, "attempt", 0));
  }
  std::string text = counted(numbers.size(), "rank", "ranks");
  if (ranks.size() > numbers.size()) text += " in " + counted(ranks.size(), "process", "processes");
  if (attempts.size() > 1) text += " (" + counted(attempts.size(), "attempt", "attempts") + ")";
  return text;
}

std::string ended_early_text(const Json& ranks) {
  int64_t attempt = 0, furthest = -1;
  for (const Json& rank : ranks) attempt = std::max(attempt, whole(rank, "attempt", 0));
  std::map<int64_t, int64_t> reached;  // by rank
  for (const Json& rank : ranks) {
    if (whole(rank, "attempt", 0) != attempt) continue;
    int64_t& step = reached.emplace(whole(rank, "rank", -1), -1).first->second;
    step = std::max(step, whole(rank, "step", -1));
    furthest = std::max(furthest, step);
  }
  std::string text;
  size_t early = 0;
  for (const auto& [rank, step] : reached) {
    if (step + kSameStep >= furthest) continue;
    if (++early > kMostNamed) continue;
    text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(rank)) +
            (step < 0 ? " before its first step" : " at step " + std::to_string(step));
  }
  if (early > kMostNamed) text += " and " + std::to_string(early - kMostNamed) + " more";
  return text.empty() ? "" : text + ", of " + std::to_string(furthest);
}

std::string given_up_text(const Json& ranks) {
  std::vector<int64_t> steps;
  for (const Json& rank : ranks)
    if (const int64_t step = whole(rank, "tensors_given_up_step", -1); step >= 0) steps.push_back(step);
  if (steps.empty()) return "";
  const int64_t first = *std::min_element(steps.begin(), steps.end());
  const std::string since = "from step " + std::to_string(first) + " on";
  if (steps.size() == ranks.size()) return since;
  return since + " in " + std::to_string(steps.size()) + " of " + counted(ranks.size(), "rank", "ranks");
}

}  // namespace foreshock::cli
