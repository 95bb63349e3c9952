#include "cli/report_strand.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "cli/report_texts.h"
#include "cli/report_words.h"

namespace foreshock::cli {
namespace {

// Earlier of two steps of which -1 is never.
int64_t earlier(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

bool has_rank(const StoryEvent& event, int64_t rank) {
  return std::find(event.ranks.begin(), event.ranks.end(), rank) != event.ranks.end();
}

int64_t later(int64_t end, int64_t other) { return end < 0 || other < 0 ? -1 : std::max(end, other); }

void add_sign(const Episode& episode, int64_t rank, int64_t onset, std::vector<StorySign>* signs) {
  const StorySign sign = {episode.detector,  episode.layer,    rank, episode.most, episode.since_step,
                          episode.warn_step, episode.end_step, {}};
  const auto known = std::find_if(signs->begin(), signs->end(), [&](const StorySign& each) {
    return each.detector == sign.detector && each.layer == sign.layer;
  });
  if (known == signs->end()) return signs->push_back(sign);
  const auto is_near = [&](const StorySign& each) {
    return each.end_step < 0 || steps_between(each.end_step, onset) <= StorySign::kNear;
  };
  if (is_near(*known) != is_near(sign) || !is_near(sign)) {
    const bool is_later =
        is_near(sign) == is_near(*known) ? sign.since_step > known->since_step : is_near(sign);
    if (is_later) *known = sign;
    return;
  }
  known->most = std::max(known->most, sign.most);
  known->since_step = std::min(known->since_step, sign.since_step);
  known->warn_step = earlier(known->warn_step, sign.warn_step);
  known->end_step = later(known->end_step, sign.end_step);
}

// The detectors that have proven themselves come first; of those what warned; then the earliest.
void sort_signs(std::vector<StorySign>* signs) {
  const auto order = [](const StorySign& sign) {
    return std::tuple(!is_proven(sign.detector), sign.most != Level::kWarn, sign.since_step);
  };
  std::stable_sort(signs->begin(), signs->end(),
                   [&](const StorySign& a, const StorySign& b) { return order(a) < order(b); });
}

}  // namespace

std::optional<WatchEventKind> event_kind_of(std::string_view name) {
  for (int kind = 0; kind < kWatchEventKinds; ++kind)
    if (name == name_of(static_cast<WatchEventKind>(kind))) return static_cast<WatchEventKind>(kind);
  return std::nullopt;
}

bool is_loss_event(WatchEventKind kind) {
  return kind == WatchEventKind::kLossSpike || kind == WatchEventKind::kDivergence ||
         kind == WatchEventKind::kLossRise;
}

void Strand::take(const EventLine& event, size_t attempt, int64_t declared) {
  const std::optional<WatchEventKind> kind = event_kind_of(event.event);
  if (!kind || !event.rank || !event.step) return;
  ++taken_;
  if (*kind == WatchEventKind::kPrecursor) take_level(event);
  if (*kind == WatchEventKind::kResumed) precursors_[*event.rank].clear();
  if (is_loss_event(*kind)) take_loss_event(*kind, event, attempt, declared);
}

void Strand::take_level(const EventLine& event) {
  const std::optional<DetectorId> detector = detector_of(event.detector);
  if (!detector) return;
  const Level level = event.level == name_of(Level::kWarn)    ? Level::kWarn
                      : event.level == name_of(Level::kWatch) ? Level::kWatch
                                                              : Level::kQuiet;
  warnings_ += level == Level::kWarn;
  precursors_[*event.rank].note(*detector, event.layer, event.layer, level, *event.step);
  const auto lasting = std::find_if(episodes_.rbegin(), episodes_.rend(), [&](const StoryEpisode& each) {
    return each.end_step < 0 && each.detector == *detector && each.layer == event.layer &&
           each.rank == *event.rank;
  });
  if (level == Level::kQuiet) {
    if (lasting != episodes_.rend()) lasting->end_step = *event.step;
    return;
  }
  const int64_t warned = level == Level::kWarn ? *event.step : -1;
  if (lasting != episodes_.rend()) {
    lasting->most = std::max(lasting->most, level);
    lasting->warn_step = earlier(lasting->warn_step, warned);
  } else if (episodes_.size() < kMostEpisodes) {
    episodes_.push_back({*detector, event.layer, *event.rank, level, *event.step, warned, -1});
  }
}

void Strand::take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt, int64_t declared) {
  ++loss_events_;
  const auto known = std::find_if(events_.begin(), events_.end(), [&](const StoryEvent& each) {
    const int64_t apart = steps_between(each.onset_step, *event.step);
    return each.kind == kind && each.attempt == attempt && apart >= -kSameEvent && apart <= kSameEvent &&
           !has_rank(each, *event.rank);
  });
  if (known == events_.end() && events_.size() >= kMostEvents) {
    ++left_out_;
    return;
  }
  StoryEvent& one = known != events_.end() ? *known : events_.emplace_back();
  if (one.ranks.empty()) {
    one.kind = kind;
    one.onset_step = *event.step;
    one.declared_step = declared;
    one.attempt = attempt;
    if (detailed_ < kMostDetailed) open_.push_back(events_.size() - 1);
    detailed_ += detailed_ < kMostDetailed;
  }
  one.ranks.push_back(*event.rank);
  for (const Episode& episode : precursors_[*event.rank].before(*event.step))
    add_sign(episode, *event.rank, one.onset_step, &one.before);
  sort_signs(&one.before);
}

void Strand::close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals, bool last) {
  std::erase_if(open_, [&](size_t index) {
    StoryEvent& event = events_[index];
    if (event.ranks[0] != rank || trail.recent().empty()) return false;
    const int64_t now = trail.recent().back().step;
    const bool far_enough =
        now >= event.declared_step && steps_between(event.onset_step, now) >= StoryEvent::kAfter;
    if (!far_enough && !last) return false;
    for (const TrailStep& step : trail.recent()) {
      const int64_t since = steps_between(event.onset_step, step.step);
      if (since >= -StoryEvent::kBefore && since <= StoryEvent::kAfter) event.steps.push_back(step);
    }
    if (event.steps.empty()) return true;
    for (StorySign& sign : event.before)
      if (const auto of = signals.find(sign.rank); of != signals.end())
        sign.points = of->second.around(sign.detector, sign.layer, event.steps.front().step, event.onset_step,
                                        event.steps.back().step);
    return true;
  });
}

}  // namespace foreshock::cli
