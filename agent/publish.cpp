// Writes the statistics of a rank (one trainer process) as metrics for Prometheus, and as JSON for the status
// page and the summary. docs/metrics.md and docs/summary.md define the names. A slice is a copied part of one
// attention call, which the agent checks (judges); most figures cover the last 64 slices. Pass 0 is forward,
// pass 1 backward.
#include "agent/publish.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "agent/limits.h"
#include "agent/restart_state.h"
#include "detect/detector.h"
#include "exporters/http_routes.h"
#include "segment/layout.h"
#include "text/printable.h"

namespace foreshock {

// Data-parallel ranks have the same layers. The rank with data-parallel coordinate 0 owns (exports) the
// series of these layers.
Ownership ownership_of(const segment::Identity& identity) {
  // Until late_ready is 1, the trainer has not written its coordinates in the job.
  if (identity.late_ready != 1 || identity.data_parallel < 0) return Ownership::kUnknown;
  return identity.data_parallel == 0 ? Ownership::kOwner : Ownership::kReplica;
}

const char* name_of(Ownership ownership) {
  constexpr const char* kNames[] = {"unknown", "0", "1"};  // values of the label `owner`
  return kNames[static_cast<int>(ownership)];
}

LayerOwners::LayerOwners(const std::vector<const RankStatistics*>& ranks) {
  // Among ranks of unknown ownership, the lowest live rank that has a layer exports it. If no live rank has
  // the layer, the first dead rank that has it exports it.
  for (bool alive : {true, false})
    for (const RankStatistics* rank : ranks) {
      if (rank->alive != alive || ownership_of(rank->identity) != Ownership::kUnknown) continue;
      for (const auto& layer : rank->layers) {
        const auto [lowest, is_new] = lowest_.emplace(layer.first, rank->identity.rank);
        if (!is_new && alive) lowest->second = std::min(lowest->second, rank->identity.rank);
      }
    }
}

bool LayerOwners::exports(const RankStatistics& rank, const std::string& label) const {
  const Ownership ownership = ownership_of(rank.identity);
  if (ownership != Ownership::kUnknown) return ownership == Ownership::kOwner;
  const auto lowest = lowest_.find(label);
  return lowest != lowest_.end() && lowest->second == rank.identity.rank;
}

namespace {

using nlohmann::json;

void publish_identity(const RankStatistics& rank, RankWriter& series) {
  const segment::Identity& id = rank.identity;
  const auto text = [](int32_t value) { return std::to_string(value); };
  const bool has_late_fields = id.late_ready == 1;
  const auto coordinate = [&](int32_t value) { return text(has_late_fields ? value : -1); };  // -1: unknown
  series.clear(Metric::kRankInfo);
  series.set(Metric::kRankInfo, uint64_t{1}, segment::text_of(id.host), text(id.local_rank), text(id.attempt),
             coordinate(id.data_parallel), coordinate(id.tensor_parallel), coordinate(id.pipeline_parallel),
             coordinate(id.expert_parallel), name_of(ownership_of(id)),
             has_late_fields ? segment::text_of(id.framework) : "unknown");
  series.clear(Metric::kSourceInfo);
  series.set(Metric::kSourceInfo, uint64_t{1}, segment::step_source_name(rank.last_step.step_source),
             rank.layer_source, segment::loss_source_name(rank.loss_source));
  series.set(Metric::kRankUp, uint64_t{rank.alive});
  if (id.world_size > 0) series.set(Metric::kWorldSize, static_cast<uint64_t>(id.world_size));
}

void publish_counts(const RankStatistics& rank, RankWriter& series) {
  for (size_t op = 0; op < rank.ops.size(); ++op)
    if (rank.totals.calls[op] > 0)
      series.set(Metric::kAttentionCallsTotal, rank.totals.calls[op], segment::kPassNames[rank.ops[op].pass],
                 segment::text_of(rank.ops[op].name));
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    const char* name = segment::kPassNames[pass];
    series.set(Metric::kAttentionUnsampledTotal, rank.totals.unsampled[pass], name);
    series.set(Metric::kAttentionSamplesTotal, rank.totals.sampled[pass], name);
    series.set(Metric::kAttentionJudgedTotal, rank.judged[pass], name);
    series.set(Metric::kAttentionInFlight, rank.in_flight(pass), name);
    for (uint32_t reason = 0; reason < segment::kSkipReasons; ++reason)
      series.set(Metric::kAttentionSkippedTotal, rank.totals.skipped[pass][reason], name,
                 segment::kSkipReasonNames[reason]);
    for (uint32_t reason = 0; reason < segment::kLostReasons; ++reason)
      series.set(Metric::kAttentionLostTotal, rank.lost[pass][reason], name,
                 segment::kLostReasonNames[reason]);
  }
  series.set(Metric::kNoAttentionSeen, uint64_t{rank.no_attention_seen() && !rank.is_damaged});
  series.clear(Metric::kAttentionUnseen);
  for (const segment::UnseenName& unseen : rank.unseen)
    series.set(Metric::kAttentionUnseen, uint64_t{1}, segment::text_of(unseen.name),
               segment::unseen_evidence_name(unseen.evidence));
}

// "rounded_reference" is a control: the bias of the fp64 result rounded once to the trainer's precision.
void publish_pass(const PassStatistics& pass, const char* name, RankWriter& series) {
  series.set(Metric::kAttentionRelativeError, mean_of(pass.relative_error_mean), name, "mean");
  series.set(Metric::kAttentionRelativeError, max_of(pass.relative_error_max), name, "max");
  series.set(Metric::kAttentionDeviationRatio, mean_of(pass.fused_ratio), name, "mean");
  series.set(Metric::kAttentionDeviationRatio, max_of(pass.fused_ratio), name, "max");
  const auto set_bias = [&](const BiasPool& pool, const char* result) {
    const std::optional<Bias> pooled = pool.bias();
    series.set(Metric::kAttentionBiasUlp, pooled ? std::optional(pooled->ulp) : std::nullopt, name, result);
    series.set(Metric::kAttentionBiasZscore, pooled ? pooled->z : std::nullopt, name, result);
  };
  set_bias(pass.bias, "kernel");
  set_bias(pass.rounded_bias, "rounded_reference");
}

void publish_layer(const LayerStatistics& layer, RankWriter& series) {
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    series.set(Metric::kLayerAttentionDeviationRatio, mean_of(layer.pass[pass].fused_ratio), layer.label,
               segment::kPassNames[pass]);
    if (const std::optional<Bias> bias = layer.pass[pass].bias.bias())
      series.set(Metric::kLayerAttentionBiasUlp, bias->ulp, layer.label, segment::kPassNames[pass]);
  }
  series.set(Metric::kLayerAttentionLogitAbsMax, max_of(layer.scores.logit), layer.label);
  series.set(Metric::kLayerGradientNorm, layer.gradient_norm, layer.label);
}

