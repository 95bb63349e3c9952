/* refuse WHAT COMMAND...: runs COMMAND under a seccomp filter that answers one thing the monitor uses with EPERM, as a
 * sandbox may. Linux, x86-64 and AArch64. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* `argument` < 0: whatever the arguments are; else the low word of that one & mask must equal value. */
struct rule {
  const char* what;
  long call;
  int argument;
  unsigned mask, value;
};

static const struct rule rules[] = {
    {"positional_writes", SYS_pwrite64, -1, 0, 0},
    {"wipe_on_fork", SYS_madvise, 2, ~0u, MADV_WIPEONFORK},
    {"record_locks", SYS_fcntl, 1, ~0u, F_SETLK},
    {"fallocate", SYS_fallocate, -1, 0, 0},
    {"statfs", SYS_statfs, -1, 0, 0},
    {"reading_directories", SYS_getdents64, -1, 0, 0},
#ifdef SYS_rename
    {"rename", SYS_rename, -1, 0, 0},
#endif
    {"rename", SYS_renameat, -1, 0, 0},
};

static int install(const struct rule* rule) {
  const unsigned at = rule->argument < 0 ? 0 : (unsigned)(offsetof(struct seccomp_data, args) + 8u * (unsigned)rule->argument);
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)rule->call, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, rule->mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule->value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

int main(int count, char** words) {
  size_t n;
  int installed = 0;
  for (n = 0; count > 2 && n < sizeof rules / sizeof rules[0]; ++n) {
    if (strcmp(rules[n].what, words[1]) != 0) continue;
    if (install(&rules[n]) != 0) return 98; /* no seccomp here */
    installed = 1;
  }
  if (installed) execvp(words[2], words + 2);
  fprintf(stderr, "refuse: use: refuse WHAT COMMAND...\n");
  return 97;
}
