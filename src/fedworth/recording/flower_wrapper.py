"""What the wrappers of Flower's grid and of an old strategy share: both pass everything on, and record rounds.

A node that the strategy asked has an outcome: it was silent (None), it failed (the reason), or it answered (a function
that reads the answer, which may hold anything).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedworth.recording.identity import NodeId, NodeNames
from fedworth.recording.recorder import Arrays, LiveRecorder
from fedworth.task.task import Task

log = logging.getLogger("fedworth")

Outcome = Callable[[], tuple[Arrays, Any]] | str | None

DIFFERENT_MODELS = (
    "clients were sent different models; a federation with a model for each client cannot be valued, because a "
    "coalition's model is an update of one global model"
)


@dataclass
class RecordingWrapper:
    """Passes everything on to what it wraps, and records rounds under the names that nodes say."""

    inner: Any
    recorder: LiveRecorder
    nodes: NodeNames = field(default_factory=NodeNames)
    hear_everyone: int | None = None
    wait_seconds: float = 600.0

    def __getattr__(self, name: str) -> Any:
        """Everything else is the inner object's."""
        if name == "inner":  # not there yet, as while copying
            raise AttributeError(name)
        return getattr(self.inner, name)

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """Each client's value so far, by its name; see `LiveRecorder.values`."""
        return self.recorder.values(task, **how)

    def name_of(self, node: NodeId) -> str | None:
        """A node's name; None if it has not answered yet."""
        return self.nodes.names.get(node)

    def _claim(self, node: NodeId, said: str | None) -> str:
        """The name that an answering node claims: what it says, or else what it goes by."""
        if said is None and node not in self.nodes.names:
            log.warning("fedworth: node %s does not say who it is; put fedworth.flower.identity into its mods", node)
        return self.nodes.names.get(node, f"node-{node}") if said is None else said

    def _warn_of_missing(self, n_connected: int) -> None:
        log.warning(
            "fedworth: only %d of %d clients are connected for the first round", n_connected, self.hear_everyone
        )

    def _write_round(
        self,
        number: int,
        model: Arrays,
        outcomes: Mapping[Any, Outcome],
        said: Mapping[Any, str],
        connected: Collection[Any],
    ) -> None:
        """Record a round: what each node that was asked did, and which name it said."""
        for node in (*outcomes, *connected):
            self.nodes.meet(node)
        settled = self.nodes.settle({node: name for node, name in said.items() if node in outcomes}, connected)
        names = {node: self.nodes.names[node] for node in outcomes if node in self.nodes.names}
        self.recorder.start_round(model, asked=[*names.values(), *settled.conflicts], number=number)
        self.recorder.report_claims(settled, set(names.values()))
        for node, outcome in outcomes.items():
            if node not in names:
                if node not in said:
                    self.recorder.note(f"node {node}, which has never said who it is, {_in_words(outcome)}")
            elif isinstance(outcome, str):
                self.recorder.client_failed(names[node], outcome)
            elif outcome is not None:
                self.recorder.client_answer(names[node], outcome)
        self.recorder.end_round()


def _in_words(outcome: Outcome) -> str:
    if outcome is None:
        return "was silent"
    return f"failed ({outcome})" if isinstance(outcome, str) else "sent a reply that cannot be read"
