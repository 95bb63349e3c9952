// What the command line writes to a terminal: whole lines on standard error, a screen drawn over and over, a
// progress bar.
#ifndef FORESHOCK_CLI_TERMINAL_H_
#define FORESHOCK_CLI_TERMINAL_H_

#include <csignal>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock::cli {

// Without what a terminal would obey: it may come from a record, and that from anywhere.
std::string printable(std::string text);

// Writes "foreshock: <line>\n" with one call.
void say(const std::string& line);

// Returns the width of the terminal on standard output, at least 60 and at most 120; `otherwise` without a
// terminal.
size_t terminal_columns(size_t otherwise);

// The exit status of wrong use.
inline constexpr int kWrongUse = 2;

// say(line) and kWrongUse, for `return wrong_use(...)`.
int wrong_use(const std::string& line);

// A text that is drawn over and over at the same place of a terminal.

// The first `columns` characters of a line; colours (ESC [ ... m) take no room and are switched off at the
// end.
std::string fit_line(std::string_view line, size_t columns);

// What draws `text` over the frame before it: from the top left, each line cut to the width, the rest of the
// screen cleared. Of more lines than fit, the last row says how many are missing.
std::string frame_of(const std::string& text, size_t columns, size_t rows);

// From construction on the cursor is hidden, and Ctrl-C and SIGTERM only ask to stop; the destructor puts all
// of it back and leaves the last frame on the screen. One at a time; one thread.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Standard output is a terminal that can move its cursor.
  static bool is_terminal();

  void draw(const std::string& text);
  size_t rows() const { return rows_; }  // as of the last draw() or wait()

  // Until the time is up, or the window has changed its size. False: somebody asked to stop.
  bool wait(int seconds);

 private:
  void measure();

  size_t columns_ = 80, rows_ = 24;
  std::vector<std::pair<int, struct sigaction>> before_;
};

// One line on a terminal, rewritten in place; nothing elsewhere.

class ProgressBar {
 public:
  explicit ProgressBar(const std::string& name);
  ~ProgressBar();  // takes the line away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` is in [0, 1]. One thread at a time.
  void show(double done);

 private:
  std::string name_;
  bool on_;
  int shown_ = -1;
};

// Numbers and facts as text: columns, units, colours.

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

#endif  // FORESHOCK_CLI_TERMINAL_H_
