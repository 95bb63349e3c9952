/* A trainer that ends, or does something in its middle, as it is told; by hand_attention.h, without a framework.
 *
 * fault_trainer STEPS ENDING [DURING]: trains half the steps, does DURING, trains the rest, writes the bits of all its
 * losses as one line, then the time to the descriptor EXIT_STAMP, and ends. C99 and POSIX.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hand_attention.h"

extern char** environ;

static uint64_t digest = UINT64_C(14695981039346656037);

static void train(long steps) {
  long n;
  for (n = 0; n < steps; ++n) {
    const double loss = hand_step(2, -1);
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    digest = (digest ^ bits) * UINT64_C(1099511628211);
  }
}

static void tell(const char* format, unsigned long long value) {
  char line[64];
  const int length = snprintf(line, sizeof line, format, value);
  if (write(1, line, (size_t)length) != length) _exit(90);
}

static void await(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) _exit(91);
  tell("child %llx\n", (unsigned long long)status);
}

static void start(const char* program) {
  char* const words[] = {(char*)program, NULL};
  pid_t child;
  int status = 0;
  if (posix_spawn(&child, program, NULL, NULL, words, environ) != 0) _exit(92);
  if (waitpid(child, &status, 0) != child || status != 0) _exit(93);
}

/* A child that evaluates: _exit and exit() differ in the handlers and destructors that run. */
static void in_a_fork(int with_handlers) {
  const pid_t child = fork();
  if (child == 0) {
    int n;
    for (n = 0; n < 100; ++n) hand_forward(0);
    if (with_handlers) exit(3);
    _exit(3);
  }
  await(child);
}

static void* one_thread(void* unused) {
  (void)unused;
  hand_pairs(50);
  return NULL;
}

static void threads(int count) {
  pthread_t handles[128];
  int n;
  for (n = 0; n < count; ++n)
    if (pthread_create(&handles[n], NULL, one_thread, NULL) != 0) _exit(94);
  for (n = 0; n < count; ++n) pthread_join(handles[n], NULL);
}

/* Says that it has come half way, and waits until the file named by GO is there. */
static void wait_for_go(void) {
  const char* path = getenv("GO");
  const struct timespec pause = {0, 5000000};
  tell("half of %llu\n", (unsigned long long)getpid());
  while (path != NULL && access(path, F_OK) != 0) nanosleep(&pause, NULL);
}

static void do_during(const char* what) {
  int n;
  if (strcmp(what, "fork") == 0) in_a_fork(0);
  if (strcmp(what, "fork_and_exit") == 0) in_a_fork(1);
  if (strcmp(what, "fork_and_exec") == 0) start("/bin/true");
  if (strcmp(what, "children") == 0)
    for (n = 0; n < 1000; ++n) start("/bin/true");
  if (strcmp(what, "threads") == 0) threads(64);
  if (strcmp(what, "wait") == 0) wait_for_go();
  if (strcmp(what, "stop") == 0) {
    tell("half of %llu\n", (unsigned long long)getpid());
    raise(SIGSTOP);
  }
}

static void stamp(void) {
  const char* descriptor = getenv("EXIT_STAMP");
  struct timespec now;
  uint64_t ns;
  clock_gettime(CLOCK_MONOTONIC, &now);
  ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  if (descriptor != NULL && write(atoi(descriptor), &ns, sizeof ns) != sizeof ns) _exit(95);
}

int main(int count, char** words) {
  const long steps = count > 1 ? atol(words[1]) : 40;
  const char* ending = count > 2 ? words[2] : "return";
  train(steps / 2);
  if (count > 3) do_during(words[3]);
  train(steps - steps / 2);
  tell("digest %016llx\n", (unsigned long long)digest);
  stamp();
  if (strcmp(ending, "exit") == 0) exit(7);
  if (strcmp(ending, "_exit") == 0) _exit(7);
  if (strcmp(ending, "abort") == 0) abort();
  if (strcmp(ending, "segv") == 0) *(volatile int*)8 = 1;
  if (strcmp(ending, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(ending, "term") == 0) kill(getpid(), SIGTERM);
  return 0;
}