void publish_training(const RankStatistics& rank, RankWriter& series) {
  if (rank.last_step.sequence == 0) return;  // no step has ended
  series.set(Metric::kStep, rank.last_step.step);
  series.set(Metric::kStepsTotal, rank.steps + rank.steps_lost);
  series.set(Metric::kStepsLostTotal, rank.steps_lost);
  if (const std::optional<uint64_t> skipped = skipped_steps_of(rank))
    series.set(Metric::kSkippedStepsTotal, *skipped, "overflow");
  else
    series.clear(Metric::kSkippedStepsTotal);
  series.set(Metric::kLastStepTimestampSeconds, 1e-9 * static_cast<double>(rank.last_step.time_ns));
  series.set(Metric::kLoss, rank.last_loss);
  series.set(Metric::kLossWindow, min_of(rank.loss_window), "min");
  series.set(Metric::kLossWindow, mean_of(rank.loss_window), "mean");
  series.set(Metric::kLossWindow, max_of(rank.loss_window), "max");
  series.set(Metric::kLossZscore, rank.loss_zscore);
  if (const auto spikes = rank.loss_event_count(WatchEventKind::kLossSpike))
    series.set(Metric::kLossSpikesTotal, spikes->count);
  series.set(Metric::kGradientNorm, rank.gradient_norm);
  series.set(Metric::kGradientNormWindowMax, max_of(rank.gradient_window));
  series.set(Metric::kGradientNormZscore, rank.gradient_zscore);
  series.set(Metric::kLearningRate, rank.learning_rate);
  series.set(Metric::kSampleIntervalSteps, rank.last_step.interval);
}

// Returns the number of calls by name of the PyTorch operation.
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

