/* An extension module as torch/csrc/stub.c makes one, and backends of other houses after it: PyInit__C calls
 * an exported initModule through the PLT, of its own library or of one it is linked with. What is taken from
 * Python is of its stable ABI, so that its headers need not be installed. */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void* initModule(void);
EXPORT void* PyInit__C(void);

#ifdef STUB
void* PyInit__C(void) {
  return initModule();
} /* optimized, this is a jump: we see no return address of its own */
#endif

#ifdef BODY
extern void* PyModule_Create2(void* definition, int api);
extern void* PyModuleDef_Init(void* definition);
extern int PyModule_AddIntConstant(void* module, const char* name, long value);
extern void PyErr_SetString(void* type, const char* text);
extern void* PyExc_ImportError;

static struct {
  int32_t slot;
  void* value;
} g_slots[] = {{0, NULL}};

static struct {
  intptr_t references;
  void *type, *init;
  intptr_t index;
  void* copy;
  const char *name, *text;
  intptr_t size;
  void *methods, *slots, *traverse, *clear, *free;
} g_definition = {.references = 1, .name = "_C", .size = -1};

void* initModule(void) {
  static int calls;
  ++calls;
#ifdef FAILS_FIRST
  if (calls == 1) {
    PyErr_SetString(PyExc_ImportError, "not yet");
    return NULL;
  }
#endif
#ifdef EACH_TIME /* initialized in several phases: Python asks anew at each import, and calls nothing mine \
                  */
  g_definition.size = 0;
  g_definition.slots = g_slots;
  return PyModuleDef_Init(&g_definition);
#else
  void* module = PyModule_Create2(&g_definition, 1013);
  (void)g_slots;
  PyModule_AddIntConstant(module, "calls", calls);
  PyModule_AddIntConstant(module, "mine", BODY);
  return module;
#endif
}
#endif
