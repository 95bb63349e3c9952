// Follows one run on this node: its segments (the shared-memory file of each trainer process), and its
// launchers (the `foreshock run` processes that start trainers, write exit.<id>.json and wait for
// summary.<id>.json). Publishes the run's metrics and summaries, and sends the trainers advice.
#include "agent/run.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "agent/condition_list.h"
#include "agent/inventory.h"
#include "agent/node.h"
#include "agent/publish.h"
#include "agent/record_lines.h"
#include "agent/text.h"

namespace foreshock {

FollowedProcess::FollowedProcess(std::unique_ptr<segment::SegmentReader> segment, const std::string& run,
                                 Pipeline* pipeline)
    : name(segment->name()), segment_(std::move(segment)), pipeline_(pipeline), changed_(Clock::now()) {
  rank.run = run;
  pipeline_->refresh(*segment_, &rank);  // sets the rank's number, by which resume_from() finds its detectors
  pipeline_->resume_from(*segment_, &rank);
}

bool FollowedProcess::poll() { return !is_finished() && pipeline_->poll(*segment_, &rank); }

// Reads what a trainer that has ended left unread, and waits for no number that is still on a device.
void FollowedProcess::read_last_steps() {
  if (is_finished() || segment_->is_locked()) return;
  segment_->wait_no_more();
  poll();
}

// Reads the trainer's lock and counters. changed_: the last time when the lock was held or a counter changed.
void FollowedProcess::refresh(Clock::time_point now) {
  if (is_finished()) return;
  pipeline_->refresh(*segment_, &rank);
  if (rank.alive || !(rank.totals == last_totals_)) changed_ = now;
  last_totals_ = rank.totals;
}

bool FollowedProcess::is_gone(Clock::time_point now, Clock::duration quiet) const {
  return !rank.alive && now - changed_ >= quiet;
}

void FollowedProcess::finish(RunState state) {
  if (is_finished()) return;
  pipeline_->finish(*segment_, &rank);
  rank.state = state;
  segment_.reset();
}

namespace {

constexpr size_t kMostExitBytes = 4096;  // of an exit file

RunState state_from(const std::string& word) {
  if (word == "finished") return RunState::kFinished;
  if (word == "preempted") return RunState::kPreempted;
  if (word == "interrupted") return RunState::kInterrupted;
  return RunState::kFailed;
}

std::string exit_name(uint64_t launcher_id) { return "exit." + std::to_string(launcher_id) + ".json"; }

// Returns the id between "exit." and ".json", which have 5 characters each; 0 if the id is not a number.
uint64_t launcher_in(const std::string& name) {
  uint64_t launcher = 0;
  const char* end = name.data() + name.size() - 5;
  const auto [stop, error] = std::from_chars(name.data() + 5, end, launcher);
  return error == std::errc() && stop == end ? launcher : 0;
}

using namespace std::chrono_literals;

// A trainer is considered dead if its lock is free and its counters have not changed for this time.
constexpr auto kGoneAfter = 10s;
// Replaces kGoneAfter when the launcher's command has ended, or if a later process of the rank has started.
// The free lock then proves that the trainer is dead; its last stores become visible within this time.
constexpr auto kGoneAfterExit = 100ms;
// Ranks that still run at this time after their command has ended are summarised as they are.
constexpr auto kMaxDrainTime = 5s;
// Limit of the segments of one run on one node, of all attempts. A live segment needs two file descriptors.
constexpr size_t kMostSegments = 512;
// Limit of ended segments whose rank has a later process. The statistics of the oldest ones are dropped.
constexpr size_t kMostReplaced = 256;
// Time from the last exit(0) until the run counts as finished, since a command may start another training.
constexpr auto kFinishedAfter = 2s;
constexpr uint64_t kMostRefusalsLogged = 20;
// Launchers that one call of ended_launchers() returns. Limited, since a user can write many exit files.
constexpr size_t kMostExitsAtOnce = 64;
// This file exists while a kill of the agent would lose lines of the record, and forever once lines are lost.
constexpr const char* kRecordIncomplete = "record.incomplete";
constexpr const char* kNotices = "notices";  // lines that the launchers print, see add_notice()
constexpr size_t kMostNotices = 32, kMostNoticeBytes = 64 << 10;
constexpr const char* kRecordSpool = "record.spool";  // lines that are not in the record file yet

RunState worse_of(RunState a, RunState b) {
  constexpr RunState kFromBest[] = {RunState::kRunning, RunState::kFinished, RunState::kPreempted,
                                    RunState::kInterrupted, RunState::kFailed};
  return std::find(kFromBest, std::end(kFromBest), a) < std::find(kFromBest, std::end(kFromBest), b) ? b : a;
}

}  // namespace

std::string summary_name(uint64_t launcher_id) { return "summary." + std::to_string(launcher_id) + ".json"; }

std::optional<RunState> exit_of(const Directory& directory, uint64_t launcher_id) {
  if (launcher_id == 0 || !directory.has(exit_name(launcher_id))) return std::nullopt;
  const std::optional<std::string> text = directory.read(exit_name(launcher_id), kMostExitBytes);
  if (!text && is_shortage(errno)) return std::nullopt;  // no free descriptor: the file can be read later
  // A file that has no valid state counts as failed.
  const nlohmann::json json = nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("state") || !json["state"].is_string()) return RunState::kFailed;
  return state_from(json["state"]);
}