json mean_and_max(const SampleWindow& mean, const SampleWindow& max) {
  return {{"mean", number_or_null(mean_of(mean))}, {"max", number_or_null(max_of(max))}};
}

// Excess bias: the kernel's bias minus the bias of a correct algorithm on the same slices.
json pass_summary(const RankStatistics& rank, uint32_t pass) {
  const PassStatistics& statistics = rank.pass[pass];
  const std::optional<Bias> bias = statistics.bias.bias();
  const std::optional<Bias> excess = statistics.excess_bias.bias();
  const std::optional<Bias> control = statistics.rounded_bias.bias();
  const auto ulp = [](const std::optional<Bias>& b) { return b ? json(b->ulp) : json(nullptr); };
  const auto z = [](const std::optional<Bias>& b) { return b ? number_or_null(b->z) : json(nullptr); };
  return {{"calls", rank.calls(pass)},
          {"operations", operations_json(rank, pass)},
          {"unsampled", rank.totals.unsampled[pass]},
          {"sampled", rank.totals.sampled[pass]},
          {"judged", rank.judged[pass]},
          {"nonfinite", statistics.nonfinite},
          {"in_flight", rank.in_flight(pass)},
          {"skipped", by_reason(segment::kSkipReasonNames, rank.totals.skipped[pass])},
          {"lost", by_reason(segment::kLostReasonNames, rank.lost[pass])},
          {"relative_error", mean_and_max(statistics.relative_error_mean, statistics.relative_error_max)},
          {"deviation_ratio", mean_and_max(statistics.deviation_ratio, statistics.deviation_ratio)},
          {"fused_ratio", mean_and_max(statistics.fused_ratio, statistics.fused_ratio)},
          {"lse_error_ratio_max", number_or_null(max_of(statistics.lse_error_ratio))},
          {"partial", statistics.partial},
          {"layers_judged", rank.layers_judged[pass]},
          {"bias_ulp", ulp(bias)},
          {"bias_z", z(bias)},
          {"excess_bias_ulp", ulp(excess)},
          {"excess_bias_z", z(excess)},
          {"rounded_reference_bias_ulp", ulp(control)},
          {"rounded_reference_bias_z", z(control)}};
}

// Returns the mean ratio of the error of dK or dV to that of correct fused attention. Null if no slice of key
// positions (a few keys with all query rows) was checked. `holder` is a rank or a layer.
template <class Holder>
json key_ratio(const Holder& holder, JudgedTensor tensor) {
  const PassStatistics* statistics = statistics_of(holder, static_cast<uint32_t>(tensor));
  return statistics != nullptr ? number_or_null(mean_of(statistics->fused_ratio)) : json(nullptr);
}

// Judged backward calls without a slice of key positions, by reason.
json columns_skipped_json(const ColumnsSkipped& counts) {
  json counted = json::object();
  for (uint32_t why = segment::kColumnsTaken + 1; why < segment::kColumnsSkips; ++why)
    counted[segment::kColumnsSkipNames[why]] = counts[why];
  return counted;
}

// Each slice of key positions checks both dK (keys[0]) and dV (keys[1]).
json keys_summary(const RankStatistics& rank) {
  return {{"judged", key_slices_of(rank)},
          {"skipped", columns_skipped_json(rank.columns_skipped)},
          {"nonfinite", rank.keys.empty() ? 0 : rank.keys[0].nonfinite + rank.keys[1].nonfinite},
          {"fused_ratio_grad_key", key_ratio(rank, JudgedTensor::kGradKey)},
          {"fused_ratio_grad_value", key_ratio(rank, JudgedTensor::kGradValue)}};
}

json layer_json(const LayerStatistics& layer) {
  const std::optional<Bias> bias = layer.pass[0].bias.bias();
  return {{"layer", layer.label},
          {"name", layer.name.empty() ? json(nullptr) : json(layer.name)},
          {"deviation_ratio", number_or_null(mean_of(layer.pass[0].deviation_ratio))},
          {"deviation_ratio_backward", number_or_null(mean_of(layer.pass[1].deviation_ratio))},
          {"fused_ratio", number_or_null(mean_of(layer.pass[0].fused_ratio))},
          {"fused_ratio_backward", number_or_null(mean_of(layer.pass[1].fused_ratio))},
          {"fused_ratio_grad_key", key_ratio(layer, JudgedTensor::kGradKey)},
          {"fused_ratio_grad_value", key_ratio(layer, JudgedTensor::kGradValue)},
          {"key_gradients_skipped", columns_skipped_json(layer.columns_skipped)},
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
                      {"tensor", kJudgedTensorNames[alarm.tensor]},
                      {"of", name_of(alarm.kind)},
                      {"value", number_or_null(alarm.value)},
                      {"last_step", count_or_null(alarm.last_step)}});
  return alarms;
}

