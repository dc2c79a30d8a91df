/* The CUDA runtime's interface, libcudart: what PyTorch calls of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "cuda_runtime_api.h"

static __thread cudaError_t last;

static cudaError_t result(int error) { return error ? (last = (cudaError_t)error) : cudaSuccess; }
/* The result of a call that the device has ended in the meantime, or not. */
static cudaError_t checked(int error) { return result(error ? error : sim_error(sim_current())); }

/* --- devices --- */

API cudaError_t cudaGetDeviceCount(int *count) {
    *count = sim_count();
    return result(*count ? SIM_OK : cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *device) {
    *device = sim_current();
    return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) { return result(sim_use(device)); }
API cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, (size_t)length, "00000000:%02x:00.0", 16 + sim_get(device)->physical);
    return cudaSuccess;
}

#undef cudaGetDeviceProperties
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int number) {
    const sim_device *device = sim_get(number);
    if (!device) return result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", device->name);
    memcpy(p->uuid.bytes, device->uuid, sizeof device->uuid);
    p->totalGlobalMem = device->model.memory;
    p->major = device->model.major;
    p->minor = device->model.minor;
    p->multiProcessorCount = device->model.processors;
    p->l2CacheSize = device->model.l2_bytes;
    p->sharedMemPerMultiprocessor = (size_t)device->model.shared_per_processor;
    p->sharedMemPerBlockOptin = (size_t)device->model.shared_per_block;
    p->memoryBusWidth = device->model.bus_bits;
    p->pciBusID = 16 + device->physical;
    p->sharedMemPerBlock = 49152;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = p->managedMemory = 1;
    p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = p->cooperativeLaunch = 1;
    p->hostRegisterSupported = p->memoryPoolsSupported = p->concurrentManagedAccess = p->ipcEventSupported = 1;
    p->clusterLaunch = device->model.major >= 9;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, number);
    if (error) return error;
    const sim_model *model = &sim_get(number)->model;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = model->shared_per_block; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = model->shared_per_processor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrClockRate: *value = model->clock_khz; break;
    case cudaDevAttrMemoryClockRate: *value = model->memory_clock_khz; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = model->bus_bits; break;
    case cudaDevAttrMultiProcessorCount: *value = model->processors; break;
    case cudaDevAttrL2CacheSize: *value = model->l2_bytes; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = model->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = model->minor; break;
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrTextureAlignment: *value = 512; break;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrUnifiedAddressing: case cudaDevAttrEccEnabled:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrConcurrentKernels: case cudaDevAttrHostRegisterSupported: *value = 1; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

/* --- errors --- */

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
API cudaError_t cudaPeekAtLastError(void) { return last; }

static const struct {
    cudaError_t error;
    const char *name, *text;
} ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
#define ERROR_COUNT (sizeof ERRORS / sizeof *ERRORS)

API const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (ERRORS[i].error == error) return ERRORS[i].text;
    return "unrecognized error code";
}
API const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (ERRORS[i].error == error) return ERRORS[i].name;
    return "unrecognized error code";
}

/* --- memory --- */

API cudaError_t cudaMalloc(void **pointer, size_t bytes) { return checked(sim_allocate(pointer, bytes, sim_current())); }
API cudaError_t cudaFree(void *pointer) {
    if (pointer) sim_device_wait(sim_current()); /* cudaFree waits for the device */
    return checked(sim_free(pointer));
}
API cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return cudaMalloc(pointer, bytes);
}
API cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    sim_stream_wait(sim_stream_of(stream));
    return checked(sim_free(pointer));
}
API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    sim_memory(sim_current(), available, total);
    return checked(SIM_OK);
}
API cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    if (posix_memalign(pointer, 4096, bytes ? bytes : 1)) return result(cudaErrorMemoryAllocation);
    return result(sim_pin(*pointer, bytes));
}
API cudaError_t cudaFreeHost(void *pointer) {
    if (pointer) sim_device_wait(sim_current());
    sim_unpin(pointer);
    free(pointer);
    return cudaSuccess;
}
API cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return result(sim_pin(pointer, bytes));
}
API cudaError_t cudaHostUnregister(void *pointer) {
    sim_unpin(pointer);
    return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
    memset(a, 0, sizeof *a);
    a->device = sim_device_of(pointer);
    if (a->device >= 0) {
        a->type = cudaMemoryTypeDevice;
        a->devicePointer = (void *)pointer;
    } else if (sim_pinned(pointer)) {
        a->type = cudaMemoryTypeHost;
        a->hostPointer = a->devicePointer = (void *)pointer;
        a->device = sim_current();
    } else {
        a->type = cudaMemoryTypeUnregistered;
        a->device = -2;
        a->hostPointer = (void *)pointer;
    }
    return cudaSuccess;
}

