// Runs the agent process: its main loop, the documents of its HTTP server, and the file of targets (agents to
// scrape) for Prometheus. The agent checks the data that trainers write to shared memory, and serves the
// results. It serves the run in one directory or, as a service, all runs in a tree of directories. A launcher
// is a `foreshock run`, which starts the processes of a run.
#include "agent/agent.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/directory.h"
#include "agent/discovery.h"
#include "agent/node.h"
#include "agent/publish.h"
#include "agent/run.h"
#include "exporters/file_place.h"
#include "exporters/http_server.h"
#include "shadow/reference.h"
#include "text/printable.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;
using Clock = Run::Clock;

// The main loop sleeps for the shortest time after a round with new data, and doubles it after any other.
constexpr std::chrono::milliseconds kShortestSleep = 1ms, kLongestSleep = 32ms;
constexpr const char* kLogFile = "agent.log";  // the agent's stderr, which the launcher opens
constexpr off_t kMostLogBytes = 256 << 10;     // a longer log is emptied
constexpr auto kPublishEvery = 1s;
constexpr auto kUpdateIntervalEvery = 2s;   // how often the sampling intervals are chosen
constexpr auto kDiscoverEvery = 200ms;      // how often new segments and ended launchers are looked for
constexpr auto kSearchEvery = 1s;           // how often a service searches its tree for runs
constexpr size_t kMostAddressBytes = 4096;  // largest agent.json of another agent
// If the histories have this many tables (one per rank and one per layer of a rank), further runs get none.
constexpr size_t kMostTables = 4096;

volatile std::sig_atomic_t g_stop = 0;
void request_stop(int) { g_stop = 1; }

int fail(const std::string& error) {
  std::fprintf(stderr, "foreshock agent: %s\n", printable(error).c_str());
  return 1;
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        cores_(cores_of_node()),
        alerts_(options.on_alert),
        target_file_(options.file_sd, options.tree.empty() ? options.run_id : "service") {}

  int run();

 private:
  bool is_service() const { return !options_.tree.empty(); }
  bool open_single_run(std::string* error);
  bool write_address(const Run& run);
  void loop();
  void search_tree(Clock::time_point now);
  void adopt(FoundRun found, Clock::time_point now);
  void forget_ended(Clock::time_point now);
  void discover(Clock::time_point now);
  void update_intervals();
  nlohmann::json state_of_agent() const;
  void limit_log();
  void publish();
  void publish_targets(Published* published);
  bool is_needed() const;

  const AgentOptions options_;
  const int cores_;
  AlertCommand alerts_;
  std::unique_ptr<Tree> tree_;
  std::vector<ServedRun> runs_;
  std::vector<Target> other_agents_;  // agents that owners of runs in the tree have started
  Registry registry_;
  HttpServer server_;
  double cpu_at_update_ = 0;  // CPU seconds of this process until the last update_intervals()
  TargetFile target_file_;    // used only if options_.file_sd names a path
  bool has_warned_of_shortage_ = false;
  std::string target_problem_;  // reason why the file of targets could not be written; "": none
};

int Agent::run() {
  std::string error;
  for (int signal : {SIGTERM, SIGINT}) std::signal(signal, request_stop);
  std::signal(SIGHUP, SIG_IGN);  // the agent must outlive the terminal
  raise_descriptor_limit();
  if (is_service()) {
    std::unique_ptr<Directory> root = Directory::open(options_.tree, &error);
    if (root == nullptr) return fail(options_.tree + ": " + error);
    tree_ = std::make_unique<Tree>(std::move(root));
  } else if (!open_single_run(&error)) {
    if (!error.empty()) return fail(error);
    std::fprintf(stderr, "foreshock agent: another agent follows the run in %s; this one ends\n",
                 printable(options_.directory).c_str());
    return 0;
  }
  publish();  // before the server starts, so that its first reply has a state
  if (!server_.start(options_.bind, options_.port, &error, options_.token_file, options_.last_port))
    return fail(error);
  // Port 0: the server has a Unix socket, which has no URL.
  if (server_.port() != 0) alerts_.set_url("http://" + server_.endpoint() + "/");
  publish();  // again, because the file of targets needs the address
  if (is_service())
    spdlog::info("serving {} at {}", options_.tree, server_.endpoint());
  else if (!write_address(*runs_[0].run))
    return fail("cannot write to " + options_.directory + ": " + std::strerror(errno));
  if (!options_.file_sd.empty()) target_file_.remove_abandoned();
  lower_priority();  // after the start of the HTTP thread, which keeps its priority
  loop();
  alerts_.start_all(Clock::now());  // the commands of --on-alert that still wait
  server_.stop();
  for (const ServedRun& served : runs_) served.run->directory().remove("agent.json");
  if (!options_.file_sd.empty()) target_file_.remove();
  return 0;
}

