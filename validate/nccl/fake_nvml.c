/* libnvidia-ml.so.1 of the fake GPUs, by its documented API. It knows no NVLinks: the file of the
 * machine has them.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "fake_machine.h"

/* nvmlReturn_t and nvmlGpuP2PStatus_t */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

static void *device_of(int gpu) { return (void *)(uintptr_t)(1 + gpu); }
static int gpu_of(void *device) { return (int)(uintptr_t)device - 1; }

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int error) {
  static __thread char text[32];
  snprintf(text, sizeof text, "fake NVML error %d", error);
  return text;
}

int nvmlDeviceGetCount(unsigned *count) { *count = fake_machine()->gpus; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return nvmlDeviceGetCount(count); }

int nvmlDeviceGetHandleByIndex(unsigned index, void **device) {
  if (index >= (unsigned)fake_machine()->gpus) return INVALID_ARGUMENT;
  *device = device_of(index);
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  return nvmlDeviceGetHandleByIndex(index, device);
}

int nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **device) {
  int gpu = fake_gpu_with(bus_id);
  *device = device_of(gpu);
  return gpu < 0 ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
  return nvmlDeviceGetHandleByPciBusId(bus_id, device);
}

/* nvmlPciInfo_t */
struct pci {
  char short_bus_id[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *found) {
  const struct fake_gpu *gpu = &fake_machine()->gpu[gpu_of(device)];
  *found =
      (struct pci){.domain = gpu->domain, .bus = gpu->bus, .device = gpu->device, .id = 0x10de};
  snprintf(found->short_bus_id, sizeof found->short_bus_id, "%.15s", gpu->bus_id);
  snprintf(found->bus_id, sizeof found->bus_id, "%s", gpu->bus_id);
  return SUCCESS;
}

int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = gpu_of(device); return SUCCESS; }

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *major = fake_machine()->capability / 10;
  *minor = fake_machine()->capability % 10;
  return SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *device, void *peer, int what, int *status) {
  *status = fake_machine()->peer ? P2P_OK : P2P_NOT_SUPPORTED;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo(void *device, unsigned link, void *info) {
  return NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) {
  return NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkCapability(void *device, unsigned link, int what, unsigned *value) {
  return NOT_SUPPORTED;
}

/* nvmlFieldValue_t */
struct field {
  unsigned id, scope;
  long long timestamp, latency;
  int type, result;
  unsigned long long value;
};

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
  for (int i = 0; i < count; i++) fields[i].result = NOT_SUPPORTED;
  return SUCCESS;
}

/* No NVLinks between nodes. */
int nvmlDeviceGetGpuFabricInfo(void *device, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetPlatformInfo(void *device, void *info) { return NOT_SUPPORTED; }

/* No confidential computing: nvmlConfComputeSystemState_t, and nvmlSystemConfComputeSettings_t
 * with its version first.
 */
int nvmlSystemGetConfComputeState(unsigned state[3]) {
  memset(state, 0, 3 * sizeof *state);
  return SUCCESS;
}
int nvmlSystemGetConfComputeSettings(unsigned settings[5]) {
  memset(settings + 1, 0, 4 * sizeof *settings);
  return SUCCESS;
}
