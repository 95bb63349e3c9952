/* What trainers do with graphs beside recording and launching them: WHAT, one of the names below. Prints every answer of
 * the runtime. */
#include <foreshock/annotate.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hand_attention.h"

int cudaStreamBeginCapture(void* stream, int mode);
int cudaStreamBeginCapture_ptsz(void* stream, int mode);
int cudaStreamBeginCaptureToGraph(void* stream, void* graph, const void* of, const void* data, size_t count, int mode);
int cudaStreamBeginCaptureToGraph_ptsz(void* stream, void* graph, const void* of, const void* data, size_t count,
                                       int mode);
int cudaStreamEndCapture(void* stream, void** graph);
int cudaStreamEndCapture_ptsz(void* stream, void** graph);
int cudaGraphCreate(void** graph, unsigned flags);
int cudaGraphClone(void** clone, void* graph);
int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags);
int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags);
int cudaGraphInstantiateWithParams_ptsz(void** executable, void* graph, void* parameters);
int cudaGraphExecUpdate(void* executable, void* graph, void* result);
int cudaGraphLaunch(void* executable, void* stream);
int cudaGraphLaunch_ptsz(void* executable, void* stream);
int cudaGraphDestroy(void* graph);
int cudaGraphExecDestroy(void* executable);

static void *stream = (void*)0x10, *other_stream = (void*)0x20, *graph;

static void answer(int error) { printf("%d ", error); }

static void record(int pairs) {
  answer(cudaStreamBeginCapture(stream, 0));
  hand_pairs(pairs);
  answer(cudaStreamEndCapture(stream, &graph));
}

static void in_another_thread(void* (*what)(void*)) {
  pthread_t thread;
  pthread_create(&thread, NULL, what, NULL);
  pthread_join(thread, NULL);
}

/* torch.cuda.CUDAGraph: the graph goes as soon as there is an executable of it, and that with the object. */
static void* torch_graph(int pairs) {
  void* executable = NULL;
  record(pairs);
  answer(cudaGraphInstantiateWithFlags(&executable, graph, 1));
  answer(cudaGraphDestroy(graph));
  return executable;
}

static void destroyed(void) {
  void *first = torch_graph(3), *second = torch_graph(1), *third = NULL;
  for (int n = 0; n < 2; ++n) answer(cudaGraphLaunch(first, stream));
  answer(cudaGraphLaunch(second, stream));
  answer(cudaGraphExecDestroy(first));
  answer(cudaGraphLaunch(first, stream)); /* as if a function that nobody sees had made another one there */
  answer(cudaGraphCreate(&graph, 0)); /* built node by node, under the handles of those that went */
  answer(cudaGraphInstantiate(&third, graph, 0));
  answer(third != first);
  answer(cudaGraphLaunch(third, stream));
  answer(cudaGraphExecDestroy(second));
  second = torch_graph(2);
  answer(cudaGraphLaunch(second, stream));
}

static void updated(void) {
  void *executable = NULL, *clone = NULL;
  int result;
  record(1);
  answer(cudaGraphInstantiate(&executable, graph, 0));
  record(4);
  answer(cudaGraphExecUpdate(executable, NULL, &result));
  answer(cudaGraphLaunch(executable, stream));
  answer(cudaGraphExecUpdate(executable, graph, &result));
  answer(cudaGraphLaunch(executable, stream));
  answer(cudaGraphClone(&clone, graph));
  answer(cudaGraphDestroy(graph));
  answer(cudaGraphInstantiate(&executable, clone, 0));
  answer(cudaGraphLaunch(executable, stream));
}

/* torch's capture of a branch that depends on data: into the body of a node, while the graph around it is recorded. */
static void with_condition(int pairs_in_body) {
  void *body, *executable = NULL;
  answer(cudaGraphCreate(&body, 0));
  answer(cudaStreamBeginCapture(stream, 0));
  hand_pairs(2);
  answer(cudaStreamBeginCaptureToGraph(other_stream, body, NULL, NULL, 0, 0));
  hand_pairs(pairs_in_body);
  answer(cudaStreamEndCapture(other_stream, NULL));
  answer(cudaStreamEndCapture(stream, &graph));
  answer(cudaGraphInstantiate(&executable, graph, 0));
  answer(cudaGraphLaunch(executable, stream));
}

static void condition(void) {
  with_condition(0);
  with_condition(1);
}

static void* end_it(void* none) {
  answer(cudaStreamEndCapture(stream, &graph));
  return none;
}

static void threads(void) {
  void* executable = NULL;
  answer(cudaStreamBeginCapture(stream, 1));
  hand_pairs(1);
  in_another_thread(end_it); /* not its capture: it goes on */
  hand_pairs(1);
  end_it(NULL);
  answer(cudaGraphInstantiate(&executable, graph, 0));
  answer(cudaGraphLaunch(executable, stream));
  answer(cudaStreamBeginCapture(stream, 2));
  hand_pairs(3);
  in_another_thread(end_it);
  answer(cudaGraphInstantiate(&executable, graph, 0));
  answer(cudaGraphLaunch(executable, stream));
}

static void* end_of_own_stream(void* none) {
  answer(cudaStreamEndCapture_ptsz(NULL, &graph));
  answer(cudaStreamEndCapture((void*)2, &graph));
  return none;
}

static void per_thread(void) {
  void *executable = NULL, *body;
  answer(cudaStreamBeginCapture_ptsz(NULL, 0));
  hand_pairs(1);
  in_another_thread(end_of_own_stream); /* which does not record */
  hand_pairs(1);
  answer(cudaStreamEndCapture((void*)2, &graph));
  answer(cudaGraphInstantiateWithParams_ptsz(&executable, graph, &body));
  answer(cudaGraphLaunch_ptsz(executable, NULL));
  answer(cudaStreamBeginCaptureToGraph_ptsz(NULL, graph, NULL, NULL, 0, 0));
  hand_pairs(1);
  answer(cudaStreamEndCapture_ptsz(NULL, NULL));
  answer(cudaGraphInstantiateWithParams_ptsz(&executable, graph, &body));
  answer(cudaGraphLaunch_ptsz(executable, NULL));
}

static void lost(void) {
  answer(cudaStreamBeginCapture(other_stream, 0)); /* ended by a function that nobody sees */
  for (int step = 2; step <= 20; ++step) {
    void* executable = torch_graph(1);
    answer(cudaGraphLaunch(executable, stream));
    answer(cudaGraphExecDestroy(executable));
    foreshock_annotate_step(step, 1.0);
    usleep(5000);
  }
}

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*what)(void);
  } all[] = {{"destroyed", destroyed}, {"updated", updated},       {"condition", condition},
             {"threads", threads},     {"per_thread", per_thread}, {"lost", lost}};
  if (argc < 2) return 2;
  hand_begin();
  hand_step(2, 1);
  for (unsigned n = 0; n < sizeof all / sizeof *all; ++n)
    if (strcmp(all[n].name, argv[1]) == 0) all[n].what();
  for (int step = 31; step <= 33; ++step) foreshock_annotate_step(step, 1.0);
  printf("\n");
  return 0;
}