// Opens the run of options_.directory. Returns false with an empty *error if another agent serves the run.
bool Agent::open_single_run(std::string* error) {
  std::unique_ptr<Directory> directory = Directory::open(options_.directory, error);
  if (directory == nullptr) {
    *error = options_.directory + ": " + *error;
    return false;
  }
  const RunOptions run_options = {.run_id = options_.run_id,
                                  .label = options_.run_id,
                                  .record = options_.record,
                                  .max_slowdown = options_.max_slowdown,
                                  .every = options_.every,
                                  .cores = cores_,
                                  .histogram_bytes = options_.record_histograms,
                                  .alerts = &alerts_,
                                  .save_flagged = options_.save_flagged,
                                  .flagged_quota = options_.flagged_quota,
                                  .record_size = options_.record_size};
  std::unique_ptr<Run> run = Run::open(run_options, std::move(directory), error);
  if (run != nullptr) runs_.emplace_back(std::move(run), Clock::now());
  return !runs_.empty();
}

// Writes agent.json into the directory of a run. `foreshock status` and the launcher find the agent by it.
bool Agent::write_address(const Run& run) {
  const bool taken = options_.last_port > 0 && server_.port() > options_.port;  // options_.port was taken
  const nlohmann::json address = {
      {"pid", getpid()},           {"pid_namespace", pid_namespace()},        {"address", server_.address()},
      {"port", server_.port()},    {"port_taken", taken ? options_.port : 0}, {"run", run.label()},
      {"record", options_.record}, {"save_flagged", options_.save_flagged},   {"service", is_service()},
      {"problem", target_problem_}};
  spdlog::info("run {} at {}", run.label(), server_.endpoint());
  // A path may have bytes that are not valid UTF-8.
  const std::string text =
      address.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  return run.directory().write("agent.json", text + "\n");
}

void Agent::loop() {
  std::chrono::milliseconds sleep = kShortestSleep;
  Clock::time_point next_publish = {}, next_discover = {}, next_search = {};
  Clock::time_point next_interval_update = Clock::now() + kUpdateIntervalEvery;
  while (g_stop == 0) {
    const auto now = Clock::now();
    if (is_service() && now >= next_search) {
      search_tree(now);
      next_search = now + kSearchEvery;
    }
    const bool is_discover_due = now >= next_discover;
    if (is_discover_due) {
      discover(now);
      next_discover = now + kDiscoverEvery;
    }
    bool found_data = false;
    for (ServedRun& served : runs_) found_data |= served.run->poll();
    alerts_.poll(now);
    if (now >= next_publish) {
      for (ServedRun& served : runs_) served.run->finish_dead_ranks(now);
      publish();
      next_publish = now + kPublishEvery;
    }
    // discover() may have written a summary. The launcher that reads it then waits for the agent's end.
    if (is_discover_due && !is_needed()) return;
    if (now >= next_interval_update) {
      update_intervals();
      next_interval_update = now + kUpdateIntervalEvery;
    }
    sleep = found_data ? kShortestSleep : std::min(2 * sleep, kLongestSleep);
    std::this_thread::sleep_for(sleep);
  }
}

// Drops the runs of a service that have ended, and follows the new ones in its tree.
void Agent::search_tree(Clock::time_point now) {
  forget_ended(now);
  other_agents_.clear();
  for (FoundRun& found : tree_->find_new()) adopt(std::move(found), now);
}