std::vector<LauncherExit> unanswered_exits(const Directory& directory) {
  std::vector<LauncherExit> exits;
  for (const std::string& name : directory.names("exit.", ".json")) {
    const uint64_t launcher = launcher_in(name);
    if (launcher == 0 || directory.has(summary_name(launcher))) continue;
    if (const std::optional<RunState> state = exit_of(directory, launcher))
      exits.push_back({launcher, *state});
  }
  return exits;
}

bool has_launcher(const Directory& directory) { return directory.is_locked("run.lock"); }

std::unique_ptr<Run> Run::open(const RunOptions& options, std::unique_ptr<Directory> directory,
                               std::string* error) {
  error->clear();
  const int lock = directory->lock("agent.lock", LOCK_EX);  // EWOULDBLOCK: another agent holds it
  if (lock < 0) {
    const int why = errno;
    if (why != EWOULDBLOCK) *error = directory->path() + "/agent.lock: " + std::strerror(why);
    errno = why;  // for the caller; the line above may have changed it
    return nullptr;
  }
  std::unique_ptr<Run> run(new Run(options, std::move(directory), lock));
  if (!options.record.empty()) {
    const int spool = run->directory_->open_file(kRecordSpool, O_RDWR | O_CREAT | O_APPEND);
    run->record_ = RecordWriter::open(options.record, error, spool, ::write, options.record_size);
    if (run->record_ == nullptr) return nullptr;
  }
  run->pipeline_ = std::make_unique<Pipeline>(run->record_.get(), options.histogram_bytes, options.alerts);
  if (!options.save_flagged.empty()) {
    run->flagged_ = std::make_unique<FlaggedSlices>(options.save_flagged, options.flagged_quota);
    run->pipeline_->set_flagged(run->flagged_.get());
  }
  // The file of the detectors' state, made by save_watches(), exists if an earlier agent followed the run.
  if (run->directory_->status_of(WatchState::kFile)) run->pipeline_->set_followed_before();
  run->watch_state_.restore(*run->directory_, options.label, options.record, run->record_.get(),
                            &run->pipeline_->watches(), &run->pipeline_->written_lines());
  run->facts_.restore(*run->directory_);
  for (const auto& [run_and_rank, watch] : run->pipeline_->watches().all())
    run->pipeline_->adviser().restore(run_and_rank.second, watch.states());
  std::istringstream notices(run->directory_->read(kNotices, kMostNoticeBytes).value_or(""));
  for (std::string line; std::getline(notices, line);) run->notices_.push_back(line);
  run->record_was_incomplete_ = run->has_incomplete_file_ = run->directory_->has(kRecordIncomplete);
  run->record_problem_ = run->directory_->read(kRecordIncomplete, kMostNoticeBytes).value_or("");
  // Creates the state's file now: at the end of the run, the summary may need the tmpfs' last free inode.
  run->save_watches();
  return run;
}

Run::Run(const RunOptions& options, std::unique_ptr<Directory> directory, int lock)
    : options_(options),
      directory_(std::move(directory)),
      user_(user_name(directory_->owner())),
      lock_(lock),
      discovery_(*directory_) {
  advice_.rank = -1;  // the advice is about no rank yet
}

Run::~Run() {
  save_watches(/*is_last=*/true);
  close(lock_);
}

