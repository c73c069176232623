"""What a process holds: figures of /proc/self/status, and the largest private memory while something runs."""

import threading
from pathlib import Path


def status(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024


class Watch:
    """The largest private memory seen while watching (`peak`), and what it was at first (`start`)."""

    def __init__(self, every: float = 0.001) -> None:
        self.every = every

    def __enter__(self) -> "Watch":
        self.start, self.peak, self.stop = status("RssAnon"), 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.stop.wait(self.every):
            self.peak = max(self.peak, status("RssAnon"))
