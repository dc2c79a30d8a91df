/* What the stand-ins for CUDA's libraries share: devices, memory, work in order, a clock, faults, a log.

   Every stand-in (runtime.c, driver.c, blas.c, nccl.c, ...) translates one library's interface into these calls.
   Device memory is host memory. Kernels compute nothing. Times are seconds of CLOCK_MONOTONIC, so that the processes of
   one machine share one clock. */
#ifndef SIMULATED_CUDA_CORE_H
#define SIMULATED_CUDA_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define MAX_DEVICES 16
#define SIM_OK 0

/* --- devices (device.c) --- */

typedef struct {
    const char *name; /* as NVIDIA's tools print it; " (simulated)" is added */
    size_t memory;    /* bytes */
    int major, minor; /* compute capability */
    int processors;   /* streaming multiprocessors */
    int l2_bytes, shared_per_processor, shared_per_block; /* bytes */
    int bus_bits, clock_khz, memory_clock_khz;
} sim_model;

typedef struct {
    sim_model model;
    int physical; /* position in the node, in the order of the PCI bus */
    int slice;    /* of a device that is divided (MIG); -1: a whole device */
    char name[256];
    unsigned char uuid[16];
} sim_device;

int sim_count(void); /* devices that CUDA_VISIBLE_DEVICES leaves */
const sim_device *sim_get(int device);
int sim_physical_count(void); /* of the node, whatever is visible */
sim_device sim_physical(int number);
void sim_uuid(const sim_device *device, char text[64]); /* "GPU-..." or "MIG-..." */
int sim_current(void);
int sim_use(int device); /* the current device of this thread; an error number */

/* --- memory (memory.c) --- */

int sim_allocate(void **pointer, size_t bytes, int device);
int sim_free(void *pointer);
void sim_memory(int device, size_t *available, size_t *total);
int sim_device_of(const void *pointer); /* -1: no memory of a device */
int sim_pin(void *pointer, size_t bytes);
void sim_unpin(void *pointer);
bool sim_pinned(const void *pointer);
size_t sim_moved(size_t bytes); /* how many bytes of a transfer are really moved: see README.md */

/* Physical memory and addresses apart, as "expandable segments" of the caching allocator use them. */
int sim_reserve(void **address, size_t bytes);
void sim_unreserve(void *address, size_t bytes);
int sim_create(uint64_t *handle, size_t bytes, int device);
void sim_release(uint64_t handle);
int sim_map(void *address, size_t bytes, uint64_t handle);
void sim_unmap(void *address, size_t bytes);
bool sim_range_of(const void *pointer, void **start, size_t *bytes);

/* --- work (work.c) --- */

typedef struct sim_stream sim_stream;
typedef struct sim_event sim_event;
typedef struct sim_graph sim_graph;

#define PAYLOAD 96
/* Do what an operation does, and return when it ends, on the device's clock. `start`: when it may begin; `end`: when it
   ends by the table of times. */
typedef double (*sim_effect)(void *payload, double start, double end);

typedef struct {
    const char *what;  /* for the log; lives as long as the process */
    double seconds;    /* of the device */
    sim_effect effect; /* NULL: takes time and does nothing, as a kernel */
    bool waits;        /* the effect waits for other processes: it begins at once, on the stream's own thread */
    char payload[PAYLOAD];
} sim_operation;

double sim_now(void);
sim_stream *sim_stream_new(int device, int priority);
void sim_stream_delete(sim_stream *stream);
sim_stream *sim_stream_of(void *handle); /* NULL and CUDA's special handles: the current device's default stream */
int sim_stream_priority(const sim_stream *stream);
int sim_stream_device(const sim_stream *stream);
int sim_submit(sim_stream *stream, const sim_operation *operation);
bool sim_stream_idle(sim_stream *stream);
void sim_stream_wait(sim_stream *stream); /* the host waits */
void sim_device_wait(int device);

sim_event *sim_event_new(void);
void sim_event_delete(sim_event *event);
int sim_event_record(sim_event *event, sim_stream *stream);
void sim_event_follow(sim_stream *stream, sim_event *event); /* the stream waits */
bool sim_event_done(sim_event *event);
void sim_event_wait(sim_event *event); /* the host waits */
bool sim_event_elapsed(const sim_event *from, const sim_event *to, double *seconds);

int sim_capture_begin(sim_stream *stream);
sim_graph *sim_capture_end(sim_stream *stream);
bool sim_capturing(const sim_stream *stream, sim_graph **graph, unsigned long long *number);
size_t sim_graph_size(const sim_graph *graph);
sim_graph *sim_graph_copy(const sim_graph *graph);
int sim_graph_launch(const sim_graph *graph, sim_stream *stream);
void sim_graph_delete(sim_graph *graph);

/* Submit a kernel; an error number of the runtime, for impossible grids too. */
int sim_launch(const char *name, const unsigned grid[3], const unsigned block[3], size_t shared, void *stream);
/* Submit a matrix product of `count` (rows x inner) by (inner x columns), elements of `width` bytes. */
int sim_matmul(const char *name, long rows, long columns, long inner, long count, int factor_width, int width, void *stream);
/* The same, `slower` times as long, and with an effect. */
int sim_product(const char *name, long rows, long columns, long inner, long count, int factor_width, int width, double slower,
                sim_effect effect, const char payload[PAYLOAD], void *stream);

/* --- times (times.c), all 0 unless SIMULATED_CUDA_TIMES names a table --- */

double sim_kernel_seconds(const sim_device *device, const char *name, double threads);
double sim_matmul_seconds(const sim_device *device, double flop, double bytes);
double sim_memory_seconds(const sim_device *device, double bytes); /* read and written within the device */
double sim_host_link_seconds(const sim_device *device, double bytes);
double sim_peer_seconds(int from, int to, double bytes); /* physical devices */
bool sim_has_switch(void);
/* `bytes`: what each device sends, over the slowest link between neighbours of `devices`, or by way of the switch. */
double sim_collective_seconds(const int *devices, int count, double bytes, bool by_switch);

/* --- faults (faults.c), none unless SIMULATED_CUDA_FAULTS names some --- */

int sim_fault_at(const char *event, int physical); /* count an event; the error that appears at it, or 0 */
int sim_error(int device);                         /* the error that no call gets past, or 0 */
void sim_break(int device, int error);
bool sim_hangs(int physical); /* counts a collective */

/* --- log (log.c), none unless SIMULATED_CUDA_LOG names a file --- */

void sim_log(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_log_flush(void);
bool sim_logged(void);

#endif
