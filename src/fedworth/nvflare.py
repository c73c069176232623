"""Recording for users of NVFlare: `record` a job or a recipe, or give the server a `RoundRecorder`."""

from pathlib import Path
from typing import Any

try:
    from fedworth.recording import nvflare as live
    from fedworth.recording.nvflare import EveryoneHeardFedAvg
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install NVFlare beside fedworth: pip install 'fedworth[nvflare]'") from error

from fedworth.errors import UsageError
from fedworth.pipeline.run import live_values
from fedworth.task.task import Task

__all__ = ["EveryoneHeardFedAvg", "RoundRecorder", "record"]


class RoundRecorder(live.RoundRecorder):
    """Writes every training round of a job into a ledger, and values the rounds so far on request.

    Example:
        job.to_server(fedworth.nvflare.RoundRecorder("my.ledger"), id="fedworth")

    NVFlare creates components from the path of their class, so the recorder that can value is a class of its own.
    """

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """Each site's value so far, by its name; see `LiveRecorder.values`."""
        return self.valued(live_values, task, **how)


def record(job: Any, *, ledger: str | Path, **options: Any) -> RoundRecorder:
    """Add a recorder to the server of a job, as its component `fedworth`; it listens and changes nothing.

    Args:
        job: A `FedJob`, or a recipe.
        ledger: The folder to write, on the server.
        **options: `aggregation` (`samples` or `uniform`), `task_name` (`train`) and `resume` of the `RoundRecorder`.

    Returns:
        The recorder.

    Example:
        fedworth.nvflare.record(job, ledger="my.ledger")
    """
    of_recipe = getattr(job, "job", None) or getattr(job, "_job", None)
    server: Any = job if callable(getattr(job, "to_server", None)) else of_recipe
    if not callable(getattr(server, "to_server", None)):
        raise UsageError(f"record: found a {type(job).__name__}, expected NVFlare's FedJob or a recipe")
    recorder = RoundRecorder(str(Path(ledger).absolute()), **options)
    server.to_server(recorder, id="fedworth")
    return recorder
