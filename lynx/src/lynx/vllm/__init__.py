"""Lynx on stock vLLM 0.32: the only room that imports ``vllm``, through its documented extension points alone.

========== =========================================================================================
module     what it is
========== =========================================================================================
config     an ``InstanceConfig`` as engine arguments
params     what a request carries in ``kv_transfer_params["lynx"]``
cache      the engine's paged cache as pages ``[tokens, channels]``
queries    the prompt's last queries, for choosing which tokens matter
connector  the adapter that vLLM instantiates; forwards to one of the halves below
producer   prefill: a finished prompt becomes planes on the wire
consumer   decode: planes from the wire become blocks of waiting requests
proposer   decode: drafted tokens are offered to vLLM's rejection sampler
front      decode, API process: one user request becomes a main and a draft request
plugin     mends for two faults of the engine's CPU build, loaded by vLLM as a general plug-in
========== =========================================================================================
"""