/* --- copies: each side's kind comes from its address --- */

typedef struct {
    char *to;
    const char *from;
    char *staged; /* a copy of pageable memory, which the host may change at once */
    size_t to_pitch, from_pitch, width, rows;
} copy;

static double do_copy(void *payload, double start, double end) {
    copy *own = payload;
    (void)start;
    const char *from = own->staged ? own->staged : own->from;
    if (own->rows == 1) {
        memmove(own->to, from, sim_moved(own->width));
    } else {
        for (size_t row = 0; row < own->rows; row++)
            memmove(own->to + row * own->to_pitch, from + row * own->from_pitch, own->width);
    }
    free(own->staged);
    return end;
}

static const char *copy_name(int from, int to, bool pinned) {
    if (from >= 0 && to >= 0) return from == to ? "device" : "peer";
    if (from < 0 && to < 0) return "host";
    if (from < 0) return pinned ? "to_device pinned" : "to_device pageable";
    return pinned ? "to_host pinned" : "to_host pageable";
}

static cudaError_t start_copy(copy own, void *handle, bool host_waits) {
    int to = sim_device_of(own.to), from = sim_device_of(own.from);
    size_t bytes = own.width * own.rows;
    const void *host = to < 0 ? (const void *)own.to : own.from;
    bool pinned = (to < 0 || from < 0) && sim_pinned(host);
    const sim_device *device = sim_get(from >= 0 ? from : to >= 0 ? to : sim_current());
    sim_operation operation = {.what = "copy", .effect = do_copy};
    if (from >= 0 && to >= 0)
        operation.seconds = from == to ? sim_memory_seconds(device, 2.0 * (double)bytes)
                                       : sim_peer_seconds(device->physical, sim_get(to)->physical, (double)bytes);
    else if (from >= 0 || to >= 0)
        operation.seconds = (pinned ? 1 : 4) * sim_host_link_seconds(device, (double)bytes); /* pageable: staged */
    bool pageable_source = from < 0 && to >= 0 && !pinned;
    if (pageable_source && own.rows == 1 && !host_waits) {
        size_t moved = sim_moved(bytes);
        own.staged = malloc(moved ? moved : 1);
        memcpy(own.staged, own.from, moved);
    }
    host_waits = host_waits || (from >= 0 && to < 0 && !pinned) || (from < 0 && to < 0);
    sim_log("copy", "device=%d bytes=%zu %s%s", device->physical, bytes, copy_name(from, to, pinned),
            host_waits ? " host waits" : "");
    if (bytes) {
        _Static_assert(sizeof own <= PAYLOAD, "a copy's description must fit");
        memcpy(operation.payload, &own, sizeof own);
        sim_submit(sim_stream_of(handle), &operation);
    }
    if (host_waits) {
        sim_stream_wait(sim_stream_of(handle));
        sim_log_flush();
    }
    return checked(SIM_OK);
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    return start_copy((copy){.to = to, .from = from, .width = bytes, .rows = 1}, stream, false);
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    return start_copy((copy){.to = to, .from = from, .width = bytes, .rows = 1}, NULL, true);
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
    (void)to_device, (void)from_device;
    return start_copy((copy){.to = to, .from = from, .width = bytes, .rows = 1}, stream, false);
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                                  enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    copy own = {.to = to, .from = from, .to_pitch = to_pitch, .from_pitch = from_pitch, .width = width, .rows = rows};
    return start_copy(own, stream, false);
}

typedef struct {
    char *to;
    int value;
    size_t bytes;
} fill;

