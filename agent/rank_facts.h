// What a rank has been found to do at times, kept beside its segment: an agent that is started again in the
// middle of a run must not think better of a training than the one before it did.
#ifndef FORESHOCK_AGENT_RANK_FACTS_H_
#define FORESHOCK_AGENT_RANK_FACTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "agent/directory.h"
#include "agent/rank.h"

namespace foreshock {

// As in the summary: docs/summary.md.
nlohmann::json past_alarms_json(const RankStatistics& rank);
nlohmann::json events_json(const RankStatistics& rank);

// Of all segments of a run. One thread. The file goes with the directory of the run.
class RankFacts {
 public:
  static constexpr const char* kFile = "facts.json";
  static constexpr size_t kMostBytes = 16 << 20;  // what is larger is not read

  // What an agent before this one has saved. What is no such file is nothing.
  void restore(const Directory& directory);

  // Adds what is known of the process with this segment to its rank, of which nothing is known yet.
  void take_up(const std::string& segment, RankStatistics* rank) const;

  // For the next save().
  void note(const std::string& segment, const RankStatistics& rank);
  // Its segment is removed: nobody will ask for it again.
  void forget(const std::string& segment);
  // Replaces the file if anything is new. False when it cannot be written: the run goes on without.
  bool save(const Directory& directory);

 private:
  nlohmann::json known_ = nlohmann::json::object();  // by segment
  bool is_new_ = false;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RANK_FACTS_H_
