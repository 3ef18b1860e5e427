"""A control loop: every 5 ms it reads, thinks for half a millisecond and writes. Tells k4.0s when it works."""

import sys
import time

from k40s.task import Task

PERIOD_NS = 5_000_000
WORK_NS = 500_000


def main(seconds: float) -> None:
    """Runs for so long; 0 is for ever."""
    end_ns = time.monotonic_ns() + int(seconds * 1e9) if seconds else 2**62
    with Task.open("control", period_ns=PERIOD_NS) as task:
        while time.monotonic_ns() < end_ns:
            task.wait()
            task.begin()
            start_ns = time.thread_time_ns()
            while time.thread_time_ns() - start_ns < WORK_NS:
                pass
            task.end()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
