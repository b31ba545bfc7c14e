/* The CUDA runtime of fake GPUs, by its documented API: memory is the host's, streams and events
 * are always done, kernels do nothing. `interpose.c` puts these in the place of the runtime that
 * libnccl.so.2 carries; a function that is missing here ends the run when it is called.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_device.h"
#include "fake_machine.h"
#include "fake_memory.h"

enum { CUDA_12_8 = 12080 };
static const size_t memory_bytes = 80ull << 30;

typedef unsigned long long quad;
typedef unsigned flags_t;

/* A stream, an event or another thing of which only the address matters. */
static cudaError_t new_handle(void **handle) {
  *handle = calloc(1, 64);
  return cudaSuccess;
}

/* ---- devices ---- */

static __thread int current;

int fake_current_gpu(void) { return current; }

cudaError_t fake_cudaGetDevice(int *gpu) { *gpu = current; return cudaSuccess; }

cudaError_t fake_cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= fake_machine()->gpus) return cudaErrorInvalidDevice;
  current = gpu;
  return cudaSuccess;
}

cudaError_t fake_cudaGetDeviceCount(int *count) {
  *count = fake_machine()->gpus;
  return cudaSuccess;
}
cudaError_t fake_cudaDriverGetVersion(int *version) { *version = CUDA_12_8; return cudaSuccess; }
cudaError_t fake_cudaGetLastError(void) { return cudaSuccess; }
cudaError_t fake_cudaPeekAtLastError(void) { return cudaSuccess; }

const char *fake_cudaGetErrorString(cudaError_t error) {
  static __thread char text[32];
  snprintf(text, sizeof text, "fake CUDA error %d", error);
  return text;
}

cudaError_t fake_cudaDeviceGetAttribute(int *value, int attribute, int gpu) {
  *value = fake_attribute(attribute, gpu);
  return cudaSuccess;
}

/* Of `cudaGetDeviceProperties_v2` (12.x); the older function fills the first part of it. */
static void describe(struct cudaDeviceProp *found, int gpu, size_t size) {
  const struct fake_machine *machine = fake_machine();
  struct cudaDeviceProp all = {0};
  snprintf(all.name, sizeof all.name, "fake GPU");
  all.uuid.bytes[0] = 1 + gpu;
  all.totalGlobalMem = memory_bytes;
  all.sharedMemPerBlock = fake_attribute(cudaDevAttrMaxSharedMemoryPerBlock, gpu);
  all.sharedMemPerBlockOptin = fake_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu);
  all.warpSize = 32;
  all.maxThreadsPerBlock = 1024;
  all.major = machine->capability / 10;
  all.minor = machine->capability % 10;
  all.multiProcessorCount = fake_attribute(cudaDevAttrMultiProcessorCount, gpu);
  all.canMapHostMemory = all.concurrentKernels = all.unifiedAddressing = all.cooperativeLaunch = 1;
  all.pciDomainID = machine->gpu[gpu].domain;
  all.pciBusID = machine->gpu[gpu].bus;
  all.pciDeviceID = machine->gpu[gpu].device;
  memcpy(found, &all, size);
}

cudaError_t fake_cudaGetDeviceProperties_v2(struct cudaDeviceProp *found, int gpu) {
  describe(found, gpu, sizeof *found);
  return cudaSuccess;
}

cudaError_t fake_cudaDeviceGetPCIBusId(char *text, int size, int gpu) {
  snprintf(text, size, "%s", fake_machine()->gpu[gpu].bus_id);
  return cudaSuccess;
}

cudaError_t fake_cudaDeviceCanAccessPeer(int *can, int gpu, int peer) {
  *can = fake_machine()->peer && gpu != peer;
  return cudaSuccess;
}

cudaError_t fake_cudaDeviceEnablePeerAccess(int peer, flags_t flags) { return cudaSuccess; }

/* ---- memory ---- */

