// Writes messages and a progress bar to standard error, redraws a screen on standard output.
#ifndef FORESHOCK_CLI_TERMINAL_H_
#define FORESHOCK_CLI_TERMINAL_H_

#include <csignal>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/printable.h"

namespace foreshock::cli {

// Writes "<speaker>: <line>\n" to standard error in one call of write(), after printable(). Ignores errors.
void say(const std::string& line, const std::string& speaker = "foreshock");

// Returns the width of the terminal on standard output, limited to the range from 60 to 120. Returns
// `without_terminal` if standard output is not a terminal.
size_t terminal_columns(size_t without_terminal);

inline constexpr int kWrongUse = 2;  // the exit status after wrong use of the command line

int wrong_use(const std::string& line);  // prints the line with say() and returns kWrongUse

// Returns the first `columns` characters of the line. Colour sequences (ESC [ ... m) do not count as
// characters. After a colour sequence, the result ends with the default colour.
std::string fit_line(std::string_view line, size_t columns);

// Returns a frame: `text` with the escape sequences that draw it over the whole screen, from the top left.
// Lines are cut to `columns`. If the text has more than `rows` lines, the last row says how many are missing.
std::string frame_of(const std::string& text, size_t columns, size_t rows);

// Redraws a text at the same place of a terminal. While a Screen exists, the cursor is hidden. SIGINT,
// SIGTERM and SIGHUP, if not ignored, do not end the process but make wait() return false. The destructor
// restores cursor and signal handlers and leaves the last frame. Only one Screen may exist. Not thread-safe.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static bool is_terminal();  // whether standard output is a terminal that can move its cursor

  void draw(const std::string& text);
  size_t rows() const { return rows_; }  // rows of the terminal at the last draw() or wait()

  // Waits `seconds`, or until the size of the window changes. Returns false after a stop signal.
  bool wait(int seconds);

 private:
  void measure();  // sets columns_ and rows_ to the size of the terminal

  size_t columns_ = 80, rows_ = 24;
  std::vector<std::pair<int, struct sigaction>> previous_handlers_;  // signals and their previous handlers
};

// Draws a progress bar in one line of standard error. Prints nothing if standard error is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(const std::string& name);
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(double done);  // `done` is in [0, 1]. One thread at a time.

 private:
  std::string name_;
  bool is_terminal_;  // whether standard error is a terminal
  int shown_ = -1;    // number of filled characters on the screen; -1: nothing was drawn yet
};

// Returns the text in brackets, with blanks for '_': " (optimizer state)" for "optimizer_state"; "" for "".
std::string in_brackets(std::string text);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_TERMINAL_H_