// Saves the detectors' state and RankFacts. Flushes the record first, since the state contains its size.
void Run::save_watches(bool is_last) {
  if (pipeline_ == nullptr) return;  // open() failed before it created the pipeline
  flush_record();
  note_flagged_problem();
  write_notices();
  watch_state_.save(*directory_, record_.get(), pipeline_->watches(), is_last);
  for (const auto& followed : followed_)
    if (!followed->is_finished()) facts_.note(followed->name, followed->rank);
  facts_.save(*directory_);
}

void Run::flush_record() {
  if (record_ == nullptr) return;
  record_->begin_flush();
  note_record_state();
}

void Run::note_record_state() {
  const bool is_incomplete = record_->is_incomplete() || record_was_incomplete_;
  if (const std::string line = record_->take_error(); !line.empty()) {
    add_notice(line);
    record_problem_ = line;
  }
  if (!is_incomplete && !record_->is_failing()) record_problem_.clear();
  if (is_incomplete == has_incomplete_file_) return;
  has_incomplete_file_ = is_incomplete;
  if (is_incomplete)
    directory_->write(kRecordIncomplete, record_problem_);
  else
    directory_->remove(kRecordIncomplete);
}

void Run::note_flagged_problem() {
  if (flagged_ == nullptr) return;
  const std::string problem = flagged_->writer().counts().problem;
  if (!problem.empty()) add_notice("--save-flagged: " + problem);
}

void Run::add_notice(const std::string& line) {
  const std::string subject = line.substr(0, line.find(": ") + 1);  // "record /a/b.jsonl:"
  const auto last = std::find_if(notices_.rbegin(), notices_.rend(),
                                 [&](const std::string& notice) { return notice.starts_with(subject); });
  if (last != notices_.rend() && *last == line) return;
  spdlog::error("{}", line);
  if (notices_.size() >= kMostNotices) return;
  notices_.push_back(line);
  has_new_notices_ = true;
}

// Writes the notices for the launchers. A failed attempt is repeated by the next call.
void Run::write_notices() {
  if (!has_new_notices_) return;
  std::string text;
  for (const std::string& line : notices_) text += printable(line) + "\n";
  has_new_notices_ = !directory_->write(kNotices, text);
}

bool Run::poll() {
  bool found_data = false;
  pipeline_->set_ranks_here(expected_ranks());
  for (auto& followed : followed_) found_data |= followed->poll();
  charge_trainers();
  if (const Pipeline::Changes changes = pipeline_->take_changes(); changes.any) {
    advise();
    if (changes.warns) begin_burst();  // denser sampling, since a detector's level has become watch or warn
  }
  return found_data;
}

bool Run::discover(Registry* registry) {
  // At the limit, first finishes dead ranks, because drop_replaced() drops only finished ones.
  if (followed_.size() >= kMostSegments) finish_dead_ranks(Clock::now());
  drop_replaced();
  may_have_descriptors_ = false;
  std::vector<Discovery::Refusal> refused;
  auto found = discovery_.find_new(kMostSegments - followed_.size(), &refused);
  for (auto& segment : found) follow(std::move(segment), registry);
  for (const Discovery::Refusal& refusal : refused) {
    refusal_ = refusal.why;
    refused_segments_ += !refusal.is_waiting;
    if (++refusals_ <= kMostRefusalsLogged)
      spdlog::warn("{}: {} {}: {}", options_.label, refusal.name,
                   refusal.is_waiting ? "has to wait" : "refused", refusal.why);
  }
  return !found.empty();
}

// If there are too many segments, drops the oldest ended ones whose rank has a later process.
void Run::drop_replaced() {
  const auto can_drop = [](const auto& each) { return each->is_finished() && !each->rank.current; };
  auto droppable = static_cast<size_t>(std::count_if(followed_.begin(), followed_.end(), can_drop));
  const bool is_full = followed_.size() >= kMostSegments;
  if (droppable <= kMostReplaced && !is_full) return;
  if (!has_warned_of_limit_)
    spdlog::warn("{}: more than {} processes have trained; {}", options_.label, followed_.size(),
                 droppable > 0 ? "the summary has the latest" : "further ones are not followed");
  has_warned_of_limit_ = true;
  // If followed_ is full, drops many at once, so that the next new segments need no further call.
  const size_t kept = is_full ? kMostReplaced / 2 : kMostReplaced;
  std::erase_if(followed_, [&](const auto& each) {
    if (droppable <= kept || !can_drop(each)) return false;
    --droppable;
    ++processes_left_out_;
    return true;
  });
}

