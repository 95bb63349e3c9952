/* A program without CUDA that looks for its functions by name. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  const char* names[] = {"cudaGraphLaunch", "cudaGraphInstantiate", "cudaStreamBeginCapture", "cudaStreamEndCapture"};
  int n;
  for (n = 0; n < 4; ++n) printf("%d ", dlsym(RTLD_DEFAULT, names[n]) != NULL);
  return 0;
}
