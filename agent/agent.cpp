#include "agent/agent.h"

#include <fcntl.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

#include "agent/cadence.h"
#include "agent/discovery.h"
#include "agent/followed.h"
#include "agent/launcher_files.h"
#include "agent/publish.h"
#include "agent/record_lines.h"
#include "exporters/http_server.h"
#include "shadow/reference.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;
using Clock = Followed::Clock;

constexpr std::chrono::milliseconds kShortestSleep = 1ms;
constexpr std::chrono::milliseconds kLongestSleep = 32ms;
constexpr auto kPublishEvery = 1s;
constexpr auto kCadenceEvery = 2s;
constexpr auto kDiscoverEvery = 200ms;
// Unlocked and unmoved for so long: the trainer is gone, though nobody said so.
constexpr auto kGoneAfter = 10s;
// Its launcher said that the command has ended: then unlocked is enough, once a last store has had time to
// land.
constexpr auto kGoneAfterExit = 100ms;
// Ranks of an ended command that still run after this are summarised as they are.
constexpr auto kDrainAtMost = 5s;
// Steps between the decision on an interval and its taking effect: every rank of the node must still be
// before it.
constexpr int64_t kStepsAhead = 4;

volatile std::sig_atomic_t g_stop = 0;
void ask_to_stop(int) { g_stop = 1; }

// The shadow work gives way to everything else on the node. The HTTP thread was started before and keeps its
// own value. Nice alone is void between sessions where the kernel groups them (autogroup), so the group gets
// some too; but the HTTP thread is in it: on two busy cores one scrape in ten took over 100 ms (at most 535)
// with 19, and none over 50 ms with 10 (Linux 6.18).
void be_nice() {
  setpriority(PRIO_PROCESS, 0, 19);
  std::ofstream("/proc/self/autogroup") << "10";
}

// Cores this node's ranks and the agent share: affinity, bounded by the cgroup's quota.
int cores_of_node() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (limit >> quota >> period && period > 0) cores = std::clamp(static_cast<int>(quota / period), 1, cores);
  return cores;
}

// Names come from the trainer and may be no UTF-8: then a replacement character, not an exception.
std::string text_of(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

double process_cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options), discovery_(options.directory), cores_(cores_of_node()) {}

  int run();

 private:
  int fail(const std::string& error);
  bool take_directory();
  bool say_address();
  void loop();
  void discover();
  void follow(std::unique_ptr<segment::SegmentReader> segment);
  void look_for_life(Clock::time_point now);
  void answer_launchers(Clock::time_point now);
  void announce(Followed& followed);
  void finish(Followed& followed, RunState state);
  nlohmann::json document(uint64_t launcher_pid, bool for_page) const;
  void publish();
  void choose_cadence();
  bool is_needed() const;
  int cores_per_rank() const;
  void record_run(const RankStatistics& rank, const char* state);

  const AgentOptions options_;
  Discovery discovery_;
  const int cores_;
  std::unique_ptr<RecordWriter> record_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::unique_ptr<Followed>> followed_;
  Registry registry_;
  HttpServer server_;
  RunState state_ = RunState::kRunning;
  uint64_t refused_segments_ = 0;
  uint64_t interval_ = 0;  // what the ranks were told; 0: nothing yet
  double cpu_at_cadence_ = 0;
  uint64_t sampled_at_cadence_ = 0;
  std::vector<std::pair<uint64_t, Clock::time_point>> exits_seen_;
};

int Agent::fail(const std::string& error) {
  std::fprintf(stderr, "foreshock agent: %s\n", error.c_str());
  return 1;
}

