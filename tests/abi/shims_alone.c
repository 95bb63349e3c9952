/* Calls functions by name as torch's C shim would be called, where there is no torch: NAME... Prints what each answers.
 */
#include <dlfcn.h>
#include <stdio.h>

/* As many arguments as the longest of them takes, integers and doubles; all are null. */
typedef int (*function)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                        void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, double, double, double);

int main(int argc, char** argv) {
  int n;
  for (n = 1; n < argc; ++n) {
    function call;
    *(void**)&call = dlsym(RTLD_DEFAULT, argv[n]);
    if (call)
      printf("%s %d\n", argv[n], call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    else
      printf("%s not there\n", argv[n]);
  }
  return 0;
}
