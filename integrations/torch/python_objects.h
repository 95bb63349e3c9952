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

// A function for Python. Same layout as PyMethodDef.
struct PythonMethod {
  using Function = void* (*)(void* self, void* const* arguments, ssize_t count);
  const char* name;
  Function function;
  int flags = 0x80;  // METH_FASTCALL: the arguments are an array
  const char* doc = nullptr;
};

// Python's functions and objects; null if this process lacks the symbol. find() names the C function of each
// member. "borrowed": the caller does not own the returned object. The caller must release all other ones.
struct Python {
  using PendingCall = int (*)(void*);
  void* (*new_function)(PythonMethod* method, void* self, void* module);
  void (*retain)(void* object);
  void (*release)(void* object);
  void* (*type_of)(void* object);
  int (*is_subtype)(void* type, void* base);
  int (*is_callable)(void* object);
  void* (*call)(void* function, void* arguments);
  void* (*call_with)(void* function, ...);  // the arguments, then a null pointer
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
  long long (*integer_or_overflow)(void* object, int* overflow);
  void* (*address)(void* integer);  // the integer as a pointer
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
  bool has_all() const { return has_all_; }
  // Whether this process has the functions that interpreter.h calls (call_back() and raise_kept()).
  bool can_call_back() const { return call_with && release && fetch_error && restore_error && add_pending; }

 private:
  static Python find() {
    Python it = {};  // what get() returns
    it.has_all_ = true;
    const auto find = [&](const char* name, auto* member) {
      *reinterpret_cast<void**>(member) = dlsym(RTLD_DEFAULT, name);
      it.has_all_ &= *member != nullptr;
    };
    find("PyCFunction_NewEx", &it.new_function);
    find("Py_IncRef", &it.retain);
    find("Py_DecRef", &it.release);
    find("PyObject_Type", &it.type_of);
    find("PyType_IsSubtype", &it.is_subtype);
    find("PyCallable_Check", &it.is_callable);
    find("PyObject_CallObject", &it.call);
    find("PyObject_CallFunctionObjArgs", &it.call_with);
    find("PyObject_GetAttr", &it.attribute);
    find("PyObject_GenericGetDict", &it.own_dict);
    find("PyImport_GetModuleDict", &it.modules);
    find("PyUnicode_InternFromString", &it.intern);
    find("PyTuple_Size", &it.tuple_size);
    find("PyTuple_GetItem", &it.tuple_item);
    find("PyList_Size", &it.list_size);
    find("PyList_GetItem", &it.list_item);
    find("PyDict_Size", &it.dict_size);
    find("PyDict_GetItemWithError", &it.dict_item);
    find("_PyDict_GetItem_KnownHash", &it.dict_item_of_hash);
    find("PyDict_Next", &it.dict_next);
    find("PyLong_FromLongLong", &it.new_integer);
    find("PyLong_AsLongLong", &it.integer);
    find("PyLong_AsLongLongAndOverflow", &it.integer_or_overflow);
    find("PyLong_AsVoidPtr", &it.address);
    find("PyFloat_AsDouble", &it.real);
    find("Py_BuildValue", &it.build);
    find("PyErr_Occurred", &it.pending_error);
    find("PyErr_Clear", &it.clear_error);
    find("PyErr_Fetch", &it.fetch_error);
    find("PyErr_Restore", &it.restore_error);
    find("Py_AddPendingCall", &it.add_pending);
    find("_Py_NoneStruct", &it.none);
    find("_Py_FalseStruct", &it.false_object);
    find("PyList_Type", &it.list_type);
    find("PyDict_Type", &it.dict_type);
    find("PyLong_Type", &it.integer_type);
    find("PyFloat_Type", &it.float_type);
    return it;
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
    PythonReference before(std::exchange(object_, std::exchange(other.object_, nullptr)));
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

inline PythonReference python_type_of(void* object) { return PythonReference(Python::get().type_of(object)); }

// Whether the type of the object is `type` itself, not a subclass.
inline bool is_exactly(void* object, void* type) { return python_type_of(object).get() == type; }

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_PYTHON_OBJECTS_H_
