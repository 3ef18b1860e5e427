"""Cache and memory-bandwidth allocation through `/sys/fs/resctrl`, where the processor and kernel have it.

A group's schemata are lines as the kernel takes them, `L3:0=3` (a mask of cache ways per cache) or `MB:0=50`
(per cent). Groups are ours by their prefix; others are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k40s.errors import Unsupported
from k40s.node.errors import KernelRefused

PREFIX = "k40s-"


@dataclass(frozen=True, slots=True)
class Resctrl:
    """The file system at `where`; everything but `present` raises `Unsupported` when it is not mounted."""

    where: Path = Path("/sys/fs/resctrl")

    @property
    def present(self) -> bool:
        """Whether it is mounted."""
        return (self.where / "schemata").is_file()

    def _must_be_present(self) -> None:
        if not self.present:
            raise Unsupported(
                f"{self.where} is not mounted: this processor or kernel has no cache allocation"
            )

    def allocate(self, name: str, schemata: Mapping[str, str], pids: Iterable[int]) -> None:
        """Make or change a group, `{"L3": "0=3"}`, and put processes into it."""
        self._must_be_present()
        group = self.where / (PREFIX + name)
        try:
            group.mkdir(exist_ok=True)
            for resource, masks in schemata.items():
                (group / "schemata").write_text(f"{resource}:{masks}\n")
            for pid in pids:
                (group / "tasks").write_text(f"{pid}\n")
        except OSError as error:
            raise KernelRefused(f"set up {group}", error.errno or 0) from error

    def release(self, name: str) -> None:
        """Remove a group; its processes fall back to the default one."""
        group = self.where / (PREFIX + name)
        if group.is_dir():
            group.rmdir()

    def groups(self) -> Sequence[str]:
        """Names of our groups, without the prefix."""
        if not self.present:
            return ()
        return tuple(sorted(path.name.removeprefix(PREFIX) for path in self.where.glob(PREFIX + "*")))
