#include "agent/run.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/node.h"
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
// Of one run on one node, those of earlier attempts included. Each costs two descriptors while it lives.
constexpr size_t kMostSegments = 512;
constexpr uint64_t kMostRefusalsTold = 20;
constexpr size_t kMostExitsAtOnce = 64;
// There while lines wait that an agent that is killed would take along, and for good once some are lost.
constexpr const char* kRecordIncomplete = "record.incomplete";
constexpr const char* kRecordSpool = "record.spool";

bool is_better(RunState a, RunState b) {
  constexpr RunState kFromBest[] = {RunState::kRunning, RunState::kFinished, RunState::kPreempted,
                                    RunState::kFailed};
  return std::find(kFromBest, std::end(kFromBest), a) < std::find(kFromBest, std::end(kFromBest), b);
}

}  // namespace

std::unique_ptr<Run> Run::open(const RunOptions& options, std::unique_ptr<Directory> directory,
                               std::string* error) {
  error->clear();
  const int lock = directory->lock("agent.lock", LOCK_EX);  // one consumer per directory
  if (lock < 0) {
    const int why = errno;
    if (why != EWOULDBLOCK) *error = directory->path() + "/agent.lock: " + std::strerror(why);
    errno = why;
    return nullptr;
  }
  std::unique_ptr<Run> run(new Run(options, std::move(directory), lock));
  if (!options.record.empty()) {
    const int spool = run->directory_->open_file(kRecordSpool, O_RDWR | O_CREAT | O_APPEND);
    run->record_ = RecordWriter::open(options.record, error, spool);
    if (run->record_ == nullptr) return nullptr;
  }
  run->pipeline_ = std::make_unique<Pipeline>(run->record_.get(), options.histogram_bytes, options.alerts);
  if (!options.save_flagged.empty()) {
    run->flagged_ = std::make_unique<FlaggedSlices>(options.save_flagged, options.flagged_quota);
    run->pipeline_->set_flagged(run->flagged_.get());
  }
  if (run->directory_->status_of(WatchState::kFile)) run->pipeline_->set_followed_before();
  run->watch_state_.restore(*run->directory_, options.label, options.record, run->record_.get(),
                            &run->pipeline_->watches(), &run->pipeline_->told());
  run->facts_.restore(*run->directory_);
  for (const auto& [key, watch] : run->pipeline_->watches().all())
    run->pipeline_->adviser().restore(key.second, watch.states());
  run->record_was_incomplete_ = run->is_told_incomplete_ = run->directory_->has(kRecordIncomplete);
  // Its inode is taken now: the one that the launcher gives back at the end is the summary's.
  run->save_watches();
  return run;
}

Run::Run(const RunOptions& options, std::unique_ptr<Directory> directory, int lock)
    : options_(options),
      directory_(std::move(directory)),
      user_(user_name(directory_->owner())),
      lock_(lock),
      discovery_(*directory_) {
  advice_.rank = -1;  // of nobody
}

Run::~Run() {
  save_watches();
  close(lock_);
}

// The record first: the state says how far it goes.
void Run::save_watches() {
  if (pipeline_ == nullptr) return;
  flush_record();
  watch_state_.save(*directory_, record_.get(), pipeline_->watches());
  for (const auto& followed : followed_)
    if (!followed->is_finished()) facts_.note(followed->name, followed->rank);
  facts_.save(*directory_);
}

void Run::flush_record() {
  if (record_ == nullptr) return;
  record_->begin_flush();
  const bool is_incomplete = record_->is_incomplete() || record_was_incomplete_;
  if (is_incomplete == is_told_incomplete_) return;
  is_told_incomplete_ = is_incomplete;
  if (is_incomplete)
    directory_->write(kRecordIncomplete, "");
  else
    directory_->remove(kRecordIncomplete);
}

