/* A C99 program that is not linked with the monitor: STEPS LAYERS. Prints whether it is monitored, and its losses. */
#include <foreshock/annotate.h>
#include <stdio.h>
#include <stdlib.h>

#include "../support/hand_attention.h"

int main(int argc, char** argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 3, layers = argc > 2 ? atoi(argv[2]) : 2;
  int64_t step;
  for (step = 1; step <= steps; ++step) {
    const double loss = hand_step(layers, step);
    printf("%ld %.17g\n", (long)step, loss);
  }
  printf("enabled %d\n", foreshock_annotate_enabled());
  return 0;
}
