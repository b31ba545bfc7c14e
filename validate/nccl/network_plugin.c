/* A network plugin of NCCL with the NICs of the fake node. Connections need no other end, and all
 * that is sent has arrived at once.
 *
 *   FAKE_NICS  name|bus id|Mbit/s|port|guid|latency in us|GPUDirect (1 or 0);...
 *
 * NCCL takes the newest version of a plugin that both know: v6 for 2.18, v8 for later ones.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_machine.h"

enum { MOST_RECEIVES = 8, MOST_CONNECTIONS = 1 << 17, HOST_MEMORY = 1, GPU_MEMORY = 2 };

struct nic {
  char name[64], path[128];
  unsigned long long guid;
  int mbit_per_s, port, gpudirect;
  float latency;
};

struct properties_v6 {
  char *name, *path;
  uint64_t guid;
  int memory, mbit_per_s, port;
  float latency;
  int connections, receives;
};

struct properties_v8 {
  char *name, *path;
  uint64_t guid;
  int memory, registers_for_all, mbit_per_s, port;
  float latency;
  int connections, receives, device_type, device_version;
};

static struct nic nics[MOST_NICS];
static int count;

static int init(void *log) {
  const char *list = getenv("FAKE_NICS");
  if (count || !list) return 0;
  char *copy = strdup(list), *rest = copy, *word;
  while ((word = strsep(&rest, ";")) && *word) {
    if (count == MOST_NICS) refuse("more than 64 NICs");
    struct nic *nic = &nics[count++];
    char bus_id[32];
    int found = sscanf(word, "%63[^|]|%31[^|]|%d|%d|%llx|%f|%d", nic->name, bus_id,
                       &nic->mbit_per_s, &nic->port, &nic->guid, &nic->latency, &nic->gpudirect);
    if (found != 7) refuse(word);
    snprintf(nic->path, sizeof nic->path, "/sys/class/pci_bus/fake/%s", bus_id);
  }
  free(copy);
  return 0;
}

static int devices(int *found) { *found = count; return 0; }
static int memory_of(const struct nic *nic) {
  return HOST_MEMORY | (nic->gpudirect ? GPU_MEMORY : 0);
}

static int properties_v6(int device, struct properties_v6 *found) {
  struct nic *nic = &nics[device];
  *found = (struct properties_v6){nic->name, nic->path, nic->guid, memory_of(nic), nic->mbit_per_s,
                                  nic->port, nic->latency, MOST_CONNECTIONS, MOST_RECEIVES};
  return 0;
}

static int properties_v8(int device, struct properties_v8 *found) {
  struct nic *nic = &nics[device];
  *found = (struct properties_v8){
      nic->name, nic->path,    nic->guid,        memory_of(nic), 1, nic->mbit_per_s,
      nic->port, nic->latency, MOST_CONNECTIONS, MOST_RECEIVES,  0, 0};
  return 0;
}

static void *handle(void) { return calloc(1, 64); }
static int listen_on(int device, void *address, void **ear) {
  memset(address, 0, 64);
  *ear = handle();
  return 0;
}
static int connect_v6(int device, void *address, void **sender) { *sender = handle(); return 0; }
static int accept_v6(void *ear, void **receiver) { *receiver = handle(); return 0; }

static int connect_v8(int device, void *address, void **sender, void **on_gpu) {
  if (on_gpu) *on_gpu = NULL;
  return connect_v6(device, address, sender);
}

static int accept_v8(void *ear, void **receiver, void **on_gpu) {
  if (on_gpu) *on_gpu = NULL;
  return accept_v6(ear, receiver);
}

static int register_v6(void *connection, void *first, int size, int memory, void **made) {
  *made = handle();
  return 0;
}
static int register_v8(void *connection, void *first, size_t size, int memory, void **made) {
  *made = handle();
  return 0;
}
static int deregister(void *connection, void *made) { free(made); return 0; }

/* What is under way: the sizes of all of its parts. */
struct transfer {
  int parts, sizes[MOST_RECEIVES];
};

static int send_part(void *sender, void *first, int size, int tag, void *made, void **request) {
  struct transfer *transfer = malloc(sizeof *transfer);
  *transfer = (struct transfer){1, {size}};
  *request = transfer;
  return 0;
}

static int receive_parts(void *receiver, int parts, void **firsts, int *sizes, int *tags,
                         void **made, void **request) {
  struct transfer *transfer = malloc(sizeof *transfer);
  transfer->parts = parts;
  memcpy(transfer->sizes, sizes, parts * sizeof *sizes);
  *request = transfer;
  return 0;
}

static int flush(void *receiver, int parts, void **firsts, int *sizes, void **made,
                 void **request) {
  *request = NULL;
  return 0;
}

static int test(void *request, int *done, int *sizes) {
  struct transfer *transfer = request;
  if (sizes) memcpy(sizes, transfer->sizes, transfer->parts * sizeof *sizes);
  free(transfer);
  *done = 1;
  return 0;
}

static int close_connection(void *connection) { free(connection); return 0; }

/* ncclNet_v6_t and ncclNet_v8_t. NULL is what a plugin need not have: memory by DMA-BUF, and GPUs
 * that send themselves.
 */
struct plugin {
  const char *name;
  void *functions[18];
};

struct plugin ncclNetPlugin_v6 = {
    "IB",
    {init, devices, properties_v6, listen_on, connect_v6, accept_v6, register_v6, NULL, deregister,
     send_part, receive_parts, flush, test, close_connection, close_connection, close_connection}};

struct plugin ncclNetPlugin_v8 = {
    "IB",
    {init, devices, properties_v8, listen_on, connect_v8, accept_v8, register_v8, NULL, deregister,
     send_part, receive_parts, flush, test, close_connection, close_connection, close_connection,
     NULL, NULL}};
