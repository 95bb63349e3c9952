/* A libcudart.so.12 with nothing but graphs: what is recorded runs when it is launched, which here is nothing. Handles
 * are handed out again as soon as they are free, the lowest first. */
#include <stddef.h>
#include <stdint.h>

enum { kMost = 64 };

struct handle {
  int is_taken;
};

static struct handle graphs[kMost], executables[kMost];

struct capture {
  void *stream, *thread;
  int mode;
};

static struct capture captures[kMost];
static __thread char here;

/* The default stream of a thread has the same handle in all of them. */
static struct capture* capture_of(void* stream) {
  int n;
  for (n = 0; n < kMost; ++n) {
    struct capture* found = &captures[n];
    if (found->stream == stream && (stream != (void*)2 || found->thread == &here)) return found;
  }
  return NULL;
}

static int begin(void* stream, int mode) {
  struct capture* place = NULL;
  int n;
  if (stream == NULL || stream == (void*)1) return 900;
  if (mode > 2) return 1;
  for (n = 0; n < kMost && place == NULL; ++n)
    if (captures[n].stream == NULL) place = &captures[n];
  place->stream = stream, place->thread = &here, place->mode = mode;
  return 0;
}

static void* take(struct handle* of) {
  int n = 0;
  while (of[n].is_taken && n < kMost - 1) ++n;
  of[n].is_taken = 1;
  return &of[n];
}

static int give_back(struct handle* of, void* handle) {
  struct handle* found = handle;
  if (found < of || found >= of + kMost || !found->is_taken) return 1;
  found->is_taken = 0;
  return 0;
}

static void* per_thread(void* stream) { return stream == NULL ? (void*)2 : stream; }

int cudaStreamBeginCapture(void* stream, int mode) { return begin(stream, mode); }

int cudaStreamBeginCapture_ptsz(void* stream, int mode) { return begin(per_thread(stream), mode); }

int cudaStreamBeginCaptureToGraph(void* stream, void* graph, const void* of, const void* data, size_t count, int mode) {
  return graph == NULL || of != NULL || data != NULL || count != 0 ? 1 : begin(stream, mode);
}

int cudaStreamBeginCaptureToGraph_ptsz(void* stream, void* graph, const void* of, const void* data, size_t count,
                                       int mode) {
  return cudaStreamBeginCaptureToGraph(per_thread(stream), graph, of, data, count, mode);
}

int cudaStreamEndCapture(void* stream, void** graph) {
  struct capture* ended = capture_of(stream);
  if (ended == NULL) return 903;
  if (ended->mode != 2 && ended->thread != &here) return 908;
  ended->stream = NULL;
  if (graph == NULL) return 0; /* of a capture into a graph */
  *graph = NULL;
  if (stream == (void*)0x666) return 901; /* something in it was not allowed */
  *graph = take(graphs);
  return 0;
}

int cudaStreamEndCapture_ptsz(void* stream, void** graph) { return cudaStreamEndCapture(per_thread(stream), graph); }

int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  if (graph == NULL || flags != 0) return 1;
  *executable = take(executables);
  return 0;
}

int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags - 1);
}

int cudaGraphInstantiateWithParams(void** executable, void* graph, void* parameters) {
  return parameters == NULL ? 1 : cudaGraphInstantiate(executable, graph, 0);
}

int cudaGraphInstantiateWithParams_ptsz(void** executable, void* graph, void* parameters) {
  return cudaGraphInstantiateWithParams(executable, graph, parameters);
}

int cudaGraphCreate(void** graph, unsigned flags) {
  *graph = take(graphs);
  return (int)flags;
}

int cudaGraphClone(void** clone, void* graph) {
  if (graph == NULL) return 1;
  *clone = take(graphs);
  return 0;
}

int cudaGraphExecUpdate(void* executable, void* graph, void* result) {
  return executable == NULL || graph == NULL || result == NULL ? 910 : 0;
}

int cudaGraphLaunch(void* executable, void* stream) { return executable == NULL || stream == NULL ? 400 : 0; }

int cudaGraphLaunch_ptsz(void* executable, void* stream) { return cudaGraphLaunch(executable, per_thread(stream)); }

int cudaGraphDestroy(void* graph) { return give_back(graphs, graph); }

int cudaGraphExecDestroy(void* executable) { return give_back(executables, executable); }
