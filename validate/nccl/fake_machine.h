/* The node that a process of `ask` pretends to be, and how a fake refuses a call that it does not
 * know. The environment describes the node:
 *
 *   FAKE_GPUS        bus ids of its GPUs in CUDA's order, separated by commas
 *   FAKE_CAPABILITY  their compute capability times ten, such as 90
 *   FAKE_PEER        1 if they reach each other's memory, else 0
 *   FAKE_MULTICAST   1 if NVSwitches multicast (NVLink SHARP), else 0
 */
#pragma once
#include <stddef.h>

enum { MOST_GPUS = 64, MOST_NICS = 64 };

struct fake_gpu {
  char bus_id[32];
  unsigned domain, bus, device;
};

struct fake_machine {
  int gpus, capability, peer, multicast;
  struct fake_gpu gpu[MOST_GPUS];
};

const struct fake_machine *fake_machine(void);

/* The GPU with a bus id, or -1. */
int fake_gpu_with(const char *bus_id);

/* Ends the run: `what` is called, and no fake knows it. */
void refuse(const char *what) __attribute__((noreturn));

/* A function that refuses the call of `name` when it is called, as some are only looked up. */
void *refusal_of(const char *name);

/* What the library says of a call: its table of costs, in microseconds. */
void print_costs(const float *costs, int count);

/* What it launches on the first GPU of the first node. */
void print_kernel(int gpu, const void *function, unsigned blocks, unsigned threads);
