"""Bars: what a benchmark must reach. Those missed are named at the end, and the exit code is then 1."""

import sys
from dataclasses import dataclass, field

MOST_ERROR = 1e-6
"""Of a utility, against float64."""


@dataclass
class Bars:
    """The bars of one benchmark, and those of them that were missed."""

    n_held: int = 0
    missed: list[str] = field(default_factory=list)

    def at_least(self, what: str, found: float, wanted: float) -> None:
        """A bar that is missed from below; by whatever is no number, too."""
        self._note(f"{what}: {found:.3g}, expected {wanted:g} or more", found >= wanted)

    def at_most(self, what: str, found: float, wanted: float) -> None:
        """A bar that is missed from above."""
        self._note(f"{what}: {found:.3g}, expected {wanted:g} or less", found <= wanted)

    def _note(self, what: str, is_held: bool) -> None:
        if is_held:
            self.n_held += 1
        else:
            self.missed.append(what)

    def close(self) -> None:
        """Say which bars were missed, and end with their code."""
        print("\n".join([f"\n{self.n_held} bars held, {len(self.missed)} missed", *self.missed]), flush=True)
        sys.exit(1 if self.missed else 0)
