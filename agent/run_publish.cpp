// The part of Run that says what it knows: the series, the page's document, the summaries of launchers.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/publish.h"
#include "agent/publish_flagged.h"
#include "agent/publish_precursors.h"
#include "agent/publish_weights.h"
#include "agent/run.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;

constexpr auto kFlaggedAtMost = 2s;      // that a summary waits for the files of the last flagged slices
constexpr size_t kMostRanksShown = 128;  // on the page

RunPosition position_of(const std::vector<std::unique_ptr<Followed>>& all) {
  RunPosition furthest;
  for (const auto& followed : all) {
    const RankStatistics& rank = followed->rank;
    if (!rank.current || rank.last_step.sequence == 0) continue;
    furthest.step = std::max(furthest.step, rank.last_step.step);
    furthest.interval = std::max(furthest.interval, rank.tensors.interval);
  }
  return furthest;
}

}  // namespace

void Run::answer(const LauncherExit& exit) {
  nlohmann::json summary = document(exit.launcher_id, false);
  summary["run"] = options_.run_id;
  summary["state"] = name_of(exit.state);
  summary["other_ranks"] = std::count_if(followed_.begin(), followed_.end(), [&exit](const auto& each) {
    return each->launcher_id() != exit.launcher_id;
  });
  if (flagged_ != nullptr) {
    flagged_->writer().wait(kFlaggedAtMost);
    summary["flagged"] = flagged_json(flagged_->writer());
  }
  if (record_ != nullptr)
    summary["record_complete"] = record_->flush() && record_->lines_lost() == 0 && !record_was_incomplete_;
  if (directory_->write(summary_name(exit.launcher_id), text_of(summary, 2) + "\n"))
    exits_seen_.erase(exit.launcher_id);
  else
    spdlog::error("the summary of launcher {} cannot be written into {}", exit.launcher_id,
                  directory_->path());
}

nlohmann::json Run::document(uint64_t launcher_id, bool for_page) const {
  nlohmann::json ranks = nlohmann::json::array();
  std::vector<const Followed*> ordered;
  for (const auto& followed : followed_)
    if (launcher_id == 0 || followed->launcher_id() == launcher_id) ordered.push_back(followed.get());
  std::stable_sort(ordered.begin(), ordered.end(), [](const Followed* a, const Followed* b) {
    return a->rank.identity.rank < b->rank.identity.rank;
  });
  if (for_page && ordered.size() > kMostRanksShown)
    std::erase_if(ordered, [](const Followed* followed) { return !followed->rank.current; });
  if (for_page && ordered.size() > kMostRanksShown) ordered.resize(kMostRanksShown);
  const nlohmann::json optimizer = optimizer_json(pipeline_->weights().optimizer());  // of all ranks
  for (const Followed* followed : ordered) {
    ranks.push_back(for_page ? state_of(followed->rank, cores_per_rank())
                             : summary_of(followed->rank, cores_per_rank()));
    ranks.back()["precursors"] = precursors_json(followed->rank);
    ranks.back()["weights"] = weights_json(followed->rank, pipeline_->weights(), this->ranks());
    ranks.back()["optimizer"] = optimizer;
    ranks.back()["update_spectra"] = spectra_json(followed->rank, pipeline_->spectra());
  }
  nlohmann::json all = {
      {"schema", 1}, {"run", options_.label}, {"state", name_of(state())}, {"ranks", ranks}};
  // Who started them cannot be read, so every launcher is told.
  if (refused_segments() > 0) all["refused"] = {{"segments", refused_segments()}, {"why", refusal_}};
  return all;
}

void Run::add_history(std::vector<HistoryTable>* tables) const {
  for (const auto& followed : followed_)
    if (followed->rank.current) foreshock::add_history(followed->rank, tables);
}

void Run::publish(Registry* registry) {
  publish_ranks(registry);
  publish_weights(options_.label, pipeline_->weights(), position_of(followed_), registry);
  publish_optimizer(options_.label, pipeline_->weights().optimizer(), registry);
  publish_spectra(options_.label, pipeline_->spectra(), registry);
  registry->set(Metric::kRunInfo, {options_.label, user_}, 1);
  for (RunState state : {RunState::kRunning, RunState::kFinished, RunState::kFailed, RunState::kPreempted})
    registry->set(Metric::kRunState, {options_.label, name_of(state)}, state == this->state());
  uint64_t refused = refusals_;
  for (const auto& followed : followed_)
    refused += followed->rank.refused_slots + followed->rank.refused_tensors;
  registry->set(Metric::kMonitorErrorsTotal, {options_.label, "segment"}, static_cast<double>(refused));
  save_watches();
  if (flagged_ != nullptr) publish_flagged(options_.label, flagged_->writer(), registry);
  if (record_ == nullptr) return;
  registry->set(Metric::kMonitorErrorsTotal, {options_.label, "record"},
                static_cast<double>(record_->errors()));
  if (const std::string error = record_->take_error(); !error.empty()) spdlog::error("{}", error);
}

void Run::publish_ranks(Registry* registry) {
  std::vector<const RankStatistics*> current;
  for (const auto& followed : followed_)
    if (followed->rank.current) current.push_back(&followed->rank);
  const LayerOwners owners(current);
  for (const auto& followed : followed_) {
    const RankStatistics& rank = followed->rank;
    if (!rank.current) continue;
    const auto is_shown = [&](const auto& label) { return owners.shows(rank, label); };
    if (!std::all_of(followed->shown_layers.begin(), followed->shown_layers.end(), is_shown)) {
      registry->clear_layers(options_.label,
                             std::to_string(rank.identity.rank));  // another rank has taken over
      followed->shown_layers.clear();
    }
    for (const auto& layer : rank.layers)
      if (is_shown(layer.first)) followed->shown_layers.insert(layer.first);
    publish_rank(rank, cores_per_rank(), registry, &owners);
    publish_precursors(rank, registry);
    publish_replicas(rank, pipeline_->weights().replicas(), registry);
  }
}

}  // namespace foreshock
