#include "agent/served_run.h"

#include <algorithm>

#include "agent/node.h"
#include "agent/publish.h"

namespace foreshock {
namespace {

using Clock = Run::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kOneRound{20};
constexpr int kRest = 20;  // times as long as a document took, before it is made again
constexpr size_t kMostBytes = 8 << 20;

std::shared_ptr<const std::string> document_of(const Run& run, const nlohmann::json& agent) {
  for (const bool with_histories : {true, false}) {
    nlohmann::json document = agent;
    document.update(run.document(0, with_histories));
    std::string text = text_of(document, -1);
    if (text.size() <= kMostBytes) return std::make_shared<const std::string>(std::move(text));
  }
  nlohmann::json document = agent;
  document["run"] = run.label();
  document["problem"] = "the state of this run is larger than 8 MiB";
  return std::make_shared<const std::string>(text_of(document, -1));
}

}  // namespace

ServedRun::ServedRun(std::unique_ptr<Run> followed, Clock::time_point now)
    : run(std::move(followed)), owner(user_name(run->directory().owner())), last_needed(now) {}

void refresh_documents(const nlohmann::json& agent, std::vector<ServedRun>* runs) {
  std::vector<ServedRun*> due;
  const Clock::time_point begin = Clock::now();
  for (ServedRun& each : *runs)
    if (begin >= each.next_document) due.push_back(&each);
  // The one that has waited longest first.
  std::sort(due.begin(), due.end(),
            [](const ServedRun* a, const ServedRun* b) { return a->next_document < b->next_document; });
  Clock::time_point now = begin;
  for (ServedRun* each : due) {
    if (now - begin > kOneRound) return;
    each->document = document_of(*each->run, agent);
    const Clock::time_point end = Clock::now();
    each->next_document = end + kRest * (end - now);
    now = end;
  }
}

}  // namespace foreshock
