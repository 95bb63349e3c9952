#include "agent/publish.h"

#include <cmath>
#include <set>

#include "agent/json_values.h"
#include "agent/publish_coverage.h"
#include "agent/rank_facts.h"
#include "detect/thresholds.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

using nlohmann::json;

// What is unknown is not exported, and what has become unknown no longer is.
class RankWriter {
 public:
  RankWriter(const RankStatistics& rank, Registry* registry)
      : run_(rank.run), rank_(std::to_string(rank.identity.rank)), registry_(registry) {}

  template <class... Labels>
  void set(Metric metric, const std::optional<double>& value, const Labels&... labels) {
    if (value)
      registry_->set(metric, {run_, rank_, std::string_view(labels)...}, *value);
    else
      registry_->unset(metric, {run_, rank_, std::string_view(labels)...});
  }
  // Without this one a fraction would go to the next, as a whole number.
  template <class... Labels>
  void set(Metric metric, double value, const Labels&... labels) {
    registry_->set(metric, {run_, rank_, std::string_view(labels)...}, value);
  }
  template <class... Labels>
  void set(Metric metric, uint64_t value, const Labels&... labels) {
    set(metric, static_cast<double>(value), labels...);
  }
  void clear(Metric metric) { registry_->clear_metric(metric, run_, rank_); }

 private:
  std::string run_, rank_;
  Registry* registry_;
};

void publish_identity(const RankStatistics& rank, RankWriter& to) {
  const segment::Identity& id = rank.identity;
  const auto text = [](int32_t value) { return std::to_string(value); };
  const bool late = id.late_ready == 1;
  const auto coordinate = [&](int32_t value) { return text(late ? value : -1); };
  to.clear(Metric::kRankInfo);
  to.set(Metric::kRankInfo, uint64_t{1}, segment::text_of(id.host), text(id.local_rank), text(id.attempt),
         coordinate(id.data_parallel), coordinate(id.tensor_parallel), coordinate(id.pipeline_parallel),
         coordinate(id.expert_parallel), name_of(ownership_of(id)),
         late ? segment::text_of(id.framework) : "unknown");
  to.clear(Metric::kSourceInfo);
  to.set(Metric::kSourceInfo, uint64_t{1}, segment::step_source_name(rank.last_step.step_source),
         rank.layer_source, segment::loss_source_name(rank.loss_source));
  to.set(Metric::kRankUp, uint64_t{rank.alive});
  if (id.world_size > 0) to.set(Metric::kWorldSize, static_cast<uint64_t>(id.world_size));
}

void publish_counts(const RankStatistics& rank, RankWriter& to) {
  for (size_t op = 0; op < rank.ops.size(); ++op)
    if (rank.totals.calls[op] > 0)
      to.set(Metric::kAttentionCallsTotal, rank.totals.calls[op], segment::kPassNames[rank.ops[op].pass],
             segment::text_of(rank.ops[op].name));
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const char* name = segment::kPassNames[pass];
    to.set(Metric::kAttentionUnsampledTotal, rank.totals.unsampled[pass], name);
    to.set(Metric::kAttentionSamplesTotal, rank.totals.sampled[pass], name);
    to.set(Metric::kAttentionJudgedTotal, rank.judged[pass], name);
    to.set(Metric::kAttentionInFlight, rank.in_flight(pass), name);
    for (uint32_t reason = 0; reason < segment::kSkipReasons; ++reason)
      to.set(Metric::kAttentionSkippedTotal, rank.totals.skipped[pass][reason], name,
             segment::kSkipReasonNames[reason]);
    for (uint32_t reason = 0; reason < segment::kLostReasons; ++reason)
      // A number of the layout that nobody counts: slices wait for the next agent.
      if (reason != static_cast<uint32_t>(segment::Lost::kAgentAbsent))
        to.set(Metric::kAttentionLostTotal, rank.lost[pass][reason], name, segment::kLostReasonNames[reason]);
  }
  to.set(Metric::kNoAttentionSeen, uint64_t{rank.no_attention_seen()});
  to.clear(Metric::kAttentionUnseen);
  for (const segment::UnseenName& unseen : rank.unseen)
    to.set(Metric::kAttentionUnseen, uint64_t{1}, segment::text_of(unseen.name),
           segment::unseen_evidence_name(unseen.evidence));
}

