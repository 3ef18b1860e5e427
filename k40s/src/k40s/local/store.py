"""What must survive the daemon: objects, where jobs are placed, how far reactions went, and events. SQLite.

Every change is one transaction. An object is on the disk before the call returns, since its user is told so; states
and events outlive the daemon at once and a power cut some seconds later, so that a disk under load holds up no
reaction. A full disk raises `EffectFailed` and changes nothing. The schema is created here and versioned by
`user_version`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k40s.errors import EffectFailed

VERSION = 1
MOST_EVENTS = 10_000
SCHEMA = """
create table objects (kind text, name text, body text not null, primary key (kind, name));
create table states (job text primary key, body text not null);
create table events (
    id integer primary key autoincrement, at text not null, severity text not null,
    subject text not null, reason text not null, message text not null
);
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `at` is RFC 3339; `severity` is `info`, `warning` or `alarm`."""

    id: int
    at: str
    severity: str
    subject: str
    reason: str
    message: str


class Store:
    """The database in a file. Usable from several threads, one at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)  # manifests may hold secrets; SQLite gives its other files the same mode
        path.chmod(0o600)
        self._lock = threading.RLock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        with _told():
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = normal")
        version = self._database.execute("pragma user_version").fetchone()[0]
        if version == 0:
            with _told():
                self._database.executescript(f"begin; {SCHEMA} pragma user_version = {VERSION}; commit;")
        elif version != VERSION:
            raise EffectFailed(
                f"state {path} has version {version}, this k4.0s reads {VERSION}: move it away"
            )

    @contextmanager
    def change(self, *, durable: bool = False) -> Iterator[None]:
        """All that is written inside happens together or not at all. `durable`: it also outlives a power cut."""
        with self._lock, _told():
            if self._database.in_transaction:  # part of a larger change
                yield
                return
            self._database.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
            self._database.execute("begin immediate")
            try:
                yield
                self._database.execute("commit")
            except BaseException:
                self._database.rollback()
                raise

    def _rows(self, query: str, *values: object) -> list[tuple[str, ...]]:
        with self._lock, _told():
            return self._database.execute(query, values).fetchall()

    def put_object(self, kind: str, name: str, body: str) -> None:
        """Keep an object as JSON, in place of what was there."""
        with self.change(durable=True):
            self._database.execute("insert or replace into objects values (?, ?, ?)", (kind, name, body))

    def objects(self, kind: str) -> dict[str, str]:
        """Objects of a kind by name."""
        return dict(self._rows("select name, body from objects where kind = ? order by name", kind))  # type: ignore[arg-type]  # two columns

    def remove_object(self, kind: str, name: str) -> None:
        """Forget an object and, of a job, its state."""
        with self.change(durable=True):
            self._database.execute("delete from objects where kind = ? and name = ?", (kind, name))
            if kind == "CriticalJob":
                self._database.execute("delete from states where job = ?", (name,))

    def put_reaction(self, node: str, body: str) -> None:
        """Keep how far the reaction has gone, as JSON."""
        with self.change():
            self._database.execute("insert or replace into objects values ('Reaction', ?, ?)", (node, body))

    def put_state(self, job: str, body: str) -> None:
        """Keep what the daemon knows of a job, as JSON."""
        with self.change():
            self._database.execute("insert or replace into states values (?, ?)", (job, body))

    def states(self) -> dict[str, str]:
        """States by job."""
        return dict(self._rows("select job, body from states"))  # type: ignore[arg-type]  # two columns

    def add_event(self, at: str, severity: str, subject: str, reason: str, message: str) -> None:
        """Append an event; the oldest beyond the limit are dropped."""
        with self.change():
            cursor = self._database.execute(
                "insert into events (at, severity, subject, reason, message) values (?, ?, ?, ?, ?)",
                (at, severity, subject, reason, message),
            )
            self._database.execute(
                "delete from events where id <= ?", ((cursor.lastrowid or 0) - MOST_EVENTS,)
            )

    def events(self, after: int = 0, most: int = 200) -> Sequence[Event]:
        """Events with an id above `after`, the newest `most` of them, oldest first."""
        query = "select * from (select * from events where id > ? order by id desc limit ?) order by id"
        return [Event(*row) for row in self._rows(query, after, most)]  # type: ignore[arg-type]  # typed by the schema

    def close(self) -> None:
        """Close the file."""
        self._database.close()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise EffectFailed(
            f"state could not be kept: {error}; free some disk space or check its folder"
        ) from error
