// Reads the command lines of report, merge, compare, judge and lab: options from a table, and files. The
// commands of the monitor, whose options have environment variables too, are read by cli/options.h.
#ifndef FORESHOCK_CLI_WORDS_H_
#define FORESHOCK_CLI_WORDS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock::cli {

struct WordOption {
  const char* flag;   // with its dashes
  const char* value;  // name of its value in the help; nullptr: the option takes no value
  const char* help;
  size_t values = 1;  // number of words that follow the flag
};

// The parsed words of a command line.
class Words {
 public:
  // Reads the words after the name of `command`. The value of an option is the next word, or follows "=" in
  // the same word. "--" ends the options. Stops at --help. Returns "" or what is wrong, in one line.
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
  const std::vector<Given>& given() const { return given_; }        // in the order of the words
  const std::vector<std::string>& files() const { return files_; }  // words that are not options

 private:
  const Given* find(std::string_view flag) const;

  std::vector<Given> given_;
  std::vector<std::string> files_;
  bool wants_help_ = false;
};

// Returns ", did you mean X?" for the most similar word of `known`, or "" if none is similar.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// Breaks `text` into lines that end before column `columns` but have at least 20 characters. Indents all but
// the first by `indent`; the caller prints the first one at column `indent`.
std::string wrapped(const std::string& text, size_t indent, size_t columns);

// Returns the options in two aligned columns, for --help. Lines end before column `columns`.
std::string words_help(std::span<const WordOption> options, size_t columns);

// What --help prints: usage, purpose, options, notes.
struct WordsHelp {
  const char* usage;  // one or several lines, each without the leading "foreshock "
  const char* purpose;
  std::span<const WordOption> options;
  const char* notes;  // paragraphs with an empty line between them
};
void print_help(const WordsHelp& help);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_WORDS_H_
