// Passes the numbers in lines of the record to the detectors of the line's rank, and returns the detectors'
// events as lines. Lines of tensors and optimizers have no rank; they go to the lowest rank of their run.
// Saves and restores the state of all detectors, with a number of the caller (`note`).
#include "agent/detection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "agent/limits.h"
#include "detect/detector.h"
#include "segment/layout.h"
#include "shadow/slice.h"  // DType, Format

namespace foreshock {
namespace {

constexpr char kMagic[] = "foreshock detectors 9\n";  // begins a saved state; 9: version of the format
constexpr uint64_t kMostRanks = 4096;                 // ranks with detectors, over all runs
// Begins the names by which a step has the losses of other optimizers (foreshock_loss_is_of).
constexpr char kOtherLoss[] = "loss of optimizer ";
constexpr uint64_t kMostRuns = 1024;  // runs with conditions

// Returns a hash of the table of detectors. A state saved with another table cannot be restored.
uint64_t fingerprint() {
  uint64_t hash = fnv1a("");
  for (const DetectorInfo& info : kDetectorTable) {
    const double numbers[] = {static_cast<double>(info.look),
                              static_cast<double>(info.learning),
                              info.memory,
                              info.recent,
                              info.warn,
                              info.least,
                              info.watch};
    hash = fnv1a(info.name, hash);
    hash = fnv1a({reinterpret_cast<const char*>(numbers), sizeof numbers}, hash);
  }
  for (const ConditionInfo& info : kConditionTable) hash = fnv1a(info.help, fnv1a(info.name, hash));
  return hash;
}

EventLine line_of(const WatchEvent& event, const std::string& run, int64_t rank) {
  EventLine line;
  line.run = run;
  line.rank = rank;
  line.step = event.step;
  line.event = name_of(event.kind);
  line.layer = event.layer;
  line.value = event.value;
  if (event.kind != WatchEventKind::kPrecursor) return line;
  line.detector = info_of(event.detector).name;
  line.level = name_of(event.level);
  line.score = event.score;
  return line;
}

EventLine line_of(const Condition& condition, const std::string& run, int64_t rank) {
  EventLine line;
  line.run = run;
  line.rank = condition.rank >= 0 ? condition.rank : rank;
  line.step = condition.since_step;
  line.event = info_of(condition.id).name;
  line.detail = sentence_of(condition);
  line.value = condition.value;
  return line;
}

// The losses of other optimizers that take turns with the one that ends steps.
RecordNumbers other_losses_of(const StepLine& line) {
  RecordNumbers losses;
  for (auto each = line.logged.lower_bound(kOtherLoss);
       each != line.logged.end() && each->first.starts_with(kOtherLoss); ++each)
    losses.insert(*each);
  return losses;
}

StepFacts facts_of(const StepLine& line) {
  const auto factor = line.logged.find(segment::kLossFactorName);
  return {.step = *line.step,
          .loss = line.loss,
          .gradient_norm = line.gradient_norm,
          .learning_rate = line.learning_rate,
          .skipped_steps = line.skipped_steps,
          .is_local_loss = line.loss_source == "nll" || line.loss_source == "backward_root",
          .is_nll = line.loss_source == "nll",
          .loss_factor = factor != line.logged.end() ? std::optional(factor->second) : std::nullopt,
          .is_counted = line.step_source == "counted",
          .attention_calls = line.attention_calls};
}

AttentionFacts facts_of(const SampleLine& line) {
  return {.step = *line.step,
          .layer = line.layer,
          .last_position = *std::max_element(line.positions.begin(), line.positions.end()),
          .seen_keys = *line.keys,
          .queries = *line.query_length,
          .keys = *line.key_length};
}

TensorFacts facts_of(const TensorLine& line) {
  return {.tensor = line.tensor,
          .step = *line.step,
          .is_16_bit = line.dtype == "bf16" || line.dtype == "fp16",
          .update_max = line.update_max_abs,
          .histogram_hash = line.histogram_hash,
          .sample_elements = line.sample_elements,
          .sample_unmoved = line.sample_unmoved,
          .nonfinite = line.nonfinite_values,
          .parts = line.parts,
          .shape = line.shape,
          .rms = line.rms,
          .mean_abs = line.mean_abs};
}

OptimizerFacts facts_of(const OptimizerLine& line) {
  GradientState gradient = GradientState::kUnknown;
  for (const GradientState each :
       {GradientState::kPresent, GradientState::kAbsent, GradientState::kNotRequired})
    if (line.gradient == name_of(each)) gradient = each;
  return {.tensor = line.tensor,
          .step = *line.step,
          .gradient = gradient,
          .gradient_rms = line.gradient_rms,
          .epsilon_dominated = line.epsilon_dominated_ratio,
          .learning_rate = line.learning_rate,
          .weight_decay = line.weight_decay,
          .elements = line.elements,
          .nonfinite_gradient = line.nonfinite_gradient_values,
          .optimizer_step = line.optimizer_step};
}

// Returns the numbers as one text, to be compared only.
std::string text_of(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t each : numbers) text += std::to_string(each) + ' ';
  return text;
}

Sketch sketch_of(const RecordNumbers& sketches, const std::string& name) {
  const auto number = [&](const std::string& key) {
    const auto found = sketches.find(key);
    return found != sketches.end() ? found->second : NAN;
  };
  Sketch sketch;
  for (size_t k = 0; k < kSketchNumbers; ++k) sketch.products[k] = number(name + std::to_string(k));
  sketch.norm = number(name);
  return sketch;
}

// Unknown numbers are NaN, and an unknown format has no rounding errors, so that the look is not judged
// sound.
GradientFacts facts_of(const GradientLine& line) {
  GradientFacts facts;
  facts.tensor = line.tensor;
  facts.shape = text_of(line.shape);
  facts.part = text_of(line.part);
  facts.mesh = static_cast<uint64_t>(std::max<int64_t>(line.mesh.value_or(0), 0));
  // `part` has offset and shape, of as many dimensions each.
  const auto sizes = line.part.empty()
                         ? line.shape.begin()
                         : line.part.begin() + static_cast<std::ptrdiff_t>(line.part.size() / 2);
  facts.elements = std::accumulate(sizes, line.part.empty() ? line.shape.end() : line.part.end(), 1.0,
                                   std::multiplies<>());
  facts.coordinates = text_of(line.coordinates);
  facts.step = *line.step;
  facts.rank = *line.rank;
  facts.world_size = line.world_size.value_or(-1);
  facts.parameters = line.parameters.value_or(0);
  facts.contributions = line.contributions.value_or(0);
  facts.is_whole = line.whole.value_or(false);
  for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16})
    if (line.dtype == name_of(type)) {
      const Format format = format_of(type);
      facts.unit = std::ldexp(1, -format.precision);
      facts.tiny = std::ldexp(1, format.min_exponent - format.precision);
    }
  facts.local = sketch_of(line.sketches, "local");
  facts.last = sketch_of(line.sketches, "last");
  facts.before = sketch_of(line.sketches, "before");
  facts.used = sketch_of(line.sketches, "used");
  facts.value = sketch_of(line.sketches, "value");
  return facts;
}

