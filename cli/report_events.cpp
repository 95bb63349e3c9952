// Collects the loss events of a run and their signs: detectors that left level quiet before an event.
#include "cli/report_events.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "cli/report_text.h"

namespace foreshock::cli {
namespace {

// Returns the earlier of two steps; -1: never.
int64_t earlier(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

// Returns the later of two end steps; -1 (not ended yet) is later than any step.
int64_t later_end(int64_t end, int64_t other) { return end < 0 || other < 0 ? -1 : std::max(end, other); }

// Adds an episode (a time in which a detector was above quiet) to *signs, the signs of the loss event with
// this onset. A detector has one sign per layer: another episode extends it, replaces it or is ignored.
void add_sign(const Episode& episode, int64_t rank, int64_t onset, std::vector<ReportSign>* signs) {
  const ReportSign sign = {{episode, rank}, {}};
  const auto known = std::find_if(signs->begin(), signs->end(), [&](const ReportSign& each) {
    return each.detector == sign.detector && each.layer == sign.layer;
  });
  if (known == signs->end()) return signs->push_back(sign);
  const auto is_near = [&](const ReportSign& each) {
    return each.end_step < 0 || steps_between(each.end_step, onset) <= ReportSign::kNear;
  };
  if (!is_near(*known) || !is_near(sign)) {
    // If only one of the two episodes is near the onset, that one is kept. If neither is near, the later is
    // kept.
    const bool replaces =
        is_near(sign) == is_near(*known) ? sign.since_step > known->since_step : is_near(sign);
    if (replaces) *known = sign;
    return;
  }
  known->most = std::max(known->most, sign.most);
  known->since_step = std::min(known->since_step, sign.since_step);
  known->warn_step = earlier(known->warn_step, sign.warn_step);
  known->end_step = later_end(known->end_step, sign.end_step);
}

// Sorts signs by three keys: whether the benchmark has shown the detector to be reliable, whether it warned
// (true first in both), and the step at which the sign began.
void sort_signs(std::vector<ReportSign>* signs) {
  const auto order = [](const ReportSign& sign) {
    return std::tuple(!is_proven(sign.detector), sign.most != Level::kWarn, sign.since_step);
  };
  std::stable_sort(signs->begin(), signs->end(),
                   [&](const ReportSign& a, const ReportSign& b) { return order(a) < order(b); });
}

std::optional<WatchEventKind> event_kind_of(std::string_view name) {  // nullopt: unknown name
  for (int kind = 0; kind < kWatchEventKinds; ++kind)
    if (name == name_of(static_cast<WatchEventKind>(kind))) return static_cast<WatchEventKind>(kind);
  return std::nullopt;
}

bool is_loss_event(WatchEventKind kind) {
  return kind == WatchEventKind::kLossSpike || kind == WatchEventKind::kDivergence ||
         kind == WatchEventKind::kLossRise;
}

}  // namespace

bool EventCollector::takes(const EventLine& event) {
  return event_kind_of(event.event) && event.rank && event.step;
}

void EventCollector::take(const EventLine& event, size_t attempt, int64_t declared) {
  if (!takes(event)) return;
  const std::optional<WatchEventKind> kind = event_kind_of(event.event);
  ++taken_;
  if (*kind == WatchEventKind::kPrecursor) take_level(event, attempt);
  if (is_loss_event(*kind)) take_loss_event(*kind, event, attempt, declared);
}

void EventCollector::take_level(const EventLine& event, size_t attempt) {
  const std::optional<DetectorId> detector = detector_of(event.detector);
  if (!detector) return;
  const Level level = event.level == name_of(Level::kWarn)    ? Level::kWarn  // the detector's new level
                      : event.level == name_of(Level::kWatch) ? Level::kWatch
                                                              : Level::kQuiet;
  warnings_ += level == Level::kWarn;
  const auto end = episodes_.rend() - static_cast<ptrdiff_t>(first_);
  auto open = std::find_if(episodes_.rbegin(), end, [&](const RankEpisode& each) {
    return each.end_step < 0 && each.detector == *detector && each.layer == event.layer &&
           each.rank == *event.rank && each.attempt == attempt;
  });
  if (level == Level::kQuiet) {
    if (open != end) open->end_step = *event.step;
    return;
  }
  if (open == end) {
    if (episodes_.size() >= kMostEpisodes) return;
    episodes_.push_back({{*detector, event.layer, event.layer, level, *event.step}, *event.rank, attempt});
    open = episodes_.rbegin();
  }
  open->most = std::max(open->most, level);
  if (level == Level::kWarn && open->warn_step < 0) open->warn_step = *event.step;
}

std::vector<Episode> EventCollector::before(int64_t rank, size_t attempt, int64_t onset) const {
  std::vector<const RankEpisode*> latest;  // the last one first
  for (size_t n = episodes_.size(); n > first_ && latest.size() < Precursors::kMost; --n)
    if (episodes_[n - 1].rank == rank && episodes_[n - 1].attempt == attempt)
      latest.push_back(&episodes_[n - 1]);
  Precursors precursors;
  for (auto each = latest.rbegin(); each != latest.rend(); ++each) {
    const auto note = [&](Level level, int64_t step) {
      precursors.note((*each)->detector, (*each)->place, (*each)->layer, level, step);
    };
    note(Level::kWatch, (*each)->since_step);
    if ((*each)->warn_step >= 0) note(Level::kWarn, (*each)->warn_step);
    if ((*each)->end_step >= 0) note(Level::kQuiet, (*each)->end_step);
  }
  return precursors.before(onset);
}

// Joins the loss event with a known event whose onset is at most kSameEvent steps away, else adds it to
// events_. Slow rises are joined only with slow rises. So the same event on several ranks becomes one, and a
// spike becomes the divergence into which it grows. If the known event has the rank already, the new one is
// joined only if it is the rank's first divergence.
void EventCollector::take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt,
                                     int64_t declared) {
  const int64_t rank = *event.rank;
  const bool is_rise = kind == WatchEventKind::kLossRise, is_divergence = kind == WatchEventKind::kDivergence;
  const auto known = std::find_if(events_.begin(), events_.end(), [&](const ReportEvent& each) {
    const int64_t apart = steps_between(each.onset_step, *event.step);
    return (each.kind == WatchEventKind::kLossRise) == is_rise && each.attempt == attempt &&
           apart >= -kSameEvent && apart <= kSameEvent &&
           (!each.has_rank(rank) || (is_divergence && !each.diverged.contains(rank)));
  });
  if (known == events_.end() && events_.size() >= kMostEvents) {
    ++left_out_;
    return;
  }
  ReportEvent& joined = known != events_.end() ? *known : events_.emplace_back();
  if (joined.ranks.empty()) {  // the event is new
    joined.kind = kind;
    joined.onset_step = *event.step;
    joined.declared_step = declared;
    joined.attempt = attempt;
    if (detailed_ < kMostDetailed) {
      open_.push_back(events_.size() - 1);  // close() adds the event's steps and curves
      ++detailed_;
    }
  }
  if (is_divergence) {
    joined.kind = kind;
    joined.diverged.insert(rank);
  }
  if (joined.has_rank(rank)) return;  // the signs of this rank were added before
  joined.ranks.push_back(rank);
  for (const Episode& episode : before(rank, attempt, *event.step))
    add_sign(episode, rank, joined.onset_step, &joined.signs);
  sort_signs(&joined.signs);
}

// Completes the events in open_ whose first rank is `rank`, once kAfter steps have followed the onset or no
// more steps come: adds their steps and the curves of their signs, and removes them from open_.
void EventCollector::close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals,
                           bool no_more_steps) {
  std::erase_if(open_, [&](size_t index) {
    ReportEvent& event = events_[index];
    if (event.ranks[0] != rank || trail.recent().empty()) return false;
    const int64_t now = trail.recent().back().step;
    const bool has_all_steps =
        now >= event.declared_step && steps_between(event.onset_step, now) >= ReportEvent::kAfter;
    if (!has_all_steps && !no_more_steps) return false;
    for (const TrailStep& step : trail.recent()) {
      const int64_t since = steps_between(event.onset_step, step.step);
      if (since >= -ReportEvent::kBefore && since <= ReportEvent::kAfter) event.steps.push_back(step);
    }
    if (event.steps.empty()) return true;  // trail.recent() lacks the steps around the onset
    for (ReportSign& sign : event.signs)
      if (const auto found = signals.find(sign.rank); found != signals.end())
        sign.points = found->second.around(sign.detector, sign.layer, event.steps.front().step,
                                           event.onset_step, event.steps.back().step);
    return true;
  });
}

}  // namespace foreshock::cli
