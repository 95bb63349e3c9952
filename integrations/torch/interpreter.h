// Calls a Python function when the object of a weak reference dies. Preserves exceptions of the trainer.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
#define FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_

#include <array>

#include "python_objects.h"

namespace foreshock::adapter {

// An exception that left a callback of foreshock. Python would print and drop it. The callbacks raise none of
// their own, so it is an exception of the trainer: a signal handler of the trainer (time limit, Ctrl-C)
// raised it while the main thread ran the callback. A pending call (Py_AddPendingCall) raises it again later.
struct KeptException {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
};

// The pending call. Restores and deletes the KeptException at `pointer`. Returns -1: Python then raises it.
inline int raise_kept(void* pointer) {
  const KeptException exception = *static_cast<KeptException*>(pointer);
  delete static_cast<KeptException*>(pointer);
  Python::get().restore_error(exception.type, exception.value, exception.trace);
  return -1;
}

// Calls `function` with the dead weak reference. The interpreter's lock must be held. If an exception
// interrupts the function, calls it once more to complete its work. The exceptions are raised after that.
// Does nothing if this Python lacks a function that is called here.
inline void call_back(void* function, void* reference) {
  const Python& python = Python::get();
  if (!python.can_call_back()) return;
  std::array<KeptException*, 2> kept = {};  // one per call; null: no call or no exception
  void* const end = nullptr;                // ends the arguments of call_with()
  for (KeptException*& each : kept) {
    if (void* result = python.call_with(function, reference, end)) {
      python.release(result);
      break;
    }
    each = new KeptException;
    python.fetch_error(&each->type, &each->value, &each->trace);
  }
  // If the queue of pending calls is full, the exception is raised here; Python then prints and drops it.
  for (KeptException* each : kept)
    if (each != nullptr && python.add_pending(raise_kept, each) != 0) raise_kept(each);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
