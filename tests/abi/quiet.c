/* Shows that a hook makes no system calls but those that read and write the files of the segment, takes no memory and,
 * unless its call is sampled, seldom reads a clock: after the set-up every other system call kills this program, and
 * the allocator and the clock count who calls them.
 *   quiet unsampled|sampled
 * Linked with -rdynamic, so that the library finds the functions below before libc's.
 */
#include <foreshock/annotate.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../support/hand_attention.h"

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void __libc_free(void*);
extern int __clock_gettime(clockid_t, struct timespec*);

static volatile long allocations, clocks;

void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  ++allocations;
  return __libc_realloc(old, size);
}
void free(void* pointer) {
  ++allocations;
  __libc_free(pointer);
}
int clock_gettime(clockid_t clock, struct timespec* now) {
  ++clocks;
  return __clock_gettime(clock, now);
}

static int allow_only_files_and_exit(void) {
  const struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 6, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_lseek, 4, 0),     /* is the descriptor still ours? */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 3, 0), /* RLIMIT_FSIZE */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_statx, 2, 0),     /* was the file truncated? */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),     /* of this program */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  struct sock_fprog program;
  program.len = sizeof rules / sizeof *rules;
  program.filter = (struct sock_filter*)rules;
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

int main(int argc, char** argv) {
  const int sampled = argc > 1 && strcmp(argv[1], "sampled") == 0;
  const int rounds = sampled ? 20 : 3000; /* beyond the 1024 calls between two looks at the switch */
  char line[160];
  int64_t step;
  int n, length, wanted = 0;
  foreshock_advice advice;
  for (step = 1; step <= 8; ++step) hand_step(2, step);
  hand_forward(1); /* the tick of the last step takes effect */
  if (!foreshock_annotate_enabled()) return 3;
  if (!allow_only_files_and_exit()) return 4;
  allocations = clocks = 0;
  for (n = 0; n < rounds; ++n) {
    wanted += hand_forward(1) + hand_backward();
    wanted += foreshock_annotate_read_advice(&advice); /* no agent, so it is nothing */
  }
  length = snprintf(line, sizeof line, "calls: wanted %d, allocations %ld, clocks %ld\n", wanted, allocations, clocks);
  write(1, line, (size_t)length);
  allocations = 0;
  for (; step <= 40; ++step) hand_step(2, step);
  length = snprintf(line, sizeof line, "steps: allocations %ld\n", allocations);
  write(1, line, (size_t)length);
  _exit(0);
}
