"""Facts of a machine, from text."""

import os
import select
import subprocess
import sys
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


SERVER = """
import multiprocessing, os, time
from lynx.serve.host import end_with_server

def engine(ready):
    end_with_server()
    ready.send(os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    spawn.Process(target=engine, args=(there,)).start()
    print(here.recv(), flush=True)
    time.sleep(60)
"""


def test_an_engines_process_dies_with_its_killed_server(tmp_path: Path) -> None:
    """Spawned as vLLM spawns its engine, by a server that is then killed and can clean nothing up."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        engine = os.pidfd_open(int(server.stdout.readline()))
        try:
            assert not select.select([engine], [], [], 0.1)[0], "the engine ended while its server lived"
            server.kill()
            assert select.select([engine], [], [], 10.0)[0], "the engine lives on"
        finally:
            os.close(engine)


def test_a_program_that_holds_its_engine_itself_is_left_alone() -> None:
    asked = "from lynx.serve.host import end_with_server; end_with_server(); import os; print(os.getppid())"
    launcher = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {asked!r}])"
    found = subprocess.run(
        [sys.executable, "-c", launcher], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip().isdigit(), found.stderr