bool Run::poll() {
  bool busy = false;
  pipeline_->set_ranks_here(ranks_that_live());
  for (auto& followed : followed_) busy |= followed->poll();
  if (const Pipeline::Changes changes = pipeline_->take_changes(); changes.any) {
    advise();
    if (changes.rise) begin_burst();
  }
  return busy;
}

bool Run::discover(Registry* registry) {
  make_room();
  may_have_room_ = false;
  std::vector<Discovery::Refusal> refused;
  auto found = discovery_.look(kMostSegments - followed_.size(), &refused);
  for (auto& segment : found) follow(std::move(segment), registry);
  for (const Discovery::Refusal& refusal : refused) {
    refusal_ = refusal.why;
    refused_segments_ += !refusal.is_waiting;
    if (++refusals_ <= kMostRefusalsTold)
      spdlog::warn("{}: {} {}: {}", options_.label, refusal.name,
                   refusal.is_waiting ? "has to wait" : "refused", refusal.why);
  }
  return !found.empty();
}

// The oldest of those that a later process of the same rank has followed, when there are too many.
void Run::make_room() {
  if (followed_.size() < kMostSegments) return;
  const auto oldest = std::find_if(followed_.begin(), followed_.end(), [](const auto& each) {
    return each->is_finished() && !each->rank.current;
  });
  if (!told_of_limit_)
    spdlog::warn("{}: more than {} processes have trained; {}", options_.label, kMostSegments,
                 oldest != followed_.end() ? "the summary has the latest" : "further ones are not followed");
  told_of_limit_ = true;
  if (oldest != followed_.end()) followed_.erase(oldest);
}

void Run::follow(std::unique_ptr<segment::SegmentReader> segment, Registry* registry) {
  segment->set_agent_pid(static_cast<uint64_t>(getpid()));
  auto followed = std::make_unique<Followed>(std::move(segment), options_.label, pipeline_.get());
  RankStatistics& rank = followed->rank;
  facts_.take_up(followed->name, &followed->rank);
  spdlog::info("{}: rank {} in {}", options_.label, rank.identity.rank, label_text(followed->name));
  for (auto& other : followed_) {
    if (other->rank.identity.rank != rank.identity.rank) continue;
    // By the nonces: one that had to wait may have been replaced meanwhile.
    (other->name < followed->name ? other->rank : rank).current = false;
  }
  if (rank.current) registry->clear_rank(options_.label, std::to_string(rank.identity.rank));
  if (interval_ != 0) followed->segment().set_interval(interval_, 0);
  followed->segment().set_advice(advice_);
  followed_.push_back(std::move(followed));
  if (state_ != RunState::kRunning) state_ = worst_ = RunState::kRunning;  // it goes on
}

void Run::look_for_life(Clock::time_point now) {
  for (auto& followed : followed_) {
    if (followed->is_finished()) continue;
    followed->look(now);
    if (followed->rank.identity.late_ready == 1) announce(*followed);
    if (!followed->is_gone(now, kGoneAfter)) continue;
    // A launcher that lives may still tell how it ended; one of an earlier agent's time may have done so.
    if (!has_launcher(*directory_))
      finish(*followed, exit_of(*directory_, followed->launcher_id()).value_or(RunState::kFailed));
    else if (!followed->rank.current)
      retire(*followed);
  }
  advise();  // whose rank is gone is not heard any more
}

// Who a rank is becomes known a little after its segment: the line of the record waits for that.
void Run::announce(Followed& followed) {
  if (followed.announced) return;
  followed.announced = true;
  record_run(followed.rank, "started");
}

// A command that trains again and again would fill the memory of the node with what its processes leave. How
// one of them ended is told with its launcher's end.
void Run::retire(Followed& followed) {
  followed.finish(RunState::kRunning);
  may_have_room_ = true;
  announce(followed);
  record_run(followed.rank, "ended");
  for (const char* end : {".seg", ".ctl"}) directory_->remove(followed.name + end);
  facts_.forget(followed.name);
  followed.rank.keep_what_is_told();
}

