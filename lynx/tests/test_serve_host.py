"""Facts of a machine, from text."""

from pathlib import Path

import pytest

from lynx.serve.host import cpu_list, engine_environment, faster_libraries, fastest_dtype


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("fpu avx2 avx512f", "float32"),
        ("fpu avx512_bf16 avx2", "bfloat16"),
        ("amx_bf16", "bfloat16"),
        ("avx512_bf16x", "float32"),
    ],
)
def test_dtype_follows_the_arithmetic_units(flags: str, dtype: str) -> None:
    assert fastest_dtype(f"processor\t: 0\nflags\t\t: {flags}\n", gpu=False) == dtype


def test_a_gpu_has_bfloat16_and_an_unknown_processor_float32() -> None:
    assert fastest_dtype("", gpu=True) == "bfloat16"
    assert fastest_dtype("", gpu=False) == "float32"


@pytest.mark.parametrize(
    ("cpus", "text"), [([], ""), ([3], "3"), ([1, 0], "0-1"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8")]
)
def test_cpu_lists_read_as_the_kernels(cpus: list[int], text: str) -> None:
    assert cpu_list(cpus) == text


def test_what_the_user_has_set_stays() -> None:
    environment = engine_environment({"HF_HUB_OFFLINE": "0"}, [0, 1], Path("/c"))
    assert environment["HF_HUB_OFFLINE"] == "0"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert environment["VLLM_CACHE_ROOT"] == "/c/vllm"


def test_libraries_are_preloaded_where_they_are(tmp_path: Path) -> None:
    without = faster_libraries(tmp_path)
    openmp = tmp_path / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    assert faster_libraries(tmp_path) == [*without, str(openmp)]
    assert engine_environment({}, [0], Path("/c"), ["a", "b"])["LD_PRELOAD"] == "a:b"
    assert engine_environment({"LD_PRELOAD": ""}, [0], Path("/c"), ["a"])["LD_PRELOAD"] == ""
