"""What was set on the machine and must be undone: written before it is set, struck out after it is undone.

Append-only lines of JSON, each with a checksum, flushed to the disk before `note` returns; a line torn by a
crash is passed over. Cgroups need no entry, since everything below our own root is ours; the journal holds
what carries no such mark: shaped devices, containers known to runc, resctrl groups.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

from k40s.node.links import Device

VERSION = 1


@dataclass(frozen=True, slots=True)
class ShapedDevice:
    """HTB classes on a device."""

    name: str
    namespace: str = ""

    @property
    def device(self) -> Device:
        """The device."""
        return Device(self.name, self.namespace)


@dataclass(frozen=True, slots=True)
class RuncContainer:
    """A container that runc knows by `id`, with its bundle folder."""

    id: str
    bundle: str


@dataclass(frozen=True, slots=True)
class ResctrlGroup:
    """A group below `/sys/fs/resctrl`, without the prefix."""

    name: str


Effect: TypeAlias = ShapedDevice | RuncContainer | ResctrlGroup
KINDS: dict[str, type[ShapedDevice] | type[RuncContainer] | type[ResctrlGroup]] = {
    kind.__name__: kind for kind in (ShapedDevice, RuncContainer, ResctrlGroup)
}


def _line(verb: str, effect: Effect) -> str:
    body = json.dumps([VERSION, verb, type(effect).__name__, asdict(effect)], separators=(",", ":"))
    return f"{zlib.crc32(body.encode()):08x} {body}\n"


def _parsed(text: str) -> Iterator[tuple[str, Effect]]:
    for line in text.splitlines():
        checksum, _, body = line.partition(" ")
        if f"{zlib.crc32(body.encode()):08x}" != checksum:
            continue  # torn by a crash: its effect was never set, since the line must be whole before
        version, verb, kind, fields = json.loads(body)
        if version == VERSION and kind in KINDS:
            yield verb, KINDS[kind](**fields)


@dataclass(slots=True)
class Journal:
    """The journal in a file. One writer at a time."""

    path: Path
    _open: dict[Effect, None] = field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Journal:
        """Read what is outstanding; a missing file is an empty journal. Rewrites it short."""
        journal = Journal(path)
        if path.exists():
            for verb, effect in _parsed(path.read_text(errors="replace")):
                if verb == "set":
                    journal._open[effect] = None
                else:
                    journal._open.pop(effect, None)
        journal._rewrite()
        return journal

    def outstanding(self) -> tuple[Effect, ...]:
        """Effects set and not yet undone, oldest first."""
        return tuple(self._open)

    def note(self, effect: Effect) -> None:
        """Before an effect is set. Raises OSError (disk full) before anything was done."""
        if effect not in self._open:
            self._append(_line("set", effect))
            self._open[effect] = None

    def strike(self, effect: Effect) -> None:
        """After an effect was undone."""
        if effect in self._open:
            del self._open[effect]
            self._append(_line("undone", effect))

    def _append(self, line: str) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def _rewrite(self) -> None:
        fresh = self.path.with_suffix(".new")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w") as file:
            file.writelines(_line("set", effect) for effect in self._open)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
