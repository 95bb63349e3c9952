// Implements foreshock run and foreshock agent. run() starts the agent, which follows the run, then the
// user's command, in which `import torch` (or --preload) loads libforeshock.so, and prints the agent's
// summary at the end. If monitoring is not possible, run() prints one line and runs the command alone; a
// given port that is in use is an error instead. A function named ..._problem returns an error or "". The
// class Arguments has checked all values, so the parse_ functions cannot fail here.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "agent/agent.h"
#include "cli/agent_client.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/known_bad.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/run_dir.h"
#include "cli/terminal.h"
#include "cli/torch.h"
#include "exporters/file_place.h"
#include "libmonitor/process.h"

namespace foreshock::cli {
namespace {

// How long the command waits for the agent's address. A port that was asked for and is in use is an error
// that must be found before the command starts, so this takes longer on a busy machine.
constexpr int kAgentStartTimeoutMs = 5000, kGivenPortTimeoutMs = 30000;
constexpr int kPortsTried = 100;  // ports that the agent tries, from the default port on

// Replaces this process by the command. If it cannot be started, prints why and returns the exit status.
int run_alone(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  const int error = errno;  // say() may change errno
  say("cannot start '" + command[0] + "': " + strerror(error));
  return status_of_failed_start(error);
}

int run_unmonitored(const std::vector<std::string>& command, const std::string& reason) {
  say("not monitoring: " + reason);
  return run_alone(command);
}

// Whether the command can be started. `program`: its file; "": not found. If the file is a script with a "#!"
// line, its interpreter must be executable.
bool can_start(const std::string& program) {
  if (program.empty()) return false;
  std::string words, interpreter;
  std::ifstream file(program, std::ios::binary);
  char begin[2] = {};
  if (!file.read(begin, 2) || begin[0] != '#' || begin[1] != '!') return true;
  std::getline(file, words);
  std::istringstream(words) >> interpreter;
  return access(interpreter.c_str(), X_OK) == 0;
}

bool is_followed_by_service(const Arguments& arguments) {
  return arguments.text(OptionId::kAgent) == "service";
}

// Checks the limit of file sizes (RLIMIT_FSIZE). A write beyond it would kill the trainer (SIGXFSZ).
std::string file_size_problem() {
  constexpr rlim_t kLeast = 4 << 20;  // enough for a segment without slots, and for the agent's files
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= kLeast) return "";
  return "files are limited to " + std::to_string(limit.rlim_cur >> 10) +
         " KiB here; raise `ulimit -f` to 4 MiB or more";
}

// Checks whether the directory's name fits into the buffers of the library in the trainer.
std::string length_problem(const RunVariables& variables) {
  constexpr size_t kMost = sizeof(Settings::directory) - 1;
  if (variables.base.size() + 1 + variables.run_id.size() <= kMost) return "";
  return "the name of " + variables.base + " is too long; set FORESHOCK_DIR to one of " +
         std::to_string(kMost - 1 - variables.run_id.size()) + " characters at most";
}

// Checks options: contradictions, unusable values, and whether an own agent can serve its page (--bind,
// --token-file).
std::string run_problem(const Arguments& arguments) {
  const bool service = is_followed_by_service(arguments);
  for (OptionId id : {OptionId::kRecord, OptionId::kTokenFile, OptionId::kFileSd, OptionId::kOnAlert,
                      OptionId::kSaveFlagged, OptionId::kGrafana})
    if (service && arguments.has_flag(id))
      return std::string(option(id).flag) + " is the agent's own: it cannot be had with --agent service";
  if (const std::string problem = service ? "" : listening_problem(arguments); !problem.empty())
    return problem;
  if (const std::string problem = service ? "" : page_address_problem(arguments); !problem.empty())
    return problem;
  return written_files_problem(arguments);
}

// Finds or builds the adapter, which connects libforeshock.so with the command's torch (of a C++ program or
// of Python). `*cache`: the directory of adapters; is set to the directory that has this adapter.
// `is_preloaded`: the command preloads libforeshock.so.
std::string adapter_problem(const Installation& installation, const std::vector<std::string>& command,
                            bool is_preloaded, std::string* cache) {
  if (const FoundLibtorch libtorch = find_libtorch(command); !libtorch.program.empty()) {
    if (const std::string why = is_preloaded ? "" : link_problem(libtorch); !why.empty()) return why;
    const Adapter adapter = prepare_adapter_for(installation, libtorch, *cache);
    if (adapter.usable()) *cache = adapter.folder();
    return adapter.reason;
  }
  const FoundPython python = find_python(command);
  if (python.executable.empty()) return "";  // without Python there is no torch for which to build
  const Adapter adapter = prepare_adapter(installation, python.executable, *cache);
  if (adapter.usable()) *cache = adapter.folder();
  // The command may start other Python programs, which load the helper.
  if (const std::string why = helper_problem(python); python.certain && !why.empty()) say(why);
  // If the interpreter is only a guess, the command may be a C++ trainer, which does not use Python's torch.
  return adapter.usable() || !python.certain ? "" : adapter.reason;
}

constexpr const char* kMostOwnRecord = "256MiB";  // of a record without --record

// Returns the name of the record without --record. Runs of several nodes share an id that is not random, and
// perhaps their working directory, so their records have the name of the node too.
std::string own_record_name(const Arguments& arguments, const std::string& run_id) {
  const bool has_random_id = arguments.text(OptionId::kRunId).empty() && inherited_run_id().empty();
  char host[HOST_NAME_MAX + 1] = {};
  if (has_random_id || gethostname(host, sizeof host - 1) != 0) return "foreshock-" + run_id + ".jsonl";
  std::string name = "foreshock-" + run_id + "-" + host;
  std::replace(name.begin(), name.end(), '/', '_');
  return name + ".jsonl";
}

// The record of the run. The path is absolute; "": none. `is_own`: --record was not given, so the run goes on
// without it if it cannot be written.
struct RunRecord {
  std::string path;
  bool is_own = false;
};

// Returns the file of --record, else of own_record_name() in the working directory, which then must be
// writable: if it is not, prints why there is no record.
RunRecord record_of(const Arguments& arguments, const std::string& run_id) {
  const std::string given = arguments.text(OptionId::kRecord);
  if (given == kNoRecord) return {};
  if (!given.empty()) return {absolute(given)};
  if (is_followed_by_service(arguments)) return {};
  const std::string path = absolute(own_record_name(arguments, run_id));
  const std::string problem = path.empty() ? "the working directory is gone" : why_no_file(path);
  if (problem.empty()) return {path, true};
  say("no record: " + problem + " (--record FILE.jsonl)");
  return {};
}

// Removes a record without lines: the command has started no trainer. Another process may write it (flock);
// on a busy machine our own agent may hold it for a moment longer than its summary.
void remove_if_empty(const std::string& path) {
  constexpr int kTimeoutMs = 2000;
  const auto is_empty = [&] {
    std::error_code error;
    return std::filesystem::file_size(path, error) == 0 && !error;
  };
  FileLock lock;
  if (is_empty() && lock.lock_within(path, LOCK_EX, kTimeoutMs) && is_empty()) unlink(path.c_str());
}

// Returns the command that starts the agent; empty if a service follows the run.
std::vector<std::string> agent_command(const Installation& installation, const Arguments& arguments,
                                       const std::string& directory, const std::string& run_id,
                                       const RunRecord& record) {
  if (is_followed_by_service(arguments)) return {};
  std::vector<std::string> command = {
      installation.executable, "agent", "--dir", directory, "--run-id", run_id};
  // Only the default port may be replaced: a Prometheus may be configured for a port that the user gave.
  std::string ports = arguments.text(OptionId::kPort);
  if (!arguments.is_given(OptionId::kPort)) ports += "-" + std::to_string(std::stoi(ports) + kPortsTried - 1);
  command.insert(command.end(), {option(OptionId::kPort).flag, ports});
  for (OptionId id : {OptionId::kBind, OptionId::kMaxSlowdown, OptionId::kEvery, OptionId::kRecordHistograms,
                      OptionId::kFlaggedQuota})
    command.insert(command.end(), {option(id).flag, arguments.text(id)});
  // "off" is given too, since the agent inherits FORESHOCK_RECORD.
  command.insert(command.end(),
                 {option(OptionId::kRecord).flag, record.path.empty() ? kNoRecord : record.path});
  const bool is_limited = record.is_own && !arguments.is_given(OptionId::kRecordSize);
  command.insert(command.end(), {option(OptionId::kRecordSize).flag,
                                 is_limited ? kMostOwnRecord : arguments.text(OptionId::kRecordSize)});
  for (OptionId id : {OptionId::kTokenFile, OptionId::kFileSd, OptionId::kSaveFlagged}) {
    if (const std::string path = absolute(arguments.text(id)); !path.empty())
      command.insert(command.end(), {option(id).flag, path});
  }
  for (OptionId id : {OptionId::kOnAlert, OptionId::kGrafana}) {
    if (const std::string value = arguments.text(id); !value.empty())
      command.insert(command.end(), {option(id).flag, value});
  }
  return command;
}

// Notes in `cache`, the directory of the adapter, that `line` is printed for the interpreter `python`.
// Returns false if an earlier run has noted this.
bool note_if_first_print(const std::string& cache, const std::string& python, const std::string& line) {
  const std::string path = cache + "/known-defects", text = python + ": " + line;
  std::ifstream file(path);
  for (std::string known; std::getline(file, known);)
    if (known == text) return false;
  std::ofstream(path, std::ios::app) << text << "\n";
  return true;
}

// Prints the number of known defects of the installed attention kernels, once per cache and interpreter, and
// again when the number has changed. It does not list them, because the inputs of this run may not be
// affected. Without a device, defects of kernels for devices do not count.
void print_known_defects_once(const std::vector<std::string>& command, const std::string& cache) {
  const FoundPython python = find_python(command);
  if (python.executable.empty() || !python.certain) return;
  std::error_code ignored;
  const bool has_device = std::filesystem::exists("/dev/nvidiactl", ignored) ||
                          std::filesystem::exists("/dev/dxg", ignored);  // the latter: WSL
  const size_t count = known_bad(installed_versions(python.executable), has_device).size();
  if (count == 0) return;
  const std::string line = std::to_string(count) + (count == 1 ? " known defect" : " known defects") +
                           " of the attention kernels installed here: foreshock doctor lists their inputs";
  if (note_if_first_print(cache, python.executable, line)) say(line);
}

// Returns a hint if --every and --max-slowdown were both given, because steps that --every selects are then
// left out if sampling them would exceed the limit; else "".
std::string interval_and_limit_line(const Arguments& arguments) {
  uint64_t every = 0;
  double limit = 1;  // share of the trainer's time; 1: all of it, which no sample exceeds
  parse_count(arguments.text(OptionId::kEvery).c_str(), &every);
  parse_ratio(arguments.text(OptionId::kMaxSlowdown).c_str(), &limit);
  const bool both = arguments.is_given(OptionId::kEvery) && arguments.is_given(OptionId::kMaxSlowdown);
  if (!both || every == 0 || limit >= 1) return "";
  return "--max-slowdown " + arguments.text(OptionId::kMaxSlowdown) + " goes before --every " +
         arguments.text(OptionId::kEvery) +
         ": steps that it does not pay for are not sampled; give --every alone to sample them all";
}

// Returns the number of the last step in the last MiB of the record; -1: this part of the record has no step.
int64_t last_step_in(const std::string& record) {
  constexpr std::streamoff kTailBytes = 1 << 20;
  std::ifstream file(record, std::ios::binary | std::ios::ate);
  if (const std::streamoff size = file ? std::streamoff(file.tellg()) : 0; size > kTailBytes)
    file.seekg(size - kTailBytes);  // perhaps within a line, whose rest is then not JSON and ignored
  else
    file.seekg(0);
  int64_t step = -1;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.value("type", nlohmann::json()) == "step" && parsed.contains("step") &&
        parsed["step"].is_number_integer())
      step = parsed["step"].get<int64_t>();
  }
  return step;
}

