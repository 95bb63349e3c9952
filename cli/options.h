// Parses and checks command-line options from the table in libmonitor/options.h.
#ifndef FORESHOCK_CLI_OPTIONS_H_
#define FORESHOCK_CLI_OPTIONS_H_

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "libmonitor/options.h"

namespace foreshock::cli {

class Arguments {
 public:
  // Reads `words` for `reader` (one OptionReader bit). The user's command starts after "--" or at the first
  // word that is not an option. Only `run` and `doctor` take a command; for `export` and `detect` it is the
  // record file. Returns "" or one line that says what to do.
  std::string parse(const std::vector<std::string>& words, uint32_t reader);

  // The value of the flag, else of the environment variable, else the default.
  std::string text(OptionId id) const;

  bool has_flag(OptionId id) const { return flags_[static_cast<size_t>(id)].has_value(); }
  bool is_given(OptionId id) const;  // by a flag or by its environment variable
  bool wants_help() const { return wants_help_; }
  const std::vector<std::string>& command() const { return command_; }

 private:
  std::string take_flag(const std::vector<std::string>& words, size_t* at, uint32_t reader);
  std::string check_values(uint32_t reader) const;

  std::array<std::optional<std::string>, kOptionCount> flags_;
  std::vector<std::string> command_;
  bool wants_help_ = false;
};

// Returns "" if `text` is a valid value of `id`, else what is required, e.g. "a whole number".
std::string value_wanted(OptionId id, const std::string& text);

// Parses "9847", or "9847-9946" for the first free port of a range. *last_port is 0 for a single port.
bool parse_ports(const std::string& text, int* port, int* last_port);

// "" if the agent may listen on the address of --bind, else what to do: a public address needs a token.
std::string listening_problem(const Arguments& arguments);

// Returns the options of `reader` for --help: grouped, two aligned columns, lines of at most `columns`.
std::string options_help(uint32_t reader, size_t columns);

// Returns "" or a line about a FORESHOCK_ variable in the environment that is probably misspelled.
std::string unknown_variable();

// The option table as Markdown, for docs/options.md.
std::string options_markdown();

// The name of a run. It becomes a directory name and a metric label, so it is short and plain: 1 to 63
// characters of [A-Za-z0-9_.-], not starting with a dot, and not "lock", the name of a file beside the run
// directories.

// "" if `run_id` may be used, else what to do.
std::string run_id_problem(const std::string& run_id);

// The run id from the environment: WANDB_RUN_ID, SLURM_JOB_ID (with .SLURM_STEP_ID), TORCHELASTIC_RUN_ID
// unless it is "none", else 8 random hex digits. Invalid characters are replaced, long text is cut.
std::string default_run_id();

// Checks of the files and addresses that options name, made before the command starts: an error at the end of
// a long run, or in the log of the agent, would come too late.

// The absolute path; "" for "", or if the working directory no longer exists.
std::string absolute(const std::string& path);

// Each returns "" or one line that says what to do.

// Checks the files that this run or its agent will write: --summary, --record, --file-sd, --save-flagged. The
// directory of --save-flagged is created now.
std::string written_files_problem(const Arguments& arguments);

// Checks what the run's own agent needs to serve: --token-file and the address of --bind.
std::string served_place_problem(const Arguments& arguments);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_OPTIONS_H_
