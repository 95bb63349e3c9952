// Passes the numbers in lines of the record to the detectors of the line's rank, and returns the detectors'
// events as lines. Lines of tensors and optimizers have no rank; they go to the lowest rank of their run.
// Saves and restores the state of all detectors, with a number of the caller (`note`).
#include "agent/detection.h"

#include <algorithm>
#include <cmath>

#include "agent/limits.h"
#include "detect/detector.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

constexpr char kMagic[] = "foreshock detectors 4\n";  // begins a saved state; 4: version of the format
constexpr uint64_t kMostRanks = 4096;                 // ranks with detectors, over all runs

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
  return lines_found_;
}

const std::vector<EventLine>& Watches::observe(const StepLine& line) {
  begin();
  RankWatch* watch = line.rank && line.step ? watch_for(line.run, *line.rank) : nullptr;
  if (watch == nullptr) return lines_found_;
  watch->observe_step(*line.step, line.loss, line.gradient_norm, &found_, line.learning_rate,
                      line.skipped_steps);
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
  }
  return end(line.run, *line.rank);
}

const std::vector<EventLine>& Watches::observe(const SpectrumLine& line) {
  begin();
  RankWatch* watch =
      line.rank && line.step && line.effective_rank_mean ? watch_for(line.run, *line.rank) : nullptr;
  if (watch == nullptr) return lines_found_;
  watch->observe(DetectorId::kUpdateSpectrum, line.layer, line.layer, *line.step, *line.effective_rank_mean,
                 /*control=*/0, &found_, static_cast<int64_t>(line.steps.value_or(0)));
  return end(line.run, *line.rank);
}

const std::vector<EventLine>& Watches::observe(const TensorLine& line) {
  begin();
  // Scope "job": `foreshock merge` made this line from lines of nodes. Detectors observe only lines of nodes.
  if (line.scope == "job" || !line.step || !line.wasserstein_previous) return lines_found_;
  return observe_of_run(line.run, DetectorId::kWeightShift, line.tensor, line.layer, *line.step,
                        *line.wasserstein_previous, static_cast<int64_t>(line.interval_steps.value_or(0)));
}

const std::vector<EventLine>& Watches::observe(const OptimizerLine& line) {
  begin();
  if (!line.step || !line.rms_staleness) return lines_found_;
  return observe_of_run(line.run, DetectorId::kRmsStaleness, line.tensor, line.layer, *line.step,
                        *line.rms_staleness);
}

// Passes a tensor's value to a detector of the run's lowest rank. `place`: the tensor's name. `span`: the
// number of steps that the value covers.
const std::vector<EventLine>& Watches::observe_of_run(const std::string& run, DetectorId detector,
                                                      const std::string& place, const std::string& layer,
                                                      int64_t step, double value, int64_t span) {
  const auto lowest = watches_.lower_bound({run, INT64_MIN});  // the run's lowest rank, or another run
  if (lowest == watches_.end() || lowest->first.first != run) return lines_found_;
  const int64_t rank = lowest->first.second;  // it has detectors, so watch_for() does not return null
  watch_for(run, rank)->observe(detector, place, layer, step, value, /*control=*/0, &found_, span);
  return end(run, rank);
}

const std::vector<EventLine>& Watches::observe(const EventLine& line) {
  begin();
  if (line.event == kDetectorsBeginAnew)
    std::erase_if(watches_, [&](const auto& each) { return each.first.first == line.run; });
  return lines_found_;
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
  if (!reader.good() || !reader.at_end()) return false;
  watches_ = std::move(read);
  *note = read_note;
  return true;
}

}  // namespace foreshock
