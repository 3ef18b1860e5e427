"""What is measured, how often, and what it means. Pure: counters and times are handed in.

* `plan`: which metrics how often, from the criticality of the jobs and from what the node already guarantees.
* `detect`: stage 1, cheap and always on: thresholds and trends over one number.
* `culprit`: stage 2, on alarm: which container it is.
* `deadlines`: misses and overruns of tasks, those that the host caused told apart.
* `readings`: counters into the readings that a node's assurance rests on.

What no metric of ours can see is not guessed: it stays `Unknown`, with the reason.
"""
