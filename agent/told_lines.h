// What the end of a record says already of steps and slices that the trainer was not told to be taken: an
// agent that is killed in between has written lines, and the next one finds the same steps and slices again.
#ifndef FORESHOCK_AGENT_TOLD_LINES_H_
#define FORESHOCK_AGENT_TOLD_LINES_H_

#include <set>
#include <string>
#include <tuple>

#include "exporters/record_line.h"

namespace foreshock {

// One thread.
class ToldLines {
 public:
  // Lines of the record since its state was saved, in any order. More than kMost are none of one poll.
  static constexpr size_t kMost = 1 << 16;

  void note(const StepLine& line) { note(key_of(line)); }
  void note(const SampleLine& line) { note(key_of(line)); }
  template <class Line>
  void note(const Line&) {}

  // Whether the record has this line; then it is forgotten, since no second one is to come.
  template <class Line>
  bool take(const Line& line) {
    return !told_.empty() && told_.erase(key_of(line)) > 0;
  }

 private:
  // A process that follows on another one counts its tickets, and maybe its steps, from 1 again: the time of
  // its own clock tells them apart.
  using Key = std::tuple<std::string, int64_t, char, int64_t, double>;
  static Key key_of(const StepLine& line) {
    return {line.run, line.rank.value_or(-1), 't', line.step.value_or(-1), line.time.value_or(0)};
  }
  static Key key_of(const SampleLine& line) {
    return {line.run, line.rank.value_or(-1), 'a', static_cast<int64_t>(line.ticket.value_or(0)),
            line.time.value_or(0)};
  }
  void note(Key key) {
    if (told_.size() < kMost) told_.insert(std::move(key));
  }

  std::set<Key> told_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TOLD_LINES_H_
