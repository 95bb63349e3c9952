// Numbers and facts as text: columns, units, colours.
#ifndef FORESHOCK_CLI_FORMAT_H_
#define FORESHOCK_CLI_FORMAT_H_

#include <map>
#include <optional>
#include <string>

namespace foreshock::cli {

// printf's `format` of a number, or "unknown".
std::string formatted(const char* format, std::optional<double> value);

// 1234567 -> "1 234 567"; "unknown".
std::string count(std::optional<double> value);

// "3 budget, 1 mask"; "none".
std::string reasons(const std::map<std::string, double>& counts);

// "optimizer_state" -> " (optimizer state)"; "" stays "".
std::string in_brackets(std::string text);

// A line of the table: name, forward, backward, remark.
std::string row(const std::string& name, const std::string& forward, const std::string& backward,
                const std::string& remark = "");

// A line of its own: name and value.
std::string fact(const std::string& name, const std::string& value);

// ANSI colours, or none.
class Paint {
 public:
  explicit Paint(bool on) : on_(on) {}
  std::string bold(const std::string& text) const { return wrap("1", text); }
  std::string dim(const std::string& text) const { return wrap("2", text); }
  std::string good(const std::string& text) const { return wrap("32", text); }
  std::string bad(const std::string& text) const { return wrap("1;31", text); }

 private:
  std::string wrap(const char* code, const std::string& text) const {
    return on_ && !text.empty() ? std::string("\033[") + code + "m" + text + "\033[0m" : text;
  }
  bool on_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_FORMAT_H_
