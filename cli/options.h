// Parses and checks the command-line options of run, agent, status, pause, resume, doctor, export and detect.
// They are in the table of libmonitor/options.h: every option has a flag, an environment variable, or both.
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
  // Reads the words after the command's name. Accepts the options whose table entry has the command's bit
  // `reader` (OptionReader). Stops at --help. The words after "--", or from the first that is not an option,
  // become command(): the user's command (run, doctor) or a record (export, detect). Returns "" or an error.
  std::string parse(const std::vector<std::string>& words, uint32_t reader);

  // Returns the value of the flag, else of the environment variable, else the default.
  std::string text(OptionId id) const;

  bool has_flag(OptionId id) const { return flags_[static_cast<size_t>(id)].has_value(); }
  bool is_given(OptionId id) const;  // by a flag or by its environment variable
  bool wants_help() const { return wants_help_; }
  const std::vector<std::string>& command() const { return command_; }

 private:
  // Stores the option words[*index]; increments *index if its value is the next word. Returns "" or an error.
  std::string take_flag(const std::vector<std::string>& words, size_t* index, uint32_t reader);
  std::string check_values(uint32_t reader) const;

  // By OptionId: the value on the command line; "1" for a flag without a value.
  std::array<std::optional<std::string>, kOptionCount> flags_;
  std::vector<std::string> command_;
  bool wants_help_ = false;
};

// Returns "" if `text` is a valid value of `id`, else what is required, e.g. "a whole number from 1 to 64".
std::string value_wanted(OptionId id, const std::string& text);

inline constexpr const char* kNoRecord = "off";  // a value of --record

// Parses a port ("9847") or a range ("9847-9946"), of which the agent uses the first free port. *last_port
// becomes 0 for a single port. Returns false if the text is invalid.
bool parse_ports(const std::string& text, int* port, int* last_port);

// Returns "" if the agent may listen on the address of --bind, else what to do, e.g. to give --token-file.
std::string listening_problem(const Arguments& arguments);

// Returns the options of `reader` for --help, in groups of two columns. Lines have at most `columns` bytes.
std::string options_help(uint32_t reader, size_t columns);

// Returns "", or a line about the first FORESHOCK_ variable in the environment that foreshock does not have.
std::string unknown_variable();

// Returns the option table as Markdown, for docs/options.md.
std::string options_markdown();

// Returns "" if `run_id` is a valid name of a run, else what to do. The name becomes a directory name and a
// metric label, so it must have 1 to 63 characters of [A-Za-z0-9_.-] and not start with a dot. "lock" is
// reserved for a file next to the run directories.
std::string run_id_problem(const std::string& run_id);

// Returns the run id from the environment: WANDB_RUN_ID, else SLURM_JOB_ID (with .SLURM_STEP_ID), else
// TORCHELASTIC_RUN_ID (not "none"). Replaces invalid characters by '_'. "": the environment has none.
std::string inherited_run_id();

// Returns inherited_run_id(), else 8 random hex digits.
std::string default_run_id();

// Returns the absolute path; "" if `path` is "", or is relative and the working directory no longer exists.
std::string absolute(const std::string& path);

// The last two functions are called before the training starts, since an error at the end of a long run, or
// in the agent's log, would be found too late. They return "" or what to do, in one line.

// Checks the files that this run or its agent will write: --summary, --record, --file-sd, --save-flagged.
// Creates the directory of --save-flagged.
std::string written_files_problem(const Arguments& arguments);

// Checks --token-file and the address of --bind, which the run's own agent needs to serve its page.
std::string page_address_problem(const Arguments& arguments);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_OPTIONS_H_
