"""Schedulability: whether tasks meet their deadlines on a core and flows theirs on the links, proved before
they run.

Pure, exact integer nanoseconds: no clock, no IO, no randomness but what is handed in, no float in a decision.
`verdict` is what every test answers; `task` and `supply` are the model; `fixed_priority`, `earliest_deadline`
and `mixed` test a core; `server` sizes reservations; `flows` bounds latencies; `simulate` is the oracle they
are held to.
"""
