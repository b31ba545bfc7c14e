/* The CUDA driver of fake GPUs, by its documented API, for functions that the runtime hands out by
 * name (cudaGetDriverEntryPoint). A handle of memory is an unnamed file, so that several addresses
 * can map it.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_device.h"
#include "fake_machine.h"
#include "fake_memory.h"

enum { PAGE = 4096, GRANULE = 2 << 20, CUDA_12_8 = 12080 };

typedef unsigned long long quad;
typedef unsigned flags_t;

/* ---- devices ---- */

int fake_attribute(int attribute, int gpu) {
  const struct fake_machine *machine = fake_machine();
  int capability = machine->capability;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return capability % 10;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return machine->gpu[gpu].domain;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return machine->gpu[gpu].bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return machine->gpu[gpu].device;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return capability >= 100 ? 148 : capability >= 90 ? 132 : capability >= 80 ? 108 : 80;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: /* as of the compute capability */
      return (capability >= 90   ? 227
              : capability == 80 ? 163
              : capability > 80  ? 99
              : capability == 75 ? 64
              : capability >= 70 ? 96
                                 : 48)
             << 10;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      return CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      return CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: return 0;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: return 0;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: return machine->multicast;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return 0;
    case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT: return capability >= 90 ? 4 : 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: return 1;
    default: break;
  }
  char what[64];
  snprintf(what, sizeof what, "attribute %d of a GPU", attribute);
  refuse(what);
}

CUresult fake_cuInit(flags_t flags) { return CUDA_SUCCESS; }
CUresult fake_cuDriverGetVersion(int *version) { *version = CUDA_12_8; return CUDA_SUCCESS; }
CUresult fake_cuDeviceGet(int *device, int gpu) { *device = gpu; return CUDA_SUCCESS; }

CUresult fake_cuDeviceGetAttribute(int *value, int attribute, int gpu) {
  *value = fake_attribute(attribute, gpu);
  return CUDA_SUCCESS;
}

/* Of its own for each GPU of each node, as processes are nodes. */
CUresult fake_cuDeviceGetUuid(CUuuid *id, int gpu) {
  int process = getpid();
  memset(id, 0, sizeof *id);
  id->bytes[0] = 1 + gpu;
  memcpy(id->bytes + 4, &process, sizeof process);
  return CUDA_SUCCESS;
}

CUresult fake_cuGetErrorString(CUresult error, const char **text) {
  static __thread char own[32];
  snprintf(own, sizeof own, "fake CUDA error %d", error);
  *text = own;
  return CUDA_SUCCESS;
}

CUresult fake_cuCtxGetCurrent(void **context) {
  *context = (void *)(uintptr_t)(1 + fake_current_gpu());
  return CUDA_SUCCESS;
}

CUresult fake_cuCtxGetDevice(int *device) { *device = fake_current_gpu(); return CUDA_SUCCESS; }

CUresult fake_cuLaunchKernelEx(const CUlaunchConfig *config, void *function, void **arguments,
                               void **extra) {
  print_kernel(fake_current_gpu(), function, config->gridDimX, config->blockDimX);
  return CUDA_SUCCESS;
}

/* ---- handles of memory ---- */

struct handle {
  int file, users;
  CUmemAllocationProp of;
};

static struct handle *handle_of(int file, const CUmemAllocationProp *of) {
  struct handle *made = calloc(1, sizeof *made);
  made->file = file;
  made->users = 1;
  if (of) made->of = *of;
  return made;
}

static CUresult new_handle(struct handle **made, size_t size, const CUmemAllocationProp *of) {
  int file = memfd_create("fake", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = handle_of(file, of);
  return CUDA_SUCCESS;
}

CUresult fake_cuMemGetAllocationGranularity(size_t *size, const void *of, int option) {
  *size = GRANULE;
  return CUDA_SUCCESS;
}

CUresult fake_cuMemCreate(struct handle **made, size_t size, const CUmemAllocationProp *of,
                          quad flags) {
  return new_handle(made, size, of);
}

CUresult fake_cuMemRelease(struct handle *handle) {
  if (__sync_sub_and_fetch(&handle->users, 1) == 0) {
    close(handle->file);
    free(handle);
  }
  return CUDA_SUCCESS;
}

CUresult fake_cuMemExportToShareableHandle(int *file, struct handle *handle,
                                           CUmemAllocationHandleType type, quad flags) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  *file = dup(handle->file);
  return CUDA_SUCCESS;
}

CUresult fake_cuMemImportFromShareableHandle(struct handle **made, void *file,
                                             CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemAllocationProp of = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = type,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = fake_current_gpu()},
  };
  *made = handle_of(dup((int)(uintptr_t)file), &of);
  return CUDA_SUCCESS;
}

CUresult fake_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *of,
                                                     struct handle *handle) {
  *of = handle->of;
  return CUDA_SUCCESS;
}

CUresult fake_cuMemRetainAllocationHandle(struct handle **found, void *pointer) {
  struct block block;
  if (!find_block((uintptr_t)pointer, &block) || !block.mapped) return CUDA_ERROR_INVALID_VALUE;
  *found = block.mapped;
  __sync_fetch_and_add(&(*found)->users, 1);
  return CUDA_SUCCESS;
}

/* ---- addresses ---- */

CUresult fake_cuMemAddressReserve(CUdeviceptr *first, size_t size, size_t align, CUdeviceptr wish,
                                  quad flags) {
  if (align < PAGE) align = PAGE;
  int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *found = mmap(NULL, size + align, PROT_NONE, how, -1, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *first = ((uintptr_t)found + align - 1) / align * align;
  return CUDA_SUCCESS;
}

CUresult fake_cuMemAddressFree(CUdeviceptr first, size_t size) {
  munmap((void *)first, size);
  return CUDA_SUCCESS;
}

CUresult fake_cuMemMap(CUdeviceptr first, size_t size, size_t offset, struct handle *handle,
                       quad flags) {
  int how = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  if (mmap((void *)first, size, PROT_READ | PROT_WRITE, how, handle->file, offset) == MAP_FAILED)
    return CUDA_ERROR_INVALID_VALUE;
  __sync_fetch_and_add(&handle->users, 1);
  int on_gpu = handle->of.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  remember_block(first, size, on_gpu ? handle->of.location.id : HOST, handle);
  return CUDA_SUCCESS;
}

CUresult fake_cuMemUnmap(CUdeviceptr first, size_t size) {
  struct block block;
  if (forget_block(first, &block) && block.mapped) fake_cuMemRelease(block.mapped);
  mmap((void *)first, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
       0);
  return CUDA_SUCCESS;
}

CUresult fake_cuMemSetAccess(CUdeviceptr first, size_t size, const void *access, size_t count) {
  return CUDA_SUCCESS;
}

/* ---- multicast: objects of memory that nothing is bound to ---- */

CUresult fake_cuMulticastGetGranularity(size_t *size, const void *of, int option) {
  *size = GRANULE;
  return CUDA_SUCCESS;
}

CUresult fake_cuMulticastCreate(struct handle **made, const CUmulticastObjectProp *of) {
  return fake_machine()->multicast ? new_handle(made, of->size, NULL) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult fake_cuMulticastAddDevice(void *handle, int gpu) { return CUDA_SUCCESS; }
CUresult fake_cuMulticastBindMem(void *handle, size_t offset, void *memory, size_t from,
                                 size_t size, quad flags) {
  return CUDA_SUCCESS;
}
CUresult fake_cuMulticastUnbind(void *handle, int gpu, size_t offset, size_t size) {
  return CUDA_SUCCESS;
}
