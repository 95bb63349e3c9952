// Calls Python functions when the object of a weak reference dies, without losing exceptions of the trainer.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
#define FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_

#include <array>

#include "python_objects.h"

namespace foreshock::adapter {

// An exception that left a callback of ours. Python would print and drop it. Only exceptions of the trainer
// leave our callbacks: a signal handler of the trainer (time limit, Ctrl-C) raises them while the main thread
// runs the callback. A pending call (Py_AddPendingCall) raises them again in the trainer's code.
struct KeptException {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
};

// The pending call. Restores the exception and deletes `pointer`. Returns -1, so that Python raises it.
inline int raise_kept(void* pointer) {
  const KeptException taken = *static_cast<KeptException*>(pointer);
  delete static_cast<KeptException*>(pointer);
  Python::get().restore_error(taken.type, taken.value, taken.trace);
  return -1;
}

// Calls `function` with the dead weak reference. The interpreter's lock must be held. If an exception
// interrupts the function, it is called once more to complete its work. Only then are the exceptions raised.
inline void call_back(void* function, void* reference) {
  const Python& python = Python::get();
  if (!python.can_call_back()) return;
  std::array<KeptException*, 2> kept = {};  // of the first and the second call
  for (KeptException*& each : kept) {
    if (void* result = python.call_with(function, reference, static_cast<void*>(nullptr))) {
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
