/* Linked with the library: counts CALLS attention calls in one step, and prints whether it is monitored. */
#include <foreshock/hook.h>
#include <stdio.h>
#include <string.h>

enum { CALLS = 7 };

int main(void) {
  const int32_t op = foreshock_register_op("consumer", FORESHOCK_FORWARD);
  foreshock_step step;
  int n;
  for (n = 0; n < CALLS; ++n)
    if (foreshock_attention_enter(op, FORESHOCK_NEEDS_GRADIENT)) foreshock_attention_skip(op, FORESHOCK_SKIP_LAYOUT);
  memset(&step, 0, sizeof step);
  step.size = sizeof step;
  step.version = FORESHOCK_ABI_VERSION;
  step.step = 1;
  step.step_source = FORESHOCK_STEP_REPORTED;
  foreshock_step_end(&step);
  printf("abi %u enabled %d\n", (unsigned)foreshock_abi_version(), foreshock_enabled());
  return 0;
}
