/* A witness on one core: CORE FILE. Above every job it looks at the clock 2000 times a second; where it could not, no
 * thread of this machine ran either: the host had taken the core (or, for a fraction of a millisecond, an interrupt).
 * Appends (from, to) in nanoseconds of CLOCK_MONOTONIC, two 64-bit integers, for each gap of 200 us and more. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>

#define STEP_NS 500000u
#define GAP_NS 200000u

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)atoi(words[1]), &core);
    struct sched_param top = {.sched_priority = 99};
    if (sched_setaffinity(0, sizeof core, &core) != 0 || sched_setscheduler(0, SCHED_FIFO, &top) != 0) return 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    FILE *file = fopen(words[2], "wb");
    if (file == NULL) return 1;
    setbuf(file, NULL);
    for (uint64_t due = now_ns();;) {
        due += STEP_NS;
        struct timespec at = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        uint64_t seen = now_ns();
        if (seen > due + GAP_NS) {
            uint64_t gap[2] = {due - STEP_NS, seen};
            fwrite(gap, sizeof gap, 1, file);
            due += (seen - due) / STEP_NS * STEP_NS;
        }
    }
}
