/* NCCL: collectives and point-to-point calls between processes of one machine, through shared memory.

   Every collective of a communicator has a number. Each rank writes what it sends into its slot, and posts the number;
   when all have, each takes what it needs from the slots, and notes that it has. A message between two ranks goes
   through their mailbox, which holds one. Calls run on the stream's own thread: the host goes on, and a rank that
   never comes keeps the others waiting, as with NCCL, until they abort.
   Of long messages the first bytes alone are moved (SIMULATED_CUDA_MOVED). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define MOST_RANKS 32
enum { SUCCESS, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, FIRST_OWN_OPERATION };

typedef struct {
    char internal[128];
} unique_id;

typedef struct { /* shared by the ranks; a number is only ever written by one of them */
    volatile unsigned long arrived[MOST_RANKS], posted[MOST_RANKS], taken[MOST_RANKS];
    volatile double ready[MOST_RANKS];
    volatile int device[MOST_RANKS];
    volatile unsigned long split[MOST_RANKS]; /* how many splits a rank has come to */
    volatile int color[MOST_RANKS], key[MOST_RANKS];
    struct {
        volatile unsigned long posted, taken;
        volatile double ready;
    } mail[MOST_RANKS][MOST_RANKS]; /* from, to */
} board;

typedef struct communicator {
    char name[128];
    int rank, ranks;
    int devices[MOST_RANKS]; /* as the node counts them */
    bool by_switch, refused; /* NCCL_ALGO when the communicator was made: NVLS, which this node may lack */
    unsigned long calls, splits;
    unsigned long sent[MOST_RANKS], received[MOST_RANKS];
    volatile bool aborted;
    board *shared;
    char *slots; /* ranks * room bytes, then a mailbox of `room` bytes for each pair */
    size_t room;
} communicator;

typedef enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL } call_kind;
static const char *const NAMES[] = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"};

typedef struct {
    communicator *comm;
    const void *send;
    void *receive;
    size_t count;
    unsigned long number;
    int kind, type, operation, root;
} call;

typedef struct message {
    communicator *comm;
    void *data;
    size_t bytes;
    int peer;
    bool sends, done;
    unsigned long number;
    void *stream;
    struct message *next;
} message;

static double scalars[4096]; /* of operations that multiply before they add */
static int scalar_count;
static __thread int group_depth;
static __thread message *group_first, *group_last;

/* --- waiting: other processes post numbers --- */

static void pause_a_little(int *turns) {
    if (++*turns < 50) sched_yield();
    else nanosleep(&(struct timespec){.tv_nsec = *turns < 500 ? 50000 : 500000}, NULL);
}

static bool all_at_least(const communicator *comm, volatile unsigned long *numbers, unsigned long least) {
    for (int rank = 0; rank < comm->ranks; rank++)
        if (numbers[rank] < least) return false;
    return true;
}

/* Wait until all ranks have posted a number; false if this rank aborts. */
static bool wait_for_all(const communicator *comm, volatile unsigned long *numbers, unsigned long least) {
    for (int turns = 0; !all_at_least(comm, numbers, least); pause_a_little(&turns))
        if (comm->aborted) return false;
    __sync_synchronize();
    return true;
}

static void post(volatile unsigned long *number, unsigned long value) {
    __sync_synchronize();
    *number = value;
}

/* --- elements --- */

static size_t width_of(int type) {
    switch (type) {
    case INT32: case UINT32: case FLOAT32: return 4;
    case INT64: case UINT64: case FLOAT64: return 8;
    case FLOAT16: case BFLOAT16: return 2;
    default: return 1;
    }
}