// One consumer per directory. The descriptor stays open for the life of the process.
bool Agent::take_directory() {
  const int fd = open((options_.directory + "/agent.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
}

bool Agent::say_address() {
  const nlohmann::json address = {
      {"pid", getpid()}, {"address", server_.address()}, {"port", server_.port()}, {"run", options_.run_id}};
  spdlog::info("run {} at {}:{}", options_.run_id, server_.address(), server_.port());
  return write_file(options_.directory + "/agent.json", address.dump() + "\n");
}

int Agent::run() {
  if (!take_directory()) return 0;
  for (int signal : {SIGTERM, SIGINT}) std::signal(signal, ask_to_stop);
  std::signal(SIGHUP, SIG_IGN);
  std::string error;
  if (!options_.record.empty()) {
    record_ = RecordWriter::open(options_.record, &error);
    if (record_ == nullptr) return fail(error);
  }
  pipeline_ = std::make_unique<Pipeline>(record_.get());
  publish();
  if (!server_.start(options_.bind, options_.port, &error)) return fail(error);
  if (!say_address()) return fail("cannot write to " + options_.directory + "; free some space there");
  be_nice();
  loop();
  server_.stop();
  unlink((options_.directory + "/agent.json").c_str());
  return 0;
}

void Agent::loop() {
  std::chrono::milliseconds sleep = kShortestSleep;
  Clock::time_point next_publish = {}, next_discover = {};
  Clock::time_point next_cadence = Clock::now() + kCadenceEvery;
  while (g_stop == 0) {
    const auto now = Clock::now();
    if (now >= next_discover) {
      discover();
      answer_launchers(now);
      next_discover = now + kDiscoverEvery;
    }
    bool busy = false;
    for (auto& followed : followed_) busy |= followed->poll();
    if (now >= next_publish) {
      look_for_life(now);
      publish();
      next_publish = now + kPublishEvery;
      if (!is_needed()) return;
    }
    if (now >= next_cadence) {
      choose_cadence();
      next_cadence = now + kCadenceEvery;
    }
    sleep = busy ? kShortestSleep : std::min(2 * sleep, kLongestSleep);
    std::this_thread::sleep_for(sleep);
  }
}

void Agent::discover() {
  std::vector<Discovery::Refusal> refused;
  for (auto& segment : discovery_.look(&refused)) follow(std::move(segment));
  for (const Discovery::Refusal& refusal : refused) {
    ++refused_segments_;
    spdlog::warn("{} refused: {}", refusal.name, refusal.why);
  }
}

void Agent::follow(std::unique_ptr<segment::SegmentReader> segment) {
  segment->set_agent_pid(static_cast<uint64_t>(getpid()));
  auto followed = std::make_unique<Followed>(std::move(segment), options_.run_id, pipeline_.get());
  const RankStatistics& rank = followed->rank;
  spdlog::info("rank {} in {}", rank.identity.rank, followed->segment().name());
  for (auto& other : followed_)
    if (other->rank.identity.rank == rank.identity.rank) other->rank.current = false;
  registry_.clear_rank(options_.run_id, std::to_string(rank.identity.rank));
  if (interval_ != 0) followed->segment().set_interval(interval_, 0);
  followed_.push_back(std::move(followed));
}

void Agent::look_for_life(Clock::time_point now) {
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
void Agent::announce(Followed& followed) {
  if (followed.announced) return;
  followed.announced = true;
  record_run(followed.rank, "started");
}

void Agent::finish(Followed& followed, RunState state) {
  followed.finish(state);
  announce(followed);
  record_run(followed.rank, "ended");
}

void Agent::answer_launchers(Clock::time_point now) {
  for (const LauncherExit& exit : unanswered_exits(options_.directory)) {
    auto seen = std::find_if(exits_seen_.begin(), exits_seen_.end(),
                             [&](const auto& each) { return each.first == exit.launcher_pid; });
    if (seen == exits_seen_.end()) seen = exits_seen_.insert(exits_seen_.end(), {exit.launcher_pid, now});
    discover();  // a segment born just before the end
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
    if (waiting && now - seen->second < kDrainAtMost) continue;
    if (std::all_of(followed_.begin(), followed_.end(), [](const auto& each) { return each->is_finished(); }))
      state_ = exit.state;
    if (record_ != nullptr) record_->flush();
    publish();
    nlohmann::json summary = document(exit.launcher_pid, false);
    summary["state"] = name_of(exit.state);
    if (!write_file(summary_path(options_.directory, exit.launcher_pid), text_of(summary, 2) + "\n"))
      spdlog::error("the summary of launcher {} does not fit into {}", exit.launcher_pid, options_.directory);
  }
}

// The ranks of one launcher, or of all (0).
nlohmann::json Agent::document(uint64_t launcher_pid, bool for_page) const {
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

void Agent::publish() {
  for (const auto& followed : followed_)
    if (followed->rank.current) publish_rank(followed->rank, cores_per_rank(), &registry_);
  for (RunState state : {RunState::kRunning, RunState::kFinished, RunState::kFailed, RunState::kPreempted})
    registry_.set(Metric::kRunState, {options_.run_id, name_of(state)}, state == state_);
  uint64_t refused = refused_segments_;
  for (const auto& followed : followed_) refused += followed->rank.refused_slots;
  registry_.set(Metric::kMonitorErrorsTotal, {options_.run_id, "segment"}, static_cast<double>(refused));
  if (record_ != nullptr) {
    record_->flush();
    registry_.set(Metric::kMonitorErrorsTotal, {options_.run_id, "record"},
                  static_cast<double>(record_->errors()));
    if (const std::string error = record_->take_error(); !error.empty()) spdlog::error("{}", error);
  }
  registry_.set(Metric::kBuildInfo, {FORESHOCK_VERSION}, 1);

  auto published = std::make_shared<Published>();
  published->metrics = registry_.snapshot();
  nlohmann::json state = document(0, true);
  state["version"] = FORESHOCK_VERSION;
  state["address"] = server_.address() + ":" + std::to_string(server_.port());
  state["agent"] = {{"pid", getpid()},
                    {"cpu_seconds", process_cpu_seconds()},
                    {"cores", cores_},
                    {"instruction_set", reference_target_name()},
                    {"series", registry_.series_count()},
                    {"series_dropped", registry_.series_dropped()},
                    {"segments_refused", refused_segments_}};
  published->state_json = text_of(state, -1);
  published->health_text = "ok";
  server_.publish(std::move(published));
}

// One interval for all ranks of the node, by what sampling costs the slowest of them.
void Agent::choose_cadence() {
  if (options_.every != 0) return;
  SamplingCost cost;
  uint64_t sampled_steps = 0, in_force = 0;
  int64_t newest_step = 0;
  for (const auto& followed : followed_) {
    const RankStatistics& rank = followed->rank;
    if (followed->is_finished() || rank.last_step.sequence == 0) continue;
    if (rank.identity.world_size > static_cast<int>(rank.identity.local_ranks))
      return;  // other nodes do not hear this
    cost.step_seconds = std::max(cost.step_seconds, mean_of(rank.step_seconds).value_or(0));
    cost.sampled_step_seconds =
        std::max(cost.sampled_step_seconds, mean_of(rank.sampled_step_cost).value_or(0));
    cost.other_step_seconds = std::max(cost.other_step_seconds, mean_of(rank.other_step_cost).value_or(0));
    sampled_steps = std::max(sampled_steps, rank.sampled_steps);
    newest_step = std::max(newest_step, rank.last_step.step);
    in_force = std::max(in_force, rank.last_step.interval);
  }
  const uint64_t new_samples = sampled_steps - std::min(sampled_steps, sampled_at_cadence_);
  if (new_samples < 2) return;
  const double cpu = process_cpu_seconds();
  cost.agent_seconds = (cpu - cpu_at_cadence_) / static_cast<double>(new_samples) / cores_;
  cpu_at_cadence_ = cpu;
  sampled_at_cadence_ = sampled_steps;
  const uint64_t interval = choose_interval(cost, options_.max_slowdown, in_force);
  if (interval == in_force) return;
  interval_ = interval;
  spdlog::info("sampling every {} steps (was {}): predicted cost {:.2f} %", interval, in_force,
               100 * predicted_slowdown(cost, interval));
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_interval(interval, newest_step + kStepsAhead);
}

bool Agent::is_needed() const {
  if (options_.keep_alive || has_launcher(options_.directory)) return true;
  return std::any_of(followed_.begin(), followed_.end(),
                     [](const auto& each) { return !each->is_finished(); });
}

int Agent::cores_per_rank() const {
  int ranks = 0;
  for (const auto& followed : followed_) ranks += followed->rank.current;
  return std::max(1, cores_ / std::max(ranks, 1));
}

void Agent::record_run(const RankStatistics& rank, const char* state) {
  if (record_ != nullptr) record_->write(run_line(rank, state));
}

}  // namespace

int run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace foreshock
