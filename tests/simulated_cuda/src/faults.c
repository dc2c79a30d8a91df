/* Faults that appear at a counted event: SIMULATED_CUDA_FAULTS, entries with ";" between them.

     out_of_memory@device=0,allocation=20   device 0 refuses its 20th allocation and those that follow
     illegal_access@device=1,launch=500     the 500th kernel reads where it must not; the next synchronisation says so
     ecc@device=1,launch=500                an uncorrectable error of the memory, likewise
     lost@device=1,launch=500               the device has fallen off the bus
     hang@device=1,collective=7             its 7th collective never ends

   Devices are counted as the node counts them, events by each process. All but the first break the device for the
   process: every later call returns the error, as with CUDA. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct {
    const char *kind, *event;
    int error; /* of the CUDA runtime */
} fault_kind;

static const fault_kind KINDS[] = {
    {"out_of_memory", "allocation", 2},  {"illegal_access", "launch", 700}, {"ecc", "launch", 214},
    {"lost", "launch", 999},             {"hang", "collective", -1},
};

static struct {
    const fault_kind *kind;
    int device;
    long at, seen;
} faults[32];
static int fault_count;
static int broken[MAX_DEVICES]; /* by the number of the process */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool take(const char *entry) {
    char kind[32], event[32];
    int device;
    long at;
    if (sscanf(entry, "%31[^@]@device=%d,%31[^=]=%ld", kind, &device, event, &at) != 4) return false;
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(kind, KINDS[i].kind) || strcmp(event, KINDS[i].event) || fault_count == 32) continue;
        faults[fault_count].kind = &KINDS[i];
        faults[fault_count].device = device;
        faults[fault_count++].at = at;
        return true;
    }
    return false;
}

static void read_environment(void) {
    const char *text = getenv("SIMULATED_CUDA_FAULTS");
    char *copy = strdup(text ? text : ""), *rest = copy, *entry;
    while ((entry = strsep(&rest, ";")))
        if (*entry && !take(entry)) {
            fprintf(stderr, "SIMULATED_CUDA_FAULTS: not a fault: %s\n", entry);
            exit(2);
        }
    free(copy);
}

static const fault_kind *appearing(const char *event, int physical) {
    pthread_once(&once, read_environment);
    for (int i = 0; i < fault_count; i++) {
        if (faults[i].device != physical || strcmp(faults[i].kind->event, event)) continue;
        long seen = __sync_add_and_fetch(&faults[i].seen, 1);
        bool lasts = !strcmp(event, "allocation"); /* the allocator frees what it can, and tries again */
        if (seen == faults[i].at || (lasts && seen > faults[i].at)) return faults[i].kind;
    }
    return NULL;
}

API int sim_fault_at(const char *event, int physical) {
    const fault_kind *kind = appearing(event, physical);
    if (!kind) return SIM_OK;
    sim_log("fault", "device=%d %s", physical, kind->kind);
    if (!strcmp(kind->event, "launch"))
        for (int device = 0; device < sim_count(); device++)
            if (sim_get(device)->physical == physical) broken[device] = kind->error;
    return kind->error;
}

API bool sim_hangs(int physical) { return appearing("collective", physical) != NULL; }

API void sim_break(int device, int error) { broken[device] = error; }

API int sim_error(int device) { return broken[device]; }
