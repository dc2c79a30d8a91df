/* How long device work takes: the table that SIMULATED_CUDA_TIMES names; 0 for all without one.

   One entry a line, "#" begins a comment:
     matmul 700              Tflop/s of matrix products; of 8-bit factors twice as much
     memory 3000             Gbyte/s that copies, fills and products read and write within a device
     host_link 55            Gbyte/s to and from the host
     peer 370                Gbyte/s between two devices, and of a collective's ring
     nvls 480                Gbyte/s (bus bandwidth) of an all-reduce that the switch adds up; without it there is none
     latency 10              microseconds of a collective
     kernel GLOB 3.5 16      microseconds of a kernel, and bytes each of its threads moves (default 0); first match
     device 3 memory 0.5     device 3 has half of that (matmul, memory, host_link)
     link 2 5 0.5            so has the link between devices 2 and 5 */
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { MATMUL, MEMORY, HOST_LINK, PEER, NVLS, LATENCY, RATES };
static const char *const NAMES[RATES] = {"matmul", "memory", "host_link", "peer", "nvls", "latency"};
static double rates[RATES];
static double factors[RATES][MAX_DEVICES];
static double links[MAX_DEVICES][MAX_DEVICES];
static struct {
    char *pattern;
    double microseconds, bytes;
} kernels[256];
static int kernel_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int rate_named(const char *name) {
    for (int i = 0; i < RATES; i++)
        if (!strcmp(NAMES[i], name)) return i;
    return -1;
}

static bool take_line(const char *line) {
    char word[64], pattern[256];
    double value, second = 0;
    int device, other;
    if (sscanf(line, " link %d %d %lf", &device, &other, &value) == 3) {
        if (device < 0 || other < 0 || device >= MAX_DEVICES || other >= MAX_DEVICES) return false;
        links[device][other] = links[other][device] = value;
        return true;
    }
    if (sscanf(line, " device %d %63s %lf", &device, word, &value) == 3) {
        int rate = rate_named(word);
        if (rate < 0 || device < 0 || device >= MAX_DEVICES) return false;
        factors[rate][device] = value;
        return true;
    }
    if (sscanf(line, " kernel %255s %lf %lf", pattern, &value, &second) >= 2) {
        if (kernel_count == sizeof kernels / sizeof *kernels) return false;
        kernels[kernel_count].pattern = strdup(pattern);
        kernels[kernel_count].microseconds = value;
        kernels[kernel_count++].bytes = second;
        return true;
    }
    if (sscanf(line, " %63s %lf", word, &value) == 2 && rate_named(word) >= 0) {
        rates[rate_named(word)] = value;
        return true;
    }
    return sscanf(line, " %63s", word) != 1 || *word == '#';
}

static void read_table(void) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        for (int rate = 0; rate < RATES; rate++) factors[rate][i] = 1;
        for (int j = 0; j < MAX_DEVICES; j++) links[i][j] = 1;
    }
    const char *path = getenv("SIMULATED_CUDA_TIMES");
    if (!path || !*path) return;
    FILE *file = fopen(path, "r");
    char line[512];
    for (int number = 1; file && fgets(line, sizeof line, file); number++)
        if (!take_line(line)) {
            fprintf(stderr, "%s:%d: not an entry of the table of times: %s", path, number, line);
            exit(2);
        }
    if (!file) {
        fprintf(stderr, "SIMULATED_CUDA_TIMES: cannot read %s\n", path);
        exit(2);
    }
    fclose(file);
}

static double seconds(int rate, double unit, double amount, int physical) {
    pthread_once(&once, read_table);
    double speed = rates[rate] * unit * factors[rate][physical];
    return speed > 0 ? amount / speed : 0;
}

API double sim_kernel_seconds(const sim_device *device, const char *name, double threads) {
    pthread_once(&once, read_table);
    for (int i = 0; i < kernel_count; i++)
        if (!fnmatch(kernels[i].pattern, name, 0))
            return 1e-6 * kernels[i].microseconds / factors[MATMUL][device->physical] +
                   sim_memory_seconds(device, threads * kernels[i].bytes);
    return 0;
}

API double sim_matmul_seconds(const sim_device *device, double flop, double bytes) {
    double computing = seconds(MATMUL, 1e12, flop, device->physical), moving = sim_memory_seconds(device, bytes);
    return computing > moving ? computing : moving;
}

API double sim_memory_seconds(const sim_device *device, double bytes) {
    return seconds(MEMORY, 1e9, bytes, device->physical);
}

API double sim_host_link_seconds(const sim_device *device, double bytes) {
    return seconds(HOST_LINK, 1e9, bytes, device->physical);
}

API double sim_peer_seconds(int from, int to, double bytes) {
    return seconds(PEER, 1e9, bytes, from) / links[from][to];
}

API bool sim_has_switch(void) {
    pthread_once(&once, read_table);
    return rates[NVLS] > 0;
}

API double sim_collective_seconds(const int *devices, int count, double bytes, bool by_switch) {
    double slowest = 0;
    for (int i = 0; i < count; i++) {
        int next = devices[(i + 1) % count];
        double own = by_switch ? seconds(NVLS, 1e9, bytes, devices[i]) / links[devices[i]][next]
                               : sim_peer_seconds(devices[i], next, bytes);
        slowest = own > slowest ? own : slowest;
    }
    return slowest + 1e-6 * rates[LATENCY];
}