RunState Run::end_of(const Followed& followed, RunState of_launcher) const {
  // A process that a later attempt has replaced did not end as that one does.
  return is_replaced(followed) ? RunState::kFailed : of_launcher;
}

void Run::finish(Followed& followed, RunState state) {
  followed.finish(end_of(followed, state));
  may_have_room_ = true;
  facts_.note(followed.name, followed.rank);  // the last that is learned of it
  announce(followed);
  record_run(followed.rank, "ended");
  note_end(state);
}

bool Run::is_replaced(const Followed& followed) const {
  const segment::Identity& one = followed.rank.identity;
  return std::any_of(followed_.begin(), followed_.end(), [&](const auto& other) {
    return other->rank.identity.rank == one.rank && other->rank.identity.attempt > one.attempt;
  });
}

// The state of the run is the worst end of any of its commands, once all have ended.
void Run::note_end(RunState state) {
  worst_ = std::max(worst_, state, is_better);
  if (std::all_of(followed_.begin(), followed_.end(), [](const auto& each) { return each->is_finished(); }))
    state_ = worst_;
}

RunState Run::state() const {
  const bool all_have_ended = std::all_of(followed_.begin(), followed_.end(), [](const auto& each) {
    return !each->rank.current || each->is_finished() || each->has_exited_well();
  });
  if (state_ != RunState::kRunning || followed_.empty() || !all_have_ended || discovery_.waiting() > 0)
    return state_;
  return std::max(worst_, RunState::kFinished, is_better);
}

// Whether nothing more is to come from the ranks of this launcher.
bool Run::drain(const LauncherExit& exit, Clock::time_point now) {
  bool waiting = false;
  for (auto& followed : followed_) {
    if (followed->launcher_id() != exit.launcher_id) continue;
    if (followed->is_finished()) {
      if (followed->rank.state == RunState::kRunning) followed->rank.state = end_of(*followed, exit.state);
      continue;
    }
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
  for (const LauncherExit& exit : unanswered_exits(*directory_)) {
    if (ended.size() >= kMostExitsAtOnce) break;
    const Clock::time_point seen = exits_seen_.emplace(exit.launcher_id, now).first->second;
    discover(registry);  // a segment born just before the end
    const bool is_drained = drain(exit, now);
    // Those that had to wait for a descriptor have those of the drained ones now.
    if (discovery_.waiting() > 0 && discover(registry)) continue;
    if (!is_drained && now - seen < kDrainAtMost) continue;
    note_end(exit.state);
    ended.push_back(exit);
  }
  return ended;
}

bool Run::is_needed() const {
  if (has_launcher(*directory_) || (may_have_room_ && discovery_.waiting() > 0)) return true;
  return std::any_of(followed_.begin(), followed_.end(),
                     [](const auto& each) { return !each->is_finished(); });
}

double Run::rank_seconds() const {
  double sum = 0;
  for (const auto& followed : followed_) sum += followed->rank.agent_seconds;
  return sum;
}

size_t Run::ranks() const {
  return static_cast<size_t>(
      std::count_if(followed_.begin(), followed_.end(), [](const auto& each) { return each->rank.current; }));
}

size_t Run::ranks_that_live() const {
  size_t live = 0, told = 0;
  bool has_ended = false;
  for (const auto& followed : followed_) {
    if (!followed->rank.current) continue;
    has_ended |= followed->is_finished();
    live += !followed->is_finished();
    told = std::max<size_t>(told, followed->rank.identity.local_ranks);
  }
  return has_ended ? live : std::max(live, told);  // the others are yet to come
}

int Run::cores_per_rank() const {
  return std::max(1, options_.cores / std::max(static_cast<int>(ranks()), 1));
}

void Run::record_run(const RankStatistics& rank, const char* state) {
  if (record_ != nullptr) record_->write(run_line(rank, state));
}

}  // namespace foreshock