void Run::follow(std::unique_ptr<segment::SegmentReader> segment, Registry* registry) {
  segment->set_agent_pid(static_cast<uint64_t>(getpid()));
  auto followed = std::make_unique<FollowedProcess>(std::move(segment), options_.label, pipeline_.get());
  RankStatistics& rank = followed->rank;
  facts_.restore_rank(followed->name, &followed->rank);
  spdlog::info("{}: rank {} in {}", options_.label, rank.identity.rank, label_text(followed->name));
  for (auto& other : followed_) {
    if (other->rank.identity.rank != rank.identity.rank) continue;
    // Names of one rank are <rank>-<nonce>, and later processes have larger nonces. The segment that is found
    // last may belong to the earlier process, if it had to wait for a file descriptor.
    RankStatistics& replaced = other->name < followed->name ? other->rank : rank;
    const bool is_replaced_now = std::exchange(replaced.current, false);
    replaced.watch = nullptr;
    replaced.conditions = nullptr;
    // The last steps of the earlier process must be read before the first step of the new one.
    if (!is_replaced_now || &replaced != &other->rank) continue;
    other->read_last_steps();
    const LayerOwners none({});
    publish_rank(replaced, cores_per_rank(), registry, &none);
  }
  // The series of the replaced process are removed; counters go on from its totals.
  if (rank.current) registry->clear_rank(options_.label, std::to_string(rank.identity.rank));
  if (interval_ != 0) followed->segment().set_interval(interval_, /*from_step=*/0);
  followed->segment().set_advice(advice_);
  followed_.push_back(std::move(followed));
  has_verdict_ = false;
  // An earlier agent has reported the findings that facts_ and the detectors have brought back.
  if (followed_.back()->rank.taken_up_step >= 0)
    for (const Finding& finding : findings_of(0).list) known_findings_.insert(key_of(finding));
  if (state_ != RunState::kRunning) state_ = worst_ = RunState::kRunning;  // the run continues
}

void Run::finish_dead_ranks(Clock::time_point now) {
  refreshed_at_ = now;
  for (auto& followed : followed_) {
    if (followed->is_finished()) continue;
    followed->refresh(now);
    // Before its first step, a process is announced once its identity is complete.
    if (followed->rank.identity.late_ready == 1) pipeline_->announce(&followed->rank);
    const bool has_later_process = !followed->rank.current;  // of the same rank, see follow()
    if (!followed->is_gone(now, has_later_process ? kGoneAfterExit : kGoneAfter)) continue;
    // If a launcher runs, drain() finishes the rank when the launcher has reported the end of its command.
    if (!has_launcher(*directory_))
      finish(*followed, exit_of(*directory_, followed->launcher_id()).value_or(RunState::kFailed));
    else if (has_later_process)
      retire(*followed);
  }
  // Without a launcher, no summary is written.
  if (state_ != RunState::kRunning && !has_verdict_ && !has_launcher(*directory_)) record_verdict(0, state_);
  advise();  // without the detectors of ranks that have ended
}

// Finishes a process whose rank has a later process, and removes its segment at once: a command that trains
// again and again would fill the node's shared memory. rank.state stays kRunning until the launcher reports
// how its command ended; then drain() sets it.
void Run::retire(FollowedProcess& followed) {
  followed.finish(RunState::kRunning);
  may_have_descriptors_ = true;
  pipeline_->announce(&followed.rank);
  pipeline_->record_process(followed.rank, "ended");
  for (const char* suffix : {".seg", ".ctl"}) directory_->remove(followed.name + suffix);
  facts_.forget(followed.name);
  followed.rank.shrink_to_summary();
}

RunState Run::final_state_of(const FollowedProcess& followed, RunState command_end) const {
  // A process that was replaced by a later attempt has failed, even if the later attempt ends well.
  return is_replaced(followed) ? RunState::kFailed : command_end;
}

void Run::finish(FollowedProcess& followed, RunState command_end) {
  followed.finish(final_state_of(followed, command_end));
  may_have_descriptors_ = true;
  facts_.note(followed.name, followed.rank);  // the statistics are final after finish()
  pipeline_->announce(&followed.rank);
  pipeline_->record_process(followed.rank, "ended");
  set_final_state(command_end);
}

// Whether a later attempt of the job has the same rank. A second training in one attempt does not count.
bool Run::is_replaced(const FollowedProcess& followed) const {
  const segment::Identity& replaced = followed.rank.identity;
  return std::any_of(followed_.begin(), followed_.end(), [&](const auto& other) {
    return other->rank.identity.rank == replaced.rank && other->rank.identity.attempt > replaced.attempt;
  });
}

