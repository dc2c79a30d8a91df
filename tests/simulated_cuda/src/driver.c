/* The driver's interface, libcuda: what Triton and PyTorch's allocator call of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "cuda.h"

/* The headers rename functions to their later versions; here each is named as the library has it. */
#undef cuDeviceTotalMem
#undef cuDeviceGetUuid
#undef cuMemGetAddressRange
#undef cuGetProcAddress

static CUresult checked(int error) { return (CUresult)(error ? error : sim_error(sim_current())); }

API CUresult cuInit(unsigned flags) {
    (void)flags;
    return sim_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
API CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int *count) {
    *count = sim_count();
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice *device, int number) {
    *device = number;
    return sim_get(number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetName(char *text, int length, CUdevice device) {
    snprintf(text, (size_t)length, "%s", sim_get(device)->name);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memcpy(uuid->bytes, sim_get(device)->uuid, 16);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = sim_get(device)->model.memory;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    /* The runtime's attributes have the driver's numbers; these few are the driver's alone. */
    static int (*runtime)(int *, int, int);
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    default:
        if (!runtime) {
            void *library = dlopen("libcudart.so.13", RTLD_LAZY);
            runtime = library ? dlsym(library, "cudaDeviceGetAttribute") : NULL;
        }
        return runtime ? (CUresult)runtime(value, (int)attribute, device) : CUDA_ERROR_INVALID_VALUE;
    }
}

/* --- contexts: the primary one of each device, as a number --- */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(intptr_t)(16 + device);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) { return cuDevicePrimaryCtxRetain(context, sim_current()); }
API CUresult cuCtxSetCurrent(CUcontext context) {
    return context ? (CUresult)sim_use((int)(intptr_t)context - 16) : CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = sim_current();
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize(void) {
    sim_device_wait(sim_current());
    sim_log("wait", "device=%d device", sim_current());
    return checked(SIM_OK);
}
API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    (void)limit;
    *value = 1 << 20;
    return CUDA_SUCCESS;
}

static const char *text_of(CUresult error) {
    switch (error) {
    case CUDA_SUCCESS: return "no error";
    case CUDA_ERROR_OUT_OF_MEMORY: return "out of memory";
    case CUDA_ERROR_NO_DEVICE: return "no CUDA-capable device is detected";
    case CUDA_ERROR_ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    case CUDA_ERROR_ECC_UNCORRECTABLE: return "uncorrectable ECC error encountered";
    case CUDA_ERROR_UNKNOWN: return "unknown error";
    default: return "invalid argument";
    }
}
API CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = text_of(error);
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

/* --- modules: a function is its name --- */

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    static char any;
    *module = (CUmodule)&any;
    sim_log("module", "device=%d", sim_current());
    return checked(SIM_OK);
}
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}
API CUresult cuModuleLoad(CUmodule *module, const char *path) { return cuModuleLoadData(module, path); }
API CUresult cuModuleUnload(CUmodule module) {
    (void)module;
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    *function = (CUfunction)strdup(name);
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 64
             : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                    : 0;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    (void)function, (void)shared;
    *blocks = threads > 0 && threads <= 1024 ? 2048 / threads : 1;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    (void)function, (void)config;
    *clusters = 1;
    return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return (CUresult)sim_launch((const char *)function, grid, block, shared, stream);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **parameters, void **extra) {
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            sim_log("dependent", "device=%d %s", sim_current(), (const char *)function);
    return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                          c->sharedMemBytes, c->hStream, parameters, extra);
}
API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream stream, void **parameters) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

/* --- memory --- */

API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    int device = sim_device_of((const void *)pointer);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = (CUcontext)(intptr_t)(16 + (device < 0 ? 0 : device)); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = device; break;
    default: *(int *)value = 0;
    }
    bool known = device >= 0 || sim_pinned((const void *)pointer);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr pointer) {
    void *first;
    size_t size;
    if (!sim_range_of((const void *)pointer, &first, &size)) return CUDA_ERROR_NOT_FOUND;
    if (start) *start = (CUdeviceptr)first;
    if (bytes) *bytes = size;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags flags) {
    (void)p, (void)flags;
    *bytes = 2 << 20;
    return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    return checked(sim_reserve((void **)address, bytes));
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    sim_unreserve((void *)address, bytes);
    return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *p, unsigned long long flags) {
    (void)flags;
    return checked(sim_create((uint64_t *)handle, bytes, p->location.id));
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    sim_release(handle);
    return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)offset, (void)flags;
    return checked(sim_map((void *)address, bytes, handle));
}
API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *description, size_t count) {
    (void)address, (void)bytes, (void)description, (void)count;
    return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    sim_unmap((void *)address, bytes);
    return CUDA_SUCCESS;
}

API CUresult cuMemExportToShareableHandle(void *handle, CUmemGenericAllocationHandle memory, CUmemAllocationHandleType kind,
                                          unsigned long long flags) {
    (void)handle, (void)memory, (void)kind, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *memory, void *handle, CUmemAllocationHandleType kind) {
    (void)memory, (void)handle, (void)kind;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuGetProcAddress_v2(const char *name, void **pointer, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    (void)version, (void)flags;
    char later[128];
    void *self = dlopen("libcuda.so.1", RTLD_LAZY);
    snprintf(later, sizeof later, "%s_v2", name);
    *pointer = dlsym(self, later);
    if (!*pointer) *pointer = dlsym(self, name);
    if (found) *found = *pointer ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