static double element(int type, const char *data, size_t i) {
    switch (type) {
    case INT8: return ((const int8_t *)data)[i];
    case INT32: return ((const int32_t *)data)[i];
    case UINT32: return ((const uint32_t *)data)[i];
    case INT64: return (double)((const int64_t *)data)[i];
    case UINT64: return (double)((const uint64_t *)data)[i];
    case FLOAT16: return ((const _Float16 *)data)[i];
    case FLOAT32: return ((const float *)data)[i];
    case FLOAT64: return ((const double *)data)[i];
    case BFLOAT16: {
        uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    default: return ((const uint8_t *)data)[i];
    }
}

static void store(int type, char *data, size_t i, double value) {
    switch (type) {
    case INT8: ((int8_t *)data)[i] = (int8_t)value; break;
    case INT32: ((int32_t *)data)[i] = (int32_t)value; break;
    case UINT32: ((uint32_t *)data)[i] = (uint32_t)value; break;
    case INT64: ((int64_t *)data)[i] = (int64_t)value; break;
    case UINT64: ((uint64_t *)data)[i] = (uint64_t)value; break;
    case FLOAT16: ((_Float16 *)data)[i] = (_Float16)value; break;
    case FLOAT32: ((float *)data)[i] = (float)value; break;
    case FLOAT64: ((double *)data)[i] = value; break;
    case BFLOAT16: { /* to the nearest, ties to even */
        float single = (float)value;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        bool nan = isnan(single);
        ((uint16_t *)data)[i] = nan ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        break;
    }
    default: ((uint8_t *)data)[i] = (uint8_t)value;
    }
}

static double combined(int operation, double a, double b) {
    switch (operation) {
    case PRODUCT: return a * b;
    case MAXIMUM: return a > b || isnan(a) ? a : b;
    case MINIMUM: return a < b || isnan(a) ? a : b;
    default: return a + b;
    }
}

/* The reduction of `bytes` at an offset into every rank's slot. */
static void reduce_into(const call *own, char *to, size_t offset, size_t bytes) {
    const communicator *comm = own->comm;
    bool sums = own->operation >= FIRST_OWN_OPERATION;
    double scale = sums ? scalars[own->operation - FIRST_OWN_OPERATION] : own->operation == AVERAGE ? 1.0 / comm->ranks : 1;
    for (size_t i = 0; i < bytes / width_of(own->type); i++) {
        double value = element(own->type, comm->slots + offset, i);
        for (int rank = 1; rank < comm->ranks; rank++)
            value = combined(own->operation, value, element(own->type, comm->slots + (size_t)rank * comm->room + offset, i));
        store(own->type, to, i, scale == 1 ? value : value * scale);
    }
}

/* --- collectives --- */

static double seconds_of(const call *own, double bytes) {
    double n = own->comm->ranks, sent = bytes;
    if (own->kind == ALL_REDUCE) sent = 2 * (n - 1) / n * bytes;
    else if (own->kind == ALL_GATHER || own->kind == REDUCE_SCATTER) sent = (n - 1) * bytes;
    else if (own->kind == ALL_TO_ALL) sent = (n - 1) * bytes;
    bool by_switch = own->kind == ALL_REDUCE && own->comm->by_switch;
    return sim_collective_seconds(own->comm->devices, own->comm->ranks, sent, by_switch);
}

static void put(const call *own, size_t bytes, size_t part) {
    const communicator *comm = own->comm;
    char *slot = comm->slots + (size_t)comm->rank * comm->room;
    bool chunks = own->kind == REDUCE_SCATTER || own->kind == ALL_TO_ALL;
    for (int i = 0; i < (chunks ? comm->ranks : 1); i++)
        memcpy(slot + (size_t)i * part, (const char *)own->send + (size_t)i * bytes, part);
}

static void take(const call *own, size_t bytes, size_t part) {
    const communicator *comm = own->comm;
    char *to = own->receive;
    size_t rank = (size_t)comm->rank;
    switch ((call_kind)own->kind) {
    case ALL_REDUCE: reduce_into(own, to, 0, part); break;
    case REDUCE:
        if (comm->rank == own->root) reduce_into(own, to, 0, part);
        break;
    case REDUCE_SCATTER: reduce_into(own, to, rank * part, part); break;
    case BROADCAST: memcpy(to, comm->slots + (size_t)own->root * comm->room, part); break;
    case ALL_GATHER:
        for (int i = 0; i < comm->ranks; i++) memcpy(to + (size_t)i * bytes, comm->slots + (size_t)i * comm->room, part);
        break;
    case ALL_TO_ALL:
        for (int i = 0; i < comm->ranks; i++)
            memcpy(to + (size_t)i * bytes, comm->slots + (size_t)i * comm->room + rank * part, part);
        break;
    }
}

static double run_call(void *payload, double start, double end) {
    const call *own = payload;
    communicator *comm = own->comm;
    board *shared = comm->shared;
    int rank = comm->rank;
    bool hangs = sim_hangs(comm->devices[rank]);
    size_t bytes = own->count * width_of(own->type);
    bool chunks = own->kind == REDUCE_SCATTER || own->kind == ALL_TO_ALL;
    size_t room = chunks ? comm->room / (size_t)comm->ranks & ~(size_t)15 : comm->room;
    size_t part = bytes < room ? bytes : room;
    for (int turns = 0; hangs && !comm->aborted;) pause_a_little(&turns);
    if (!wait_for_all(comm, shared->taken, own->number - 1)) return end;
    if (own->kind != BROADCAST || rank == own->root) put(own, bytes, part);
    shared->ready[rank] = start;
    post(&shared->posted[rank], own->number);
    if (!wait_for_all(comm, shared->posted, own->number)) return end;
    take(own, bytes, part);
    double latest = start;
    for (int i = 0; i < comm->ranks; i++) latest = shared->ready[i] > latest ? shared->ready[i] : latest;
    post(&shared->taken[rank], own->number);
    return latest + seconds_of(own, (double)bytes);
}

static int submit_call(call own, void *stream) {
    sim_operation operation = {.what = "nccl", .effect = run_call, .waits = true};
    _Static_assert(sizeof own <= PAYLOAD, "a call's description must fit");
    own.number = ++own.comm->calls;
    memcpy(operation.payload, &own, sizeof own);
    bool by_switch = own.kind == ALL_REDUCE && own.comm->by_switch;
    sim_log("nccl", "device=%d %s ranks=%d bytes=%zu%s", own.comm->devices[own.comm->rank], NAMES[own.kind], own.comm->ranks,
            own.count * width_of(own.type), by_switch ? " nvls" : "");
    if (own.kind == ALL_REDUCE && own.comm->refused) return INVALID_USAGE;
    if (sim_error(sim_current())) return UNHANDLED_CUDA;
    sim_submit(sim_stream_of(stream), &operation);
    return SUCCESS;
}

#define CALL(...) submit_call((call){.comm = comm, .send = send, .count = count, .type = type, __VA_ARGS__}, stream)

API int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, communicator *comm, void *stream) {
    return CALL(.kind = ALL_REDUCE, .receive = receive, .operation = operation);
}
API int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, communicator *comm, void *stream) {
    return CALL(.kind = BROADCAST, .receive = receive, .root = root);
}
API int ncclBcast(void *send, size_t count, int type, int root, communicator *comm, void *stream) {
    return CALL(.kind = BROADCAST, .receive = send, .root = root);
}
API int ncclReduce(const void *send, void *receive, size_t count, int type, int operation, int root, communicator *comm, void *stream) {
    return CALL(.kind = REDUCE, .receive = receive, .operation = operation, .root = root);
}
API int ncclAllGather(const void *send, void *receive, size_t count, int type, communicator *comm, void *stream) {
    return CALL(.kind = ALL_GATHER, .receive = receive);
}
API int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation, communicator *comm, void *stream) {
    return CALL(.kind = REDUCE_SCATTER, .receive = receive, .operation = operation);
}
API int ncclAlltoAll(const void *send, void *receive, size_t count, int type, communicator *comm, void *stream) {
    return CALL(.kind = ALL_TO_ALL, .receive = receive);
}
API int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence, communicator *comm) {
    (void)residence, (void)comm; /* a scalar of the device lies in host memory too */
    int index = __sync_fetch_and_add(&scalar_count, 1) % (int)(sizeof scalars / sizeof *scalars);
    scalars[index] = element(type, scalar, 0);
    *operation = FIRST_OWN_OPERATION + index;
    return SUCCESS;
}