// Once all processes have ended, the state of the run is the worst state of any of its commands.
void Run::set_final_state(RunState state) {
  worst_ = worse_of(worst_, state);
  if (std::all_of(followed_.begin(), followed_.end(), [](const auto& each) { return each->is_finished(); }))
    state_ = worst_;
}

RunState Run::state() const {
  const bool all_have_ended = std::all_of(followed_.begin(), followed_.end(), [this](const auto& each) {
    return !each->rank.current || each->is_finished() ||
           (each->has_exited_well() && each->is_gone(refreshed_at_, kFinishedAfter));
  });
  // A segment that discover() has not opened yet may belong to a training that still runs.
  if (state_ != RunState::kRunning || followed_.empty() || !all_have_ended || discovery_.waiting() > 0 ||
      discovery_.untried() > 0)
    return state_;
  return worse_of(worst_, RunState::kFinished);
}

// Reads the remaining data of this launcher's ranks. Returns whether all of it has been read.
bool Run::drain(const LauncherExit& exit, Clock::time_point now) {
  bool waiting = false;
  for (auto& followed : followed_) {
    if (followed->launcher_id() != exit.launcher_id) continue;
    if (followed->is_finished()) {
      // Only retire() leaves a finished process in the state kRunning.
      if (followed->rank.state == RunState::kRunning)
        followed->rank.state = final_state_of(*followed, exit.state);
      continue;
    }
    followed->poll();
    followed->refresh(now);
    if (followed->is_gone(now, kGoneAfterExit))
      finish(*followed, exit.state);
    else
      waiting = true;
  }
  return !waiting;
}

// Returns the launchers whose command has ended and whose ranks are read to the end, or take too long.
std::vector<LauncherExit> Run::ended_launchers(Clock::time_point now, Registry* registry) {
  std::vector<LauncherExit> ended;
  for (const LauncherExit& exit : unanswered_exits(*directory_)) {
    if (ended.size() >= kMostExitsAtOnce) break;
    const Clock::time_point seen = exits_seen_.emplace(exit.launcher_id, now).first->second;
    discover(registry);  // a segment may have been created just before the exit
    const bool is_drained = drain(exit, now);
    // drain() has closed descriptors. Segments that can be opened now are drained by the next call.
    if (discovery_.waiting() > 0 && discover(registry)) continue;
    if (!is_drained && now - seen < kMaxDrainTime) continue;
    set_final_state(exit.state);
    ended.push_back(exit);
  }
  return ended;
}

// Whether a launcher is alive, a segment is not finished, or a waiting one may get its descriptor now.
bool Run::is_needed() const {
  if (has_launcher(*directory_) || (may_have_descriptors_ && discovery_.waiting() > 0)) return true;
  return std::any_of(followed_.begin(), followed_.end(),
                     [](const auto& each) { return !each->is_finished(); });
}

double Run::rank_seconds() const {
  double sum = 0;
  for (const auto& followed : followed_) sum += followed->rank.agent_seconds;
  return sum;
}

// Counts each rank once: of several processes with the same rank, only the last is `current`.
size_t Run::ranks() const {
  return static_cast<size_t>(
      std::count_if(followed_.begin(), followed_.end(), [](const auto& each) { return each->rank.current; }));
}

size_t Run::expected_ranks() const {
  size_t live = 0, expected = 0;
  bool has_ended = false;
  for (const auto& followed : followed_) {
    if (!followed->rank.current) continue;
    has_ended |= followed->is_finished();
    live += !followed->is_finished();
    expected = std::max<size_t>(expected, followed->rank.identity.local_ranks);
  }
  // Before the first rank has ended, missing ranks may still start.
  return has_ended ? live : std::max(live, expected);
}

int Run::cores_per_rank() const {
  return std::max(1, options_.cores / std::max(static_cast<int>(ranks()), 1));
}

