/* A trainer that records its attention into CUDA graphs and launches them: STEPS LAUNCHES. Prints every answer of the
 * runtime. */
#include <foreshock/annotate.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hand_attention.h"

int cudaStreamBeginCapture(void* stream, int mode);
int cudaStreamEndCapture(void* stream, void** graph);
int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags);
int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags);
int cudaGraphInstantiateWithParams(void** executable, void* graph, void* parameters);
int cudaGraphLaunch(void* executable, void* stream);

static void answer(int error) { printf("%d ", error); }

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int steps = atoi(argv[1]), launches = atoi(argv[2]);
  void *stream = (void*)0x10, *graph = NULL, *executables[3] = {NULL, NULL, NULL};
  int step, n;
  hand_begin();
  hand_step(2, 1); /* warm-up: two layers */
  answer(cudaStreamBeginCapture(NULL, 0));
  answer(cudaStreamBeginCapture(stream, 0));
  hand_pairs(3);
  answer(cudaStreamEndCapture(stream, &graph));
  answer(cudaGraphInstantiate(&executables[0], graph, 0));
  answer(cudaStreamBeginCapture(stream, 2));
  hand_forward(1);
  answer(cudaStreamEndCapture(stream, &graph));
  answer(cudaGraphInstantiateWithFlags(&executables[1], graph, 1));
  answer(cudaStreamBeginCapture(stream, 1));
  answer(cudaStreamEndCapture(stream, &graph)); /* without attention */
  answer(cudaGraphInstantiateWithParams(&executables[2], graph, &n));
  answer(cudaStreamBeginCapture((void*)0x666, 1));
  hand_forward(1);
  answer(cudaStreamEndCapture((void*)0x666, &graph));
  answer(cudaGraphInstantiate(&executables[2], NULL, 0));
  for (step = 2; step <= steps; ++step) {
    for (n = 0; n < launches; ++n) answer(cudaGraphLaunch(executables[0], stream));
    answer(cudaGraphLaunch(executables[1], stream));
    answer(cudaGraphLaunch(executables[2], stream));
    answer(cudaGraphLaunch(NULL, stream));
    foreshock_annotate_step(step, 1.0);
    usleep(20000);
  }
  answer(cudaGraphLaunch(executables[1], stream)); /* after the last step */
  printf("\n");
  return 0;
}