/* --- point to point: the messages of a group go on together --- */

static bool try_message(message *own, double start, double *end) {
    communicator *comm = own->comm;
    int from = own->sends ? comm->rank : own->peer, to = own->sends ? own->peer : comm->rank;
    char *box = comm->slots + (size_t)comm->ranks * comm->room + ((size_t)from * (size_t)comm->ranks + (size_t)to) * comm->room;
    size_t part = own->bytes < comm->room ? own->bytes : comm->room;
    volatile unsigned long *posted = &comm->shared->mail[from][to].posted, *taken = &comm->shared->mail[from][to].taken;
    if (own->sends) {
        if (*taken != own->number - 1) return false;
        memcpy(box, own->data, part);
        comm->shared->mail[from][to].ready = start;
        post(posted, own->number);
    } else {
        if (*posted != own->number) return false;
        __sync_synchronize();
        memcpy(own->data, box, part);
        double begun = comm->shared->mail[from][to].ready;
        begun = begun > start ? begun : start;
        double ended = begun + sim_peer_seconds(comm->devices[from], comm->devices[to], (double)own->bytes);
        *end = ended > *end ? ended : *end;
        post(taken, own->number);
    }
    own->done = true;
    return true;
}

static double run_messages(void *payload, double start, double end) {
    message *first;
    memcpy(&first, payload, sizeof first);
    bool hangs = sim_hangs(first->comm->devices[first->comm->rank]), open = true;
    for (int turns = 0; open && !first->comm->aborted; pause_a_little(&turns)) {
        open = hangs;
        for (message *own = first; own && !hangs; own = own->next)
            if (!own->done && !try_message(own, start, &end)) open = true;
    }
    while (first) {
        message *next = first->next;
        free(first);
        first = next;
    }
    return end;
}

