/* Memory of the devices: host memory that is mapped when it is touched, counted against the device's capacity.

   Addresses of device d lie in [BASE + d * SPAN, ...), those of reserved ranges above: whose memory a pointer is, is
   arithmetic. What is freed is unmapped: reading it ends the process, as it should.
   Processes that share devices count together where SIMULATED_CUDA_STATE names a file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

#define BASE 0x200000000000ull      /* away from where Linux maps libraries and the heap */
#define SPAN ((size_t)1 << 40)      /* addresses of one device */
#define PAGE ((size_t)2 << 20)      /* granularity of the driver: 2 MiB */
#define CONTEXT ((size_t)520 << 20) /* of a process on a device: H100, driver 550 and later, lazy loading */
#define OUT_OF_MEMORY 2             /* cudaErrorMemoryAllocation */
#define INVALID_VALUE 1

typedef struct block {
    char *start;
    size_t bytes;
    int device;
    uint64_t handle; /* of mapped physical memory; 0: cudaMalloc */
    struct block *next;
} block;

typedef struct { /* bytes that each process holds on each device: shared by the processes */
    struct {
        pid_t process;
        size_t held[MAX_DEVICES];
    } slots[256];
} ledger;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;  /* in order of address, all devices */
static block *ranges;  /* reserved addresses */
static block *pinned;
static char *reserved_end = (char *)(BASE + MAX_DEVICES * SPAN);
static struct {
    size_t bytes;
    int device;
    int mappings;
    bool released;
} physical[1 << 16]; /* by handle */
static uint64_t handles = 1;
static ledger *book;
static int own_slot;

static size_t rounded(size_t bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }

static void open_book(void) {
    if (book) return;
    const char *path = getenv("SIMULATED_CUDA_STATE");
    int file = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    if (file >= 0 && ftruncate(file, sizeof(ledger))) abort();
    ledger *mapped = mmap(NULL, sizeof(ledger), PROT_READ | PROT_WRITE, flags, file, 0);
    if (mapped == MAP_FAILED) abort();
    if (file >= 0) close(file);
    pid_t self = getpid();
    for (int i = 0; i < 256; i++) { /* a free slot, or one of a process that is gone */
        pid_t owner = mapped->slots[i].process;
        if (owner && owner != self && (kill(owner, 0) == 0 || errno == EPERM)) continue;
        if (!__sync_bool_compare_and_swap(&mapped->slots[i].process, owner, self)) continue;
        memset(mapped->slots[i].held, 0, sizeof mapped->slots[i].held);
        own_slot = i;
        break;
    }
    book = mapped;
}

static size_t *held(int device) {
    open_book();
    return &book->slots[own_slot].held[sim_get(device)->physical];
}

static size_t held_by_all(int device) {
    open_book();
    int number = sim_get(device)->physical;
    size_t sum = 0;
    for (int i = 0; i < 256; i++) {
        pid_t owner = book->slots[i].process;
        if (i == own_slot || (owner && (kill(owner, 0) == 0 || errno == EPERM))) sum += book->slots[i].held[number];
    }
    return sum;
}

static bool take(int device, size_t bytes) {
    size_t *own = held(device);
    if (!*own) *own = CONTEXT; /* the first allocation makes the context */
    if (held_by_all(device) + bytes > sim_get(device)->model.memory) return false;
    *own += bytes;
    return true;
}

API int sim_allocate(void **pointer, size_t bytes, int device) {
    int error = sim_fault_at("allocation", sim_get(device)->physical);
    *pointer = NULL;
    if (error) return error;
    size_t size = rounded(bytes ? bytes : 1);
    pthread_mutex_lock(&mutex);
    if (!take(device, size)) {
        pthread_mutex_unlock(&mutex);
        sim_log("refused", "device=%d bytes=%zu", device, bytes);
        return OUT_OF_MEMORY;
    }
    char *start = (char *)(BASE + (size_t)device * SPAN);
    block **at = &blocks; /* the first gap that is wide enough */
    while (*at && ((*at)->device < device || ((*at)->device == device && (size_t)((*at)->start - start) < size))) {
        if ((*at)->device == device) start = (*at)->start + (*at)->bytes;
        at = &(*at)->next;
    }
    void *mapped = mmap(start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != start) {
        *held(device) -= size;
        pthread_mutex_unlock(&mutex);
        return OUT_OF_MEMORY;
    }
    block *new = malloc(sizeof *new);
    *new = (block){start, size, device, 0, *at};
    *at = new;
    pthread_mutex_unlock(&mutex);
    *pointer = start;
    sim_log("allocate", "device=%d bytes=%zu", device, bytes);
    return SIM_OK;
}

API int sim_free(void *pointer) {
    if (!pointer) return SIM_OK;
    pthread_mutex_lock(&mutex);
    block **at = &blocks;
    while (*at && (*at)->start != pointer) at = &(*at)->next;
    block *found = *at;
    if (found) {
        *at = found->next;
        munmap(found->start, found->bytes);
        *held(found->device) -= found->bytes;
    }
    pthread_mutex_unlock(&mutex);
    if (!found) return INVALID_VALUE;
    sim_log("free", "device=%d bytes=%zu", found->device, found->bytes);
    free(found);
    return SIM_OK;
}

API void sim_memory(int device, size_t *available, size_t *total) {
    pthread_mutex_lock(&mutex);
    size_t *own = held(device);
    if (!*own) *own = CONTEXT;
    *total = sim_get(device)->model.memory;
    size_t used = held_by_all(device);
    *available = used < *total ? *total - used : 0;
    pthread_mutex_unlock(&mutex);
}

