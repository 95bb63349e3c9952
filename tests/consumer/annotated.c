/* Not linked with the library: prints whether it is there. */
#include <foreshock/annotate.h>
#include <stdio.h>

int main(void) {
  foreshock_annotate_step(1, 0.5);
  printf("enabled %d\n", foreshock_annotate_enabled());
  return 0;
}