// The agent's cost counts as slowdown, so the trainers deduct `ns` from their budgets. A separate grant pays
// for the first look (the first samples of a process), so `ns` excludes it and only `slices_ns` includes it.
void Run::charge_trainers() {
  // The agent's CPU time keeps one of a rank's cores busy, so it slows the rank by at most 1/cores of it.
  const auto slowdown_ns = [cores = cores_per_rank()](double cpu_seconds) {
    return static_cast<uint64_t>(1e9 * std::max(cpu_seconds, 0.0) / cores);
  };
  for (const auto& followed : followed_) {
    if (followed->is_finished()) continue;
    const RankStatistics& rank = followed->rank;
    const double after_first_look = rank.agent_seconds - rank.first_look.agent_seconds;
    followed->segment().set_agent_cost(
        {.ns = slowdown_ns(after_first_look),
         .slices_ns = slowdown_ns(rank.judging_seconds + rank.first_look.agent_seconds),
         .slices = rank.row_slices_handled,
         .tensors_ns = slowdown_ns(rank.tensor_seconds)});
  }
}

std::vector<Condition> Run::conditions() const {
  const RunConditions* found = pipeline_->watches().conditions_of(options_.label);
  return found != nullptr ? conditions_of(*found) : std::vector<Condition>();
}

int64_t Run::last_step() const {
  int64_t step = -1;
  for (const auto& followed : followed_)
    if (followed->rank.last_step.sequence != 0)  // 0: the rank has ended no step yet
      step = std::max<int64_t>(step, followed->rank.last_step.step);
  return step;
}

Run::Findings Run::findings_of(uint64_t launcher_id) const {
  Ranks ranks;
  for (const FollowedProcess* followed : processes_of(launcher_id)) ranks.push_back(&followed->rank);
  const PassTotals passes[2] = {totals_of(ranks, 0), totals_of(ranks, 1)};
  std::vector<Finding> list = foreshock::findings_of(ranks, &pipeline_->weights(), passes);
  const Verdict verdict = verdict_of(list, inventory_of(ranks), passes);
  return {std::move(list), verdict};
}

void Run::note_findings() {
  for (const Finding& finding : findings_of(0).list) {
    if (!known_findings_.insert(key_of(finding)).second) continue;
    const FindingLine line = finding_line(options_.label, finding, "began", last_step());
    if (record_ != nullptr) record_->write(line);
    if (options_.alerts != nullptr) options_.alerts->add(line, Clock::now());
  }
}

void Run::record_verdict(uint64_t launcher_id, RunState state) {
  has_verdict_ = true;
  if (record_ == nullptr || followed_.empty()) return;
  const Findings findings = findings_of(launcher_id);
  for (const Finding& finding : findings.list)
    record_->write(finding_line(options_.label, finding, "final", last_step()));
  VerdictLine line;
  line.run = options_.label;
  line.state = name_of(state);
  line.time = seconds_since_1970();
  line.verdict = findings.verdict.headline;
  if (last_step() >= 0) line.step = last_step();
  line.findings = findings.list.size();
  const AttentionInventory layers = inventory_of(summary_input(launcher_id).ranks);
  if (!layers.gaps.empty()) line.gap = text_of(layers.gaps.front());
  line.replicas_compared = pipeline_->weights().replicas().comparisons();
  record_->write(line);
}

// The part of Run that publishes: metrics, the document for the status page, the summaries for launchers.

namespace {

constexpr auto kMaxFlaggedWait = 2s;     // longest wait of a summary for the files of the last flagged slices
constexpr size_t kMostRanksShown = 128;  // on the page

// Returns the newest step of any rank and the longest interval of weight snapshots.
RunPosition position_of(const std::vector<std::unique_ptr<FollowedProcess>>& all) {
  RunPosition position;
  for (const auto& followed : all) {
    const RankStatistics& rank = followed->rank;
    if (!rank.current || rank.last_step.sequence == 0) continue;  // 0: the rank has ended no step yet
    position.step = std::max(position.step, rank.last_step.step);
    position.interval = std::max(position.interval, rank.tensors.interval);
  }
  return position;
}

}  // namespace

void Run::write_summary(const LauncherExit& exit) {
  SummaryInput input = summary_input(exit.launcher_id);
  input.run = options_.run_id;  // without the prefix <user>/ of options_.label, which this user does not need
  input.state = exit.state;
  nlohmann::json summary = document(exit.launcher_id, /*for_page=*/false);
  summary["run"] = options_.run_id;
  summary["state"] = name_of(exit.state);
  summary["other_ranks"] = std::count_if(followed_.begin(), followed_.end(), [&exit](const auto& each) {
    return each->launcher_id() != exit.launcher_id;
  });
  if (flagged_ != nullptr) {
    flagged_->writer().wait(kMaxFlaggedWait);
    summary["flagged"] = flagged_json(flagged_->writer());
    input.flagged = flagged_->writer().counts();
    input.flagged_directory = flagged_->writer().path();
  }
  note_findings();
  record_verdict(exit.launcher_id, exit.state);
  if (record_ != nullptr) {
    summary["record_complete"] = record_->flush() && !record_->is_incomplete() && !record_was_incomplete_;
    note_record_state();
  }
  note_flagged_problem();
  write_notices();  // before the summary, for which the launcher waits
  summary["notices"] = notices_;
  input.record_problem = record_problem_;
  summary["text"] = summary_text(input);
  if (directory_->write(summary_name(exit.launcher_id), text_of(summary, /*indent=*/2) + "\n"))
    exits_seen_.erase(exit.launcher_id);
  else
    spdlog::error("the summary of launcher {} cannot be written into {}", exit.launcher_id,
                  directory_->path());
}

