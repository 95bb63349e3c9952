// foreshock: reads the name of the command and hands over to the file of that name.
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "cli/version.h"

namespace foreshock::cli {
namespace {

struct Command {
  const char* name;
  int (*function)(const Arguments&);
  OptionReader reader;
  const char* usage;
  const char* help;
};

constexpr Command kCommands[] = {
    {"run", run, kReaderRun, "run [options] -- COMMAND ...", "run a training under observation"},
    {"status", status, kReaderStatus, "status [options]", "the live runs and their latest signals"},
    {"doctor", doctor, kReaderDoctor, "doctor [options] [-- COMMAND ...]",
     "what will be seen here, what will not, and why; builds the adapter"},
    {"pause", pause, kReaderSwitch, "pause [options]",
     "switch the monitor of live runs off: of all, or of --run-id ID"},
    {"resume", resume, kReaderSwitch, "resume [options]",
     "switch it on again: of all live runs, or of --run-id ID"},
    {"export", export_record, kReaderExport, "export --tensorboard DIR|--csv DIR RECORD.jsonl",
     "a record for other tools"},
    {"detect", detect, kReaderDetect, "detect [options] RECORD.jsonl",
     "the detectors on a record: each event, and what came before it"},
    {"agent", agent, kReaderAgent, "agent --dir DIR|--tree DIR [options]",
     "serve one run directory (`run` starts it), or all below DIR"},
};

int print_help() {
  std::printf("foreshock %s: a seismograph for training runs\n\n", kVersion);
  for (const Command& command : kCommands)
    std::printf("  foreshock %-36s  %s\n", command.usage, command.help);
  std::printf("  foreshock %-36s  %s\n", "lab [SWEEP ...] [options]",
              "measure algorithms and formats against fp64");
  std::printf("  foreshock %-36s  %s\n", "judge CALL|--function MODULE:NAME",
              "an attention kernel of your own against fp64");
  std::printf("  foreshock %-36s  %s\n", "compare A B [C ...]",
              "how far apart the weights of checkpoints are");
  std::printf("  foreshock %-36s  %s\n", "merge A.jsonl B.jsonl ... [-o OUT]",
              "the records of several nodes as one");
  std::printf("  foreshock %-36s  %s\n", "report RECORD.jsonl [-o OUT.html]",
              "the story of a run: each loss event, and what moved before it");
  std::printf("\n`foreshock COMMAND --help` lists the options of a command.\n");
  return 0;
}

int print_help(const Command& command) {
  std::printf("foreshock %s\n%s\n\n%s", command.usage, command.help, options_help(command.reader).c_str());
  return 0;
}

int dispatch(const Command& command, const std::vector<std::string>& words) {
  Arguments arguments;
  const std::string problem = arguments.parse(words, command.reader);
  if (!problem.empty()) return wrong_use(problem);
  return arguments.wants_help() ? print_help(command) : command.function(arguments);
}

int main(const std::vector<std::string>& words) {
  if (words.empty()) return wrong_use("say what to do: foreshock run -- COMMAND, or foreshock --help");
  const std::string name = words[0];
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (name == "--help" || name == "-h" || name == "help") return print_help();
  if (name == "--version") {
    std::printf("foreshock %s\n", kVersion);
    return 0;
  }
  if (name == "docs") return docs(rest);
  if (name == "lab") return lab(rest);
  if (name == "judge") return judge(rest);
  if (name == "compare") return compare(rest);
  if (name == "merge") return merge(rest);
  if (name == "report") return report(rest);
  for (const Command& command : kCommands) {
    if (name == command.name) return dispatch(command, rest);
  }
  return wrong_use("there is no command '" + name + "': foreshock --help lists what there is");
}

// A standard stream that is closed would lend its number to the next file that is opened, and what is printed
// would land in there. Its place is held by what takes no byte, and the trainer does not get that.
void hold_standard_streams() {
  for (const int stream : {0, 1, 2})
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", (stream == 0 ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

// What could not be printed (a disk that is full) is not done.
int printed(int status) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return status;
  say(std::string("standard output: ") + (errno != 0 ? std::strerror(errno) : "not all could be written"));
  return status == 0 ? 1 : status;
}

}  // namespace
}  // namespace foreshock::cli

int main(int count, char** words) {
  foreshock::cli::hold_standard_streams();
  try {
    return foreshock::cli::printed(foreshock::cli::main({words + 1, words + count}));
  } catch (const std::exception& error) {  // no memory, no working directory: one line, not an abort
    foreshock::cli::say(error.what());
    return 1;
  }
}
