/* Work in order: streams, events, graphs, and the devices' clock.

   A stream is a queue. Each operation begins when the one before it has ended and not before it was submitted, and ends
   `seconds` later: `ready` is when the last one ends. What needs no time and waits for nothing is done at once, by the
   caller. All else is done by a thread of the stream, in order: a copy's bytes arrive when the copy ends, and a
   collective waits for its peers, while the host goes on. The host sleeps when it waits for a stream or an event. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"

typedef enum { OPERATION, RECORD, FOLLOW } entry_kind;

typedef struct entry {
    entry_kind kind;
    double submitted;
    sim_operation operation;
    sim_event *event;
    unsigned long record; /* which record of the event */
    struct entry *next;
} entry;

struct sim_stream {
    int device, priority;
    double ready;
    entry *first, *last;
    bool busy, has_thread, deleted;
    pthread_cond_t more;
    sim_graph *capture;
    struct sim_stream *next;
};

struct sim_event {
    double time;
    unsigned long recorded, completed;
    int holders; /* the owner, and queued entries */
    sim_graph *capture;
};

struct sim_graph {
    unsigned long long number;
    size_t count, room;
    sim_operation *operations;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* some stream has done something */
static sim_stream *streams;
static sim_stream *defaults[MAX_DEVICES];

API double sim_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_until(double when) {
    struct timespec time = {.tv_sec = (time_t)when};
    time.tv_nsec = (long)(1e9 * (when - (double)time.tv_sec));
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {}
}

static double later(double a, double b) { return a > b ? a : b; }

/* --- streams --- */

API sim_stream *sim_stream_new(int device, int priority) {
    sim_stream *stream = calloc(1, sizeof *stream);
    stream->device = device;
    stream->priority = priority;
    pthread_cond_init(&stream->more, NULL);
    pthread_mutex_lock(&mutex);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&mutex);
    return stream;
}

API void sim_stream_delete(sim_stream *stream) {
    pthread_mutex_lock(&mutex);
    stream->deleted = true; /* what is queued is still done; the few bytes stay */
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&mutex);
}

API sim_stream *sim_stream_of(void *handle) {
    if ((uintptr_t)handle > 2) return handle; /* 1 and 2: cudaStreamLegacy, cudaStreamPerThread */
    int device = sim_current();
    if (!defaults[device]) {
        sim_stream *stream = sim_stream_new(device, 0);
        if (!__sync_bool_compare_and_swap(&defaults[device], NULL, stream)) sim_stream_delete(stream);
    }
    return defaults[device];
}

API int sim_stream_priority(const sim_stream *stream) { return stream->priority; }
API int sim_stream_device(const sim_stream *stream) { return stream->device; }

static void drop(sim_event *event) { /* the mutex is held */
    if (--event->holders == 0) free(event);
}

static void complete(sim_stream *stream, sim_event *event, unsigned long record, double submitted) {
    event->time = later(stream->ready, submitted);
    event->completed = record;
}

/* The mutex is held; it is given up while an effect runs. */
static void perform(sim_stream *stream, entry *own) {
    if (own->kind == RECORD) {
        complete(stream, own->event, own->record, own->submitted);
        drop(own->event);
    } else if (own->kind == FOLLOW) {
        while (own->event->completed < own->record) pthread_cond_wait(&moved, &mutex);
        stream->ready = later(stream->ready, own->event->time);
        drop(own->event);
    } else {
        double start = later(stream->ready, own->submitted);
        double end = start + own->operation.seconds;
        if (own->operation.effect) {
            pthread_mutex_unlock(&mutex);
            if (!own->operation.waits) sleep_until(end);
            end = own->operation.effect(own->operation.payload, start, end);
            pthread_mutex_lock(&mutex);
        }
        stream->ready = end;
    }
}

static void *work(void *argument) {
    sim_stream *stream = argument;
    sim_use(stream->device);
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!stream->first && !stream->deleted) pthread_cond_wait(&stream->more, &mutex);
        entry *own = stream->first;
        if (!own) break;
        stream->first = own->next;
        stream->busy = true;
        perform(stream, own);
        stream->busy = false;
        free(own);
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void append(sim_stream *stream, entry *new) { /* the mutex is held */
    if (!stream->first) stream->first = new;
    else stream->last->next = new;
    stream->last = new;
    if (!stream->has_thread) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        stream->has_thread = pthread_create(&thread, &attributes, work, stream) == 0;
        pthread_attr_destroy(&attributes);
        if (!stream->has_thread) abort();
    }
    pthread_cond_signal(&stream->more);
}