void publish_pass(const PassStatistics& pass, const char* name, RankWriter& to) {
  to.set(Metric::kAttentionRelativeError, mean_of(pass.relative_error_mean), name, "mean");
  to.set(Metric::kAttentionRelativeError, max_of(pass.relative_error_max), name, "max");
  to.set(Metric::kAttentionDeviationRatio, mean_of(pass.deviation_ratio), name, "mean");
  to.set(Metric::kAttentionDeviationRatio, max_of(pass.deviation_ratio), name, "max");
  const auto bias = [&](const BiasPool& pool, const char* of) {
    const std::optional<Bias> now = pool.bias();
    to.set(Metric::kAttentionBiasUlp, now ? std::optional<double>(now->ulp) : std::nullopt, name, of);
    to.set(Metric::kAttentionBiasZscore, now ? now->z : std::nullopt, name, of);
  };
  bias(pass.bias, "kernel");
  bias(pass.rounded_bias, "rounded_reference");
}

void publish_layer(const LayerStatistics& layer, RankWriter& to) {
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    to.set(Metric::kLayerAttentionDeviationRatio, mean_of(layer.pass[pass].deviation_ratio), layer.label,
           segment::kPassNames[pass]);
    if (const std::optional<Bias> bias = layer.pass[pass].bias.bias())
      to.set(Metric::kLayerAttentionBiasUlp, std::optional<double>(bias->ulp), layer.label,
             segment::kPassNames[pass]);
  }
  to.set(Metric::kLayerAttentionLogitAbsMax, max_of(layer.scores.logit), layer.label);
  to.set(Metric::kLayerGradientNorm, layer.gradient_norm, layer.label);
}

void publish_training(const RankStatistics& rank, RankWriter& to) {
  if (rank.last_step.sequence == 0) return;
  to.set(Metric::kStep, std::optional<double>(static_cast<double>(rank.last_step.step)));
  to.set(Metric::kStepsTotal, rank.steps + rank.steps_lost);
  to.set(Metric::kStepsLostTotal, rank.steps_lost);
  if (segment::knows_skips(rank.last_step))
    to.set(Metric::kSkippedStepsTotal, rank.last_step.skipped_steps, "overflow");
  else
    to.clear(Metric::kSkippedStepsTotal);
  to.set(Metric::kLastStepTimestampSeconds,
         std::optional<double>(1e-9 * static_cast<double>(rank.last_step.time_ns)));
  to.set(Metric::kLoss, rank.last_loss);
  to.set(Metric::kLossWindow, min_of(rank.loss_window), "min");
  to.set(Metric::kLossWindow, mean_of(rank.loss_window), "mean");
  to.set(Metric::kLossWindow, max_of(rank.loss_window), "max");
  to.set(Metric::kLossZscore, rank.loss_zscore);
  to.set(Metric::kLossSpikesTotal, uint64_t{rank.spike_steps.size()});
  to.set(Metric::kGradientNorm, rank.gradient_norm);
  to.set(Metric::kGradientNormWindowMax, max_of(rank.gradient_window));
  to.set(Metric::kGradientNormZscore, rank.gradient_zscore);
  to.set(Metric::kLearningRate, rank.learning_rate);
  to.set(Metric::kSampleIntervalSteps, rank.last_step.interval);
}

json operations_json(const RankStatistics& rank, uint32_t pass) {
  json calls = json::object();
  for (size_t op = 0; op < rank.ops.size(); ++op)
    if (rank.ops[op].pass == pass && rank.totals.calls[op] > 0)
      calls[segment::text_of(rank.ops[op].name)] = rank.totals.calls[op];
  return calls;
}

template <size_t kCount>
json by_reason(const char* const (&names)[kCount], const uint64_t (&counts)[kCount]) {
  json counted = json::object();
  for (size_t reason = 0; reason < kCount; ++reason) counted[names[reason]] = counts[reason];
  return counted;
}