// Reads (StateReader) or writes (StateWriter) the detectors of all ranks.
template <class State, class Map>
void watches_fields(State& state, Map& watches) {
  if constexpr (State::kReads) {
    const uint64_t count = state.count(kMostRanks);
    for (uint64_t n = 0; n < count && state.good(); ++n) {
      std::string run;
      int64_t rank = 0;
      state(run);
      state(rank);
      if (state.good()) watches[{run, rank}].fields(state);
    }
  } else {
    state(static_cast<uint64_t>(watches.size()));
    for (auto& [key, watch] : watches) {
      state(key.first);
      state(key.second);
      watch.fields(state);
    }
  }
}

}  // namespace

// Returns the error divided by that of fused attention, as the alarms use it, scaled from the limit of the
// format to that of bf16, which the detectors have. Missing in old records, which are not judged. The
// detectors ignore NaN and Inf.
static std::optional<double> error_ratio(const SampleLine& line) {
  if (!line.fused_ratio) return std::nullopt;
  const uint32_t tensor = line.pass == "forward" ? 0 : 1;
  return *line.fused_ratio * ratio_limit(tensor, DType::kBf16, 0) /
         ratio_limit(tensor, dtype_named(line.dtype), 0);
}

void Watches::begin() {
  lines_found_.clear();
  found_.clear();
  begun_.clear();
  if (readings_ != nullptr) readings_->clear();  // the caller of collect() gets the values given to detectors
}

RankWatch* Watches::watch_for(const std::string& run, int64_t rank) {
  const auto found = watches_.find({run, rank});
  if (found == watches_.end() && (watches_.size() >= kMostRanks || run.size() > StateReader::kLongestText)) {
    ++lines_left_out_;
    return nullptr;
  }
  RankWatch* watch = found != watches_.end() ? &found->second : &watches_[{run, rank}];
  watch->collect(readings_);  // a new watch does not have this pointer yet
  ++lines_;
  last_rank_ = rank;
  return watch;
}

