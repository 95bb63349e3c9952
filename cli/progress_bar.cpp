#include "cli/progress_bar.h"

#include <unistd.h>

#include <cstdio>

namespace foreshock::cli {

ProgressBar::ProgressBar(const std::string& name) : name_(name), on_(isatty(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (on_) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::show(double done) {
  constexpr int kWidth = 40;
  const int filled = static_cast<int>(done * kWidth);
  if (!on_ || filled == shown_) return;
  shown_ = filled;
  std::fprintf(stderr, "\r%-12s [%s%s] %3.0f %%", name_.c_str(), std::string(filled, '#').c_str(),
               std::string(kWidth - filled, '.').c_str(), 100 * done);
}

}  // namespace foreshock::cli
