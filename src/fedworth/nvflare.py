"""For users of NVFlare: `record` a job or a recipe, `add_valuation` to see values while it trains."""

from pathlib import Path
from typing import Any

try:
    from fedworth.recording.nvflare import RECEIVERS, EveryoneHeardFedAvg, RoundRecorder
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install NVFlare beside fedworth: pip install 'fedworth[nvflare]'") from error

from fedworth.errors import UsageError

__all__ = ["EveryoneHeardFedAvg", "RoundRecorder", "add_valuation", "record"]


def record(job: Any, *, ledger: str | Path, **options: Any) -> RoundRecorder:
    """Add a recorder to the server of a job, as its component `fedworth`; it listens and changes nothing.

    Args:
        job: A `FedJob`, or a recipe.
        ledger: The folder to write, on the server.
        **options: `aggregation` (`samples` or `uniform`), `task_name` (`train`) and `resume` of the `RoundRecorder`;
            `track` and `task` as in `record_into`, by name, where `nvflare` stands for the job's own receivers.

    Returns:
        The recorder.

    Example:
        fedworth.nvflare.record(job, ledger="my.ledger")
    """
    server = _job_of(job)
    recorder = RoundRecorder(str(Path(ledger).absolute()), **options)
    server.to_server(recorder, id="fedworth")
    return recorder


def add_valuation(recipe: Any, *, ledger: str | Path, task: str, **options: Any) -> RoundRecorder:
    """Record a recipe and value its sites after each round, beside NVFlare's own `add_experiment_tracking`.

    Args:
        recipe: A recipe, or a `FedJob`.
        ledger: The folder to write, on the server.
        task: What values are measured on, such as `mytask.py:task`; the job brings the file to the server.
        **options: As for `record`. Values go to the job's own tracking receivers, unless `track` names others.

    Returns:
        The recorder. The report after each round is written beside the ledger, to `LEDGER.watch`.

    Example:
        fedworth.nvflare.add_valuation(recipe, ledger="/data/my.ledger", task="mytask.py:task")
    """
    file, _, name = task.rpartition(":")
    if not Path(file).is_file():
        raise UsageError(f"add_valuation: {task}: no such file; expected a Python file and a name in it")
    _job_of(recipe).to_server(file)
    place = f"{Path(file).name}:{name}"
    return record(recipe, ledger=ledger, task=place, **{"track": [RECEIVERS], **options})


def _job_of(given: Any) -> Any:
    """The job of a recipe, or the job itself."""
    of_recipe = getattr(given, "job", None) or getattr(given, "_job", None)
    job: Any = given if callable(getattr(given, "to_server", None)) else of_recipe
    if not callable(getattr(job, "to_server", None)):
        raise UsageError(f"record: found a {type(given).__name__}, expected NVFlare's FedJob or a recipe")
    return job
