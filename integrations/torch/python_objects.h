// Looks up the C functions of the Python interpreter in this process. The adapter is not linked with Python,
// so one adapter works with every version of Python, and also in C++ trainers without Python. All functions
// belong to the stable ABI, except _PyDict_GetItem_KnownHash, which has been exported since 3.6. Python
// objects are void pointers. The interpreter lock must be held for all calls except add_pending.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_PYTHON_OBJECTS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_PYTHON_OBJECTS_H_

#include <dlfcn.h>
#include <sys/types.h>

#include <utility>

namespace foreshock::adapter {

struct PythonMethod {  // a function for Python, in the layout of PyMethodDef
  using Function = void* (*)(void* self, void* const* arguments, ssize_t count);
  const char* name;
  Function function;
  int flags = 0x80;  // METH_FASTCALL: the arguments are an array
  const char* doc = nullptr;
};

// Python's functions and objects; null if this process lacks the symbol. find() names the C function of each
// member. "borrowed": the caller does not own the returned object. The caller must release all other returned
// objects. As in Python, a returned null or -1 may mean that an exception is pending.
struct Python {
  using PendingCall = int (*)(void*);
  void* (*new_function)(PythonMethod* method, void* self, void* module);
  void (*retain)(void* object);
  void (*release)(void* object);
  void* (*type_of)(void* object);
  int (*is_subtype)(void* type, void* base);
  int (*is_callable)(void* object);
  void* (*call)(void* function, void* arguments);
  void* (*call_with)(void* function, ...);  // after `function`: its arguments, then a null pointer
  void* (*attribute)(void* object, void* name);
  void* (*own_dict)(void* object, void* context);  // object.__dict__; `context` is ignored
  void* (*modules)();                              // sys.modules; borrowed
  void* (*intern)(const char* text);
  ssize_t (*tuple_size)(void* tuple);
  void* (*tuple_item)(void* tuple, ssize_t n);  // borrowed
  ssize_t (*list_size)(void* list);
  void* (*list_item)(void* list, ssize_t n);  // borrowed
  ssize_t (*dict_size)(void* dict);
  void* (*dict_item)(void* dict, void* key);                        // borrowed
  void* (*dict_item_of_hash)(void* dict, void* key, ssize_t hash);  // borrowed
  int (*dict_next)(void* dict, ssize_t* position, void** key, void** value);
  void* (*new_integer)(long long value);
  long long (*integer)(void* object);
  long long (*integer_or_overflow)(void* object, int* overflow);  // *overflow: 0 if the value fits
  void* (*address)(void* integer);                                // the integer as a pointer
  double (*real)(void* object);
  void* (*build)(const char* format, ...);  // Py_BuildValue: a tuple of C values
  void* (*pending_error)();                 // borrowed
  void (*clear_error)();
  // An exception is a type, a value and a traceback.
  void (*fetch_error)(void** type, void** value, void** trace);
  void (*restore_error)(void* type, void* value, void* trace);
  int (*add_pending)(PendingCall, void*);  // the main thread makes the call when it next runs Python code
  void *none, *false_object, *list_type, *dict_type, *integer_type, *float_type;

  static const Python& get() {
    static const Python found = find();
    return found;
  }
  // Whether all symbols were found.
  bool has_all() const { return has_all_; }
  // Whether this process has the functions that call_back() and raise_kept() of interpreter.h call.
  bool can_call_back() const { return call_with && release && fetch_error && restore_error && add_pending; }

 private:
  static Python find() {
    Python python = {};
    python.has_all_ = true;
    const auto look_up = [&](const char* name, auto* member) {
      *reinterpret_cast<void**>(member) = dlsym(RTLD_DEFAULT, name);
      python.has_all_ &= *member != nullptr;
    };
    look_up("PyCFunction_NewEx", &python.new_function);
    look_up("Py_IncRef", &python.retain);
    look_up("Py_DecRef", &python.release);
    look_up("PyObject_Type", &python.type_of);
    look_up("PyType_IsSubtype", &python.is_subtype);
    look_up("PyCallable_Check", &python.is_callable);
    look_up("PyObject_CallObject", &python.call);
    look_up("PyObject_CallFunctionObjArgs", &python.call_with);
    look_up("PyObject_GetAttr", &python.attribute);
    look_up("PyObject_GenericGetDict", &python.own_dict);
    look_up("PyImport_GetModuleDict", &python.modules);
    look_up("PyUnicode_InternFromString", &python.intern);
    look_up("PyTuple_Size", &python.tuple_size);
    look_up("PyTuple_GetItem", &python.tuple_item);
    look_up("PyList_Size", &python.list_size);
    look_up("PyList_GetItem", &python.list_item);
    look_up("PyDict_Size", &python.dict_size);
    look_up("PyDict_GetItemWithError", &python.dict_item);
    look_up("_PyDict_GetItem_KnownHash", &python.dict_item_of_hash);
    look_up("PyDict_Next", &python.dict_next);
    look_up("PyLong_FromLongLong", &python.new_integer);
    look_up("PyLong_AsLongLong", &python.integer);
    look_up("PyLong_AsLongLongAndOverflow", &python.integer_or_overflow);
    look_up("PyLong_AsVoidPtr", &python.address);
    look_up("PyFloat_AsDouble", &python.real);
    look_up("Py_BuildValue", &python.build);
    look_up("PyErr_Occurred", &python.pending_error);
    look_up("PyErr_Clear", &python.clear_error);
    look_up("PyErr_Fetch", &python.fetch_error);
    look_up("PyErr_Restore", &python.restore_error);
    look_up("Py_AddPendingCall", &python.add_pending);
    look_up("_Py_NoneStruct", &python.none);
    look_up("_Py_FalseStruct", &python.false_object);
    look_up("PyList_Type", &python.list_type);
    look_up("PyDict_Type", &python.dict_type);
    look_up("PyLong_Type", &python.integer_type);
    look_up("PyFloat_Type", &python.float_type);
    return python;
  }

  bool has_all_;
};

// Owns a reference to a Python object, or nothing.
class PythonReference {
 public:
  PythonReference() = default;
  explicit PythonReference(void* owned) : object_(owned) {}
  PythonReference(PythonReference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PythonReference& operator=(PythonReference&& other) noexcept {
    PythonReference previous(std::exchange(object_, std::exchange(other.object_, nullptr)));  // is released
    return *this;
  }
  ~PythonReference() {
    if (object_) Python::get().release(object_);
  }

  // Returns a new reference to an object that the caller has only borrowed.
  static PythonReference to(void* object) {
    Python::get().retain(object);
    return PythonReference(object);
  }
  void* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  void* object_ = nullptr;
};

// Every Python object begins with these words, except in builds of Python that trace references. Builds
// without the interpreter lock have other words, too, but the code that reads the words (quiet_steps.h) is
// not used there. Reading kType touches less memory than PyObject_Type(), which counts a reference in the
// type. kHeadWords: number of these words.
enum HeadWord : size_t { kReferenceCount, kType, kHeadWords };
inline void* python_type_of(void* object) { return static_cast<void* const*>(object)[kType]; }
inline bool has_usual_head(void* object) {  // whether the object begins with the words of HeadWord
  return python_type_of(object) == PythonReference(Python::get().type_of(object)).get();
}

// Whether the type of the object is `type` itself, not a subclass.
inline bool is_exactly(void* object, void* type) { return python_type_of(object) == type; }

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_PYTHON_OBJECTS_H_
