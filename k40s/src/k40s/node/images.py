"""A root file system from an OCI image layout in a folder (OCI image specification 1.1), unpacked once per image.

Layers are applied in order with their whiteouts; nothing is written outside the root file system, whatever the names
and links in a layer say; devices are left out, since the container gets its own /dev.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k40s.errors import BadInput

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image and what it says to run."""

    rootfs: Path
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


def unpack(layout: Path, store: Path) -> Image:
    """Unpack an image layout below `store`, or find it there. `BadInput` when it is no sound layout."""
    try:
        manifest, name = _manifest(layout)
        config = _json(layout, manifest["config"])["config"]
        rootfs = store / name / "rootfs"
        if not rootfs.is_dir():
            _unpack_layers(layout, manifest["layers"], rootfs)
    except (OSError, KeyError, IndexError, ValueError, TypeError, tarfile.TarError) as error:
        raise BadInput(f"image {str(layout)!r} is no sound OCI image layout: {error}") from error
    argv = (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
    return Image(rootfs, argv, env, config.get("WorkingDir") or "/")


def _blob(layout: Path, descriptor: Mapping[str, Any]) -> Path:
    algorithm, _, digest = str(descriptor["digest"]).partition(":")
    if algorithm != "sha256" or not digest.isalnum():
        raise ValueError(f"digest {descriptor['digest']!r} is not sha256")
    path = layout / "blobs" / "sha256" / digest
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ValueError(f"blob {digest[:12]} is damaged: its content has another digest")
    return path


def _json(layout: Path, descriptor: Mapping[str, Any]) -> Any:
    return json.loads(_blob(layout, descriptor).read_text())


def _manifest(layout: Path) -> tuple[Any, str]:
    descriptor = json.loads((layout / "index.json").read_text())["manifests"][0]
    while descriptor.get("mediaType") in INDEX_TYPES:
        descriptor = _json(layout, descriptor)["manifests"][0]
    return _json(layout, descriptor), str(descriptor["digest"]).replace(":", "-")


def _unpack_layers(layout: Path, layers: list[Mapping[str, Any]], rootfs: Path) -> None:
    fresh = rootfs.with_name("rootfs.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for descriptor in layers:
        with tarfile.open(_blob(layout, descriptor)) as layer:
            for member in layer:
                _apply(layer, member, fresh)
    for name in ("proc", "dev", "tmp", "sys"):
        (fresh / name).mkdir(exist_ok=True)
    fresh.rename(rootfs)


def _apply(layer: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    folder, name = os.path.split(member.name.strip("/"))
    parent = (root / folder).resolve()
    if not parent.is_relative_to(root.resolve()):
        raise ValueError(f"entry {member.name!r} would lie outside the root file system")
    if name == OPAQUE:
        shutil.rmtree(parent, ignore_errors=True)
        parent.mkdir(parents=True)
    elif name.startswith(WHITEOUT):
        target = parent / name.removeprefix(WHITEOUT)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    elif not member.isdev():
        layer.extract(member, root, filter="tar")
