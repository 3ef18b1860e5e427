"""A daemon's engine over a machine in memory: kernel, disk and clock that a test can crash, fill and turn."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from k40s.assurance import Absent, Present
from k40s.local.config import Config
from k40s.local.engine import Engine
from k40s.local.measure import Measurements
from k40s.local.store import Store
from k40s.monitor.plan import Guarantee
from k40s.node.capabilities import Feature
from k40s.node.fakes import FakeCgroups
from k40s.node.journal import Journal
from k40s.node.launchers import FakeLauncher
from k40s.node.links import FakeLinks
from k40s.node.machine import Machine
from k40s.node.probe import PROBES, Hardware
from k40s.node.resctrl import Resctrl
from k40s.node.sample import Source
from k40s.node.scheduling import FakeScheduling
from k40s.node.wakeup import LAYOUT, read_latency

PROC_STAT = "cpu0 100 0 100 9000 0 0 0 0 0 0\ncpu1 100 0 100 9000 0 0 0 0 0 0\nsoftirq 100\n"
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
HARDWARE = Hardware("Test CPU", "x86_64", "6.0", cores=2, memory_bytes=8 << 30)


@dataclass
class World:
    """Kernel, disk and clock; daemons come and go in it."""

    folder: Path
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    scheduling: FakeScheduling = field(default_factory=FakeScheduling)
    links: FakeLinks = field(default_factory=FakeLinks)
    now_ns: int = 10**12
    missing: frozenset[Feature] = frozenset()
    capabilities: frozenset[str] = frozenset(PROBES)

    def __post_init__(self) -> None:
        self.launcher.born = self.scheduling.add
        self.files = FakeCgroups(root="/k40s-fake", alive=self.launcher.alive)
        pressure = self.folder / "root/proc/pressure"
        pressure.mkdir(parents=True, exist_ok=True)
        (pressure.parent / "stat").write_text(PROC_STAT)
        for resource in ("cpu", "memory", "io"):
            (pressure / resource).write_text(CALM)
        self.wake()

    @property
    def config(self) -> Config:
        """Of its daemons."""
        memory = self.folder / "memory"
        return Config(self.folder, self.folder / "sock", cgroup_root=self.files.root, memory=memory)

    def wake(self, late_ns: int = 1, still_ns: int = 0) -> None:
        """The wake-up probe has seen a hundred wake-ups more, all this late, and its core stand still for so long."""
        before = read_latency(self.folder / "latency")
        counts = list(before.counts)
        counts[(late_ns - 1).bit_length()] += 100
        worst_ns = max(before.worst_ns, late_ns)
        (self.folder / "latency").write_bytes(
            LAYOUT.pack(before.wakeups + 100, worst_ns, before.still_ns + still_ns, *counts)
        )

    def _pause(self) -> None:
        self.now_ns += 500_000_000
        self.wake()

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    def machine(self) -> Machine:
        return Machine(
            files=self.files,
            scheduling=self.scheduling,
            links=self.links,
            resctrl=Resctrl(self.folder / "resctrl"),
            plain=self.launcher,
            runc=self.launcher,
            processes=self.launcher,
            journal=Journal.load(self.folder / "journal"),
            sleep=self.sleep,
            clock=lambda: self.now_ns / 1e9,
        )

    def engine(self) -> Engine:
        """A daemon that starts now. The one before it is simply no longer used: that is its crash."""
        features = {
            feature: Absent("taken away") if feature in self.missing else Present("tried")
            for feature in Feature
        }
        capabilities = {
            name: Present("made up") if name in self.capabilities else Absent("made up") for name in PROBES
        }
        machine = self.machine()
        measurements = Measurements(
            Source(machine.files, self.folder / "root", lambda: self.now_ns),
            capabilities,
            frozenset(Guarantee),
            self.folder / "latency",
        )
        measurements.warm_up(self._pause)
        return Engine(
            self.config,
            machine,
            Store(self.folder / "state.db"),
            measurements,
            features,
            HARDWARE,
            clock_ns=lambda: self.now_ns,
            wall=lambda: datetime.fromtimestamp(self.now_ns / 1e9, UTC),
        )

    def alive(self) -> set[str]:
        """Ids of containers that run."""
        return set(self.launcher.running)