// Returns the processes of a launcher in the order of their ranks; `launcher_id` 0: those of all launchers.
std::vector<const FollowedProcess*> Run::processes_of(uint64_t launcher_id) const {
  std::vector<const FollowedProcess*> ordered;
  for (const auto& followed : followed_)
    if (launcher_id == 0 || followed->launcher_id() == launcher_id) ordered.push_back(followed.get());
  std::stable_sort(ordered.begin(), ordered.end(), [](const FollowedProcess* a, const FollowedProcess* b) {
    return a->rank.identity.rank < b->rank.identity.rank;
  });
  return ordered;
}

SummaryInput Run::summary_input(uint64_t launcher_id) const {
  SummaryInput input;
  input.run = options_.label;
  input.state = state();
  for (const FollowedProcess* followed : processes_of(launcher_id)) input.ranks.push_back(&followed->rank);
  input.weights = &pipeline_->weights();
  input.ranks_here = ranks();
  input.cores_per_rank = cores_per_rank();
  input.refused_segments = refused_segments();
  input.refusal = refusal_;
  input.processes_left_out = processes_left_out_;
  input.record = options_.record;
  input.record_problem = record_problem_;
  return input;
}

nlohmann::json Run::document(uint64_t launcher_id, bool for_page) const {
  nlohmann::json ranks = nlohmann::json::array();
  std::vector<const FollowedProcess*> ordered = processes_of(launcher_id);
  // If the page cannot show all processes, it drops replaced ones first, then the highest ranks.
  if (for_page && ordered.size() > kMostRanksShown)
    std::erase_if(ordered, [](const FollowedProcess* followed) { return !followed->rank.current; });
  if (for_page && ordered.size() > kMostRanksShown) ordered.resize(kMostRanksShown);
  const nlohmann::json optimizer = optimizer_json(pipeline_->weights().optimizer());  // covers all ranks
  for (const FollowedProcess* followed : ordered) {
    ranks.push_back(for_page ? state_of(followed->rank, cores_per_rank())
                             : summary_of(followed->rank, cores_per_rank()));
    ranks.back()["precursors"] = precursors_json(followed->rank);
    ranks.back()["weights"] = weights_json(followed->rank, pipeline_->weights(), this->ranks());
    ranks.back()["optimizer"] = optimizer;
  }
  const Findings findings = findings_of(launcher_id);
  nlohmann::json all = {{"schema", 1},
                        {"run", options_.label},
                        {"state", name_of(state())},
                        {"verdict", findings.verdict.headline},
                        {"healthy", findings.verdict.is_healthy},
                        {"findings", findings_json(findings.list)},
                        {"ranks", ranks}};
  const SummaryInput input = summary_input(launcher_id);
  all["attention_layers"] = inventory_json(inventory_of(input.ranks));
  all["conditions"] = conditions_json(conditions());
  if (for_page) {
    all["text"] = summary_text(input);
    all["line"] = summary_line(input);
  }
  // The launcher of a refused segment is unknown, so the summaries for all launchers have the count.
  if (refused_segments() > 0) all["refused"] = {{"segments", refused_segments()}, {"why", refusal_}};
  all["processes_left_out"] = processes_left_out_;
  all["notices"] = notices_;
  return all;
}

void Run::add_history(std::vector<HistoryTable>* tables) const {
  for (const auto& followed : followed_)
    if (followed->rank.current) foreshock::add_history(followed->rank, tables);
}

