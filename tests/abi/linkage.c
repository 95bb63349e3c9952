/* A trainer whose calls reach the library in the way it was compiled for: STEPS CALLS_PER_STEP [LIBRARY].
 *   WAY=1  direct calls         WAY=2  calls through a table of addresses, filled by the dynamic linker
 *   WAY=3  weak, by annotate.h  WAY=4  pointers from dlopen(LIBRARY) and dlsym
 */
#include <dlfcn.h>
#if WAY == 3
#include <foreshock/annotate.h>
#else
#include <foreshock/hook.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t (*register_function)(const char*, uint32_t);
typedef int (*enter_function)(int32_t, uint32_t);
typedef void (*skip_function)(int32_t, uint32_t);
typedef void (*step_function)(const foreshock_step*);
typedef int (*enabled_function)(void);

struct table {
  register_function register_op;
  enter_function enter;
  skip_function skip;
  step_function step_end;
  enabled_function enabled;
};

#if WAY == 1
static void fill(struct table* table, const char* library) { (void)table, (void)library; }
#define CALL(table, member, function) function
#elif WAY == 2
static const volatile struct table addresses = {foreshock_register_op, foreshock_attention_enter,
                                                foreshock_attention_skip, foreshock_step_end, foreshock_enabled};
static void fill(struct table* table, const char* library) {
  (void)library;
  table->register_op = addresses.register_op;
  table->enter = addresses.enter;
  table->skip = addresses.skip;
  table->step_end = addresses.step_end;
  table->enabled = addresses.enabled;
}
#define CALL(table, member, function) (table).member
#elif WAY == 3
static void step_end(const foreshock_step* step) {
  if (foreshock_step_end) foreshock_step_end(step);
}
static void fill(struct table* table, const char* library) {
  (void)library;
  table->register_op = foreshock_annotate_register_op;
  table->enter = foreshock_annotate_enter;
  table->skip = foreshock_annotate_skip;
  table->step_end = step_end;
  table->enabled = foreshock_annotate_enabled;
}
#define CALL(table, member, function) (table).member
#else
static void* find(void* handle, const char* name) {
  void* found = dlsym(handle, name);
  if (!found) exit(5);
  return found;
}
static void fill(struct table* table, const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    fprintf(stderr, "%s\n", dlerror());
    exit(4);
  }
  *(void**)&table->register_op = find(handle, "foreshock_register_op");
  *(void**)&table->enter = find(handle, "foreshock_attention_enter");
  *(void**)&table->skip = find(handle, "foreshock_attention_skip");
  *(void**)&table->step_end = find(handle, "foreshock_step_end");
  *(void**)&table->enabled = find(handle, "foreshock_enabled");
}
#define CALL(table, member, function) (table).member
#endif

int main(int argc, char** argv) {
  const int steps = atoi(argv[1]), calls = atoi(argv[2]);
  struct table table = {0};
  foreshock_step step;
  int32_t op;
  int n;
  fill(&table, argc > 3 ? argv[3] : "");
  op = CALL(table, register_op, foreshock_register_op)("linkage", FORESHOCK_FORWARD);
  memset(&step, 0, sizeof step);
  step.size = sizeof step;
  step.version = FORESHOCK_ABI_VERSION;
  step.step_source = FORESHOCK_STEP_REPORTED;
  for (step.step = 1; step.step <= steps; ++step.step) {
    for (n = 0; n < calls; ++n)
      if (CALL(table, enter, foreshock_attention_enter)(op, FORESHOCK_NEEDS_GRADIENT))
        CALL(table, skip, foreshock_attention_skip)(op, FORESHOCK_SKIP_LAYOUT);
    CALL(table, step_end, foreshock_step_end)(&step);
  }
  printf("enabled %d\n", CALL(table, enabled, foreshock_enabled)());
  return 0;
}