static bool idle(const sim_stream *stream) { return !stream->first && !stream->busy; }

static void submit(sim_stream *stream, const sim_operation *operation) { /* the mutex is held */
    double now = sim_now(), start = later(stream->ready, now), end = start + operation->seconds;
    bool at_once = !operation->effect || (!operation->waits && end <= now);
    if (idle(stream) && at_once) {
        if (operation->effect) {
            sim_operation own = *operation;
            end = own.effect(own.payload, start, end);
        }
        stream->ready = end;
        return;
    }
    entry *new = calloc(1, sizeof *new);
    new->kind = OPERATION;
    new->submitted = now;
    new->operation = *operation;
    append(stream, new);
}

API int sim_submit(sim_stream *stream, const sim_operation *operation) {
    pthread_mutex_lock(&mutex);
    sim_graph *graph = stream->capture;
    if (graph) {
        if (graph->count == graph->room) {
            graph->room = graph->room ? 2 * graph->room : 64;
            graph->operations = realloc(graph->operations, graph->room * sizeof *graph->operations);
        }
        graph->operations[graph->count++] = *operation;
    } else {
        submit(stream, operation);
    }
    pthread_mutex_unlock(&mutex);
    return SIM_OK;
}

API bool sim_stream_idle(sim_stream *stream) {
    pthread_mutex_lock(&mutex);
    bool done = idle(stream) && stream->ready <= sim_now();
    pthread_mutex_unlock(&mutex);
    return done;
}

API void sim_stream_wait(sim_stream *stream) {
    pthread_mutex_lock(&mutex);
    while (!idle(stream)) pthread_cond_wait(&moved, &mutex);
    double ready = stream->ready;
    pthread_mutex_unlock(&mutex);
    if (ready > sim_now()) sleep_until(ready);
}

API void sim_device_wait(int device) {
    pthread_mutex_lock(&mutex);
    sim_stream *first = streams;
    pthread_mutex_unlock(&mutex);
    for (sim_stream *stream = first; stream; stream = stream->next)
        if (stream->device == device) sim_stream_wait(stream);
}

/* --- events --- */

API sim_event *sim_event_new(void) {
    sim_event *event = calloc(1, sizeof *event);
    event->holders = 1;
    return event;
}

API void sim_event_delete(sim_event *event) {
    pthread_mutex_lock(&mutex);
    drop(event);
    pthread_mutex_unlock(&mutex);
}

API int sim_event_record(sim_event *event, sim_stream *stream) {
    pthread_mutex_lock(&mutex);
    double now = sim_now();
    event->capture = stream->capture;
    if (!stream->capture) {
        event->recorded++;
        if (idle(stream)) {
            complete(stream, event, event->recorded, now);
        } else {
            entry *new = calloc(1, sizeof *new);
            *new = (entry){.kind = RECORD, .submitted = now, .event = event, .record = event->recorded};
            event->holders++;
            append(stream, new);
        }
    }
    pthread_mutex_unlock(&mutex);
    return SIM_OK;
}

API void sim_event_follow(sim_stream *stream, sim_event *event) {
    pthread_mutex_lock(&mutex);
    if (event->capture) {
        stream->capture = event->capture; /* a stream that waits for a captured one is captured with it */
    } else if (event->completed == event->recorded && idle(stream)) {
        stream->ready = later(stream->ready, event->time);
    } else if (event->recorded) {
        entry *new = calloc(1, sizeof *new);
        *new = (entry){.kind = FOLLOW, .submitted = sim_now(), .event = event, .record = event->recorded};
        event->holders++;
        append(stream, new);
    }
    pthread_mutex_unlock(&mutex);
}

API bool sim_event_done(sim_event *event) {
    pthread_mutex_lock(&mutex);
    bool done = event->completed == event->recorded && event->time <= sim_now();
    pthread_mutex_unlock(&mutex);
    return done;
}

API void sim_event_wait(sim_event *event) {
    pthread_mutex_lock(&mutex);
    unsigned long record = event->recorded;
    while (event->completed < record) pthread_cond_wait(&moved, &mutex);
    double time = event->time;
    pthread_mutex_unlock(&mutex);
    if (time > sim_now()) sleep_until(time);
}

API bool sim_event_elapsed(const sim_event *from, const sim_event *to, double *seconds) {
    pthread_mutex_lock(&mutex);
    bool known = from->completed && to->completed && from->completed == from->recorded && to->completed == to->recorded;
    *seconds = to->time - from->time;
    bool done = known && to->time <= sim_now();
    pthread_mutex_unlock(&mutex);
    return done;
}