// Exports the number of layers with an alarm, by pass and kind of alarm. Combinations without a layer are
// exported as 0, because alert rules need them. To save series, all kinds other than bias and nonfinite are
// counted together as error. A pass whose layers exceed a limit only together counts as one layer.
void publish_alarms(const RankStatistics& rank, RankWriter& series) {
  std::map<std::pair<uint32_t, std::string>, std::set<const LayerStatistics*>> layers;
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    for (const char* kind : {"error", "bias", "nonfinite"}) layers[{pass, kind}] = {};
  const std::vector<LayerAlarm> alarms = rank.alarms();
  for (const LayerAlarm& alarm : alarms) {
    const bool is_error = alarm.kind != AlarmKind::kBias && alarm.kind != AlarmKind::kNonfinite;
    layers[{alarm.pass, is_error ? "error" : name_of(alarm.kind)}].insert(alarm.layer);
  }
  const bool is_any_mixed = std::any_of(rank.layers.begin(), rank.layers.end(),
                                        [](const auto& layer) { return layer.second.is_mixed; });
  for (uint32_t pass = 0; alarms.empty() && pass < segment::kPasses; ++pass) {
    if (has_large_errors(rank.pass[pass], pass)) layers[{pass, "error"}] = {nullptr};
    if (!is_any_mixed && is_biased(rank.pass[pass], pass)) layers[{pass, "bias"}] = {nullptr};
  }
  for (const auto& [pass_and_kind, alarmed] : layers)
    series.set(Metric::kAttentionAlarmLayers, uint64_t{alarmed.size()},
               segment::kPassNames[pass_and_kind.first], pass_and_kind.second);
}

// Exports the scalars that the training logs. If two names give the same label, the later one gets a number.
// The names are in the order in which they were first logged, so a restarted agent decides the same way.
void publish_logged(const RankStatistics& rank, RankWriter& series) {
  std::set<std::string> taken;
  for (const std::string& name : rank.scalar_names) {
    const std::string plain = label_text(name);
    std::string label = plain;
    for (int number = 2; !taken.insert(label).second; ++number) label = plain + "_" + std::to_string(number);
    const auto logged = rank.logged.find(name);
    if (logged != rank.logged.end()) series.set(Metric::kLoggedValue, logged->second.value, label);
  }
}

}  // namespace

json findings_json(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& finding : findings) {
    const FindingInfo& info = info_of(finding.kind);
    list.push_back(
        {{"finding", info.name},
         {"headline", info.headline},
         {"text", finding.text},
         {"action", info.action},
         {"layer", text_or_null(finding.layer)},
         {"tensor", finding.tensor >= 0 ? json(kJudgedTensorNames[finding.tensor]) : json(nullptr)},
         {"rank", count_or_null(finding.rank)},
         {"since_step", count_or_null(finding.since_step)},
         {"last_step", count_or_null(finding.last_step)},
         {"now", number_or_null(finding.now)},
         {"largest", number_or_null(finding.largest)},
         {"unit", text_or_null(finding.unit)},
         {"relative_error", number_or_null(finding.relative_error)}});
  }
  return list;
}

