/* Devices: their models, and which of them CUDA_VISIBLE_DEVICES leaves.

   SIMULATED_CUDA_DEVICES: how many the node has (1). SIMULATED_CUDA_MODEL: a name of MODELS, or a part of one (H100).
   SIMULATED_CUDA_MEMORY: bytes of each. SIMULATED_CUDA_MIG: "0:7,1:2" divides device 0 into seven slices, 1 into two. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define MIB ((size_t)1 << 20)

/* From the data sheets and `nvidia-smi`; the first one is the default. */
static const sim_model MODELS[] = {
    {"NVIDIA H100 80GB HBM3", 81089 * MIB, 9, 0, 132, 52428800, 233472, 232448, 5120, 1980000, 2619000},
    {"NVIDIA H200", 143156 * MIB, 9, 0, 132, 62914560, 233472, 232448, 6144, 1980000, 3201000},
    {"NVIDIA A100-SXM4-80GB", 81154 * MIB, 8, 0, 108, 41943040, 167936, 166912, 5120, 1410000, 1593000},
    {"NVIDIA L40S", 45457 * MIB, 8, 9, 142, 100663296, 102400, 101376, 384, 2520000, 9001000},
    {"NVIDIA GB200", 189471 * MIB, 10, 0, 152, 132644864, 233472, 232448, 8192, 2062000, 3996000},
};

static sim_device visible[MAX_DEVICES];
static int visible_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int current;

static const sim_model *chosen_model(void) {
    const char *name = getenv("SIMULATED_CUDA_MODEL");
    for (size_t i = 0; name && i < sizeof MODELS / sizeof *MODELS; i++)
        if (strstr(MODELS[i].name, name)) return &MODELS[i];
    if (name && *name) {
        fprintf(stderr, "SIMULATED_CUDA_MODEL: unknown: %s\n", name);
        exit(2);
    }
    return &MODELS[0];
}

static int slices_of(int physical) {
    const char *text = getenv("SIMULATED_CUDA_MIG");
    while (text && *text) {
        char *end;
        long device = strtol(text, &end, 10);
        long slices = *end == ':' ? strtol(end + 1, &end, 10) : 0;
        if (device == physical) return (int)slices;
        text = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

static sim_device make(int physical, int slice) {
    sim_device device = {.model = *chosen_model(), .physical = physical, .slice = slice};
    const char *memory = getenv("SIMULATED_CUDA_MEMORY");
    if (memory && *memory) device.model.memory = strtoull(memory, NULL, 10);
    for (int i = 0; i < 14; i++) device.uuid[i] = (unsigned char)(0xa0 + i);
    device.uuid[14] = (unsigned char)(slice + 1); /* 0: a whole device */
    device.uuid[15] = (unsigned char)physical;
    const char *kind = "";
    if (slice >= 0) { /* the smallest slice of a Hopper: an eighth of the memory, 16 processors */
        device.model.memory /= 8;
        device.model.processors = 16;
        kind = " MIG 1g";
    }
    snprintf(device.name, sizeof device.name, "%s%s (simulated)", device.model.name, kind);
    return device;
}

API void sim_uuid(const sim_device *device, char text[64]) {
    const unsigned char *u = device->uuid;
    snprintf(text, 64, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             device->slice < 0 ? "GPU" : "MIG", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
             u[11], u[12], u[13], u[14], u[15]);
}

/* A device by its number or by the beginning of its UUID, as the driver reads CUDA_VISIBLE_DEVICES. */
static bool find(const char *name, int devices, sim_device *found) {
    char *end, uuid[64];
    long number = strtol(name, &end, 10);
    if (!*end && *name) {
        if (number < 0 || number >= devices) return false;
        *found = make((int)number, slices_of((int)number) ? 0 : -1);
        return true;
    }
    int matches = 0;
    for (int physical = 0; physical < devices; physical++) {
        int slices = slices_of(physical);
        for (int slice = slices ? 0 : -1; slice < (slices ? slices : 0); slice++) {
            sim_device device = make(physical, slice);
            sim_uuid(&device, uuid);
            if (strlen(name) < 5 || strncmp(uuid, name, strlen(name))) continue;
            *found = device;
            matches++;
        }
    }
    return matches == 1;
}

API int sim_physical_count(void) {
    const char *count = getenv("SIMULATED_CUDA_DEVICES");
    int devices = count && *count ? atoi(count) : 1;
    return devices > MAX_DEVICES ? MAX_DEVICES : devices;
}

API sim_device sim_physical(int physical) { return make(physical, -1); }

static void read_environment(void) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    int devices = sim_physical_count();
    char list[1024];
    if (!wanted) {
        char *at = list;
        *at = 0;
        for (int i = 0; i < devices; i++) at += sprintf(at, "%s%d", i ? "," : "", i);
        wanted = list;
    }
    char *copy = strdup(wanted), *rest = copy, *name;
    while ((name = strsep(&rest, ",")) && visible_count < MAX_DEVICES) {
        while (*name == ' ') name++;
        sim_device device;
        if (!find(name, devices, &device)) break; /* what follows an unknown name is not visible either */
        bool again = false;
        for (int i = 0; i < visible_count; i++)
            again = again || !memcmp(visible[i].uuid, device.uuid, sizeof device.uuid);
        if (again) { /* the same device twice: none at all */
            visible_count = 0;
            break;
        }
        visible[visible_count++] = device;
        if (device.slice >= 0) break; /* a process gets one slice */
    }
    free(copy);
}

API int sim_count(void) {
    pthread_once(&once, read_environment);
    return visible_count;
}

API const sim_device *sim_get(int device) { return device >= 0 && device < sim_count() ? &visible[device] : NULL; }

API int sim_current(void) { return current; }

API int sim_use(int device) {
    if (device < 0 || device >= sim_count()) return 101; /* cudaErrorInvalidDevice */
    current = device;
    return SIM_OK;
}