cudaError_t fake_cudaMalloc(void **first, size_t size) {
  *first = take_memory(size, current);
  return *first || !size ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t fake_cudaHostAlloc(void **first, size_t size, flags_t flags) {
  *first = take_memory(size, HOST);
  return *first || !size ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t fake_cudaFree(void *first) { give_memory(first); return cudaSuccess; }
cudaError_t fake_cudaFreeHost(void *first) { give_memory(first); return cudaSuccess; }
cudaError_t fake_cudaHostRegister(void *first, size_t size, flags_t flags) { return cudaSuccess; }
cudaError_t fake_cudaHostUnregister(void *first) { return cudaSuccess; }
cudaError_t fake_cudaHostGetDevicePointer(void **there, void *here, flags_t flags) {
  *there = here;
  return cudaSuccess;
}

cudaError_t fake_cudaMemcpy(void *target, const void *source, size_t size, int kind) {
  copy_memory(target, source, size);
  return cudaSuccess;
}

cudaError_t fake_cudaMemcpyAsync(void *target, const void *source, size_t size, int kind,
                                 void *stream) {
  return fake_cudaMemcpy(target, source, size, kind);
}

cudaError_t fake_cudaMemset(void *target, int value, size_t size) {
  fill_memory(target, value, size);
  return cudaSuccess;
}

cudaError_t fake_cudaMemsetAsync(void *target, int value, size_t size, void *stream) {
  return fake_cudaMemset(target, value, size);
}

cudaError_t fake_cudaMemPoolCreate(void **pool, void *properties) { return new_handle(pool); }
cudaError_t fake_cudaMemPoolDestroy(void *pool) { return cudaSuccess; }
cudaError_t fake_cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
  return cudaSuccess;
}
/* Memory for other processes. All GPUs of a node are in one process, so a pointer will do. */
cudaError_t fake_cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &pointer, sizeof pointer);
  return cudaSuccess;
}

cudaError_t fake_cudaIpcCloseMemHandle(void *pointer) { return cudaSuccess; }

/* ---- streams, events and graphs: no stream is ever captured ---- */

cudaError_t fake_cudaStreamCreate(void **stream) { return new_handle(stream); }
cudaError_t fake_cudaStreamCreateWithFlags(void **stream, flags_t flags) {
  return new_handle(stream);
}
cudaError_t fake_cudaStreamDestroy(void *stream) { return cudaSuccess; }
cudaError_t fake_cudaStreamSynchronize(void *stream) { return cudaSuccess; }
cudaError_t fake_cudaStreamWaitEvent(void *stream, void *event, flags_t flags) {
  return cudaSuccess;
}
cudaError_t fake_cudaStreamGetCaptureInfo_v2(void *stream, int *status, quad *id, void **graph,
                                             const void **nodes, size_t *count) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (graph) *graph = NULL;
  if (count) *count = 0;
  return cudaSuccess;
}

cudaError_t fake_cudaThreadExchangeStreamCaptureMode(int *mode) {
  *mode = cudaStreamCaptureModeGlobal;
  return cudaSuccess;
}
cudaError_t fake_cudaEventCreateWithFlags(void **event, flags_t flags) { return new_handle(event); }
cudaError_t fake_cudaEventRecord(void *event, void *stream) { return cudaSuccess; }
cudaError_t fake_cudaEventDestroy(void *event) { return cudaSuccess; }

/* ---- kernels ---- */

struct shape { unsigned x, y, z; };

cudaError_t fake_cudaLaunchKernel(const void *function, struct shape grid, struct shape block,
                                  void **arguments, size_t shared, void *stream) {
  print_kernel(current, function, grid.x, block.x);
  return cudaSuccess;
}

cudaError_t fake_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                     void **arguments) {
  print_kernel(current, function, config->gridDim.x, config->blockDim.x);
  return cudaSuccess;
}

cudaError_t fake_cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
  *found = (struct cudaFuncAttributes){
      .maxThreadsPerBlock = 1024,
      .numRegs = 96,
      .maxDynamicSharedSizeBytes = 49152,
      .binaryVersion = fake_machine()->capability,
      .ptxVersion = fake_machine()->capability,
  };
  return cudaSuccess;
}

cudaError_t fake_cudaFuncSetAttribute(const void *function, int attribute, int value) {
  return cudaSuccess;
}
cudaError_t fake_cudaGetFuncBySymbol(void **function, const void *symbol) {
  *function = (void *)symbol;
  return cudaSuccess;
}

/* ---- the way to the driver ---- */

void *fake_driver_function(const char *name) {
  char own[128];
  snprintf(own, sizeof own, "fake_%s", name);
  void *function = dlsym(RTLD_DEFAULT, own);
  return function ? function : refusal_of(name);
}

cudaError_t fake_cudaGetDriverEntryPoint(const char *name, void **function, quad flags,
                                         int *result) {
  *function = fake_driver_function(name);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
