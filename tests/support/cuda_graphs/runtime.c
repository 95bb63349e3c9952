/* A libcudart.so.12 with nothing but graphs: what is recorded runs when it is launched, which here is nothing. */
#include <stddef.h>
#include <stdint.h>

struct graph {
  int recorded;
};

static struct graph graphs[64];
static int made;

int cudaStreamBeginCapture(void* stream, int mode) { return stream == NULL ? 900 : mode > 2 ? 1 : 0; }

int cudaStreamEndCapture(void* stream, void** graph) {
  *graph = NULL;
  if (stream == (void*)0x666) return 901; /* something in it was not allowed */
  *graph = &graphs[made++ % 64];
  return 0;
}

int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  if (graph == NULL || flags != 0) return 1;
  *executable = (char*)graph + 1;
  return 0;
}

int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags - 1);
}

int cudaGraphInstantiateWithParams(void** executable, void* graph, void* parameters) {
  return parameters == NULL ? 1 : cudaGraphInstantiate(executable, graph, 0);
}

int cudaGraphLaunch(void* executable, void* stream) { return executable == NULL || stream == NULL ? 400 : 0; }