static double do_fill(void *payload, double start, double end) {
    fill *own = payload;
    (void)start;
    memset(own->to, own->value, sim_moved(own->bytes));
    return end;
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    fill own = {to, value, bytes};
    sim_operation operation = {.what = "fill", .effect = do_fill};
    operation.seconds = sim_memory_seconds(sim_get(sim_current()), (double)bytes);
    memcpy(operation.payload, &own, sizeof own);
    sim_log("fill", "device=%d bytes=%zu", sim_current(), bytes);
    return checked(sim_submit(sim_stream_of(stream), &operation));
}
API cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, NULL); }

/* --- streams and events --- */

static cudaError_t host_waits(const char *what) {
    sim_log("wait", "device=%d %s", sim_current(), what);
    sim_log_flush();
    return checked(SIM_OK);
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)flags;
    *stream = (cudaStream_t)sim_stream_new(sim_current(), priority);
    return checked(SIM_OK);
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    sim_stream_delete(sim_stream_of(stream));
    return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = sim_stream_priority(sim_stream_of(stream));
    return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t error = checked(SIM_OK);
    return error ? error : sim_stream_idle(sim_stream_of(stream)) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    sim_stream_wait(sim_stream_of(stream));
    return host_waits("stream");
}
API cudaError_t cudaDeviceSynchronize(void) {
    sim_device_wait(sim_current());
    return host_waits("device");
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    sim_event_follow(sim_stream_of(stream), (sim_event *)event);
    return checked(SIM_OK);
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = (cudaEvent_t)sim_event_new();
    return checked(SIM_OK);
}
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    sim_event_delete((sim_event *)event);
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return checked(sim_event_record((sim_event *)event, sim_stream_of(stream)));
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
    cudaError_t error = checked(SIM_OK);
    return error ? error : sim_event_done((sim_event *)event) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    sim_event_wait((sim_event *)event);
    return host_waits("event");
}
API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    double seconds = 0;
    bool done = sim_event_elapsed((sim_event *)from, (sim_event *)to, &seconds);
    *milliseconds = (float)(seconds > 0.5e-6 ? 1e3 * seconds : 0.5e-3); /* the resolution of CUDA's events */
    cudaError_t error = checked(SIM_OK);
    return error ? error : done ? cudaSuccess : cudaErrorNotReady;
}

typedef struct {
    cudaStreamCallback_t callback;
    cudaHostFn_t function;
    void *data;
    cudaStream_t stream;
} host_call;

static double do_host_call(void *payload, double start, double end) {
    host_call *own = payload;
    (void)start;
    if (own->function) own->function(own->data);
    else own->callback(own->stream, cudaSuccess, own->data);
    return end;
}

static cudaError_t submit_host_call(host_call own) {
    sim_operation operation = {.what = "host call", .effect = do_host_call, .waits = true};
    memcpy(operation.payload, &own, sizeof own);
    return checked(sim_submit(sim_stream_of(own.stream), &operation));
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    (void)flags;
    return submit_host_call((host_call){.callback = callback, .data = data, .stream = stream});
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    return submit_host_call((host_call){.function = function, .data = data, .stream = stream});
}