void publish_rank(const RankStatistics& rank, int cores_per_rank, Registry* registry,
                  const LayerOwners* owners) {
  RankWriter series(rank, registry);
  publish_identity(rank, series);
  publish_counts(rank, series);
  publish_coverage(rank, registry);
  publish_training(rank, series);
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    publish_pass(rank.pass[pass], segment::kPassNames[pass], series);
  const ScoreStatistics& scores = rank.scores;
  series.set(Metric::kAttentionLseErrorAbsMax, max_of(scores.lse_error));
  series.set(Metric::kAttentionLogitAbsMax, max_of(scores.logit));
  series.set(Metric::kAttentionEntropyNats, min_of(scores.entropy_min), "min");
  series.set(Metric::kAttentionEntropyNats, mean_of(scores.entropy_mean), "mean");
  series.set(Metric::kAttentionNearTieRatio, mean_of(scores.near_tie_ratio));
  series.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_loss, "loss");
  series.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_gradient, "gradient");
  series.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_output, "attention_output");
  // NaN and Inf in gradients of an unfinished step are counted at once only if the rank is dead. In a live
  // rank they wait for the end of the step, which shows whether the gradient scaler has skipped the step.
  const uint64_t of_unfinished_step = rank.alive ? 0 : rank.pending_gradient.values;
  series.set(Metric::kNonfiniteValuesTotal, rank.nonfinite_attention_gradient + of_unfinished_step,
             "attention_gradient");
  series.set(Metric::kSlowdownRatio, rank.recent_slowdown(cores_per_rank));
  series.set(Metric::kSlowdownLimitRatio, rank.identity.max_slowdown);
  series.set(Metric::kOverheadSecondsTotal, 1e-9 * static_cast<double>(rank.totals.hook_ns), "attention");
  series.set(Metric::kOverheadSecondsTotal, 1e-9 * static_cast<double>(rank.totals.step_ns), "step");
  series.set(Metric::kOverheadSecondsTotal, rank.agent_seconds, "agent");
  series.set(Metric::kMonitorEnabled, uint64_t{rank.switched_on}, "trainer");
  series.set(Metric::kMonitorEnabled, uint64_t{rank.identity.slots_given > 0}, "slices");
  // 0: the trainer has stopped measuring weights, because that failed or cost too much. The value 1 is not
  // exported, since the number of series is limited and this one would nearly always be 1.
  const bool has_given_up = rank.tensors_given_up_step >= 0;
  series.set(Metric::kMonitorEnabled, has_given_up ? std::optional<double>(0) : std::nullopt, "tensors");
  publish_alarms(rank, series);
  publish_logged(rank, series);
  for (const auto& [label, layer] : rank.layers)
    if (owners == nullptr || owners->exports(rank, label)) publish_layer(layer, series);
}

using Losses = std::optional<LossCount>;  // loss events of one kind; absent: unknown
json count_of(const Losses& losses) { return losses ? json(losses->count) : json(nullptr); }
json first_of(const Losses& losses) { return losses ? count_or_null(losses->first_step) : json(nullptr); }
json last_of(const Losses& losses) { return losses ? count_or_null(losses->last_step) : json(nullptr); }

json given_up_reason(const RankStatistics& rank) {
  if (rank.tensors_given_up_step < 0) return nullptr;
  return rank.tensors_given_up_failed ? "failure" : "cost";
}

// Returns the name of NaN or infinity, which JSON numbers cannot express, or null for any other value.
static json nonfinite_name(const std::optional<double>& value) {
  if (!value || std::isfinite(*value)) return nullptr;
  return std::isnan(*value) ? "nan" : *value > 0 ? "inf" : "-inf";
}

