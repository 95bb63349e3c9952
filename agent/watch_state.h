// What the detectors of a run know, kept beside its segments, so that an agent that is started again in the
// middle of it goes on: without a second period of learning, and with the events that the record will say.
#ifndef FORESHOCK_AGENT_WATCH_STATE_H_
#define FORESHOCK_AGENT_WATCH_STATE_H_

#include <string>

#include "agent/directory.h"
#include "agent/told_lines.h"
#include "agent/watches.h"
#include "exporters/record.h"

namespace foreshock {

// One thread. The file goes with the directory of the run.
class WatchState {
 public:
  static constexpr const char* kFile = "detectors.state";
  static constexpr size_t kMostBytes = 64 << 20;  // of the file; what is larger is not read

  // To be called before anything is observed. Restores what an agent before this one has saved, and what its
  // record says beyond that: an agent that is killed has written lines after its last save. Events that are
  // missing there are added. Where there is no state but a record, the record is told that the detectors
  // begin anew. `record` may be null; `path` is its file. What the record says beyond the state is noted in
  // `told`.
  void restore(const Directory& directory, const std::string& run, const std::string& path,
               RecordWriter* record, Watches* watches, ToldLines* told);

  // Replaces the file, if there is anything new; the first time always. What is in the record's buffer must
  // have been written before. False when it cannot be written: the run goes on without.
  bool save(const Directory& directory, const RecordWriter* record, const Watches& watches);

 private:
  uint64_t saved_lines_ = UINT64_MAX;  // nothing was saved yet
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WATCH_STATE_H_
