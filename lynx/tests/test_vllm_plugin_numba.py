"""numba's library wrappers in memory are no obstacle: vLLM's own registration stumbles over them."""

import numba  # noqa: F401 - its presence is the point


def test_registers_beside_numba():
    from vllm.v1.sample import rejection_sampler

    from lynx.vllm.plugin import expand, register

    register()
    assert rejection_sampler.expand_kernel.func is expand
