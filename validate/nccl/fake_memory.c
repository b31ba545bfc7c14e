#define _GNU_SOURCE
#include "fake_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGEST_COPY = 1 << 26, LARGEST_FILL = 1 << 22, SMALL = 1 << 16 };

static struct block *blocks;
static size_t known, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void remember_block(uintptr_t first, size_t size, int gpu, void *mapped) {
  pthread_mutex_lock(&lock);
  if (known == room) {
    room = room ? 2 * room : 1024;
    blocks = realloc(blocks, room * sizeof *blocks);
  }
  blocks[known++] = (struct block){first, size, gpu, mapped};
  pthread_mutex_unlock(&lock);
}

int find_block(uintptr_t pointer, struct block *found) {
  int hit = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = known; i-- > 0 && !hit;)
    if (pointer - blocks[i].first < blocks[i].size) *found = blocks[i], hit = 1;
  pthread_mutex_unlock(&lock);
  return hit;
}

int forget_block(uintptr_t first, struct block *found) {
  int hit = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = known; i-- > 0 && !hit;)
    if (first == blocks[i].first) *found = blocks[i], blocks[i] = blocks[--known], hit = 1;
  pthread_mutex_unlock(&lock);
  return hit;
}

void *take_memory(size_t size, int gpu) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *first = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0) : MAP_FAILED;
  if (first == MAP_FAILED) return NULL;
  remember_block((uintptr_t)first, size, gpu, NULL);
  return first;
}

void give_memory(void *first) {
  struct block block;
  if (first && forget_block((uintptr_t)first, &block)) munmap(first, block.size);
}

void copy_memory(void *target, const void *source, size_t size) {
  if (size <= LARGEST_COPY) memmove(target, source, size);
}

/* Fresh memory is zero, so large blocks of zeroes need no memory yet. */
void fill_memory(void *target, int value, size_t size) {
  if (value || size <= SMALL) memset(target, value, size < LARGEST_FILL ? size : LARGEST_FILL);
}
