// The functions of quiet_steps.h for Python: the class QuietSteps of core.py has them as fields. The
// interpreter lock must be held for all calls.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_QUIET_FUNCTIONS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_QUIET_FUNCTIONS_H_

#include <cstdint>
#include <iterator>

#include "python_objects.h"
#include "quiet_steps.h"

namespace foreshock::adapter {

// `given`: the `count` arguments of the call. A wrong count is a bug of the helper: Python turns the returned
// null pointer into a SystemError.
namespace quiet_functions {

inline void* to_python(int64_t value) { return Python::get().new_integer(value); }
inline void* none() {  // a new reference to None
  Python::get().retain(Python::get().none);
  return Python::get().none;
}

inline void* prepare(void*, void* const* given, ssize_t count) {
  if (count != 4) return nullptr;
  QuietSteps::instance().prepare(given[0], given[1], given[2], given[3]);
  return none();
}

// QuietSteps::begin() with the arguments of a hook. Returns the number of weights to be measured; 0: the step
// is quiet; -1: the helper handles it, also after an error.
inline void* begins(void*, void* const* given, ssize_t count) {
  if (count != 3) return nullptr;
  const int64_t due = QuietSteps::instance().begin(given[0], given[1], given[2]);
  if (!Python::get().pending_error()) return to_python(due);
  Python::get().clear_error();
  QuietSteps::instance().run_next_end_in_python();
  return to_python(-1);
}

inline void* ends(void*, void* const* given, ssize_t count) {
  if (count != 1) return nullptr;
  const bool is_done = QuietSteps::instance().end(given[0]);
  return Python::get().pending_error() ? nullptr : to_python(is_done);
}

inline void* set_clock(void*, void* const* given, ssize_t count) {
  if (count != 3) return nullptr;
  const auto* parameters = reinterpret_cast<const void* const*>(Python::get().integer(given[1]));
  const auto length = static_cast<size_t>(Python::get().integer(given[2]));
  return to_python(QuietSteps::instance().set_clock(given[0], parameters, length));
}

// given[0]: an optimizer other than the clock. given[1]: the number in the name of its loss.
inline void* add_other(void*, void* const* given, ssize_t count) {
  if (count != 2) return nullptr;
  return to_python(QuietSteps::instance().add_other(given[0], Python::get().integer(given[1])));
}

inline void* allow(void*, void* const* given, ssize_t count) {
  if (count != 9) return nullptr;
  const auto number = [&](ssize_t n) { return Python::get().integer(given[n]); };
  QuietSteps::instance().allow({.may_end_quietly = number(0) != 0,
                                .is_counted = number(1) != 0,
                                .seen_step = number(2),
                                .seen_address = reinterpret_cast<const void*>(number(3)),
                                .begins_left = number(4),
                                .ends_left = number(5),
                                .modules = static_cast<ssize_t>(number(6)),
                                .due_numbers = reinterpret_cast<uint32_t*>(number(7)),
                                .due_capacity = static_cast<size_t>(number(8))});
  return none();
}

inline void* stop(void*, void* const*, ssize_t) { return QuietSteps::instance().stop(), none(); }

inline void* run_next_end_in_python(void*, void* const*, ssize_t) {
  return QuietSteps::instance().run_next_end_in_python(), none();
}

inline void* take(void*, void* const*, ssize_t) { return QuietSteps::instance().take(); }

}  // namespace quiet_functions

// A new reference to the n-th function, in the order of core.py; nullptr after the last, or without Python.
inline void* quiet_function(size_t n) {
  namespace f = quiet_functions;
  static PythonMethod methods[] = {{"prepare", f::prepare},
                                   {"begins", f::begins},
                                   {"ends", f::ends},
                                   {"set_clock", f::set_clock},
                                   {"add_other", f::add_other},
                                   {"allow", f::allow},
                                   {"stop", f::stop},
                                   {"run_next_end_in_python", f::run_next_end_in_python},
                                   {"take", f::take}};
  if (n >= std::size(methods) || !Python::get().has_all()) return nullptr;
  return Python::get().new_function(&methods[n], nullptr, nullptr);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_QUIET_FUNCTIONS_H_
