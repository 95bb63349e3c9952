/* A libcupti.so.12 that calls its subscriber for launches that it is told of. STAND_IN tells what it answers: "taken",
 * "deaf" (callbacks cannot be enabled), else all goes well. -DNEWER: as of CUDA 13, which names the holder. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*callback)(void*, int, uint32_t, const void*);

static callback subscriber;
static void* given;
static char enabled[1024];
static int subscriptions, ends, wrong;

static int is(const char* mode) {
  const char* asked = getenv("STAND_IN");
  return asked != NULL && strcmp(asked, mode) == 0;
}

int cuptiSubscribe(void** handle, callback function, void* data) {
  if (is("taken")) return 39;
  if (subscriber != NULL) return 39;
  ++subscriptions;
  subscriber = function;
  given = data;
  *handle = &subscriber;
  return 0;
}

#ifdef NEWER
struct params {
  size_t size;
  const char* name;
  char* holder;
  size_t holder_size;
};

int cuptiSubscribe_v2(void** handle, callback function, void* data, struct params* params) {
  if (params->size != sizeof *params || strcmp(params->name, "foreshock") != 0 || params->holder_size < 64) wrong = 1;
  if (is("taken")) strcpy(params->holder, "CUPTI for Nsight Systems");
  return cuptiSubscribe(handle, function, data);
}
#endif

int cuptiUnsubscribe(void* handle) {
  if (handle != &subscriber || subscriber == NULL) wrong = 1;
  subscriber = NULL;
  ++ends;
  return 0;
}

int cuptiEnableCallback(uint32_t enable, void* handle, int domain, uint32_t function) {
  if (handle != &subscriber || domain != 1 || function >= 1024) wrong = 1;
  if (is("deaf") && enable) return 1;
  enabled[function] = (char)enable;
  return 0;
}

/* As the driver would: on entry and on return. */
void stand_in_launch(uint32_t function, const char* symbol) {
  struct {
    int site;
    const char* name;
    const void* parameters;
    void* result;
    const char* symbol;
  } data = {0, "cuLaunchKernel", NULL, NULL, symbol};
  if (subscriber == NULL || !enabled[function]) return;
  subscriber(given, 1, function, &data);
  data.site = 1;
  subscriber(given, 1, function, &data);
}

int stand_in_subscriptions(void) { return subscriptions; }
int stand_in_is_held(void) { return subscriber != NULL; }
int stand_in_ends(void) { return ends; }
int stand_in_is_wrong(void) {
  int n;
  for (n = 0; n < 1024; ++n)
    if (subscriber == NULL && enabled[n]) return 1;
  return wrong;
}
