"""An event loop in a daemon thread of its own, so that it can live inside somebody else's process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs one event loop. Everything but `call` and `run` happens in it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        """Start the thread; the loop runs when this returns."""
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
        self._thread.start()
        self._loop = loop

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop's thread, soon; without a running loop, never."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function, *arguments)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; not from the loop's own thread."""
        if self._loop is None:
            work.close()
            raise RuntimeError("the loop does not run")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End the loop and the thread."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


def resolve(waiter: asyncio.Future[None]) -> None:
    """Let whoever waits go on; one that was cancelled meanwhile is no error."""
    if not waiter.done():
        waiter.set_result(None)


class Wake:
    """An event that one task waits for and that any callback of the loop may set."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when set since the last wait, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()