void print_missing_summary(const std::string& problem, const std::string& record) {
  say("no summary: " + problem);
  std::error_code error;
  // A pipe is not opened: this would wait for a writer.
  if (!std::filesystem::is_regular_file(record, error)) return;
  const int64_t step = last_step_in(record);
  say(record + (step < 0 ? " has no step" : " ends at step " + std::to_string(step)) + ": foreshock report " +
      record);
}

// Writes `text` to a descriptor that does not block. Returns 0 or an errno: ETIMEDOUT if a pipe stays full.
int write_within(int file, std::string_view text, int timeout_ms) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written >= 0) text.remove_prefix(static_cast<size_t>(written));
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    pollfd wanted = {file, POLLOUT, 0};
    if (poll(&wanted, 1, timeout_ms) <= 0) return ETIMEDOUT;
  }
  return 0;
}

// Returns why `text` could not be written to the file `path`, or "". It is written whole or not at all if the
// file's directory permits a temporary file, else directly. Does not wait for the reader of a pipe.
std::string copy_problem(const std::string& text, const std::string& path) {
  constexpr int kPipeTimeoutMs = 1000;
  const FilePlace place(path);
  struct stat status = {};
  const bool is_pipe = stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
  const bool may_make_files = faccessat(place.folder(), ".", W_OK, 0) == 0;
  if (!is_pipe && (may_make_files || !place.refusal().empty())) return write_whole_file(path, text);
  const int file = place.open(O_WRONLY | O_TRUNC | O_NONBLOCK);
  const int error = file < 0 ? errno : write_within(file, text, kPipeTimeoutMs);
  if (file >= 0) close(file);
  if (error == 0) return "";
  return "cannot write " + path + ": " + (error == ENXIO ? "no process reads it" : strerror(error));
}