void Run::publish(Registry* registry) {
  note_findings();
  publish_ranks(registry);
  publish_weights(options_.label, pipeline_->weights(), position_of(followed_), registry);
  publish_optimizer(options_.label, pipeline_->weights().optimizer(), registry);
  publish_conditions(options_.label, state() == RunState::kRunning ? conditions() : std::vector<Condition>(),
                     registry);
  registry->set(Metric::kRunInfo, {options_.label, user_}, 1);
  for (RunState state : {RunState::kRunning, RunState::kFinished, RunState::kFailed, RunState::kPreempted,
                         RunState::kInterrupted})
    registry->set(Metric::kRunState, {options_.label, name_of(state)}, state == this->state());
  uint64_t refused = refusals_;  // segments, and below the slots and tensors that the parser refused
  for (const auto& followed : followed_)
    refused += followed->rank.refused_slots + followed->rank.refused_tensors;
  registry->set(Metric::kMonitorErrorsTotal, {options_.label, "segment"}, static_cast<double>(refused));
  save_watches();
  if (flagged_ != nullptr) publish_flagged(options_.label, flagged_->writer(), registry);
  if (record_ == nullptr) return;
  registry->set(Metric::kMonitorErrorsTotal, {options_.label, "record"},
                static_cast<double>(record_->errors()));
}

void Run::publish_ranks(Registry* registry) {
  std::vector<const RankStatistics*> current;
  for (const auto& followed : followed_)
    if (followed->rank.current) current.push_back(&followed->rank);
  const LayerOwners owners(current);  // of several replicas of a layer, one rank exports its series
  for (const auto& followed : followed_) {
    const RankStatistics& rank = followed->rank;
    if (!rank.current) continue;
    const auto is_exported = [&](const auto& label) { return owners.exports(rank, label); };
    if (!std::all_of(followed->exported_layers.begin(), followed->exported_layers.end(), is_exported)) {
      // Another rank now exports some of the layers that this rank exported before.
      registry->clear_layers(options_.label, std::to_string(rank.identity.rank));
      followed->exported_layers.clear();
    }
    for (const auto& layer : rank.layers)
      if (is_exported(layer.first)) followed->exported_layers.insert(layer.first);
    publish_rank(rank, cores_per_rank(), registry, &owners);
    publish_precursors(rank, registry);
    publish_replicas(rank, pipeline_->weights().replicas(), registry);
  }
}

// The part of Run that sends the strongest detector signal to the trainers as advice for their scripts.

namespace {

// The time that the agent, at the lowest CPU priority, may need to write new advice for all ranks.
constexpr double kAheadSeconds = 0.25;
constexpr int64_t kMostAhead = 64;  // steps

// Returns the number of steps in kAheadSeconds, at most kMostAhead. 0 seconds (unknown) give kMostAhead.
int64_t steps_ahead(double step_seconds) {
  if (!(step_seconds > kAheadSeconds / kMostAhead)) return kMostAhead;
  return static_cast<int64_t>(kAheadSeconds / step_seconds);
}

}  // namespace

// Returns the first step in which scripts should act on new advice. With several ranks it is so far ahead
// that every rank can read the advice before it.
int64_t Run::step_to_act_from() const {
  const int64_t unreached = effective_step();  // a step that no rank has reached
  if (ranks() < 2) return unreached;
  // rank.step_seconds is the time between two reported steps, whose numbers differ by `stride`.
  double step_seconds = 0;  // of the slowest rank
  for (const auto& followed : followed_)
    if (!followed->is_finished())
      step_seconds = std::max(step_seconds, mean_of(followed->rank.step_seconds).value_or(0) /
                                                static_cast<double>(followed->rank.stride.steps()));
  // The trainers choose their step numbers, so the sum could overflow.
  return std::min(unreached, INT64_MAX - kMostAhead) + steps_ahead(step_seconds);
}

void Run::advise() {
  std::set<int64_t> ranks;
  for (const auto& followed : followed_)
    if (!followed->is_finished()) ranks.insert(followed->rank.identity.rank);
  const Signal signal = pipeline_->adviser().strongest(ranks);
  if (signal == advised_signal_) return;
  advised_signal_ = signal;
  advice_ = {};
  advice_.level = static_cast<uint32_t>(signal.level);
  advice_.rank = static_cast<int32_t>(signal.rank);
  advice_.since_step = signal.since_step;
  advice_.from_step = step_to_act_from();
  advice_.score = signal.score;
  std::snprintf(advice_.detector, sizeof advice_.detector, "%s", signal.detector.c_str());
  std::snprintf(advice_.layer, sizeof advice_.layer, "%s", signal.layer.c_str());
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_advice(advice_);
}

}  // namespace foreshock
