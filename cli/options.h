// The words of a command line as options (libmonitor/options.h has their table), checked before anything
// starts.
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
  // Reads `words` for `reader` (one OptionReader bit). A command of the user's own starts after "--" or at
  // the first word that is no option; only `run` and `doctor` take one, `export` and `detect` a file. Returns
  // "" or one line that says what to do.
  std::string parse(const std::vector<std::string>& words, uint32_t reader);

  // The flag's value, else the variable's, else the default.
  std::string text(OptionId id) const;

  bool has_flag(OptionId id) const { return flags_[static_cast<size_t>(id)].has_value(); }
  bool is_given(OptionId id) const;  // by a flag or by its variable
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

// "9847", or "9847-9946": the first free one of these (*last_port is 0 for a single port).
bool parse_ports(const std::string& text, int* port, int* last_port);

// "" when the agent may listen where --bind says, else what to do.
std::string listening_problem(const Arguments& arguments);

// Returns the options of `reader` for --help: grouped, two aligned columns, lines of at most `columns`.
std::string options_help(uint32_t reader, size_t columns);

// Returns "" or a line about a FORESHOCK_ variable in the environment that is probably misspelled.
std::string unknown_variable();

// The table as Markdown, for docs/options.md.
std::string options_markdown();

// The name of a run. It becomes a directory name and a metric label, so it is short and plain:
// 1 to 63 characters of [A-Za-z0-9_.-], not starting with a dot, and not "lock", which lies beside the runs.

// "" when `run_id` may be used, else what to do.
std::string run_id_problem(const std::string& run_id);

// From the environment: WANDB_RUN_ID, SLURM_JOB_ID (with .SLURM_STEP_ID), TORCHELASTIC_RUN_ID unless it is
// "none", else 8 random hex digits. Foreign text is made to fit.
std::string default_run_id();

// The files and addresses that options name, looked at before the command starts: what would fail only at
// the end of a long run, or in the agent, where nobody looks, is refused while somebody does.

// The absolute path; "" where there is none: the working directory is gone.
std::string absolute(const std::string& path);

// Each returns "" or one line that says what to do.

// What this run itself, or its agent, is to write: --summary, --record, --file-sd, --save-flagged (whose
// directory is made now, so that its quota is a disk's that takes files).
std::string written_files_problem(const Arguments& arguments);

// What an agent of this run's own needs to serve: --token-file, and a place to listen at (--bind).
std::string served_place_problem(const Arguments& arguments);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_OPTIONS_H_
