import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from lynx.vllm.plugin import expand, register


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3)), min_size=1, max_size=8),
    st.sampled_from(["float32", "int32", "int64"]),
)
def test_expand_spreads_each_request_over_its_tokens(requests, dtype):
    kind = getattr(torch, dtype)
    counts = torch.tensor([count for count, _ in requests], dtype=torch.int32)
    values = torch.tensor([value for _, value in requests], dtype=kind)
    out = torch.full((int(counts.sum()),), 99, dtype=kind)
    expand(out, values, torch.cumsum(counts, 0, dtype=torch.int32), -1, 7)
    expected = [7 if value == -1 else value for count, value in requests for _ in range(count)]
    assert out.tolist() == expected


def test_registered_twice_is_registered_once():
    from vllm.v1.sample.ops import topk_topp_sampler

    register()
    once = topk_topp_sampler.apply_top_k_only
    register()
    assert topk_topp_sampler.apply_top_k_only == once


def test_the_platform_installs_the_mended_kernel():
    """As in an engine, and in a process of its own: plug-ins first, then the platform, then a step."""
    as_in_an_engine = """
import torch
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.platforms import current_platform
current_platform.register_triton_kernel_overrides()
from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens
for _ in range(20):
    waste = torch.full((6,), -7.0)
    del waste
    given = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 6], dtype=torch.int32), 6
    assert expand_batch_to_tokens(*given).tolist() == [0.5, 0.5, 0.0, 2.0, 2.0, 2.0]
"""
    subprocess.run([sys.executable, "-c", as_in_an_engine], check=True, timeout=300)


def test_top_k_over_no_rows_is_no_error():
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    register()
    empty = torch.empty(0, 8)
    assert apply_top_k_top_p(empty, torch.empty(0, dtype=torch.int32), None).shape == (0, 8)
