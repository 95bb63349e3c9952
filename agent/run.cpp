#include "agent/run.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/publish.h"
#include "agent/record_lines.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;

// Unlocked and unmoved for so long: the trainer is gone, though nobody said so.
constexpr auto kGoneAfter = 10s;
// Its launcher said that the command has ended: then unlocked is enough, once a last store has had time to
// land.
constexpr auto kGoneAfterExit = 100ms;
// Ranks of an ended command that still run after this are summarised as they are.
constexpr auto kDrainAtMost = 5s;

}  // namespace

std::unique_ptr<Run> Run::open(const RunOptions& options, std::string* error) {
  // One consumer per directory.
  const int lock = ::open((options.directory + "/agent.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
    error->clear();
    if (lock >= 0) close(lock);
    return nullptr;
  }
  std::unique_ptr<Run> run(new Run(options, lock));
  if (!options.record.empty()) {
    run->record_ = RecordWriter::open(options.record, error);
    if (run->record_ == nullptr) return nullptr;
  }
  run->pipeline_ = std::make_unique<Pipeline>(run->record_.get());
  return run;
}

Run::Run(const RunOptions& options, int lock)
    : options_(options), lock_(lock), discovery_(options.directory) {}

Run::~Run() { close(lock_); }

bool Run::poll() {
  bool busy = false;
  for (auto& followed : followed_) busy |= followed->poll();
  return busy;
}

void Run::discover(Registry* registry) {
  std::vector<Discovery::Refusal> refused;
  for (auto& segment : discovery_.look(&refused)) follow(std::move(segment), registry);
  for (const Discovery::Refusal& refusal : refused) {
    ++refused_segments_;
    spdlog::warn("{} refused: {}", refusal.name, refusal.why);
  }
}

void Run::follow(std::unique_ptr<segment::SegmentReader> segment, Registry* registry) {
  segment->set_agent_pid(static_cast<uint64_t>(getpid()));
  auto followed = std::make_unique<Followed>(std::move(segment), options_.run_id, pipeline_.get());
  const RankStatistics& rank = followed->rank;
  spdlog::info("rank {} in {}", rank.identity.rank, followed->segment().name());
  for (auto& other : followed_)
    if (other->rank.identity.rank == rank.identity.rank) other->rank.current = false;
  registry->clear_rank(options_.run_id, std::to_string(rank.identity.rank));
  if (interval_ != 0) followed->segment().set_interval(interval_, 0);
  followed_.push_back(std::move(followed));
}

void Run::look_for_life(Clock::time_point now) {
  for (auto& followed : followed_) {
    if (followed->is_finished()) continue;
    followed->look(now);
    if (followed->rank.identity.late_ready == 1) announce(*followed);
    // Nobody told how it ended. A launcher that lives may still do so.
    if (followed->is_gone(now, kGoneAfter) && !has_launcher(options_.directory))
      finish(*followed, RunState::kFailed);
  }
}

// Who a rank is becomes known a little after its segment: the line of the record waits for that.
void Run::announce(Followed& followed) {
  if (followed.announced) return;
  followed.announced = true;
  record_run(followed.rank, "started");
}

void Run::finish(Followed& followed, RunState state) {
  followed.finish(state);
  announce(followed);
  record_run(followed.rank, "ended");
}

// Whether nothing more is to come from the ranks of this launcher.
bool Run::drain(const LauncherExit& exit, Clock::time_point now) {
  bool waiting = false;
  for (auto& followed : followed_) {
    if (followed->launcher_pid() != exit.launcher_pid || followed->is_finished()) continue;
    followed->poll();
    followed->look(now);
    if (followed->is_gone(now, kGoneAfterExit))
      finish(*followed, exit.state);
    else
      waiting = true;
  }
  return !waiting;
}

std::vector<LauncherExit> Run::ended_launchers(Clock::time_point now, Registry* registry) {
  std::vector<LauncherExit> ended;
  for (const LauncherExit& exit : unanswered_exits(options_.directory)) {
    auto seen = std::find_if(exits_seen_.begin(), exits_seen_.end(),
                             [&](const auto& each) { return each.first == exit.launcher_pid; });
    if (seen == exits_seen_.end()) seen = exits_seen_.insert(exits_seen_.end(), {exit.launcher_pid, now});
    discover(registry);  // a segment born just before the end
    if (!drain(exit, now) && now - seen->second < kDrainAtMost) continue;
    if (std::all_of(followed_.begin(), followed_.end(), [](const auto& each) { return each->is_finished(); }))
      state_ = exit.state;
    ended.push_back(exit);
  }
  return ended;
}

void Run::answer(const LauncherExit& exit) {
  if (record_ != nullptr) record_->flush();
  nlohmann::json summary = document(exit.launcher_pid, false);
  summary["state"] = name_of(exit.state);
  if (!write_file(summary_path(options_.directory, exit.launcher_pid), text_of(summary, 2) + "\n"))
    spdlog::error("the summary of launcher {} does not fit into {}", exit.launcher_pid, options_.directory);
}

nlohmann::json Run::document(uint64_t launcher_pid, bool for_page) const {
  nlohmann::json ranks = nlohmann::json::array();
  std::vector<const Followed*> ordered;
  for (const auto& followed : followed_)
    if (launcher_pid == 0 || followed->launcher_pid() == launcher_pid) ordered.push_back(followed.get());
  std::stable_sort(ordered.begin(), ordered.end(), [](const Followed* a, const Followed* b) {
    return a->rank.identity.rank < b->rank.identity.rank;
  });
  for (const Followed* followed : ordered)
    ranks.push_back(for_page ? state_of(followed->rank, cores_per_rank())
                             : summary_of(followed->rank, cores_per_rank()));
  return {{"schema", 1}, {"run", options_.run_id}, {"state", name_of(state_)}, {"ranks", ranks}};
}

void Run::publish(Registry* registry) {
  for (const auto& followed : followed_)
    if (followed->rank.current) publish_rank(followed->rank, cores_per_rank(), registry);
  for (RunState state : {RunState::kRunning, RunState::kFinished, RunState::kFailed, RunState::kPreempted})
    registry->set(Metric::kRunState, {options_.run_id, name_of(state)}, state == state_);
  uint64_t refused = refused_segments_;
  for (const auto& followed : followed_) refused += followed->rank.refused_slots;
  registry->set(Metric::kMonitorErrorsTotal, {options_.run_id, "segment"}, static_cast<double>(refused));
  if (record_ == nullptr) return;
  record_->flush();
  registry->set(Metric::kMonitorErrorsTotal, {options_.run_id, "record"},
                static_cast<double>(record_->errors()));
  if (const std::string error = record_->take_error(); !error.empty()) spdlog::error("{}", error);
}

bool Run::is_needed() const {
  if (has_launcher(options_.directory)) return true;
  return std::any_of(followed_.begin(), followed_.end(),
                     [](const auto& each) { return !each->is_finished(); });
}

int Run::cores_per_rank() const {
  int ranks = 0;
  for (const auto& followed : followed_) ranks += followed->rank.current;
  return std::max(1, options_.cores / std::max(ranks, 1));
}

void Run::record_run(const RankStatistics& rank, const char* state) {
  if (record_ != nullptr) record_->write(run_line(rank, state));
}

}  // namespace foreshock
