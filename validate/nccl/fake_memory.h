/* Memory of fake GPUs, which is the host's. Blocks are remembered, as CUDA says of each pointer
 * whose it is.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { HOST = -1 };

struct block {
  uintptr_t first;
  size_t size;
  int gpu; /* or HOST */
  void *mapped; /* the handle that is mapped here, NULL for other memory */
};

/* Zeroes that take no memory until they are written; NULL if there is no room. */
void *take_memory(size_t size, int gpu);
void give_memory(void *first);

void remember_block(uintptr_t first, size_t size, int gpu, void *mapped);
/* Whether a pointer lies in a block, and in which. */
int find_block(uintptr_t pointer, struct block *found);
/* The same for the first byte of a block, which is forgotten. */
int forget_block(uintptr_t first, struct block *found);

/* Copies and fills what NCCL reads itself. Payloads stay as they are: no kernel reads them. */
void copy_memory(void *target, const void *source, size_t size);
void fill_memory(void *target, int value, size_t size);