json pass_summary(const RankStatistics& rank, uint32_t pass) {
  const PassStatistics& statistics = rank.pass[pass];
  const std::optional<Bias> bias = statistics.bias.bias();
  const std::optional<Bias> control = statistics.rounded_bias.bias();
  const auto ulp = [](const std::optional<Bias>& of) { return of ? json(of->ulp) : json(nullptr); };
  const auto z = [](const std::optional<Bias>& of) { return of ? number_or_null(of->z) : json(nullptr); };
  return {{"calls", rank.calls(pass)},
          {"operations", operations_json(rank, pass)},
          {"unsampled", rank.totals.unsampled[pass]},
          {"sampled", rank.totals.sampled[pass]},
          {"judged", rank.judged[pass]},
          {"nonfinite", statistics.nonfinite},
          {"in_flight", rank.in_flight(pass)},
          {"skipped", by_reason(segment::kSkipReasonNames, rank.totals.skipped[pass])},
          {"lost", by_reason(segment::kLostReasonNames, rank.lost[pass])},
          {"relative_error",
           {{"mean", number_or_null(mean_of(statistics.relative_error_mean))},
            {"max", number_or_null(max_of(statistics.relative_error_max))}}},
          {"deviation_ratio",
           {{"mean", number_or_null(mean_of(statistics.deviation_ratio))},
            {"max", number_or_null(max_of(statistics.deviation_ratio))}}},
          {"bias_ulp", ulp(bias)},
          {"bias_z", z(bias)},
          {"rounded_reference_bias_ulp", ulp(control)},
          {"rounded_reference_bias_z", z(control)}};
}

json layer_json(const LayerStatistics& layer) {
  const std::optional<Bias> bias = layer.pass[0].bias.bias();
  return {{"layer", layer.label},
          {"name", layer.name.empty() ? json(nullptr) : json(layer.name)},
          {"deviation_ratio", number_or_null(mean_of(layer.pass[0].deviation_ratio))},
          {"deviation_ratio_backward", number_or_null(mean_of(layer.pass[1].deviation_ratio))},
          {"bias_ulp", bias ? json(bias->ulp) : json(nullptr)},
          {"bias_z", bias ? number_or_null(bias->z) : json(nullptr)},
          {"logit_abs_max", number_or_null(max_of(layer.scores.logit))},
          {"entropy_min", number_or_null(min_of(layer.scores.entropy_min))},
          {"relative_error", number_or_null(mean_of(layer.pass[0].relative_error_mean))},
          {"gradient_norm", number_or_null(layer.gradient_norm)},
          {"nonfinite_steps", layer.nonfinite_steps},
          {"last_nonfinite_step", count_or_null(layer.last_nonfinite_step)}};
}

json seconds_or_null(uint64_t time_ns) {
  return time_ns > 0 ? json(1e-9 * static_cast<double>(time_ns)) : json(nullptr);
}

json unseen_json(const RankStatistics& rank) {
  json names = json::array();
  for (const segment::UnseenName& unseen : rank.unseen)
    names.push_back({{"op", segment::text_of(unseen.name)},
                     {"evidence", segment::unseen_evidence_name(unseen.evidence)}});
  return names;
}

json alarms_json(const RankStatistics& rank) {
  json alarms = json::array();
  for (const LayerAlarm& alarm : rank.alarms())
    alarms.push_back({{"layer", text_or_null(alarm.layer->label)},
                      {"pass", segment::kPassNames[alarm.pass]},
                      {"of", alarm.of},
                      {"value", number_or_null(alarm.value)}});
  return alarms;
}

// Layers beyond a limit of thresholds.h, by pass and by what is beyond it: every combination, so that a rule
// sees 0.
void publish_alarms(const RankStatistics& rank, RankWriter& to) {
  std::map<std::pair<uint32_t, std::string>, uint64_t> layers;
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    for (const char* of : {"deviation_ratio", "bias", "nonfinite"}) layers[{pass, of}] = 0;
  for (const LayerAlarm& alarm : rank.alarms()) ++layers[{alarm.pass, alarm.of}];
  for (const auto& [key, count] : layers)
    to.set(Metric::kAttentionAlarmLayers, count, segment::kPassNames[key.first], key.second);
}