/* The mapped block of a reserved range that holds a pointer. The mutex is held. */
static const block *holding(const block *list, const void *pointer) {
    for (; list; list = list->next)
        if ((const char *)pointer >= list->start && (const char *)pointer < list->start + list->bytes) return list;
    return NULL;
}

API int sim_device_of(const void *pointer) {
    uintptr_t address = (uintptr_t)pointer;
    if (address < BASE) return -1;
    size_t number = (address - BASE) / SPAN;
    if (number < MAX_DEVICES) return (int)number;
    pthread_mutex_lock(&mutex);
    const block *found = holding(ranges, pointer);
    int device = found ? found->device : -1;
    pthread_mutex_unlock(&mutex);
    return device;
}

API bool sim_range_of(const void *pointer, void **start, size_t *bytes) {
    pthread_mutex_lock(&mutex);
    const block *found = holding(blocks, pointer);
    if (!found) found = holding(ranges, pointer);
    if (found) {
        *start = found->start;
        *bytes = found->bytes;
    }
    pthread_mutex_unlock(&mutex);
    return found != NULL;
}

API int sim_pin(void *pointer, size_t bytes) {
    block *new = malloc(sizeof *new);
    pthread_mutex_lock(&mutex);
    *new = (block){pointer, bytes, -1, 0, pinned};
    pinned = new;
    pthread_mutex_unlock(&mutex);
    return SIM_OK;
}

API void sim_unpin(void *pointer) {
    pthread_mutex_lock(&mutex);
    block **at = &pinned;
    while (*at && (*at)->start != pointer) at = &(*at)->next;
    block *found = *at;
    if (found) *at = found->next;
    pthread_mutex_unlock(&mutex);
    free(found);
}

API bool sim_pinned(const void *pointer) {
    pthread_mutex_lock(&mutex);
    bool found = holding(pinned, pointer) != NULL;
    pthread_mutex_unlock(&mutex);
    return found;
}

API size_t sim_moved(size_t bytes) {
    static size_t limit;
    if (!limit) {
        const char *text = getenv("SIMULATED_CUDA_MOVED");
        limit = text && *text ? strtoull(text, NULL, 10) : (size_t)1 << 20;
    }
    return bytes < limit ? bytes : limit;
}

API int sim_reserve(void **address, size_t bytes) {
    size_t size = rounded(bytes);
    pthread_mutex_lock(&mutex);
    char *start = reserved_end;
    void *mapped = mmap(start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != start) {
        pthread_mutex_unlock(&mutex);
        return OUT_OF_MEMORY;
    }
    reserved_end += size;
    block *new = malloc(sizeof *new);
    *new = (block){start, size, -1, 0, ranges};
    ranges = new;
    pthread_mutex_unlock(&mutex);
    *address = start;
    return SIM_OK;
}

API void sim_unreserve(void *address, size_t bytes) {
    pthread_mutex_lock(&mutex);
    block **at = &ranges;
    while (*at && (*at)->start != address) at = &(*at)->next;
    block *found = *at;
    if (found) *at = found->next;
    munmap(address, rounded(bytes));
    pthread_mutex_unlock(&mutex);
    free(found);
}

API int sim_create(uint64_t *handle, size_t bytes, int device) {
    int error = sim_fault_at("allocation", sim_get(device)->physical);
    if (error) return error;
    pthread_mutex_lock(&mutex);
    bool fits = handles < sizeof physical / sizeof *physical && take(device, bytes);
    if (fits) {
        physical[handles].bytes = bytes;
        physical[handles].device = device;
        *handle = handles++;
    }
    pthread_mutex_unlock(&mutex);
    sim_log(fits ? "allocate" : "refused", "device=%d bytes=%zu", device, bytes);
    return fits ? SIM_OK : OUT_OF_MEMORY;
}

static void give_back(uint64_t handle) { /* the mutex is held */
    if (physical[handle].released && !physical[handle].mappings) {
        *held(physical[handle].device) -= physical[handle].bytes;
        physical[handle].bytes = 0;
    }
}

API void sim_release(uint64_t handle) {
    pthread_mutex_lock(&mutex);
    physical[handle].released = true;
    give_back(handle);
    pthread_mutex_unlock(&mutex);
}

API int sim_map(void *address, size_t bytes, uint64_t handle) {
    pthread_mutex_lock(&mutex);
    block *range = (block *)holding(ranges, address);
    int error = range && !mprotect(address, bytes, PROT_READ | PROT_WRITE) ? SIM_OK : INVALID_VALUE;
    if (!error) {
        range->device = physical[handle].device;
        physical[handle].mappings++;
        block *new = malloc(sizeof *new);
        block **at = &blocks;
        while (*at && (*at)->start < (char *)address) at = &(*at)->next;
        *new = (block){address, bytes, range->device + MAX_DEVICES, handle, *at}; /* sorts behind all devices */
        *at = new;
    }
    pthread_mutex_unlock(&mutex);
    return error;
}

API void sim_unmap(void *address, size_t bytes) {
    pthread_mutex_lock(&mutex);
    mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    block **at = &blocks;
    while (*at) {
        block *own = *at;
        if (!own->handle || own->start < (char *)address || own->start >= (char *)address + bytes) {
            at = &own->next;
            continue;
        }
        *at = own->next;
        physical[own->handle].mappings--;
        give_back(own->handle);
        free(own);
    }
    pthread_mutex_unlock(&mutex);
}
