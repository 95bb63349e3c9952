// The words after `foreshock COMMAND`, read by the option table (libmonitor/options.h).
#ifndef FORESHOCK_CLI_ARGUMENTS_H_
#define FORESHOCK_CLI_ARGUMENTS_H_

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
  bool wants_help() const { return wants_help_; }
  const std::vector<std::string>& command() const { return command_; }

 private:
  std::string take_flag(const std::vector<std::string>& words, size_t* at, uint32_t reader);
  std::string check_values(uint32_t reader) const;

  std::array<std::optional<std::string>, kOptionCount> flags_;
  std::vector<std::string> command_;
  bool wants_help_ = false;
};

// "" when `text` is a fit value of `id`, else what is wanted, e.g. "a whole number".
std::string value_wanted(OptionId id, const std::string& text);

// "" when the agent may listen where --bind says, else what to do.
std::string listening_problem(const Arguments& arguments);

// The options of `reader`, two aligned columns, for --help.
std::string options_help(uint32_t reader);

// The table as Markdown, for docs/options.md.
std::string options_markdown();

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_ARGUMENTS_H_
