#include "agent/rank.h"

#include <algorithm>
#include <cmath>

#include "detect/thresholds.h"

namespace foreshock {
namespace {

double ratio_limit(uint32_t pass) { return pass == 0 ? kDeviationRatioForward : kDeviationRatioBackward; }

bool is_alarm(const std::optional<Bias>& bias) {
  return bias && bias->z && std::fabs(*bias->z) > kBiasZ && std::fabs(bias->ulp) > kBiasUlp;
}

// 1: at the alarm's threshold. What cannot be said is 0.
double alarm_nearness(const LayerStatistics& layer) {
  double nearness = 0;
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const PassStatistics& statistics = layer.pass[pass];
    if (max_of(statistics.nonfinite_slices).value_or(0) > 0) return INFINITY;
    nearness = std::max(nearness, max_of(statistics.deviation_ratio).value_or(0) / ratio_limit(pass));
    const std::optional<Bias> bias = statistics.bias.bias();
    if (bias && bias->z && std::fabs(*bias->z) > kBiasZ && !is_alarm(statistics.rounded_bias.bias()))
      nearness = std::max(nearness, std::fabs(bias->ulp) / kBiasUlp);
  }
  return nearness;
}

std::optional<double> ratio_of(double train, double own, double agent, int cores_per_rank) {
  if (train <= own) return std::nullopt;
  return (own + agent / std::max(cores_per_rank, 1)) / (train - own);
}

auto slices_beyond(const SampleWindow& ratios, uint32_t pass) {
  return std::count_if(ratios.data(), ratios.data() + ratios.size(),
                       [&](double x) { return x > ratio_limit(pass); });
}

}  // namespace

// The more telling one first: a bias moves the ratio too.
std::vector<LayerAlarm> alarms_of(const LayerStatistics& layer, uint32_t pass) {
  std::vector<LayerAlarm> alarms;
  const PassStatistics& statistics = layer.pass[pass];
  if (max_of(statistics.nonfinite_slices).value_or(0) > 0)
    alarms.push_back({&layer, pass, "nonfinite", std::nullopt});
  const std::optional<Bias> bias = statistics.bias.bias();
  // What the reference shows too when it is merely rounded is no fault of the kernel.
  if (is_alarm(bias) && !is_alarm(statistics.rounded_bias.bias()))
    alarms.push_back({&layer, pass, "bias", bias->ulp});
  const SampleWindow& ratios = statistics.deviation_ratio;
  if (slices_beyond(ratios, pass) >= kSlicesBeyond)
    alarms.push_back({&layer, pass, "deviation_ratio", max_of(ratios)});
  return alarms;
}

bool is_nonfinite(const SliceDeviation& d) {
  const auto is_infinite = [](const std::optional<double>& value) { return value && std::isinf(*value); };
  return is_infinite(d.relative_error_max) || is_infinite(d.lse_error_abs_max);
}

void note_alarms(const SliceDeviation& deviation, int64_t step, uint32_t pass, LayerStatistics* layer) {
  for (const LayerAlarm& alarm : alarms_of(*layer, pass)) {
    const std::string of = alarm.of;
    // The alarm stays for 64 slices; of these two each slice tells for itself whether it is so still.
    if (of == "nonfinite" && !is_nonfinite(deviation)) continue;
    if (of == "deviation_ratio" && !(deviation.deviation_ratio.value_or(0) > ratio_limit(pass))) continue;
    PastAlarm& past =
        layer->pass[pass].past.try_emplace(of, PastAlarm{step, step, alarm.value}).first->second;
    past.first_step = std::min(past.first_step, step);
    past.last_step = std::max(past.last_step, step);
    if (alarm.value && !(std::fabs(past.most.value_or(0)) >= std::fabs(*alarm.value)))
      past.most = alarm.value;
  }
}

const char* name_of(RunState state) {
  constexpr const char* kNames[] = {"running", "finished", "failed", "preempted"};
  return kNames[static_cast<int>(state)];
}

LayerStatistics* RankStatistics::layer_of(const std::string& label) {
  const auto found = layers.find(label);
  if (found != layers.end()) return &found->second;
  return layers.size() < kMostLayers ? &layers[label] : nullptr;
}

void RankStatistics::note_event(const char* what, int64_t step, const std::string& layer,
                                std::optional<double> value) {
  for (RankEvent& event : events) {
    if (event.what != what || event.layer != layer) continue;
    event.last_step = step;
    event.value = value;
    ++event.count;
    return;
  }
  events.push_back({what, layer, step, step, 1, value});
  if (events.size() > kMostEvents) events.pop_front();
}

uint64_t RankStatistics::calls(uint32_t which) const {
  uint64_t sum = 0;
  for (size_t op = 0; op < ops.size(); ++op)
    if (ops[op].pass == which) sum += totals.calls[op];
  return sum;
}

uint64_t RankStatistics::in_flight(uint32_t which) const {
  uint64_t ended = judged[which];
  for (uint64_t count : lost[which]) ended += count;
  // The two are read one after the other: a slice judged in between must not make this negative.
  return totals.sampled[which] > ended ? totals.sampled[which] - ended : 0;
}

std::optional<double> RankStatistics::slowdown(int cores_per_rank) const {
  return ratio_of(cost.train_seconds, cost.own_seconds, agent_seconds, cores_per_rank);
}

std::optional<double> RankStatistics::recent_slowdown(int cores_per_rank) const {
  return ratio_of(recent_cost.train_seconds, recent_cost.own_seconds, recent_cost.agent_seconds,
                  cores_per_rank);
}

const LayerStatistics* RankStatistics::worst_layer() const {
  const LayerStatistics* worst = nullptr;
  double most = -1;
  for (const auto& [label, layer] : layers) {
    if (layer.pass[0].judged + layer.pass[1].judged == 0) continue;
    // An ordinal seen before the first name is one of the named layers.
    if (layer.source == "ordinal" && layer_source != "ordinal") continue;
    const double nearness = alarm_nearness(layer);
    if (nearness > most) {
      most = nearness;
      worst = &layer;
    }
  }
  return worst;
}

void RankStatistics::keep_what_is_told() {
  history = History(kRankColumns, kRankPoints);
  const LayerStatistics* worst = worst_layer();
  std::erase_if(layers, [&](const auto& each) {
    const LayerStatistics& layer = each.second;
    bool is_told = &layer == worst || layer.nonfinite_steps > 0;
    for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
      is_told |= !layer.pass[pass].past.empty() || !alarms_of(layer, pass).empty();
    return !is_told;
  });
  for (auto& each : layers) each.second.history = History(kLayerColumns, kLayerPoints);
}

std::vector<LayerAlarm> RankStatistics::alarms() const {
  std::vector<LayerAlarm> found;
  const auto add = [&](const LayerStatistics& layer) {
    for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
      const std::vector<LayerAlarm> own = alarms_of(layer, pass);
      found.insert(found.end(), own.begin(), own.end());
    }
  };
  add(unnamed);
  for (const auto& [label, layer] : layers) add(layer);
  return found;
}

}  // namespace foreshock
