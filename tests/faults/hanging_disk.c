/* Preloaded: writing into a record (*.jsonl) takes as long as the file HANGING_DISK is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_record(int file) {
  char link[64], path[4096];
  ssize_t length;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  length = readlink(link, path, sizeof path);
  return length > 6 && memcmp(path + length - 6, ".jsonl", 6) == 0;
}

ssize_t write(int file, const void* bytes, size_t count) {
  static ssize_t (*real)(int, const void*, size_t);
  const char* hanging = getenv("HANGING_DISK");
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "write");
  while (hanging != NULL && is_record(file) && access(hanging, F_OK) == 0) usleep(10000);
  return real(file, bytes, count);
}
