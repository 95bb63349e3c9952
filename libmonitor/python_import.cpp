// importlib calls _imp.create_dynamic(spec), which maps the file and calls its PyInit_ function, from a
// Python function that has the specification among its variables: as `spec`, or as the first of the `args`
// that it passes on (importlib._bootstrap._call_with_frames_removed, since Python 3.5). All is of Python's
// stable ABI.
#include "libmonitor/python_import.h"

#include <dlfcn.h>

#include <cstdio>

#include "libmonitor/door.h"

namespace foreshock {
namespace {

struct Object;  // PyObject

// Exported by the program, or by a library that may have been loaded locally.
template <class T>
bool find(const char* name, T** found) {
  void* symbol = dlsym != nullptr ? dlsym(RTLD_DEFAULT, name) : nullptr;  // old_glibc.h
  if (symbol == nullptr) symbol = find_in_mapped("libpython3", name);
  *found = reinterpret_cast<T*>(symbol);
  return symbol != nullptr;
}

bool is_python_ours() {
  int (*is_initialized)() = nullptr;
  int (*is_lock_held)() = nullptr;
  return find("Py_IsInitialized", &is_initialized) && find("PyGILState_Check", &is_lock_held) &&
         is_initialized() != 0 && is_lock_held() != 0;
}

struct Python {
  Object* (*locals)();                               // borrowed
  Object* (*item)(Object* dict, const char* name);   // borrowed
  Object* (*element)(Object* tuple, long position);  // borrowed
  Object* (*attribute)(Object*, const char* name);
  Object* (*bytes)(Object* path);
  const char* (*text)(Object* bytes);
  void (*release)(Object*);  // or null
  void (*forget_error)();

  bool find_all() {
    return find("PyEval_GetLocals", &locals) && find("PyDict_GetItemString", &item) &&
           find("PyTuple_GetItem", &element) && find("PyObject_GetAttrString", &attribute) &&
           find("PyUnicode_EncodeFSDefault", &bytes) && find("PyBytes_AsString", &text) &&
           find("Py_DecRef", &release) && find("PyErr_Clear", &forget_error);
  }
};

// Borrowed, or null.
Object* find_specification(const Python& python) {
  Object* locals = python.locals();
  if (locals == nullptr) return nullptr;
  Object* specification = python.item(locals, "spec");
  if (specification != nullptr) return specification;
  Object* arguments = python.item(locals, "args");
  return arguments != nullptr ? python.element(arguments, 0) : nullptr;
}

bool read_origin(const Python& python, Object* specification, char (&path)[4096]) {
  Object* origin = python.attribute(specification, "origin");
  Object* bytes = origin != nullptr ? python.bytes(origin) : nullptr;
  const char* text = bytes != nullptr ? python.text(bytes) : nullptr;
  const int length = text != nullptr ? std::snprintf(path, sizeof path, "%s", text) : 0;
  python.release(bytes);
  python.release(origin);
  return length > 0 && length < int(sizeof path);
}

}  // namespace

bool read_imported_file(char (&path)[4096]) {
  Python python = {};
  if (!is_python_ours() || !python.find_all()) return false;
  Object* specification = find_specification(python);
  const bool is_known = specification != nullptr && read_origin(python, specification, path);
  if (!is_known) python.forget_error();  // of our questions: an initialization begins without one
  return is_known;
}

void refuse_import(const char* text) {
  void (*set_error)(Object * type, const char* text) = nullptr;
  Object** type = nullptr;
  if (is_python_ours() && find("PyErr_SetString", &set_error) && find("PyExc_ImportError", &type))
    set_error(*type, text);
}

}  // namespace foreshock
