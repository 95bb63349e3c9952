// How loud a detector is.
#ifndef FORESHOCK_DETECT_LEVEL_H_
#define FORESHOCK_DETECT_LEVEL_H_

#include <cmath>

namespace foreshock {

enum class Level : int { kQuiet = 0, kWatch = 1, kWarn = 2 };
inline constexpr int kLevels = 3;

constexpr const char* name_of(Level level) {
  constexpr const char* kNames[kLevels] = {"quiet", "watch", "warn"};
  return kNames[static_cast<int>(level)];
}

// What a detector says of the value it was just given. `score`: 1 is where it warns; 0 while it learns.
struct Reading {
  Level level = Level::kQuiet;
  double score = 0;
};

// A level rises at once and falls only when the score has been well below where it rose, for some values in a
// row: a score that swings around a threshold makes one event, not many.
class LevelRule {
 public:
  static constexpr double kLeaveAt = 0.7;  // of where the level begins
  static constexpr int kCalm = 8;          // values in a row

  // `watch_at`: the score from which on the level is watch, at most 1.
  Level observe(double score, double watch_at) {
    const double begins_at[kLevels] = {-INFINITY, watch_at, 1};
    const Level reached = score >= 1 ? Level::kWarn : score >= watch_at ? Level::kWatch : Level::kQuiet;
    const bool is_calm = score < kLeaveAt * begins_at[static_cast<int>(level_)];
    calm_ = is_calm ? calm_ + 1 : 0;
    if (reached > level_ || calm_ >= kCalm) {
      level_ = reached;
      calm_ = 0;
    }
    return level_;
  }

  Level level() const { return level_; }

  template <class State>
  void fields(State& state) {
    int level = static_cast<int>(level_);
    state(level);
    state(calm_);
    state.require(level >= 0 && level < kLevels && calm_ >= 0 && calm_ <= kCalm);
    level_ = level >= 0 && level < kLevels ? static_cast<Level>(level) : Level::kQuiet;
  }

 private:
  Level level_ = Level::kQuiet;
  int calm_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LEVEL_H_
