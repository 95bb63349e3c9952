// A loop over independent tasks on several threads. Tasks write only what is theirs, so the outcome does not
// depend on who runs them.
#ifndef FORESHOCK_LAB_PARALLEL_H_
#define FORESHOCK_LAB_PARALLEL_H_

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace foreshock::lab {

// Calls task(0) ... task(count - 1), each once, in no particular order. The caller's thread is one of
// `threads`.
template <class Task>
void parallel_for(size_t count, int threads, const Task& task) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_PARALLEL_H_
