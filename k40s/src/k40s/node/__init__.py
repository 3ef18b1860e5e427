"""The effects on one machine, each behind a small port: cgroups, scheduling, links, containers, probes.

This room knows Linux and nothing of jobs, admission or assurance: it is told what to set, sets it, and can
undo it. Every port has a real implementation and one in memory; both pass the same tests.

| module       | what it holds |
|--------------|---------------|
| cgroups      | `CgroupFiles`: groups of cgroup v1 under one root of our own |
| budgets      | real-time bandwidth of a tree of groups, raised top down and lowered bottom up |
| scheduling   | policies of threads: `Other`, `Fifo`, `RoundRobin`, `Deadline` |
| links        | guaranteed rates of flows on a network device (HTB by DSCP) |
| resctrl      | cache and memory-bandwidth allocation, where the CPU has it |
| launchers    | plain processes and runc containers, held before their first instruction |
| journal      | what was made, so that a crash leaves nothing behind |
| capabilities | what this kernel can do, found by asking it |
| probe        | facts about hardware and kernel, for the assurance of the node |
| sample       | counters: PSI, steal time, per-group usage |
| machine      | all of it together: start, stop, freeze, throttle, recover, uninstall |
"""
