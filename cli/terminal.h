// What the command line writes to a terminal: whole lines on standard error, a screen that is redrawn, a
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

// Replaces control characters by '?', so that a text from a record, which is not trusted, cannot send escape
// sequences to the terminal.
std::string printable(std::string text);

// Writes "foreshock: <line>\n" with one call.
void say(const std::string& line);

// Returns the width of the terminal on standard output, at least 60 and at most 120; `otherwise` without a
// terminal.
size_t terminal_columns(size_t otherwise);

// The exit status after wrong use of the command line.
inline constexpr int kWrongUse = 2;

// Calls say(line) and returns kWrongUse, for `return wrong_use(...)`.
int wrong_use(const std::string& line);

// The first `columns` characters of a line; colours (ESC [ ... m) have no width and are switched off at the
// end.
std::string fit_line(std::string_view line, size_t columns);

// Returns the text and escape sequences that draw `text` over the previous frame: from the top left, each
// line cut to the width, the rest of the screen cleared. If there are more lines than rows, the last row says
// how many are missing.
std::string frame_of(const std::string& text, size_t columns, size_t rows);

// A text that is redrawn at the same place of a terminal. While it exists, the cursor is hidden, and SIGINT,
// SIGTERM and SIGHUP only make wait() return false; the destructor restores both and leaves the last frame on
// the screen. One object at a time, one thread.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Whether standard output is a terminal that can move its cursor.
  static bool is_terminal();

  void draw(const std::string& text);
  size_t rows() const { return rows_; }  // as of the last draw() or wait()

  // Waits until the time is up or the window has changed its size. Returns false after a signal that asks to
  // stop.
  bool wait(int seconds);

 private:
  void measure();

  size_t columns_ = 80, rows_ = 24;
  std::vector<std::pair<int, struct sigaction>> before_;  // signals and their previous handlers
};

// One line on standard error, rewritten in place; prints nothing if standard error is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(const std::string& name);
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` is in [0, 1]. One thread at a time.
  void show(double done);

 private:
  std::string name_;
  bool on_;
  int shown_ = -1;  // filled characters of the bar that is displayed
};

// Numbers and facts as text: columns, units, colours.

// The number in printf's `format`, or "unknown".
std::string formatted(const char* format, std::optional<double> value);

// 1234567 -> "1 234 567"; "unknown".
std::string count(std::optional<double> value);

// "3 budget, 1 mask"; "none".
std::string reasons(const std::map<std::string, double>& counts);

// "optimizer_state" -> " (optimizer state)"; "" stays "".
std::string in_brackets(std::string text);

// A line of a table with the columns name, forward, backward, remark.
std::string row(const std::string& name, const std::string& forward, const std::string& backward,
                const std::string& remark = "");

// A line with a name and a value, aligned with row().
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
