/* The log: SIMULATED_CUDA_LOG names a file, to which all processes append. A line: process, seconds, kind, details. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char buffer[1 << 16];
static size_t filled;
static int file = -1;

static void write_out(void) { /* the mutex is held; whole lines, so that processes do not mix theirs */
    size_t done = 0;
    while (done < filled) {
        ssize_t wrote = write(file, buffer + done, filled - done);
        if (wrote <= 0) break;
        done += (size_t)wrote;
    }
    filled = 0;
}

static void open_log(void) {
    const char *path = getenv("SIMULATED_CUDA_LOG");
    if (path && *path) file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    atexit(sim_log_flush);
}

API bool sim_logged(void) {
    pthread_once(&once, open_log);
    return file >= 0;
}

API void sim_log(const char *kind, const char *format, ...) {
    if (!sim_logged()) return;
    char line[1024];
    int length = snprintf(line, sizeof line, "%d %.6f %s ", getpid(), sim_now(), kind);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    pthread_mutex_lock(&mutex);
    if (filled + (size_t)length > sizeof buffer) write_out();
    for (int i = 0; i < length; i++) buffer[filled++] = line[i];
    pthread_mutex_unlock(&mutex);
}

API void sim_log_flush(void) {
    if (!sim_logged()) return;
    pthread_mutex_lock(&mutex);
    write_out();
    pthread_mutex_unlock(&mutex);
}