// Returns the address of the agent that the owner of a run has started. `text` is the content of its
// agent.json. Port 0: Prometheus cannot scrape that agent.
Target other_agents_target(const std::string& label, const std::optional<std::string>& text) {
  const nlohmann::json json = nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  Target target = {"", 0, label};
  if (!json.is_object() || !json.value("port", nlohmann::json()).is_number_unsigned() ||
      !json.value("address", nlohmann::json()).is_string())
    return target;
  target.address = json["address"];
  const uint64_t port = json["port"];
  // Any user can write agent.json, so Prometheus only gets addresses of this machine from it.
  const bool is_here = target.address == "127.0.0.1" || target.address == "::1";
  target.port = port <= 65535 && is_here ? static_cast<int>(port) : 0;
  return target;
}

// Starts to follow a run of the tree. If another agent follows it, adds that agent to other_agents_.
void Agent::adopt(FoundRun found, Clock::time_point now) {
  const auto has_label = [&](const ServedRun& served) { return served.run->label() == found.label; };
  const auto namesake = std::find_if(runs_.begin(), runs_.end(), has_label);
  if (namesake != runs_.end()) {  // the directory was removed and created again
    registry_.clear_run(found.label);
    runs_.erase(namesake);
  }
  std::string error;
  const std::optional<std::string> agent_json = found.directory->read("agent.json", kMostAddressBytes);
  RunOptions options;  // without a record and flagged slices, which are for single runs
  options.run_id = found.run_id;
  options.label = found.label;
  options.cores = cores_;
  options.alerts = &alerts_;
  // A second descriptor of the directory, for Run::open(), which keeps it; tree_->leave() needs the first.
  std::unique_ptr<Directory> duplicate = found.directory->open_again(&error);
  std::unique_ptr<Run> run;
  if (duplicate != nullptr) run = Run::open(options, std::move(duplicate), &error);
  if (run == nullptr) {
    // If another agent follows the run (`error` is empty), or if descriptors or the kernel's records of locks
    // (ENOLCK) are short, search_tree() tries again.
    const int why = errno;
    const bool lacks_descriptors = is_shortage(why);
    tree_->leave(found.label, *found.directory,
                 /*retry=*/error.empty() || lacks_descriptors || why == ENOLCK);
    if (lacks_descriptors) {
      if (!has_warned_of_shortage_)
        spdlog::warn("{} has to wait: no descriptor left (ulimit -n)", found.label);
      has_warned_of_shortage_ = true;
    } else if (error.empty()) {
      other_agents_.push_back(other_agents_target(found.label, agent_json));
    } else {
      spdlog::warn("{} is not followed: {}", found.label, error);
    }
    return;
  }
  if (!write_address(*run))
    spdlog::warn("{}: cannot write there; its launcher will see no agent", found.label);
  runs_.emplace_back(std::move(run), now);
}

// Drops the runs of a service that have not been needed for options_.forget_after_seconds.
void Agent::forget_ended(Clock::time_point now) {
  const auto forget_after = std::chrono::seconds(options_.forget_after_seconds);
  for (ServedRun& served : runs_)
    if (served.run->is_needed()) served.last_needed = now;
  std::erase_if(runs_, [&](const ServedRun& served) {
    if (now - served.last_needed < forget_after) return false;
    spdlog::info("{} has ended and is forgotten", served.run->label());
    registry_.clear_run(served.run->label());
    served.run->directory().remove("agent.json");
    tree_->leave(served.run->label(), served.run->directory(), /*retry=*/false);
    return true;
  });
}

// Finds new segments of all runs, and writes the summaries for launchers whose command has ended.
void Agent::discover(Clock::time_point now) {
  for (ServedRun& served : runs_) {
    served.run->discover(&registry_);
    const std::vector<LauncherExit> ended = served.run->ended_launchers(now, &registry_);
    if (!ended.empty()) publish();  // before the summaries: launchers, and then this agent, end after them
    for (const LauncherExit& exit : ended) served.run->write_summary(exit);
  }
}

