// What the adapter asks of the interpreter that it is loaded into: calls at a safe time, and callbacks.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
#define FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_

#include <dlfcn.h>

#include <array>

namespace foreshock::adapter {

// The interpreter's functions, which are in the process if this is called at all; the adapter is not linked
// with Python. An exception is a type, a value and a traceback.
struct Interpreter {
  using Pending = int (*)(void*);
  void* (*call)(void* function, ...);  // arguments, and a null pointer
  void (*release)(void* object);
  void (*fetch)(void** type, void** value, void** trace);
  void (*restore)(void* type, void* value, void* trace);
  int (*add_pending)(Pending, void*);

  static const Interpreter& get() {
    static const Interpreter found = [] {
      const auto find = [](const char* name, auto* function) {
        *reinterpret_cast<void**>(function) = dlsym(RTLD_DEFAULT, name);
      };
      Interpreter it;
      find("PyObject_CallFunctionObjArgs", &it.call);
      find("Py_DecRef", &it.release);
      find("PyErr_Fetch", &it.fetch);
      find("PyErr_Restore", &it.restore);
      find("Py_AddPendingCall", &it.add_pending);
      return it;
    }();
    return found;
  }
  bool is_whole() const { return call && release && fetch && restore && add_pending; }
};

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
  Interpreter::get().restore(taken.type, taken.value, taken.trace);
  return -1;
}

// With the interpreter's lock held. `function` takes the dead reference. If it was interrupted it is called
// once more, since its work is still to be done; the exception is sent after that, or it would be raised in
// there.
inline void call_back(void* function, void* reference) {
  const Interpreter& python = Interpreter::get();
  if (!python.is_whole()) return;
  std::array<KeptException*, 2> kept = {};
  for (KeptException*& each : kept) {
    if (void* result = python.call(function, reference, static_cast<void*>(nullptr))) {
      python.release(result);
      break;
    }
    each = new KeptException;
    python.fetch(&each->type, &each->value, &each->trace);
  }
  for (KeptException* each : kept)
    if (each != nullptr && python.add_pending(raise_kept, each) != 0) raise_kept(each);  // Python prints it
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_INTERPRETER_H_
