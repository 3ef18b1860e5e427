/* A control loop: NAME PERIOD_US WORK_US [OVERRUN_EVERY OVERRUN_US]. Its work is a count of steps, found at the start. */
#define _GNU_SOURCE
#include "k40s_task.h"

static volatile uint64_t sink;

static void steps(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) sink = sink * 6364136223846793005u + i;
}

static uint64_t steps_per_us(void) {
    uint64_t best_ns = UINT64_MAX; /* the quickest of several: others disturb, none helps */
    for (int try = 0; try < 20; try++) {
        uint64_t before = k40s_now_ns(CLOCK_THREAD_CPUTIME_ID);
        steps(100000);
        uint64_t took = k40s_now_ns(CLOCK_THREAD_CPUTIME_ID) - before;
        if (took < best_ns) best_ns = took;
    }
    return 100000000u / best_ns;
}

int main(int count, char **words) {
    if (count != 4 && count != 6) return 2;
    uint64_t period_us = strtoull(words[2], NULL, 10), work_us = strtoull(words[3], NULL, 10);
    uint64_t every = count == 6 ? strtoull(words[4], NULL, 10) : 0;
    uint64_t overrun_us = count == 6 ? strtoull(words[5], NULL, 10) : 0;
    uint64_t rate = steps_per_us();
    struct k40s_task task;
    if (k40s_task_open(&task, words[1], period_us * 1000, 0) != 0) return 1;
    if (period_us == 0) {
        for (;;) steps(1000); /* runs away at once: for the measurement of a budget */
    }
    for (uint64_t number = 1;; number++) {
        k40s_task_wait(&task);
        k40s_task_begin(&task);
        steps(rate * (every != 0 && number % every == 0 ? overrun_us : work_us));
        k40s_task_end(&task);
    }
}