/* --- graphs --- */

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode;
    return checked(sim_capture_begin(sim_stream_of(stream)));
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    *graph = (cudaGraph_t)sim_capture_end(sim_stream_of(stream));
    return checked(*graph ? SIM_OK : cudaErrorIllegalState);
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    bool capturing = sim_count() && sim_capturing(sim_stream_of(stream), NULL, NULL);
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *number,
                                         cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                         const cudaGraphEdgeData **edges, size_t *count) {
    bool capturing = sim_capturing(sim_stream_of(stream), (sim_graph **)graph, number);
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (!capturing && number) *number = 0;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    *mode = cudaStreamCaptureModeGlobal;
    return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    if (nodes)
        for (size_t i = 0; i < *count; i++) nodes[i] = NULL;
    *count = sim_graph_size((sim_graph *)graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    *executable = (cudaGraphExec_t)sim_graph_copy((sim_graph *)graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return checked(sim_graph_launch((sim_graph *)executable, sim_stream_of(stream)));
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    sim_graph_delete((sim_graph *)graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    sim_graph_delete((sim_graph *)executable);
    return cudaSuccess;
}

/* --- kernels: compiled into PyTorch, which registers each one's host function with its name --- */

typedef struct {
    const void *function;
    const char *name;
} registration;

static registration *table;
static size_t slots, registered;
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

static registration *slot_of(registration *in, size_t size, const void *function) {
    size_t at = ((uintptr_t)function * 0x9e3779b97f4a7c15ull >> 17) & (size - 1);
    while (in[at].function && in[at].function != function) at = (at + 1) & (size - 1);
    return &in[at];
}

API void __cudaRegisterFunction(void **handle, const void *function, char *device_function, const char *name, int limit,
                                void *thread, void *block, void *block_dimension, void *grid, int *warp) {
    (void)handle, (void)device_function, (void)limit, (void)thread, (void)block, (void)block_dimension, (void)grid, (void)warp;
    pthread_mutex_lock(&table_mutex);
    if (2 * registered >= slots) {
        size_t wider = slots ? 2 * slots : 1 << 16;
        registration *next = calloc(wider, sizeof *next);
        for (size_t i = 0; i < slots; i++)
            if (table[i].function) *slot_of(next, wider, table[i].function) = table[i];
        free(table);
        table = next;
        slots = wider;
    }
    registration *slot = slot_of(table, slots, function);
    registered += !slot->function;
    *slot = (registration){function, name};
    pthread_mutex_unlock(&table_mutex);
}

static const char *name_of(const void *function) {
    pthread_mutex_lock(&table_mutex);
    const char *name = slots ? slot_of(table, slots, function)->name : NULL;
    pthread_mutex_unlock(&table_mutex);
    return name ? name : "unnamed";
}

API void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int external, size_t bytes, int constant,
                           int global) {
    (void)handle, (void)variable, (void)address, (void)name, (void)external, (void)bytes, (void)constant, (void)global;
}
API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configurations[16];
static __thread int configuration_count;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configurations[configuration_count].grid = grid;
    configurations[configuration_count].block = block;
    configurations[configuration_count].shared = shared;
    configurations[configuration_count++].stream = stream;
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    configuration_count--;
    *grid = configurations[configuration_count].grid;
    *block = configurations[configuration_count].block;
    *shared = configurations[configuration_count].shared;
    *(void **)stream = configurations[configuration_count].stream;
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    (void)arguments;
    unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
    return result(sim_launch(name_of(function), g, b, shared, stream));
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *function, void **arguments) {
    return cudaLaunchKernel(function, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
    (void)function;
    memset(a, 0, sizeof *a);
    const sim_model *model = &sim_get(sim_current())->model;
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = a->ptxVersion = 10 * model->major + model->minor;
    a->maxDynamicSharedSizeBytes = model->shared_per_block;
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared, unsigned flags) {
    (void)function, (void)flags;
    int by_threads = threads > 0 ? 2048 / threads : 1;
    int by_shared = shared ? (int)((size_t)sim_get(sim_current())->model.shared_per_processor / (shared + 1024)) : 32;
    int most = by_threads < by_shared ? by_threads : by_shared;
    *blocks = most > 32 ? 32 : most < 1 ? 1 : most;
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

/* --- the rest --- */

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    static void *memory; /* constants that kernels would read */
    (void)symbol;
    if (!memory && sim_allocate(&memory, 1 << 20, sim_current())) return result(cudaErrorMemoryAllocation);
    *pointer = memory;
    return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **pointer, unsigned version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *found) {
    (void)version, (void)flags;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    char later[128];
    snprintf(later, sizeof later, "%s_v2", name);
    *pointer = driver ? dlsym(driver, later) : NULL;
    if (!*pointer && driver) *pointer = dlsym(driver, name);
    if (found) *found = *pointer ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    (void)device;
    *pool = (cudaMemPool_t)1;
    return cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)pool, (void)attribute;
    *(unsigned long long *)value = 0;
    return cudaSuccess;
}
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    (void)handle, (void)pointer;
    return result(cudaErrorNotSupported);
}
