/* Preloaded: the wall clock is ahead by the seconds in SHIFTED_CLOCK; the monotonic clock stays. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    const char *shift = getenv("SHIFTED_CLOCK");
    if (!failed && clock == CLOCK_REALTIME && shift) {
        double whole, part = modf(atof(shift), &whole);
        now->tv_sec += (time_t)whole;
        now->tv_nsec += (long)(part * 1e9);
        if (now->tv_nsec >= 1000000000L) { now->tv_nsec -= 1000000000L; now->tv_sec++; }
        if (now->tv_nsec < 0) { now->tv_nsec += 1000000000L; now->tv_sec--; }
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}
