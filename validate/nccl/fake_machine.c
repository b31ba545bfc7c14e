#define _GNU_SOURCE
#include "fake_machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fake_machine machine;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int number(const char *name) {
  const char *text = getenv(name);
  if (!text || !*text) refuse(name);
  return atoi(text);
}

static void read_environment(void) {
  const char *list = getenv("FAKE_GPUS");
  if (!list) refuse("FAKE_GPUS");
  char *copy = strdup(list), *rest = copy, *word;
  while ((word = strsep(&rest, ",")) && *word) {
    if (machine.gpus == MOST_GPUS) refuse("more than 64 GPUs");
    struct fake_gpu *gpu = &machine.gpu[machine.gpus++];
    snprintf(gpu->bus_id, sizeof gpu->bus_id, "%s", word);
    if (sscanf(word, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device) != 3) refuse(word);
  }
  free(copy);
  machine.capability = number("FAKE_CAPABILITY");
  machine.peer = number("FAKE_PEER");
  machine.multicast = number("FAKE_MULTICAST");
}

const struct fake_machine *fake_machine(void) {
  pthread_once(&once, read_environment);
  return &machine;
}

int fake_gpu_with(const char *bus_id) {
  unsigned domain, bus, device;
  if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3) return -1;
  const struct fake_machine *known = fake_machine();
  for (int i = 0; i < known->gpus; i++) {
    const struct fake_gpu *gpu = &known->gpu[i];
    if (gpu->domain == domain && gpu->bus == bus && gpu->device == device) return i;
  }
  return -1;
}

void refuse(const char *what) {
  fflush(stdout);
  fprintf(stderr, "REFUSED %s\n", what);
  fflush(stderr);
  _exit(3);
}

/* Code is written at run time: movabs $name, %rdi; movabs $refuse, %rax; call *%rax. */
void *refusal_of(const char *name) {
  enum { SIZE = 32, PAGE = 1 << 16 };
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static unsigned char *next, *end;
  const char *kept = strdup(name);
  void (*function)(const char *) = refuse;
  pthread_mutex_lock(&lock);
  if (next == end) {
    next = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (next == MAP_FAILED) refuse("memory for code");
    end = next + PAGE;
  }
  unsigned char *code = next;
  next += SIZE;
  pthread_mutex_unlock(&lock);
  /* A function begins with the stack off by 8, and a call needs it on 16. */
  memcpy(code, "\x48\x83\xec\x08\x48\xbf", 6);
  memcpy(code + 6, &kept, 8);
  memcpy(code + 14, "\x48\xb8", 2);
  memcpy(code + 16, &function, 8);
  memcpy(code + 24, "\xff\xd0", 2);
  return code;
}
