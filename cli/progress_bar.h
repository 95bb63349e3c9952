// One line on a terminal, rewritten in place; nothing elsewhere.
#ifndef FORESHOCK_CLI_PROGRESS_BAR_H_
#define FORESHOCK_CLI_PROGRESS_BAR_H_

#include <string>

namespace foreshock::cli {

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

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_PROGRESS_BAR_H_