// Prints the agent's summary, or why it is missing, and writes its JSON to the file `copy` ("": no file). A
// summary without ranks and without processes that the agent refused is not printed; a line then says why.
// `record`: the path of --record; "": none. `off_lines`: why processes of the command were not monitored.
void print_summary(const ExitExchange::Answer& answer, const std::string& copy, const std::string& record,
                   const std::vector<std::string>& off_lines, const std::string& directory) {
  const Summary summary = read_summary(answer.summary);
  if (answer.summary.empty()) print_missing_summary(answer.problem, record);
  if (summary.has_ranks || summary.has_refused) {
    const std::string text = "\n" + (wants_colour(STDERR_FILENO) ? in_colour(summary.text) : summary.text);
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  }
  if (summary.is_valid && !copy.empty())
    if (const std::string problem = copy_problem(answer.summary, copy); !problem.empty())
      say("no file of the summary: " + problem);
  if (summary.lacks_record_lines) say("the record is incomplete: not all of it could be written or kept");
  for (const std::string& line : off_lines) say(line);
  if (off_lines.empty() && summary.is_valid && !summary.has_ranks && !summary.has_refused)
    say(summary.has_other_ranks ? other_ranks_line() : no_segment_line(directory));
}

// Enters the run directory, starts the agent (unless a service follows the run), runs the command and prints
// the summary. Returns only if the command was not started; else this process ends like the command.
int run_monitored(const Arguments& arguments, const Installation& installation, const RunVariables& variables,
                  const std::vector<std::string>& environment) {
  const bool has_service = is_followed_by_service(arguments);
  RunDirectory directory;
  if (const std::string problem = directory.enter(variables.base, variables.run_id, has_service);
      !problem.empty())
    return run_unmonitored(arguments.command(), problem);
  ExitExchange exchange;  // gives the exit status to the agent and gets the summary
  if (const std::string problem = exchange.reserve(directory.path()); !problem.empty()) {
    directory.leave();
    return run_unmonitored(arguments.command(), problem);
  }
  const OffFiles earlier = off_files(directory.path());  // reasons why earlier trainers were not monitored
  size_t notices_printed = notices(directory.path()).size();  // so far, by other launchers of the run
  SignalPasser signals;  // from here on, signals stay pending until they are passed to the command
  // Its tick() starts the agent, and another one whenever the agent has died.
  RunRecord record = record_of(arguments, variables.run_id);
  const auto leave = [&](const std::function<void()>& kill_agent = nullptr, bool is_agent_stuck = false) {
    directory.leave(kill_agent, is_agent_stuck);
    if (record.is_own) remove_if_empty(record.path);
  };
  std::optional<AgentKeeper> kept_agent;
  const auto start_agent = [&] {
    kept_agent.emplace(directory.path(),
                       agent_command(installation, arguments, directory.path(), variables.run_id, record));
    const bool has_port = arguments.is_given(OptionId::kPort) && arguments.text(OptionId::kPort) != "0";
    return kept_agent->wait_for_address(has_port ? kGivenPortTimeoutMs : kAgentStartTimeoutMs).has_value();
  };
  bool has_agent = start_agent();
  if (!has_agent && record.is_own && kept_agent->has_failed() &&
      kept_agent->failure_text().find(": record ") != std::string::npos) {
    say("no record: " + kept_agent->failure_text());
    record = {};
    has_agent = start_agent();
  }
  AgentKeeper& keeper = *kept_agent;
  // If the agent is only slow, the command is started anyway, and keep_agent() below still waits for it.
  if (!has_agent) {
    if (keeper.has_failed()) {
      const std::string failure = keeper.failure_text();  // read before leave() removes the log
      leave();
      sigprocmask(SIG_SETMASK, signals.original_mask(), nullptr);  // the command inherits the mask
      // A given port that is in use is wrong use, like a --bind address that this machine does not have.
      if (arguments.is_given(OptionId::kPort) && failure.find(": port ") != std::string::npos &&
          failure.find(strerror(EADDRINUSE)) != std::string::npos)
        return wrong_use(failure + "; choose another --port, or 0 for any free one");
      return run_unmonitored(arguments.command(), "no agent can be had: " + failure);
    }
    say("no agent yet: " + keeper.failure_text());
  }
  const std::string flagged = absolute(arguments.text(OptionId::kSaveFlagged));
  const auto print_notices = [&] {
    const std::vector<std::string> lines = notices(directory.path());
    for (; notices_printed < lines.size(); ++notices_printed) say(lines[notices_printed]);
  };
  // Restarts a dead agent and prints the address of each new agent. If another launcher with the same run id
  // started the agent, the agent may lack our --record or --save-flagged; lines say so.
  const auto keep_agent = [&] {
    keeper.tick();
    print_notices();
    const auto agent = keeper.new_address();
    if (!agent) return;
    const std::string port_note =
        agent->port_taken == 0 ? "" : " (port " + std::to_string(agent->port_taken) + " is taken)";
    say("run " + variables.run_id + ", page at " + agent->url() + port_note);
    // What a service could not do concerns its operator, not this user.
    if (!agent->is_service && !agent->problem.empty()) say(agent->problem);
    if (!record.path.empty() && !record.is_own && !agent->writes(record.path))
      say(record.path + " is not written: the agent of run " + variables.run_id +
          " was there before, without it; give each run an id of its own (--run-id)");
    if (!flagged.empty() && !agent->saves_flagged(flagged))
      say("no flagged slices are saved in " + flagged + ": the agent of run " + variables.run_id +
          " was there before, without it; give each run an id of its own (--run-id)");
  };
  keep_agent();
  if (const int signal = signals.take_pending_stop_signal(); signal != 0) {
    leave();
    end_like({.code = 128 + signal, .signal = signal});
  }

  pid_t pid = -1;
  const int error = spawn(
      {.command = arguments.command(), .environment = environment, .signal_mask = signals.original_mask()},
      &pid);
  if (error != 0) {
    say("cannot start '" + arguments.command()[0] + "': " + strerror(error));
    leave();
    return status_of_failed_start(error);
  }
  const ExitStatus status = signals.wait_for(pid, keep_agent);
  exchange.write_exit_status(status, signals.stop_signal());
  // Consumes the Ctrl-C that has ended the command, so that this signal does not end the wait below.
  signals.interrupted_within(0);
  const ExitExchange::Answer answer = exchange.wait(&signals, &keeper);
  print_notices();
  print_summary(answer, absolute(arguments.text(OptionId::kSummary)), record.path,
                off_lines(directory.path(), earlier, launcher_id()), directory.path());
  if (read_summary(answer.summary).has_ranks)
    print_known_defects_once(arguments.command(), variables.adapters);
  // The agent ends by itself once run.lock is free. leave() kills it only if it does not end.
  leave([&keeper] { keeper.kill_own_agent(); }, answer.is_agent_stuck);
  end_like(status);  // ends this process with the command's exit status or signal; does not return
}

