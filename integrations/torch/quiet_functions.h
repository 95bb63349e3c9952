// The functions of quiet_steps.h for Python: the class QuietSteps of core.py has them as fields. In a quiet
// step torch's two optimizer hooks run no Python code: they are Python functions whose C entry is replaced
// here. The interpreter lock must be held for all calls.
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

inline void* integer(int64_t value) { return Python::get().new_integer(value); }
inline void* none() {
  Python::get().retain(Python::get().none);
  return Python::get().none;
}

inline void* prepare(void*, void* const* given, ssize_t count) {
  if (count != 4) return nullptr;
  QuietSteps::instance().prepare(given[0], given[1], given[2], given[3]);
  return none();
}

// The helper's functions for the hooks in steps that are not quiet (see replace_hooks).
inline void *before_other_step = nullptr, *after_other_step = nullptr;

// The vectorcalls of torch's two hooks. `given`: the optimizer, a tuple and a dictionary of step()'s
// arguments.
inline void* before_step(void*, void* const* given, size_t count, void*) {
  if (static_cast<uint32_t>(count) != 3) return none();
  const int64_t due = QuietSteps::instance().begin(given[0], given[1], given[2]);
  if (due == 0) return none();
  const PythonReference number(Python::get().new_integer(due));
  return Python::get().call_with(before_other_step, given[0], given[1], given[2], number.get(),
                                 static_cast<void*>(nullptr));
}

inline void* after_step(void*, void* const* given, size_t count, void*) {
  if (static_cast<uint32_t>(count) != 3) return none();
  const bool is_done = QuietSteps::instance().end(given[0]);
  if (Python::get().pending_error()) return nullptr;
  return is_done ? none()
                 : Python::get().call_with(after_other_step, given[0], given[1], given[2],
                                           static_cast<void*>(nullptr));
}

// Lets C code that calls the Python functions given[0] and given[1], the hooks, call before_step and
// after_step instead. These call given[2] and given[3] if the step is not quiet. given[4]: bytes of a
// function's object. Returns 0 if the functions cannot be replaced.
inline void* replace_hooks(void*, void* const* given, ssize_t count) {
  if (count != 5) return nullptr;
  const Python& python = Python::get();
  python.retain(before_other_step = given[2]);
  python.retain(after_other_step = given[3]);
  const auto bytes = static_cast<size_t>(python.integer(given[4]));
  return integer(replace_vectorcall(given[0], bytes, before_step) &&
                 replace_vectorcall(given[1], bytes, after_step));
}

inline void* begins(void*, void* const* given, ssize_t count) {
  return count == 3 ? integer(QuietSteps::instance().begin(given[0], given[1], given[2])) : nullptr;
}

inline void* ends(void*, void* const* given, ssize_t count) {
  if (count != 1) return nullptr;
  const bool is_done = QuietSteps::instance().end(given[0]);
  return Python::get().pending_error() ? nullptr : integer(is_done);
}

inline void* set_clock(void*, void* const* given, ssize_t count) {
  if (count != 3) return nullptr;
  const auto* parameters = reinterpret_cast<const void* const*>(Python::get().integer(given[1]));
  const auto length = static_cast<size_t>(Python::get().integer(given[2]));
  return integer(QuietSteps::instance().set_clock(given[0], parameters, length));
}

inline void* add_other(void*, void* const* given, ssize_t count) {
  if (count != 2) return nullptr;
  return integer(QuietSteps::instance().add_other(given[0], Python::get().integer(given[1])));
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
  static PythonMethod methods[] = {
      {"prepare", f::prepare},     {"begins", f::begins},
      {"ends", f::ends},           {"set_clock", f::set_clock},
      {"add_other", f::add_other}, {"allow", f::allow},
      {"stop", f::stop},           {"run_next_end_in_python", f::run_next_end_in_python},
      {"take", f::take},           {"replace_hooks", f::replace_hooks}};
  if (n >= std::size(methods) || !Python::get().has_all()) return nullptr;
  return Python::get().new_function(&methods[n], nullptr, nullptr);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_QUIET_FUNCTIONS_H_
