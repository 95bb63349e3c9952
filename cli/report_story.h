// The story of a run, as `foreshock report` tells it: each loss event, what moved before it and where, what
// is known of the circumstances, what that is consistent with and what it does not exclude.
#ifndef FORESHOCK_CLI_REPORT_STORY_H_
#define FORESHOCK_CLI_REPORT_STORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report_signals.h"
#include "cli/report_trail.h"
#include "detect/watch.h"
#include "exporters/http_routes.h"

namespace foreshock::cli {

// A detector that spoke before a loss event. If it did so several times: all that reached to kNear steps
// before the onset, else the last one.
struct StorySign {
  static constexpr int64_t kNear = 64;       // the horizon of the benchmark
  static constexpr int64_t kLongUnseen = 8;  // steps without a look that are told

  DetectorId detector = DetectorId::kBias;
  std::string layer;  // "": of none
  int64_t rank = 0;
  Level most = Level::kWatch;
  int64_t since_step = 0, warn_step = -1, end_step = -1;  // -1: it did not warn; it lasted
  std::vector<SignalPoint> points;                        // what it was given, around the event
};

// One circumstance of an event.
struct StoryFact {
  enum class Mark { kQuiet, kNotable, kUnknown };
  std::string name, text;
  Mark mark = Mark::kQuiet;
};

struct StoryEvent {
  static constexpr int64_t kBefore = 256, kAfter = 96;  // steps that are told of

  WatchEventKind kind = WatchEventKind::kLossSpike;
  int64_t onset_step = 0, declared_step = 0;
  size_t attempt = 0;          // how often the steps had gone back before
  std::vector<int64_t> ranks;  // that had it, the first one to be read first
  std::vector<StorySign> before;
  // Of the first rank, kBefore before the onset to kAfter behind it. Empty: not kept, there are too many
  // events.
  std::vector<TrailStep> steps;
  std::string title, text;
  std::vector<StoryFact> facts;
  std::vector<std::string> consistent_with, not_excluded, to_try;
};

// A time of a detector in a layer above quiet.
struct StoryEpisode {
  DetectorId detector = DetectorId::kBias;
  std::string layer;
  int64_t rank = 0;
  Level most = Level::kWatch;
  int64_t since_step = 0, warn_step = -1, end_step = -1;  // -1: never; it lasts
};

// One detector over the whole run, all ranks.
struct StoryDetector {
  DetectorId detector = DetectorId::kBias;
  uint64_t values = 0, watches = 0, warnings = 0;
  size_t layers = 0;
  int64_t last_warn_step = -1;
};

struct Story {
  std::string run, version;       // of the agent that wrote the record
  std::string headline, verdict;  // one sentence each
  std::vector<StoryFact> facts;   // of the run
  bool from_record = false;       // the events are those that the agent wrote; else found now
  std::string events_note;
  HistoryTable timeline;           // loss and loss_max of one rank
  int64_t timeline_last_step = 0;  // of that rank, whether its loss is known or not
  std::vector<StoryEpisode> episodes;
  std::vector<StoryEvent> events;  // by step within an attempt
  std::vector<StoryDetector> detectors;
  std::vector<StoryFact> coverage;  // what was seen of the training
  std::vector<std::string> notes;   // what is wrong with the record
  std::vector<std::string> limits;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_STORY_H_