// Of two names that are one label, the one that was logged first has it, whoever of them comes next: names
// stand in the order in which the trainer has met them, also for an agent that follows on another.
void publish_logged(const RankStatistics& rank, RankWriter& to) {
  std::set<std::string> taken;
  for (const std::string& name : rank.scalar_names) {
    const std::string plain = label_text(name);
    std::string label = plain;
    for (int number = 2; !taken.insert(label).second; ++number) label = plain + "_" + std::to_string(number);
    const auto known = rank.logged.find(name);
    if (known != rank.logged.end())
      to.set(Metric::kLoggedValue, std::optional<double>(known->second.value), label);
  }
}

}  // namespace

void publish_rank(const RankStatistics& rank, int cores_per_rank, Registry* registry,
                  const LayerOwners* owners) {
  RankWriter to(rank, registry);
  publish_identity(rank, to);
  publish_counts(rank, to);
  publish_coverage(rank, registry);
  publish_training(rank, to);
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    publish_pass(rank.pass[pass], segment::kPassNames[pass], to);
  const ScoreStatistics& scores = rank.scores;
  to.set(Metric::kAttentionLseErrorAbsMax, max_of(scores.lse_error));
  to.set(Metric::kAttentionLogitAbsMax, max_of(scores.logit));
  to.set(Metric::kAttentionEntropyNats, min_of(scores.entropy_min), "min");
  to.set(Metric::kAttentionEntropyNats, mean_of(scores.entropy_mean), "mean");
  to.set(Metric::kAttentionNearTieRatio, mean_of(scores.near_tie_ratio));
  to.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_loss, "loss");
  to.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_gradient, "gradient");
  to.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_output, "attention_output");
  const uint64_t untold = rank.alive ? 0 : rank.untold_gradient.values;
  to.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_attention_gradient + untold, "attention_gradient");
  to.set(Metric::kSlowdownRatio, rank.recent_slowdown(cores_per_rank));
  to.set(Metric::kSlowdownLimitRatio, rank.identity.max_slowdown);
  to.set(Metric::kOverheadSecondsTotal, 1e-9 * static_cast<double>(rank.totals.hook_ns), "attention");
  to.set(Metric::kOverheadSecondsTotal, 1e-9 * static_cast<double>(rank.totals.step_ns), "step");
  to.set(Metric::kOverheadSecondsTotal, rank.agent_seconds, "agent");
  to.set(Metric::kMonitorEnabled, uint64_t{rank.switched_on}, "trainer");
  to.set(Metric::kMonitorEnabled, uint64_t{rank.identity.slots_given > 0}, "slices");
  // Of a healthy rank none: the budget of a rank's series has no room for what is nearly always 1.
  const bool has_given_up = rank.tensors_given_up_step >= 0;
  to.set(Metric::kMonitorEnabled, has_given_up ? std::optional<double>(0) : std::nullopt, "tensors");
  publish_alarms(rank, to);
  publish_logged(rank, to);
  for (const auto& [label, layer] : rank.layers)
    if (owners == nullptr || owners->shows(rank, label)) publish_layer(layer, to);
}

json given_up_reason(const RankStatistics& rank) {
  if (rank.tensors_given_up_step < 0) return nullptr;
  return rank.tensors_given_up_failed ? "failure" : "cost";
}

