// Writes lines, a screen that is redrawn with ANSI escape sequences, and a progress bar. Formats numbers.
#include "cli/terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace foreshock::cli {

void say(const std::string& line, const std::string& speaker) {
  const std::string text = printable(speaker + ": " + line) + '\n';
  // If standard error is a pipe without a reader, write() raises SIGPIPE, which would end the command. So the
  // signal is blocked during write() and removed afterwards. An earlier SIGPIPE stays pending.
  sigset_t pipe, pending, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  sigprocmask(SIG_BLOCK, &pipe, &before);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  const timespec at_once = {0, 0};
  if (sigismember(&pending, SIGPIPE) == 0) sigtimedwait(&pipe, nullptr, &at_once);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

size_t terminal_columns(size_t without_terminal) {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return without_terminal;
  return std::clamp<size_t>(size.ws_col, 60, 120);
}

int wrong_use(const std::string& line) {
  say(line);
  return kWrongUse;
}

namespace {

// A frame is the text of a whole screen. Terminals with mode 2026 display the output between ?2026h and
// ?2026l only when it is complete; other terminals ignore both. ESC [ H moves the cursor to the top left.
constexpr std::string_view kBeginFrame = "\033[?2026h\033[H", kEndFrame = "\033[?2026l";
constexpr std::string_view kClearLine = "\033[K", kClearBelow = "\033[J";
constexpr std::string_view kHideCursorAndClear = "\033[?25l\033[2J", kShowCursor = "\033[?25h";

volatile std::sig_atomic_t g_stop = 0;  // 1: SIGINT, SIGTERM or SIGHUP has arrived
void request_stop(int) { g_stop = 1; }
void wake_up(int) {}  // handles SIGWINCH (the window has a new size): only interrupts the sleep in wait()

// Writes `text` to standard output. Errors are ignored: the next frame is complete again.
void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Returns the length of the colour sequence at the start of `text`; 0 if `text` starts without one.
size_t colour_length(std::string_view text) {
  if (!text.starts_with("\033[")) return 0;
  const size_t end = text.find_first_not_of("0123456789;", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

// Whether the byte is one of a UTF-8 character, but not its first.
bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::string fit_line(std::string_view line, size_t columns) {
  std::string fitted;
  bool coloured = false;
  size_t used = 0;  // columns: one for each character
  for (size_t next = 0; next < line.size();) {
    if (const size_t length = colour_length(line.substr(next)); length > 0) {
      fitted += line.substr(next, length);
      coloured = true;
      next += length;
      continue;
    }
    if (!continues_character(line[next])) ++used;
    if (used > columns) break;
    fitted += line[next++];
  }
  return coloured ? fitted + "\033[0m" : fitted;  // resets the colour
}

std::string frame_of(const std::string& text, size_t columns, size_t rows) {
  const std::vector<std::string_view> lines = lines_of(text);
  const size_t row_limit = std::max<size_t>(rows, 1);
  // If there are too many lines, the last row shows how many are missing.
  const size_t shown = lines.size() <= row_limit ? lines.size() : row_limit - 1;
  std::string frame(kBeginFrame);
  // Clears a row before it is written. After a row of full width is written, the cursor is still on the last
  // character, and clearing would erase that character.
  const auto add_row = [&](size_t n, std::string_view line) {
    if (n > 0) frame += "\r\n";
    frame += kClearLine;
    frame += fit_line(line, columns);
  };
  for (size_t n = 0; n < shown; ++n) add_row(n, lines[n]);
  if (shown < lines.size()) {
    add_row(shown, "... " + std::to_string(lines.size() - shown) + " more lines");
  } else if (shown < row_limit) {
    if (shown > 0) frame += "\r\n";
    frame += kClearBelow;
  }
  return frame += kEndFrame;
}

bool Screen::is_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::strcmp(kind, "dumb") != 0;
}

Screen::Screen() {
  g_stop = 0;
  const auto handle = [&](int signal, void (*handler)(int)) {
    struct sigaction action = {}, before = {};
    action.sa_handler = handler;
    // A signal that is ignored, such as SIGHUP under nohup, stays ignored.
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN &&
        sigaction(signal, &action, nullptr) == 0)
      previous_handlers_.emplace_back(signal, before);
  };
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, request_stop);
  handle(SIGWINCH, wake_up);
  measure();
  put(kHideCursorAndClear);
}

Screen::~Screen() {
  put("\r\n");
  put(kShowCursor);
  for (const auto& [signal, before] : previous_handlers_) sigaction(signal, &before, nullptr);
}

void Screen::measure() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return;
  columns_ = size.ws_col;
  rows_ = size.ws_row;
}

void Screen::draw(const std::string& text) {
  measure();
  put(frame_of(text, columns_, rows_));
}

bool Screen::wait(int seconds) {
  const timespec pause = {seconds, 0};
  if (g_stop == 0) nanosleep(&pause, nullptr);
  measure();
  return g_stop == 0;
}

ProgressBar::ProgressBar(const std::string& name) : name_(name), is_terminal_(isatty(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (is_terminal_) std::fprintf(stderr, "\r\033[K");  // erases the bar
}

void ProgressBar::show(double done) {
  constexpr int kWidth = 40;
  const int filled = static_cast<int>(done * kWidth);
  if (!is_terminal_ || filled == shown_) return;
  shown_ = filled;
  std::fprintf(stderr, "\r%-12s [%s%s] %3.0f %%", name_.c_str(), std::string(filled, '#').c_str(),
               std::string(kWidth - filled, '.').c_str(), 100 * done);
}

std::string in_brackets(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text.empty() ? "" : " (" + text + ")";
}

}  // namespace foreshock::cli