// Distributes the agent's CPU time since the last call over the runs, in proportion to the CPU time spent on
// their ranks, or equally if no rank has taken any. Then each run chooses its sampling interval.
void Agent::update_intervals() {
  const double cpu = process_cpu_seconds();
  double sum = 0;
  for (ServedRun& served : runs_) sum += served.new_rank_seconds();
  for (ServedRun& served : runs_) {
    const double share = sum > 0 ? served.new_rank_seconds() / sum : 1 / static_cast<double>(runs_.size());
    served.cpu_seconds += share * (cpu - cpu_at_update_);
  }
  cpu_at_update_ = cpu;
  for (ServedRun& served : runs_) {
    served.rank_seconds += served.new_rank_seconds();
    served.run->update_interval(served.cpu_seconds);
  }
}

// Returns the fields of every body of /api/v1/state. The document of a run replaces "run", "state", "ranks".
nlohmann::json Agent::state_of_agent() const {
  nlohmann::json runs = nlohmann::json::array();
  uint64_t refused = 0;
  for (const ServedRun& served : runs_) {
    runs.push_back({{"run", served.run->label()},
                    {"state", name_of(served.run->state())},
                    {"owner", served.owner},
                    {"ranks", served.run->ranks()}});
    refused += served.run->refused_segments();
  }
  return {{"schema", 1},
          {"run", nullptr},
          {"state", nullptr},
          {"ranks", nlohmann::json::array()},
          {"runs", runs},
          {"version", FORESHOCK_VERSION},
          {"address", server_.endpoint()},
          {"thresholds", thresholds_json()},
          {"grafana", text_or_null(options_.grafana)},
          {"agent",
           {{"pid", getpid()},
            {"cpu_seconds", process_cpu_seconds()},
            {"cores", cores_},
            {"instruction_set", reference_target_name()},
            {"series", registry_.series_count()},
            {"series_dropped", registry_.series_dropped()},
            {"segments_refused", refused},
            {"directories_refused", tree_ != nullptr ? tree_->refused() : 0}}}};
}

// If agent.log is longer than kMostLogBytes, copies its end to agent.log.1 and empties it. The log is in
// shared memory, and the commands of --on-alert write to it too. Does nothing if stderr is not this log.
void Agent::limit_log() {
  struct stat log = {};
  if (is_service() || runs_.empty() || fstat(STDERR_FILENO, &log) != 0 || !S_ISREG(log.st_mode) ||
      log.st_size <= kMostLogBytes)
    return;
  const Directory& directory = runs_[0].run->directory();
  const std::optional<struct stat> log_of_run = directory.status_of(kLogFile);
  if (!log_of_run || log_of_run->st_ino != log.st_ino || log_of_run->st_dev != log.st_dev) return;
  const int file = directory.open_file(kLogFile, O_RDONLY);
  if (file < 0) return;
  std::string log_end(static_cast<size_t>(kMostLogBytes), '\0');
  const ssize_t read = pread(file, log_end.data(), log_end.size(), log.st_size - kMostLogBytes);
  close(file);
  log_end.resize(static_cast<size_t>(std::max<ssize_t>(read, 0)));
  directory.write(std::string(kLogFile) + ".1", log_end);
  if (ftruncate(STDERR_FILENO, 0) != 0) return;
  spdlog::info("the log was longer than {} KiB: its end is in {}.1", kMostLogBytes >> 10, kLogFile);
}

// Gives the HTTP server a new state of all runs, and updates the file of targets. Also limits the log.
void Agent::publish() {
  limit_log();
  for (ServedRun& served : runs_) served.run->publish(&registry_);
  registry_.set(Metric::kBuildInfo, {FORESHOCK_VERSION}, 1);
  auto published = std::make_shared<Published>();
  published->metrics = registry_.snapshot();
  const nlohmann::json agent = state_of_agent();
  refresh_documents(agent, &runs_);
  for (const ServedRun& served : runs_)
    if (served.document != nullptr) published->run_states.emplace_back(served.run->label(), served.document);
  // Without a run in the query, /api/v1/state returns the run that was found most recently.
  published->state_json = !runs_.empty() && runs_.back().document != nullptr ? *runs_.back().document
                                                                             : text_of(agent, /*indent=*/-1);
  auto history = std::make_shared<std::vector<HistoryTable>>();
  for (const ServedRun& served : runs_)
    if (history->size() < kMostTables) served.run->add_history(history.get());
  published->history = std::move(history);
  published->health_text = "ok";
  publish_targets(published.get());
  server_.publish(std::move(published));
}