std::string last_component(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string agent_problem(const AgentOptions& options, const Arguments& arguments) {
  if (options.directory.empty() && options.tree.empty())
    return "no run given; type foreshock agent --dir DIR, or --tree DIR for all runs below DIR";
  if (!options.directory.empty() && !options.tree.empty()) return "give one of --dir and --tree";
  if (!options.tree.empty() && !options.record.empty())
    return "--record needs a single run: use it with foreshock run, without --agent service";
  if (!options.tree.empty() && !options.save_flagged.empty())
    return "--save-flagged needs a single run, because its user owns the data: use it with foreshock run, "
           "without --agent service";
  return listening_problem(arguments);
}

}  // namespace

int run(const Arguments& arguments) {
  const std::vector<std::string>& command = arguments.command();
  if (command.empty()) return wrong_use("no command given; type foreshock run [options] -- COMMAND");
  bool enabled = true;
  parse_switch(arguments.text(OptionId::kEnabled).c_str(), &enabled);
  if (!enabled) return run_alone(command);
  if (const std::string problem = run_problem(arguments); !problem.empty()) return wrong_use(problem);
  // If the command cannot be started, run_alone() prints why. Nothing about a run has been printed yet.
  // Without PATH, execvp() looks in /bin:/usr/bin.
  const char* path = std::getenv("PATH");
  if (!can_start(look_up(command[0], path != nullptr ? path : "/bin:/usr/bin"))) return run_alone(command);

  const Installation installation = find_installation();
  std::string problem = installation_problem(installation);
  if (problem.empty()) problem = file_size_problem();
  if (!problem.empty()) return run_unmonitored(command, problem);
  const BaseDirectory base = choose_base_directory();
  if (!base.problem.empty()) return run_unmonitored(command, base.problem);
  std::string cache = adapter_cache(installation);
  const bool is_preloaded = arguments.has_flag(OptionId::kPreload);
  problem = adapter_problem(installation, command, is_preloaded, &cache);
  if (!problem.empty()) return run_unmonitored(command, problem);

  const std::string given_id = arguments.text(OptionId::kRunId);
  const RunVariables variables = {base.path, given_id.empty() ? default_run_id() : given_id, cache};
  problem = length_problem(variables);
  if (!problem.empty()) return run_unmonitored(command, problem);
  const std::vector<std::string> environment = command_environment(installation, arguments, variables);
  problem = is_preloaded ? preload_problem(environment, installation.library) : "";
  if (!problem.empty()) return run_unmonitored(command, problem);
  if (const std::string line = interval_and_limit_line(arguments); !line.empty()) say(line);
  return run_monitored(arguments, installation, variables, environment);
}

