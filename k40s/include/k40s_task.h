/* For the job: tell k4.0s when a period's work begins and ends.
 *
 *     struct k40s_task task;
 *     k40s_task_open(&task, "control", 5000000, 0);
 *     for (;;) {
 *         k40s_task_wait(&task);    // sleeps until the next release
 *         k40s_task_begin(&task);
 *         ...                       // the work of one period
 *         k40s_task_end(&task);
 *     }
 *
 * Without k4.0s (no K40S_TASK_DIR in the environment) the same program runs and nobody watches. The record is that of
 * k40s/task.py, version 1, where its layout is written down: shared memory, little-endian, one writer, no lock.
 * Times are nanoseconds of CLOCK_MONOTONIC. C11 and POSIX; link nothing.
 */
#ifndef K40S_TASK_H
#define K40S_TASK_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define K40S_TASK_VERSION 1u
#define K40S_TASK_RING 1024u
#define K40S_TASK_RING_AT 4096u

struct k40s_period {
    uint64_t release_ns, begin_ns, end_ns, execution_ns;
};

struct k40s_record {
    char magic[8];
    uint32_t version, ring;
    char name[64];
    uint64_t period_ns, deadline_ns, tid, wcet_ns;
    uint64_t begun, ended, skipped, missed, worst_response_ns, overruns, worst_execution_ns;
    char unused[K40S_TASK_RING_AT - 168];
    struct k40s_period periods[K40S_TASK_RING];
};

_Static_assert(sizeof(struct k40s_record) == K40S_TASK_RING_AT + 32 * K40S_TASK_RING, "layout of version 1");

struct k40s_task {
    struct k40s_record *record;
    uint64_t release_ns, begin_ns, begin_cpu_ns;
};

static inline uint64_t k40s_now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* deadline_ns 0 means the period. 0 on success, -1 with errno when the record cannot be mapped. */
static inline int k40s_task_open(struct k40s_task *task, const char *name, uint64_t period_ns, uint64_t deadline_ns) {
    const char *directory = getenv("K40S_TASK_DIR");
    int flags = MAP_SHARED | MAP_POPULATE | MAP_ANONYMOUS, file = -1;
    if (directory != NULL && *directory != '\0') {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.task", directory, name);
        file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0) return -1;
        flags = MAP_SHARED | MAP_POPULATE;
    }
    void *memory = mmap(NULL, sizeof(struct k40s_record), PROT_READ | PROT_WRITE, flags, file, 0);
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) return -1;
    struct k40s_record *record = (struct k40s_record *)memory;
    uint64_t told_deadline_ns = file >= 0 ? record->deadline_ns : 0; /* what was told at admission counts */
    uint64_t told_wcet_ns = file >= 0 ? record->wcet_ns : 0;
    memset(record, 0, 168);
    memcpy(record->magic, "K40STASK", 8);
    record->version = K40S_TASK_VERSION;
    record->ring = K40S_TASK_RING;
    strncpy(record->name, name, sizeof record->name - 1);
    record->period_ns = period_ns;
    record->deadline_ns = told_deadline_ns ? told_deadline_ns : deadline_ns ? deadline_ns : period_ns;
    record->tid = (uint64_t)syscall(SYS_gettid);
    record->wcet_ns = told_wcet_ns;
    task->record = record;
    task->release_ns = k40s_now_ns(CLOCK_MONOTONIC);
    return 0;
}

/* Releases a whole period back are skipped, and count as missed. */
static inline uint64_t k40s_task_wait(struct k40s_task *task) {
    struct k40s_record *record = task->record;
    task->release_ns += record->period_ns;
    uint64_t now_ns = k40s_now_ns(CLOCK_MONOTONIC);
    if (now_ns > task->release_ns && now_ns - task->release_ns >= record->period_ns) {
        uint64_t late = (now_ns - task->release_ns) / record->period_ns;
        record->skipped += late;
        record->missed += late;
        task->release_ns += late * record->period_ns;
    }
    struct timespec at = {(time_t)(task->release_ns / 1000000000u), (long)(task->release_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {
    }
    return task->release_ns;
}

static inline void k40s_task_begin(struct k40s_task *task) {
    task->begin_ns = k40s_now_ns(CLOCK_MONOTONIC);
    task->begin_cpu_ns = k40s_now_ns(CLOCK_THREAD_CPUTIME_ID);
    task->record->begun += 1;
}

static inline void k40s_task_end(struct k40s_task *task) {
    struct k40s_record *record = task->record;
    uint64_t end_ns = k40s_now_ns(CLOCK_MONOTONIC);
    uint64_t execution_ns = k40s_now_ns(CLOCK_THREAD_CPUTIME_ID) - task->begin_cpu_ns;
    uint64_t response_ns = end_ns - task->release_ns;
    record->periods[record->ended % K40S_TASK_RING] =
        (struct k40s_period){task->release_ns, task->begin_ns, end_ns, execution_ns};
    if (response_ns > record->deadline_ns) record->missed += 1;
    if (record->wcet_ns != 0 && execution_ns > record->wcet_ns) record->overruns += 1;
    if (response_ns > record->worst_response_ns) record->worst_response_ns = response_ns;
    if (execution_ns > record->worst_execution_ns) record->worst_execution_ns = execution_ns;
    __atomic_store_n(&record->ended, record->ended + 1, __ATOMIC_RELEASE);
}

#endif
