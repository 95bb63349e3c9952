// What the adapter asks of the interpreter that it is loaded into: calls at a safe time, and callbacks.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
#define FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_

#include <array>

#include "python_objects.h"

namespace foreshock::adapter {

// A callback of a weak reference that is a Python function, of which no exception is lost. Python prints what
// leaves such a callback and drops it. Our functions let out only what is the trainer's: what a signal
// handler of its raised while the main thread was in here (a time limit, Ctrl-C). It is kept, and the main
// thread raises it as soon as it is back in the trainer's code, by a pending call.

struct KeptException {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
};

inline int raise_kept(void* pointer) {
  const KeptException taken = *static_cast<KeptException*>(pointer);
  delete static_cast<KeptException*>(pointer);
  Python::get().restore_error(taken.type, taken.value, taken.trace);
  return -1;
}

// With the interpreter's lock held. `function` takes the dead reference. If it was interrupted it is called
// once more, since its work is still to be done; the exception is sent after that, or it would be raised in
// there.
inline void call_back(void* function, void* reference) {
  const Python& python = Python::get();
  if (!python.can_call_back()) return;
  std::array<KeptException*, 2> kept = {};
  for (KeptException*& each : kept) {
    if (void* result = python.call_with(function, reference, static_cast<void*>(nullptr))) {
      python.release(result);
      break;
    }
    each = new KeptException;
    python.fetch_error(&each->type, &each->value, &each->trace);
  }
  for (KeptException* each : kept)
    if (each != nullptr && python.add_pending(raise_kept, each) != 0) raise_kept(each);  // Python prints it
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
