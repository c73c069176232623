"""A task from a user's own file: `--task mytask.py:task`.

The file is Python of the user's own. `task` in it is a `Task` (module, inputs, labels), or a function that makes one:

    from fedworth import Task

    def task() -> Task:
        return Task(MyNet(), test_inputs, test_labels)

Running it runs whatever it says: give only files that you would run yourself.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from fedworth.errors import FedworthError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.simulation.simulate import task_of
from fedworth.storage import Place
from fedworth.task.task import Task


def load_task(text: str) -> Task:
    """The task that `mytask.py:task` names.

    Args:
        text: A Python file and a name in it: a task, or a function that makes one. The file is run.

    Returns:
        The task.

    Example:
        task = fedworth.load_task("mytask.py:task")
    """
    file, _, name = text.rpartition(":")
    if not file or not name:
        raise UsageError(f"--task {text}: expected a Python file and a name in it, such as mytask.py:task")
    found = _value(_module(Path(file)), name, text)
    try:
        task = found() if callable(found) else found
    except FedworthError:
        raise
    except Exception as error:
        raise UsageError(f"--task {text}: {name}() failed with {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        kind = type(task).__name__
        raise UsageError(f"--task {text}: gave a {kind}, expected a fedworth.Task")
    return task


def task_for(ledger: Ledger, text: str | None, *, data_folder: Place | None = None) -> Task:
    """The task named on the command line, or of a simulated federation the one that its settings make."""
    return task_of(ledger, data_folder=data_folder) if text is None else load_task(text)


def _module(path: Path) -> ModuleType:
    """Run a Python file; what lies beside it, or beside its package, can be imported by it."""
    if not path.is_file():
        raise UsageError(f"--task {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--task {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    package = path.absolute().parent
    while (package / "__init__.py").is_file():
        package = package.parent
    sys.path[:0] = [str(path.absolute().parent), str(package)]
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"--task {path}: failed with {type(error).__name__}: {error}") from error
    finally:
        del sys.path[:2]
    return module


def _value(module: ModuleType, name: str, text: str) -> object:
    if not hasattr(module, name):
        known = ", ".join(key for key in vars(module) if not key.startswith("_")) or "nothing"
        raise UsageError(f"--task {text}: no {name!r} in the file; it has {known}")
    return getattr(module, name)