const std::vector<EventLine>& Watches::end(const std::string& run, int64_t rank) {
  for (const WatchEvent& event : found_) lines_found_.push_back(line_of(event, run, rank));
  for (const Condition& condition : begun_) lines_found_.push_back(line_of(condition, run, rank));
  return lines_found_;
}

RunConditions* Watches::conditions_for(const std::string& run) {
  const auto found = conditions_.find(run);
  if (found != conditions_.end()) return &found->second;
  const bool has_room = conditions_.size() < kMostRuns && run.size() <= StateReader::kLongestText;
  return has_room ? &conditions_[run] : nullptr;
}

const std::vector<EventLine>& Watches::observe(const StepLine& line) {
  begin();
  RankWatch* watch = line.rank && line.step ? watch_for(line.run, *line.rank) : nullptr;
  if (watch == nullptr) return lines_found_;
  watch->observe_step(*line.step, line.loss, line.gradient_norm, &found_, line.learning_rate,
                      line.skipped_steps, other_losses_of(line));
  if (RunConditions* conditions = conditions_for(line.run))
    conditions->observe_step(*line.rank, facts_of(line), &begun_);
  return end(line.run, *line.rank);
}

const std::vector<EventLine>& Watches::observe(const SampleLine& line) {
  begin();
  RankWatch* watch = line.rank && line.step ? watch_for(line.run, *line.rank) : nullptr;
  // The detectors observe the output and dQ, but not dK and dV.
  if (watch == nullptr || line.tensor == "grad_key" || line.tensor == "grad_value") return lines_found_;
  // `control`: for kBias the bias of the reference rounded once, whose drift the detector subtracts; else 0.
  const auto give = [&](DetectorId detector, const std::optional<double>& value, double control = 0) {
    if (value) watch->observe(detector, line.layer, line.layer, *line.step, *value, control, &found_);
  };
  if (line.pass == "forward") {
    const double limit_in_ulp = bias_limit(0, dtype_named(line.dtype)) / kBiasUlp;  // of 1 ulp of bf16
    if (line.bias_ulp)
      give(DetectorId::kBias, (*line.bias_ulp - line.floor_bias_ulp.value_or(0)) / limit_in_ulp,
           line.rounded_reference_bias_ulp.value_or(0) / limit_in_ulp);
    give(DetectorId::kDeviationForward, error_ratio(line));
    give(DetectorId::kMaxLogit, line.logit_abs_max);
    give(DetectorId::kLogitGrowth, line.logit_abs_max);
    give(DetectorId::kEntropyDrop, line.entropy_nats_mean);
  } else {
    give(DetectorId::kDeviationBackward, error_ratio(line));
    give(DetectorId::kOutputErrorDrift, line.grad_out_drift);
    // A slice of rows has the keys that its last row sees.
    const bool is_complete =
        line.mask == "none" && !line.positions.empty() && line.keys && line.query_length && line.key_length;
    if (RunConditions* conditions = is_complete ? conditions_for(line.run) : nullptr)
      conditions->observe_attention(*line.rank, facts_of(line), &begun_);
  }
  return end(line.run, *line.rank);
}

const std::vector<EventLine>& Watches::observe(const TensorLine& line) {
  begin();
  // Scope "job": `foreshock merge` made this line from lines of nodes. Detectors observe only lines of nodes.
  if (line.scope == "job" || !line.step) return lines_found_;
  const std::optional<int64_t> rank = lowest_rank(line.run);
  RunConditions* conditions = rank ? conditions_for(line.run) : nullptr;
  if (conditions != nullptr && line.parts) conditions->observe_tensor(facts_of(line));
  if (!rank) return lines_found_;
  // The rank has detectors, so watch_for() does not return null.
  if (line.wasserstein_previous)
    watch_for(line.run, *rank)
        ->observe(DetectorId::kWeightShift, line.tensor, line.layer, *line.step, *line.wasserstein_previous,
                  /*control=*/0, &found_, static_cast<int64_t>(line.interval_steps.value_or(0)));
  return end(line.run, *rank);
}

const std::vector<EventLine>& Watches::observe(const OptimizerLine& line) {
  begin();
  if (!line.step) return lines_found_;
  const std::optional<int64_t> rank = lowest_rank(line.run);
  RunConditions* conditions = rank ? conditions_for(line.run) : nullptr;
  if (conditions == nullptr) return lines_found_;
  conditions->observe_optimizer(facts_of(line), &begun_);
  return end(line.run, *rank);
}