// Publishes the agents that Prometheus shall scrape (targets): this one and, in a service, the other agents.
void Agent::publish_targets(Published* published) {
  std::vector<Target> targets = other_agents_;
  const std::string run = !is_service() && !runs_.empty() ? runs_[0].run->label() : "";
  if (server_.port() != 0) targets.insert(targets.begin(), {server_.address(), server_.port(), run});
  published->targets_json = targets_json(targets);
  if (options_.file_sd.empty() || server_.port() == 0) return;
  const std::string problem = target_file_.write(published->targets_json);
  if (!problem.empty() && target_problem_.empty()) spdlog::error(problem);  // once, not every second
  target_problem_ = problem;
}

// Whether the agent must go on. A service, and an agent with keep_alive, ends only at a signal.
bool Agent::is_needed() const {
  const auto run_is_needed = [](const ServedRun& served) { return served.run->is_needed(); };
  return is_service() || options_.keep_alive || std::any_of(runs_.begin(), runs_.end(), run_is_needed);
}

using std::chrono::milliseconds;

constexpr milliseconds kMaxRoundTime{20};  // after this time refresh_documents() starts no further document
constexpr int kPauseFactor = 20;           // pause between two documents of a run / time to make a document
constexpr size_t kMostDocumentBytes = 8 << 20;

// Returns the document of a run, the JSON for the page (of at most 128 ranks). If it exceeds
// kMostDocumentBytes: the summary of all ranks, without layers and events, or else a text about the problem.
std::shared_ptr<const std::string> document_of(const Run& run, const nlohmann::json& agent) {
  for (const bool for_page : {true, false}) {
    nlohmann::json document = agent;
    document.update(run.document(0, for_page));  // 0: the ranks of all launchers
    std::string text = text_of(document, /*indent=*/-1);
    if (text.size() <= kMostDocumentBytes) return std::make_shared<const std::string>(std::move(text));
  }
  nlohmann::json document = agent;
  document["run"] = run.label();
  document["problem"] = "the state of this run is larger than 8 MiB";
  return std::make_shared<const std::string>(text_of(document, /*indent=*/-1));
}

constexpr size_t kMostTargetBytes = 1 << 20;  // largest file of targets that is read

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

std::string host_and_port(const Target& target) {
  std::string host = target.address;
  if (host == "0.0.0.0" || host == "::") host = host_name();
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return host + ":" + std::to_string(target.port);
}

// The end of the name of a file of targets. It differs between hosts that share the directory.
std::string host_suffix() { return std::string(".").append(host_name()).append(".json"); }

std::string lock_name(const std::string& name) { return std::string(".").append(name).append(".lock"); }

FilePlace folder_of(const std::string& path) {
  std::error_code error;
  return FilePlace((std::filesystem::absolute(path, error).parent_path() / ".").string());
}

// Whether `text` is a list of targets as targets_json() writes it.
bool is_list_of_targets(const std::string& text) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return list.is_array() && std::all_of(list.begin(), list.end(), [](const nlohmann::json& item) {
           return item.is_object() && item.size() == 2 && item.contains("targets") && item.contains("labels");
         });
}

}  // namespace

ServedRun::ServedRun(std::unique_ptr<Run> followed, Clock::time_point now)
    : run(std::move(followed)), owner(user_name(run->directory().owner())), last_needed(now) {}

void refresh_documents(const nlohmann::json& agent, std::vector<ServedRun>* runs) {
  std::vector<ServedRun*> due;
  const Clock::time_point begin = Clock::now();
  for (ServedRun& served : *runs)
    if (begin >= served.next_document) due.push_back(&served);
  // The run whose pause ended first comes first.
  std::sort(due.begin(), due.end(),
            [](const ServedRun* a, const ServedRun* b) { return a->next_document < b->next_document; });
  Clock::time_point now = begin;
  for (ServedRun* served : due) {
    if (now - begin > kMaxRoundTime) return;
    served->document = document_of(*served->run, agent);
    const Clock::time_point end = Clock::now();
    served->next_document = end + kPauseFactor * (end - now);
    now = end;
  }
}