int agent(const Arguments& arguments) {
  AgentOptions options;
  options.directory = without_slashes(arguments.text(OptionId::kRunDirectory));
  options.tree = without_slashes(arguments.text(OptionId::kTree));
  const std::string run_id = arguments.text(OptionId::kRunId);
  options.run_id = run_id.empty() ? last_component(options.directory) : run_id;
  options.bind = arguments.text(OptionId::kBind);
  parse_ports(arguments.text(OptionId::kPort), &options.port, &options.last_port);
  options.token_file = arguments.text(OptionId::kTokenFile);
  options.file_sd = arguments.text(OptionId::kFileSd);
  options.grafana = without_slashes(arguments.text(OptionId::kGrafana));
  options.on_alert = arguments.text(OptionId::kOnAlert);
  options.save_flagged = arguments.text(OptionId::kSaveFlagged);
  parse_bytes(arguments.text(OptionId::kFlaggedQuota).c_str(), &options.flagged_quota);
  if (const std::string record = arguments.text(OptionId::kRecord); record != kNoRecord)
    options.record = record;
  parse_bytes(arguments.text(OptionId::kRecordHistograms).c_str(), &options.record_histograms);
  parse_bytes(arguments.text(OptionId::kRecordSize).c_str(), &options.record_size);
  parse_ratio(arguments.text(OptionId::kMaxSlowdown).c_str(), &options.max_slowdown);
  parse_count(arguments.text(OptionId::kEvery).c_str(), &options.every);
  parse_count(arguments.text(OptionId::kForgetAfter).c_str(), &options.forget_after_seconds);
  options.keep_alive = arguments.has_flag(OptionId::kKeepAlive);
  if (const std::string problem = agent_problem(options, arguments); !problem.empty())
    return wrong_use(problem);
  std::signal(SIGXFSZ, SIG_IGN);  // so that a write beyond `ulimit -f` fails and is counted
  const int status = run_agent(options);
  if (options.tree.empty()) remove_after_agent(options.directory);
  return status;
}

}  // namespace foreshock::cli