json summary_of(const RankStatistics& rank, int cores_per_rank) {
  const LayerStatistics* worst = rank.worst_layer();
  json nonfinite = json::array();
  for (const auto& [label, layer] : rank.layers)
    if (layer.nonfinite_steps > 0) nonfinite.push_back(label);
  return {
      {"rank", rank.identity.rank},
      {"attempt", count_or_null(rank.identity.attempt)},
      {"state", name_of(rank.state)},
      {"steps", rank.steps + rank.steps_lost},
      {"steps_lost", rank.steps_lost},
      {"taken_up_step", count_or_null(rank.taken_up_step)},
      {"step", rank.last_step.sequence != 0 ? json(rank.last_step.step) : json(nullptr)},
      {"step_source", segment::step_source_name(rank.last_step.step_source)},
      {"skipped_steps",
       segment::knows_skips(rank.last_step) ? json(rank.last_step.skipped_steps) : json(nullptr)},
      {"tensors_given_up_step", count_or_null(rank.tensors_given_up_step)},
      {"tensors_given_up_reason", given_up_reason(rank)},
      {"attention", {{"forward", pass_summary(rank, 0)}, {"backward", pass_summary(rank, 1)}}},
      {"slots", {{"given", rank.identity.slots_given}, {"wanted", rank.identity.slots_wanted}}},
      {"no_attention_seen", rank.no_attention_seen()},
      {"attention_unseen", unseen_json(rank)},
      {"attention_coverage", coverage_json(rank)},
      {"parameters_unnamed", rank.coverage.parameters_unnamed},
      {"worst_layer", worst != nullptr ? json(worst->label) : json(nullptr)},
      {"worst_layer_name", worst != nullptr && !worst->name.empty() ? json(worst->name) : json(nullptr)},
      {"layer_source", rank.layer_source},
      {"alarms", alarms_json(rank)},
      {"past_alarms", past_alarms_json(rank)},
      {"loss",
       {{"first", number_or_null(rank.first_loss)},
        {"last", number_or_null(rank.last_loss)},
        {"spikes", rank.loss_events_known ? json(rank.spike_steps.size()) : json(nullptr)},
        {"spike_steps", rank.spike_steps},
        {"divergences", rank.loss_events_known ? json(rank.divergence_steps.size()) : json(nullptr)},
        {"divergence_steps", rank.divergence_steps},
        {"source", segment::loss_source_name(rank.loss_source)}}},
      {"gradient",
       {{"norm", number_or_null(rank.gradient_norm)},
        {"nonfinite_layers", nonfinite},
        {"untold_steps", rank.coverage.norms_untold}}},
      {"device_numbers",
       {{"fetched", rank.coverage.numbers_fetched},
        {"skipped", by_reason(segment::kSkipReasonNames, rank.coverage.numbers_skipped)},
        {"late", rank.coverage.numbers_late}}},
      {"sample_interval_steps", rank.last_step.sequence != 0 ? json(rank.last_step.interval) : json(nullptr)},
      {"slowdown_ratio", number_or_null(rank.slowdown(cores_per_rank))}};
}

json state_of(const RankStatistics& rank, int cores_per_rank) {
  json state = summary_of(rank, cores_per_rank);
  state["alive"] = rank.alive;
  state["current"] = rank.current;
  state["on"] = rank.switched_on;
  // Seconds since 1970, for links to what is shown by time.
  state["started_at"] = seconds_or_null(rank.identity.start_time_ns);
  state["last_step_at"] = seconds_or_null(rank.last_step.time_ns);
  state["max_slowdown"] = rank.identity.max_slowdown;
  state["gradient"]["zscore"] = number_or_null(rank.gradient_zscore);
  state["loss"]["zscore"] = number_or_null(rank.loss_zscore);
  state["learning_rate"] = number_or_null(rank.learning_rate);
  state["step_seconds"] = number_or_null(mean_of(rank.step_seconds));
  state["overhead_seconds"] = {{"attention", 1e-9 * static_cast<double>(rank.totals.hook_ns)},
                               {"step", 1e-9 * static_cast<double>(rank.totals.step_ns)},
                               {"agent", rank.agent_seconds}};
  state["slots_refused"] = rank.refused_slots;
  state["events"] = events_json(rank);
  json logged = json::object();
  for (const auto& [name, scalar] : rank.logged)
    logged[name] = {{"value", number_or_null(scalar.value)}, {"step", scalar.step}};
  state["logged"] = logged;
  json layers = json::array();
  for (const auto& [label, layer] : rank.layers) layers.push_back(layer_json(layer));
  state["layers"] = layers;
  return state;
}

json thresholds_json() {
  return {{"deviation_ratio_forward", kDeviationRatioForward},
          {"deviation_ratio_backward", kDeviationRatioBackward},
          {"bias_ulp", kBiasUlp},
          {"bias_z", kBiasZ}};
}

void add_history(const RankStatistics& rank, std::vector<HistoryTable>* tables) {
  const auto add = [&](const History& history, const std::string& layer) {
    tables->push_back({.run = rank.run, .rank = rank.identity.rank, .layer = layer, .columns = {}});
    history.copy_to(&tables->back());
  };
  add(rank.history, "");
  for (const auto& [label, layer] : rank.layers) add(layer.history, label);
}

std::string text_of(const json& document, int indent) {
  return document.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace foreshock