std::string targets_json(const std::vector<Target>& targets) {
  nlohmann::json list = nlohmann::json::array();
  for (const Target& target : targets) {
    if (target.port == 0) continue;  // cannot be scraped
    nlohmann::json labels = nlohmann::json::object();
    if (!target.run.empty()) labels["__meta_foreshock_run"] = target.run;
    list.push_back({{"targets", {host_and_port(target)}}, {"labels", labels}});
  }
  return list.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

TargetFile::TargetFile(const std::string& path, const std::string& run) : path_(path) {
  std::error_code error;
  is_in_directory_ = std::filesystem::is_directory(path, error);
  if (is_in_directory_) path_ = (std::filesystem::path(path) / (run + host_suffix())).string();
}

TargetFile::~TargetFile() {
  if (lock_ >= 0) close(lock_);
}

// Returns whether this agent may write the file of targets. write() replaces the file and its inode, so the
// lock is on a second file, which is never removed. If the lock file cannot be opened, every agent may write.
bool TargetFile::claim() {
  if (lock_ >= 0) return true;
  if (!folder_of(path_).refusal().empty()) return false;
  const size_t slash = path_.rfind('/');
  const size_t name_at = slash == std::string::npos ? 0 : slash + 1;
  const std::string name = path_.substr(0, name_at) + lock_name(path_.substr(name_at));
  int lock = open(name.c_str(), O_RDWR | O_CREAT | kSafeFlags, 0644);
  // A lock file that belongs to another user can only be opened for reading.
  if (lock < 0) lock = open(name.c_str(), O_RDONLY | kSafeFlags);
  if (lock < 0) return true;
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
    lock_ = lock;
    return true;
  }
  // After an error other than EWOULDBLOCK the file system has no locks, so this agent may write.
  const bool is_held_by_another = errno == EWOULDBLOCK;
  close(lock);
  return !is_held_by_another;
}

std::string TargetFile::write(const std::string& text) {
  namespace fs = std::filesystem;
  const FilePlace folder = folder_of(path_);
  if (!folder.refusal().empty()) return folder.refusal() + ": Prometheus will not find this agent there";
  if (!claim())
    return path_ +
           " is kept by another agent: Prometheus will not find this one there; name a directory, and each "
           "run has a file of its own in it";
  std::string why;
  // The path has no links, since Directory::open() accepts none as the last component.
  const auto directory = Directory::open(folder.path() + ".", &why);
  const std::string name = fs::path(path_).filename();
  if (directory != nullptr && directory->read(name, kMostTargetBytes) == text) return "";
  // Prometheus runs as another user, who must be able to read the file.
  if (directory != nullptr && directory->write(name, text, 0644)) return "";
  return path_ + " cannot be written: Prometheus will not find this agent there";
}

void TargetFile::remove() {
  if (claim()) unlink(path_.c_str());
}

// A file of targets is abandoned if its lock is free: its agent was killed. A file without a lock file stays,
// since its agent may still run. The lock file is not removed. If it were, an agent that has just opened it
// could lock it while another agent locks a new file of that name.
void TargetFile::remove_abandoned() const {
  if (!is_in_directory_) return;
  const std::filesystem::path own = path_;
  std::string why;
  std::error_code error;
  const auto directory = Directory::open(std::filesystem::canonical(own.parent_path(), error), &why);
  if (directory == nullptr) return;
  for (const std::string& name : directory->names("", host_suffix())) {
    if (name == own.filename() || !directory->has(lock_name(name))) continue;
    const std::optional<std::string> text = directory->read(name, kMostTargetBytes);
    if (!text || !is_list_of_targets(*text)) continue;
    const int lock = directory->open_file(lock_name(name), O_RDONLY);
    if (lock < 0) continue;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) directory->remove(name);
    close(lock);
  }
}

int run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace foreshock