const std::vector<EventLine>& Watches::observe(const GradientLine& line) {
  begin();
  if (!line.rank || !line.step || line.tensor.empty()) return lines_found_;
  if (RunConditions* conditions = conditions_for(line.run))
    conditions->observe_gradient(facts_of(line), &begun_);
  return end(line.run, *line.rank);
}

std::optional<int64_t> Watches::lowest_rank(const std::string& run) const {
  const auto lowest = watches_.lower_bound({run, INT64_MIN});  // the run's lowest rank, or another run
  if (lowest == watches_.end() || lowest->first.first != run) return std::nullopt;
  return lowest->first.second;
}

const std::vector<EventLine>& Watches::observe(const EventLine& line) {
  begin();
  if (line.event == kDetectorsBeginAnew)
    std::erase_if(watches_, [&](const auto& each) { return each.first.first == line.run; });
  if (line.event == kDetectorsBeginAnew) conditions_.erase(line.run);
  const bool is_skips = line.event == kScalerSkips;
  if ((!is_skips && line.event != kBackwardWithoutStep) || !line.rank || !line.step || !line.value)
    return lines_found_;
  RunConditions* conditions = *line.value >= 0 && *line.value < 0x1p53 ? conditions_for(line.run) : nullptr;
  if (conditions == nullptr) return lines_found_;
  const auto count = static_cast<uint64_t>(*line.value);
  if (is_skips)
    conditions->observe_skipped(*line.rank, *line.step, count, &begun_);
  else
    conditions->observe_backward_calls(*line.rank, *line.step, count, &begun_);
  return end(line.run, *line.rank);
}

const std::vector<EventLine>& Watches::observe(const RunLine& line) {
  begin();
  if (line.state != "started" || !line.rank || !line.pid) return lines_found_;
  if (RunConditions* conditions = conditions_for(line.run))
    conditions->observe_process(*line.rank, *line.pid);
  return lines_found_;
}

const RunConditions* Watches::conditions_of(const std::string& run) const {
  const auto found = conditions_.find(run);
  return found != conditions_.end() ? &found->second : nullptr;
}

const RankWatch* Watches::watch_of(const std::string& run, int64_t rank) const {
  const auto found = watches_.find({run, rank});
  return found != watches_.end() ? &found->second : nullptr;
}

std::vector<std::string> series_left_out(const RankWatch& watch) {
  std::vector<std::string> texts;
  const auto states = watch.states();
  for (size_t n = 0; n < states.size(); ++n)
    if (states[n].series_dropped > 0)
      texts.push_back(std::string(info_of(static_cast<DetectorId>(n)).name) + " has no room for " +
                      std::to_string(states[n].series_dropped) + " of its series");
  return texts;
}

std::vector<std::string> left_out(const Watches& watches) {
  std::vector<std::string> texts;
  for (const auto& [key, watch] : watches.all())
    for (const std::string& text : series_left_out(watch))
      texts.push_back((watches.all().size() > 1 ? "rank " + std::to_string(key.second) + ": " : "") + text);
  if (watches.lines_left_out() > 0)
    texts.push_back("the detectors watch " + std::to_string(watches.all().size()) + " ranks; " +
                    std::to_string(watches.lines_left_out()) + " lines of other ranks were left out");
  return texts;
}

std::string Watches::save(uint64_t note) const {
  StateWriter writer;
  writer(note);
  // The const_cast is safe: fields() also serves StateReader, but a StateWriter does not change the members.
  watches_fields(writer, const_cast<Watches*>(this)->watches_);
  map_fields(writer, const_cast<Watches*>(this)->conditions_, kMostRuns);
  const uint64_t table = fingerprint();
  return kMagic + std::string(reinterpret_cast<const char*>(&table), sizeof table) + writer.bytes();
}

bool Watches::restore(std::string_view bytes, uint64_t* note) {
  const uint64_t table = fingerprint();
  const std::string head = kMagic + std::string(reinterpret_cast<const char*>(&table), sizeof table);
  if (!bytes.starts_with(head)) return false;
  StateReader reader(bytes.substr(head.size()));
  uint64_t read_note = 0;
  reader(read_note);
  std::map<std::pair<std::string, int64_t>, RankWatch> read;
  watches_fields(reader, read);
  std::map<std::string, RunConditions> read_conditions;
  map_fields(reader, read_conditions, kMostRuns);
  if (!reader.good() || !reader.at_end()) return false;
  watches_ = std::move(read);
  conditions_ = std::move(read_conditions);
  *note = read_note;
  return true;
}

}  // namespace foreshock
