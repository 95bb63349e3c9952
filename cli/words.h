// Reads the command lines of foreshock report, merge, compare, judge and lab: options from a table, and other
// words ("files"). Formats help texts. cli/options.h reads the other commands, such as run, whose options can
// also be set by environment variables.
#ifndef FORESHOCK_CLI_WORDS_H_
#define FORESHOCK_CLI_WORDS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock::cli {

struct WordOption {
  const char* flag;        // with its dashes
  const char* value_name;  // as the help shows it; nullptr: the option takes no value
  const char* help;
  size_t value_count = 1;  // values are one word each; ignored if the option takes none
};

// The words of a command line, divided into options with their values, and files. Thread-compatible.
class Words {
 public:
  // Reads the words after the name of `command`. The value of an option is the next word, or follows "=" in
  // the same word. All words after "--" are files. Stops at --help. Returns "" or an error of one line.
  std::string parse(const std::vector<std::string>& words, const std::string& command,
                    std::span<const WordOption> options);

  bool wants_help() const { return wants_help_; }
  bool has(std::string_view flag) const { return find(flag) != nullptr; }
  // Returns the value of the last occurrence of `flag`; "" if it does not occur.
  std::string value(std::string_view flag) const;

  struct Given {  // an occurrence of an option
    std::string flag;
    std::vector<std::string> values;
  };
  const std::vector<Given>& given() const { return given_; }        // in the order of the command line
  const std::vector<std::string>& files() const { return files_; }  // words that are not options or values

 private:
  const Given* find(std::string_view flag) const;  // the last occurrence; null: it does not occur

  std::vector<Given> given_;
  std::vector<std::string> files_;
  bool wants_help_ = false;
};

// Returns ", did you mean X?" for the most similar word of `known`, or "" if none is similar.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// Breaks `text` into lines that end before column `columns`. If fewer than 20 characters fit, lines may have
// 20. Indents all lines but the first by `indent`; the caller prints the first one at column `indent`.
std::string wrapped(const std::string& text, size_t indent, size_t columns);

// Returns the options in two aligned columns, for --help. Lines end before column `columns`.
std::string words_help(std::span<const WordOption> options, size_t columns);

// The parts of what --help prints, in this order.
struct WordsHelp {
  const char* usage;  // one or several lines, each without the leading "foreshock "
  const char* purpose;
  std::span<const WordOption> options;
  const char* notes;  // paragraphs with an empty line between them
};
void print_help(const WordsHelp& help);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_WORDS_H_
