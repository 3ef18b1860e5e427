"""k4.0s on one machine, without a cluster: a daemon, its state, its socket.

    job ── apply ──> engine ── admission (placement) ──> store (SQLite)
                       │  every tick: measure ── reaction (reconcile) ── effects (node)
                       └─ HTTP on a Unix socket ──> client, `k40s` commands

| module       | what it holds |
|--------------|---------------|
| config       | where things are; read once |
| store        | objects, placements and events that survive |
| workloads    | from a job and its seat to what `node` is told |
| measure      | counters read by plan; alarms, culprits, evidence |
| engine       | the loop: what is wanted becomes what is |
| service      | the HTTP API, and who may use it; `bodies` and `top`: what it answers |
| running, state | containers as they should be; what is remembered of a job |
| reaction     | from alarms to adjustments |
| client       | the same from Python |
| view         | tables for the terminal |
| daemon       | all of it as one process |
"""
