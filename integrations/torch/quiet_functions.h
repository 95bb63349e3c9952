// The functions of quiet_steps.h for Python: the class QuietSteps of core.py has them as fields. The helper
// (the Python package foreshock_torch) has two functions, the hooks, that torch calls before and after each
// optimizer step. Their C entry points are replaced here, so in a quiet step they run no Python code. The
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
inline int64_t begin_step(void* const* given) {
  const int64_t due = QuietSteps::instance().begin(given[0], given[1], given[2]);
  if (!Python::get().pending_error()) return due;
  Python::get().clear_error();
  QuietSteps::instance().run_next_end_in_python();
  return -1;
}

// What before_step() and after_step() need. The objects are kept for ever. See replace_hooks().
struct Hooks {
  void *before_other_step, *after_other_step;  // functions of the helper for steps that are not quiet
  void* set_tracer;                            // sets the tracer of this thread, and returns the one before
  PythonVectorcall original;                   // the vectorcall of every Python function
  bool are_replaced;                           // whether the C entry points of both hooks are replaced
};
inline Hooks hooks = {};

// Calls a function of the helper with the optimizer, the two objects with the arguments of step() and `more`
// (null: no further argument). Dynamo, the tracer of torch.compile, may have given up tracing the function of
// torch that calls the hooks. It then still traces the functions that are called from there. It must not
// trace the helper, so it is switched off during the call.
inline void* call_untraced(void* function, void* const* given, void* more) {
  const Python& python = Python::get();
  void* const end = nullptr;
  const PythonReference tracer(python.call_with(hooks.set_tracer, python.none, end));
  if (!tracer) python.clear_error();
  void* const result = python.call_with(function, given[0], given[1], given[2], more, end);
  if (!tracer) return result;
  void *type = nullptr, *value = nullptr, *trace = nullptr;  // an exception of `function`, set aside
  python.fetch_error(&type, &value, &trace);
  const PythonReference replaced(python.call_with(hooks.set_tracer, tracer.get(), end));
  if (!replaced) python.clear_error();
  python.restore_error(type, value, trace);
  return result;
}

// Whether a hook is called as torch calls it. All other calls run the Python code of the hook. The upper bits
// of a vectorcall's count are flags.
inline bool is_hook_call(size_t count, const void* names) {
  return static_cast<uint32_t>(count) == 3 && names == nullptr;
}

// The vectorcalls of the two hooks. `given`: the optimizer, and the tuple and dictionary of step()'s
// arguments.
[[gnu::hot]] inline void* before_step(void* function, void* const* given, size_t count, void* names) {
  if (!is_hook_call(count, names)) return hooks.original(function, given, count, names);
  const int64_t due_weights = begin_step(given);
  if (due_weights == 0) return none();
  const PythonReference number(Python::get().new_integer(due_weights));
  return call_untraced(hooks.before_other_step, given, number.get());
}

[[gnu::hot]] inline void* after_step(void* function, void* const* given, size_t count, void* names) {
  if (!is_hook_call(count, names)) return hooks.original(function, given, count, names);
  const bool is_done = QuietSteps::instance().end(given[0]);
  if (Python::get().pending_error()) return nullptr;
  return is_done ? none() : call_untraced(hooks.after_other_step, given, nullptr);
}

// Lets C code that calls the Python functions given[0] and given[1], the hooks, call before_step and
// after_step instead. These call given[2] and given[3] if the step is not quiet. given[4]: bytes of a
// function's object, in which the C entry point is searched for. given[5]: torch's set_eval_frame(). Returns
// 0 if one of the two functions cannot be replaced.
inline void* replace_hooks(void*, void* const* given, ssize_t count) {
  if (count != 6) return nullptr;
  const Python& python = Python::get();
  if (hooks.original) return to_python(hooks.are_replaced);  // by an earlier start of the helper
  hooks = {given[2], given[3], given[5], nullptr, false};
  for (void* kept : {given[2], given[3], given[5]}) python.retain(kept);
  const auto bytes = static_cast<size_t>(python.integer(given[4]));
  hooks.original = replace_vectorcall(given[0], bytes, before_step);
  hooks.are_replaced = hooks.original && replace_vectorcall(given[1], bytes, after_step);
  return to_python(hooks.are_replaced);
}

inline void* begins(void*, void* const* given, ssize_t count) {
  return count == 3 ? to_python(begin_step(given)) : nullptr;
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