static int end_group(void) {
    message *first = group_first;
    group_first = group_last = NULL;
    if (!first) return SUCCESS;
    sim_operation operation = {.what = "nccl", .effect = run_messages, .waits = true};
    memcpy(operation.payload, &first, sizeof first);
    sim_submit(sim_stream_of(first->stream), &operation);
    return sim_error(sim_current()) ? UNHANDLED_CUDA : SUCCESS;
}

static int add_message(message own) {
    own.number = own.sends ? ++own.comm->sent[own.peer] : ++own.comm->received[own.peer];
    message *new = malloc(sizeof *new);
    *new = own;
    if (group_last) group_last->next = new;
    else group_first = new;
    group_last = new;
    sim_log("nccl", "device=%d %s peer=%d bytes=%zu", own.comm->devices[own.comm->rank], own.sends ? "send" : "receive",
            own.peer, own.bytes);
    return group_depth ? SUCCESS : end_group();
}

API int ncclSend(const void *data, size_t count, int type, int peer, communicator *comm, void *stream) {
    return add_message((message){comm, (void *)data, count * width_of(type), peer, true, false, 0, stream, NULL});
}
API int ncclRecv(void *data, size_t count, int type, int peer, communicator *comm, void *stream) {
    return add_message((message){comm, data, count * width_of(type), peer, false, false, 0, stream, NULL});
}
API int ncclGroupStart(void) {
    group_depth++;
    return SUCCESS;
}
API int ncclGroupEnd(void) { return --group_depth ? SUCCESS : end_group(); }

/* --- communicators --- */

API int ncclGetVersion(int *version) {
    *version = 22907;
    return SUCCESS;
}
API int ncclGetUniqueId(unique_id *id) {
    static int made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%d.%d.%.0f", getpid(), __sync_add_and_fetch(&made, 1), 1e6 * sim_now());
    return SUCCESS;
}

