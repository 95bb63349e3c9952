// Reads records of one run line by line and tells their story.
#ifndef FORESHOCK_CLI_STORYTELLER_H_
#define FORESHOCK_CLI_STORYTELLER_H_

#include <map>
#include <memory>
#include <string>

#include "agent/detection.h"
#include "agent/rank_state.h"
#include "cli/report_facts.h"
#include "cli/report_strand.h"
#include "exporters/record_reader.h"

namespace foreshock::cli {

// Pure: the story follows from the lines. In bounded memory, however long the record. Thread-compatible.
class Storyteller {
 public:
  Storyteller();

  // Lines that follow are of another record of the same run: another node's.
  void begin_record();

  // In the order of the record. "" or one line that says why this is no record of the run.
  std::string take(const RecordLine& line);

  // Once, after all lines.
  Story finish();

 private:
  // Of one record: its detectors, and where it left the ranks.
  void end_record();
  void observe(const RunLine& line);
  void observe(const StepLine& line);
  void observe(const SampleLine& line);
  void observe(const TensorLine& line);
  void observe(const EventLine& line);
  template <class Line>
  void observe(const Line&) {}

  template <class Line>
  void detect(const Line& line);
  void take_event(const EventLine& event, Strand* strand);
  void close_events(int64_t rank, bool last);
  void draw(const StepLine& line);
  std::vector<StoryFact> facts() const;
  std::vector<StoryFact> coverage() const;
  std::vector<StoryDetector> detectors() const;
  std::string events_note(const Strand& told) const;

  RunSeen run_;
  Strand recorded_, found_;
  std::unique_ptr<Watches> watches_;  // of this record
  std::vector<WatchReading> readings_;
  std::map<int64_t, size_t> record_of_;  // by rank
  size_t records_ = 0;
  History timeline_;
  int64_t timeline_rank_ = -1;
  StoryDetector totals_[kDetectors];
  std::string run_id_, version_, framework_, executable_, loss_source_, step_source_;
  std::map<int64_t, RunLine> lives_;  // of each rank, as told last
  int64_t world_size_ = 0;
  double first_time_ = 0, last_time_ = 0;
  uint64_t losses_ = 0, other_runs_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_STORYTELLER_H_