json summary_of(const RankStatistics& rank, int cores_per_rank) {
  const LayerStatistics* worst = rank.worst_layer();
  const auto spikes = rank.loss_event_count(WatchEventKind::kLossSpike),
             divergences = rank.loss_event_count(WatchEventKind::kDivergence);
  json nonfinite = json::array();
  for (const auto& [label, layer] : rank.layers)
    if (layer.nonfinite_steps > 0) nonfinite.push_back(label);
  return {
      {"rank", rank.identity.rank},
      {"attempt", count_or_null(rank.identity.attempt)},
      {"state", name_of(rank.state)},
      {"steps", rank.steps + rank.steps_lost},
      {"steps_lost", rank.steps_lost},
      {"step_restarts", rank.step_restarts},
      {"layers_mixed",
       std::ranges::any_of(rank.layers, [](const auto& entry) { return entry.second.is_mixed; })},
      {"taken_up_step", count_or_null(rank.taken_up_step)},
      {"step", rank.last_step.sequence != 0 ? json(rank.last_step.step) : json(nullptr)},
      {"step_source", segment::step_source_name(rank.last_step.step_source)},
      {"skipped_steps", skipped_steps_of(rank) ? json(*skipped_steps_of(rank)) : json(nullptr)},
      {"tensors_given_up_step", count_or_null(rank.tensors_given_up_step)},
      {"tensors_given_up_reason", given_up_reason(rank)},
      {"attention", {{"forward", pass_summary(rank, 0)}, {"backward", pass_summary(rank, 1)}}},
      {"key_gradients", keys_summary(rank)},
      {"slots", {{"given", rank.identity.slots_given}, {"wanted", rank.identity.slots_wanted}}},
      {"no_attention_seen", rank.no_attention_seen() && !rank.is_damaged},  // a damaged file shows nothing
      {"attention_unseen", unseen_json(rank)},
      {"attention_coverage", coverage_json(rank)},
      {"parameters_unnamed", rank.coverage.parameters_unnamed},
      {"worst_layer", worst != nullptr ? json(worst->label) : json(nullptr)},
      {"worst_layer_name", worst != nullptr && !worst->name.empty() ? json(worst->name) : json(nullptr)},
      {"layer_source", rank.layer_source},
      {"slices_without_layer", rank.slices_without_layer},
      {"alarms", alarms_json(rank)},
      {"past_alarms", past_alarms_json(rank)},
      {"loss",
       {{"first", number_or_null(rank.first_loss)},
        {"last", number_or_null(rank.last_loss)},
        {"last_nonfinite", nonfinite_name(rank.last_loss)},
        {"spikes", count_of(spikes)},
        {"first_spike_step", first_of(spikes)},
        {"last_spike_step", last_of(spikes)},
        {"divergences", count_of(divergences)},
        {"first_divergence_step", first_of(divergences)},
        {"last_divergence_step", last_of(divergences)},
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
      {"train_seconds", rank.cost.train_seconds},
      {"first_look_seconds", rank.first_look.own_seconds},
      {"slowdown_ratio", number_or_null(rank.slowdown(cores_per_rank))}};
}

json state_of(const RankStatistics& rank, int cores_per_rank) {
  json state = summary_of(rank, cores_per_rank);
  state["host"] = text_or_null(segment::text_of(rank.identity.host));
  state["executable"] = text_or_null(segment::text_of(rank.identity.executable));
  state["framework"] =
      rank.identity.late_ready == 1 ? text_or_null(segment::text_of(rank.identity.framework)) : json(nullptr);
  state["alive"] = rank.alive;
  state["current"] = rank.current;
  state["on"] = rank.switched_on;
  // Seconds since 1970, for links to dashboards that plot by time.
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
  // The limits in the rank's number format; those of thresholds_json() are for 16 bits.
  state["limits"] = {{"deviation_ratio_forward", ratio_limit(0, rank.pass[0].dtype, 0)},
                     {"deviation_ratio_backward", ratio_limit(1, rank.pass[1].dtype, 0)},
                     {"bias_ulp", bias_limit(0, rank.pass[0].dtype)}};
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
          {"deviation_ratio_keys", kDeviationRatioKeys},
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
  return printable_json(document.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
}

// Flagged slices are the unusual slices that --save-flagged saves.
void publish_flagged(const std::string& run, const FlaggedWriter& writer, Registry* registry) {
  const FlaggedCounts counts = writer.counts();
  for (size_t n = 0; n < kFlagReasons; ++n)
    registry->set(Metric::kFlaggedSlicesTotal, {run, kFlagReasonNames[n]},
                  static_cast<double>(counts.saved[n]));
  for (size_t n = 0; n < kFlaggedDrops; ++n)
    registry->set(Metric::kFlaggedSlicesDroppedTotal, {run, kFlaggedDropNames[n]},
                  static_cast<double>(counts.dropped[n]));
}

nlohmann::json flagged_json(const FlaggedWriter& writer) {
  const FlaggedCounts counts = writer.counts();
  nlohmann::json saved = nlohmann::json::object(), dropped = nlohmann::json::object();
  for (size_t n = 0; n < kFlagReasons; ++n)
    if (counts.saved[n] > 0) saved[kFlagReasonNames[n]] = counts.saved[n];
  for (size_t n = 0; n < kFlaggedDrops; ++n)
    if (counts.dropped[n] > 0) dropped[kFlaggedDropNames[n]] = counts.dropped[n];
  return {{"directory", writer.path()}, {"saved", saved}, {"dropped", dropped}, {"problem", counts.problem}};
}

}  // namespace foreshock