/* --- graphs: operations that are kept, and submitted again as one --- */

API int sim_capture_begin(sim_stream *stream) {
    static unsigned long long captures;
    pthread_mutex_lock(&mutex);
    bool already = stream->capture != NULL;
    if (!already) {
        stream->capture = calloc(1, sizeof *stream->capture);
        stream->capture->number = ++captures;
    }
    pthread_mutex_unlock(&mutex);
    return already ? 901 /* cudaErrorStreamCaptureInvalidated */ : SIM_OK;
}

API sim_graph *sim_capture_end(sim_stream *stream) {
    pthread_mutex_lock(&mutex);
    sim_graph *graph = stream->capture;
    for (sim_stream *other = streams; other; other = other->next)
        if (other->capture == graph) other->capture = NULL;
    pthread_mutex_unlock(&mutex);
    return graph;
}

API bool sim_capturing(const sim_stream *stream, sim_graph **graph, unsigned long long *number) {
    pthread_mutex_lock(&mutex);
    sim_graph *own = stream->capture;
    if (own && graph) *graph = own;
    if (own && number) *number = own->number;
    pthread_mutex_unlock(&mutex);
    return own != NULL;
}

API size_t sim_graph_size(const sim_graph *graph) { return graph->count; }

API sim_graph *sim_graph_copy(const sim_graph *graph) {
    sim_graph *copy = malloc(sizeof *copy);
    *copy = *graph;
    copy->operations = malloc((graph->count ? graph->count : 1) * sizeof *graph->operations);
    memcpy(copy->operations, graph->operations, graph->count * sizeof *graph->operations);
    copy->room = graph->count;
    return copy;
}

API int sim_graph_launch(const sim_graph *graph, sim_stream *stream) {
    sim_log("graph", "device=%d operations=%zu", stream->device, graph->count);
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < graph->count; i++) submit(stream, &graph->operations[i]);
    pthread_mutex_unlock(&mutex);
    return SIM_OK;
}

API void sim_graph_delete(sim_graph *graph) {
    free(graph->operations);
    free(graph);
}

/* --- kernels --- */

API int sim_launch(const char *name, const unsigned grid[3], const unsigned block[3], size_t shared, void *handle) {
    const sim_device *device = sim_get(sim_current());
    double threads = (double)block[0] * block[1] * block[2], blocks = (double)grid[0] * grid[1] * grid[2];
    bool possible = blocks > 0 && threads > 0 && threads <= 1024 && grid[0] <= 2147483647u && grid[1] <= 65535 &&
                    grid[2] <= 65535 && block[2] <= 64 && shared <= (size_t)device->model.shared_per_block;
    sim_log("launch", "device=%d grid=%u,%u,%u block=%u,%u,%u shared=%zu %s", sim_current(), grid[0], grid[1], grid[2],
            block[0], block[1], block[2], shared, name);
    if (!possible) return 9; /* cudaErrorInvalidConfiguration */
    int error = sim_error(sim_current());
    if (error) return error;
    sim_fault_at("launch", device->physical);
    sim_operation operation = {.what = name, .seconds = sim_kernel_seconds(device, name, blocks * threads)};
    return sim_submit(sim_stream_of(handle), &operation);
}

API int sim_product(const char *name, long rows, long columns, long inner, long count, int factor_width, int width,
                    double slower, sim_effect effect, const char payload[PAYLOAD], void *handle) {
    const sim_device *device = sim_get(sim_current());
    sim_log("matmul", "device=%d %ldx%ldx%ld count=%ld %s", sim_current(), rows, columns, inner, count, name);
    int error = sim_error(sim_current());
    if (error) return error;
    sim_fault_at("launch", device->physical);
    double flop = 2.0 * (double)rows * (double)columns * (double)inner * (double)count;
    double bytes = (double)count * width * ((double)rows * inner + (double)inner * columns + (double)rows * columns);
    if (factor_width == 1) flop /= 2; /* tensor cores multiply factors of 8 bits at twice the rate */
    sim_operation operation = {.what = name, .seconds = slower * sim_matmul_seconds(device, flop, bytes), .effect = effect};
    if (payload) memcpy(operation.payload, payload, PAYLOAD);
    return sim_submit(sim_stream_of(handle), &operation);
}

API int sim_matmul(const char *name, long rows, long columns, long inner, long count, int factor_width, int width,
                   void *handle) {
    return sim_product(name, rows, columns, inner, count, factor_width, width, 1, NULL, NULL, handle);
}
