// As long as this lives, so many more descriptors can be had and no more. Open ones stay open.
#ifndef FORESHOCK_TESTS_SUPPORT_FEW_DESCRIPTORS_H_
#define FORESHOCK_TESTS_SUPPORT_FEW_DESCRIPTORS_H_

#include <fcntl.h>
#include <sys/resource.h>

namespace foreshock {

class FewDescriptors {
 public:
  explicit FewDescriptors(int count) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = {0, before_.rlim_max};
    for (; count > 0 || !is_free(few.rlim_cur); ++few.rlim_cur) count -= is_free(few.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

  // That can be had now.
  static int left() {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    int count = 0;
    for (rlim_t file = 0; file < limit.rlim_cur; ++file) count += is_free(file);
    return count;
  }

 private:
  static bool is_free(rlim_t file) { return fcntl(static_cast<int>(file), F_GETFD) < 0; }

  rlimit before_ = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_FEW_DESCRIPTORS_H_
