// Calls Python functions from callbacks of weak references without losing exceptions of the trainer.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
#define FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_

#include <array>

#include "python_objects.h"

namespace foreshock::adapter {

// An exception that left a callback. Python would print and drop it. Our callbacks let through only
// exceptions of the trainer, raised by one of its signal handlers (time limit, Ctrl-C) during the callback in
// the main thread. A pending call raises the exception when the main thread is back in the trainer's code.
struct KeptException {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
};

// The pending call. Deletes the KeptException. Returns -1, by which Python raises the restored exception.
inline int raise_kept(void* pointer) {
  const KeptException taken = *static_cast<KeptException*>(pointer);
  delete static_cast<KeptException*>(pointer);
  Python::get().restore_error(taken.type, taken.value, taken.trace);
  return -1;
}

// Calls `function` with the dead reference. The interpreter's lock must be held. If the function was
// interrupted, it is called once more to complete its work; the exceptions are raised only after that.
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
