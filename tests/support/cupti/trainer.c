/* STEPS: two layers a step that the hooks see; their kernels and those of a third, unseen one are launched. Prints for each
 * step whether CUPTI is held. */
#include <foreshock/annotate.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hand_attention.h"

void stand_in_launch(uint32_t function, const char* symbol);
int stand_in_subscriptions(void);
int stand_in_is_held(void);
int stand_in_ends(void);
int stand_in_is_wrong(void);

int main(int argc, char** argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 0;
  int step, layer;
  for (step = 1; step <= steps; ++step) {
    printf("%d", stand_in_is_held());
    for (layer = 0; layer < 3; ++layer) {
      stand_in_launch(307, "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traits");
      stand_in_launch(652, "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26");
      stand_in_launch(652, "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_dot_do_o");
      stand_in_launch(307, "_ZN2at6native29vectorized_elementwise_kernel");
    }
    hand_step(2, step);
    usleep(5000);
  }
  printf(" %d %d %d\n", stand_in_subscriptions(), stand_in_ends(), stand_in_is_wrong());
  return 0;
}