static int join(communicator **created, const char *name, int rank, int ranks) {
    if (ranks > MOST_RANKS) return INVALID_ARGUMENT;
    communicator *comm = calloc(1, sizeof *comm);
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->rank = rank;
    comm->ranks = ranks;
    comm->room = sim_moved((size_t)1 << 40);
    const char *algorithm = getenv("NCCL_ALGO");
    bool wants_switch = algorithm && !strncasecmp(algorithm, "NVLS", 4);
    comm->by_switch = sim_has_switch() && (wants_switch || !algorithm || !*algorithm);
    comm->refused = wants_switch && !comm->by_switch;
    char path[256];
    snprintf(path, sizeof path, "/dev/shm/simulated_nccl.%s", name);
    size_t size = sizeof(board) + (size_t)ranks * (size_t)(ranks + 1) * comm->room; /* mapped when it is touched */
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)size)) return SYSTEM;
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return SYSTEM;
    comm->shared = (board *)mapped;
    comm->slots = mapped + sizeof(board);
    comm->shared->device[rank] = sim_get(sim_current())->physical;
    post(&comm->shared->arrived[rank], 1);
    if (!wait_for_all(comm, comm->shared->arrived, 1)) return INTERNAL;
    if (rank == 0) unlink(path);
    for (int i = 0; i < ranks; i++) comm->devices[i] = comm->shared->device[i];
    sim_log("nccl", "device=%d communicator ranks=%d", comm->devices[rank], ranks);
    *created = comm;
    return SUCCESS;
}

API int ncclCommInitRank(communicator **created, int ranks, unique_id id, int rank) { return join(created, id.internal, rank, ranks); }
API int ncclCommInitRankConfig(communicator **created, int ranks, unique_id id, int rank, void *config) {
    (void)config;
    return join(created, id.internal, rank, ranks);
}
API int ncclCommInitRankScalable(communicator **created, int ranks, int rank, int ids, unique_id *id, void *config) {
    (void)ids, (void)config;
    return join(created, id->internal, rank, ranks);
}
API int ncclCommSplit(communicator *parent, int color, int key, communicator **created, void *config) {
    (void)config;
    board *shared = parent->shared;
    unsigned long number = ++parent->splits;
    shared->color[parent->rank] = color;
    shared->key[parent->rank] = key;
    post(&shared->split[parent->rank], 2 * number - 1);
    if (!wait_for_all(parent, shared->split, 2 * number - 1)) return INTERNAL;
    int rank = 0, ranks = 0;
    for (int other = 0; other < parent->ranks; other++) {
        if (shared->color[other] != color) continue;
        ranks++;
        int lead = shared->key[other] - key;
        rank += lead < 0 || (lead == 0 && other < parent->rank);
    }
    post(&shared->split[parent->rank], 2 * number);
    if (!wait_for_all(parent, shared->split, 2 * number)) return INTERNAL;
    *created = NULL;
    char name[160];
    snprintf(name, sizeof name, "%s.%lu.%d", parent->name, number, color);
    return color < 0 ? SUCCESS : join(created, name, rank, ranks);
}
API int ncclCommCount(const communicator *comm, int *ranks) {
    *ranks = comm->ranks;
    return SUCCESS;
}
API int ncclCommUserRank(const communicator *comm, int *rank) {
    *rank = comm->rank;
    return SUCCESS;
}
API int ncclCommGetAsyncError(communicator *comm, int *error) {
    (void)comm;
    *error = sim_error(sim_current()) ? UNHANDLED_CUDA : SUCCESS;
    return SUCCESS;
}
API int ncclCommAbort(communicator *comm) {
    comm->aborted = true;
    sim_log("nccl", "device=%d abort", comm->devices[comm->rank]);
    return SUCCESS;
}
API int ncclCommFinalize(communicator *comm) {
    (void)comm;
    return SUCCESS;
}
API int ncclCommDestroy(communicator *comm) {
    comm->aborted = true; /* streams that still wait end; the structure stays for them */
    return SUCCESS;
}
API int ncclMemAlloc(void **pointer, size_t bytes) { return sim_allocate(pointer, bytes, sim_current()) ? UNHANDLED_CUDA : SUCCESS; }
API int ncclMemFree(void *pointer) { return sim_free(pointer) ? INVALID_ARGUMENT : SUCCESS; }
API const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage"};
    return result >= 0 && result < 6 ? texts[result] : "unknown result code";
}
API const char *ncclGetLastError(communicator *comm) {
    (void)comm;
    return "";
}
