#include "agent/agent.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "agent/node.h"
#include "agent/publish.h"
#include "agent/run.h"
#include "exporters/http_server.h"
#include "shadow/reference.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;
using Clock = Run::Clock;

constexpr std::chrono::milliseconds kShortestSleep = 1ms;
constexpr std::chrono::milliseconds kLongestSleep = 32ms;
constexpr auto kPublishEvery = 1s;
constexpr auto kCadenceEvery = 2s;
constexpr auto kDiscoverEvery = 200ms;

volatile std::sig_atomic_t g_stop = 0;
void ask_to_stop(int) { g_stop = 1; }

int fail(const std::string& error) {
  std::fprintf(stderr, "foreshock agent: %s\n", error.c_str());
  return 1;
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options) : options_(options), cores_(cores_of_node()) {}

  int run();

 private:
  bool say_address(const Run& run);
  void loop();
  void discover(Clock::time_point now);
  nlohmann::json state() const;
  void publish();
  bool is_needed() const;

  const AgentOptions options_;
  const int cores_;
  std::vector<std::unique_ptr<Run>> runs_;
  Registry registry_;
  HttpServer server_;
};

int Agent::run() {
  const RunOptions followed = {options_.run_id,       options_.run_id, options_.record,
                               options_.max_slowdown, options_.every,  cores_};
  std::string error;
  std::unique_ptr<Directory> directory = Directory::open(options_.directory, &error);
  if (directory == nullptr) return fail(options_.directory + ": " + error);
  std::unique_ptr<Run> run = Run::open(followed, std::move(directory), &error);
  if (run == nullptr) return error.empty() ? 0 : fail(error);
  runs_.push_back(std::move(run));
  for (int signal : {SIGTERM, SIGINT}) std::signal(signal, ask_to_stop);
  std::signal(SIGHUP, SIG_IGN);
  publish();
  if (!server_.start(options_.bind, options_.port, &error)) return fail(error);
  if (!say_address(*runs_[0]))
    return fail("cannot write to " + options_.directory + ": " + std::strerror(errno));
  be_nice();
  loop();
  server_.stop();
  runs_[0]->directory().remove("agent.json");
  return 0;
}

bool Agent::say_address(const Run& run) {
  const nlohmann::json address = {
      {"pid", getpid()}, {"address", server_.address()}, {"port", server_.port()}, {"run", run.run_id()}};
  spdlog::info("run {} at {}:{}", run.run_id(), server_.address(), server_.port());
  return run.directory().write("agent.json", address.dump() + "\n");
}

void Agent::loop() {
  std::chrono::milliseconds sleep = kShortestSleep;
  Clock::time_point next_publish = {}, next_discover = {};
  Clock::time_point next_cadence = Clock::now() + kCadenceEvery;
  while (g_stop == 0) {
    const auto now = Clock::now();
    if (now >= next_discover) {
      discover(now);
      next_discover = now + kDiscoverEvery;
    }
    bool busy = false;
    for (auto& run : runs_) busy |= run->poll();
    if (now >= next_publish) {
      for (auto& run : runs_) run->look_for_life(now);
      publish();
      next_publish = now + kPublishEvery;
      if (!is_needed()) return;
    }
    if (now >= next_cadence) {
      for (auto& run : runs_) run->choose_cadence(process_cpu_seconds());
      next_cadence = now + kCadenceEvery;
    }
    sleep = busy ? kShortestSleep : std::min(2 * sleep, kLongestSleep);
    std::this_thread::sleep_for(sleep);
  }
}

void Agent::discover(Clock::time_point now) {
  for (auto& run : runs_) {
    run->discover(&registry_);
    const std::vector<LauncherExit> ended = run->ended_launchers(now, &registry_);
    if (!ended.empty()) publish();
    for (const LauncherExit& exit : ended) run->answer(exit);
  }
}

// Body of /api/v1/state.
nlohmann::json Agent::state() const {
  nlohmann::json state = runs_[0]->document(0, true);
  state["version"] = FORESHOCK_VERSION;
  state["address"] = server_.address() + ":" + std::to_string(server_.port());
  state["thresholds"] = thresholds_json();
  state["agent"] = {{"pid", getpid()},
                    {"cpu_seconds", process_cpu_seconds()},
                    {"cores", cores_},
                    {"instruction_set", reference_target_name()},
                    {"series", registry_.series_count()},
                    {"series_dropped", registry_.series_dropped()},
                    {"segments_refused", runs_[0]->refused_segments()}};
  return state;
}

void Agent::publish() {
  for (auto& run : runs_) run->publish(&registry_);
  registry_.set(Metric::kBuildInfo, {FORESHOCK_VERSION}, 1);
  auto published = std::make_shared<Published>();
  published->metrics = registry_.snapshot();
  published->state_json = text_of(state(), -1);
  auto history = std::make_shared<std::vector<HistoryTable>>();
  for (const auto& run : runs_) run->add_history(history.get());
  published->history = std::move(history);
  published->health_text = "ok";
  server_.publish(std::move(published));
}

bool Agent::is_needed() const {
  return options_.keep_alive ||
         std::any_of(runs_.begin(), runs_.end(), [](const auto& run) { return run->is_needed(); });
}

}  // namespace

int run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace foreshock
