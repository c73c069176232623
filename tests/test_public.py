"""What users import: names that keep their kind, all on the API page; and nobody is told to reach deeper."""

import ast
import contextlib
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import fedworth
from fedworth.completion.factors import FactorCompletion
from fedworth.ledger.receipts import Receipt
from fedworth.report.rewards import Rewards
from fedworth.valuation.valuation import ClientValue
from tests.support.reader import lay_out, names_of_a_reader

ROOT = Path(__file__).parent.parent
DOORS = ("fedworth", "fedworth.flower", "fedworth.nvflare")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src").rglob("*.py"))
    if path.stem not in ("__init__", "__main__", "nvflare", "ray_engine") and "flower" not in path.stem
]


def kind_of(found: object) -> str:
    return "class" if isinstance(found, type) else "function" if callable(found) else type(found).__name__


def exported(name: str) -> list[str]:
    """`__all__` of a door that may need an extra to be imported."""
    tree = ast.parse((ROOT / "src" / Path(*name.split(".")).with_suffix(".py")).read_text())
    (assigned,) = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return list(ast.literal_eval(assigned.value))


def test_every_public_name_keeps_its_kind_and_identity_whatever_else_is_imported():
    before = {name: getattr(fedworth, name) for name in fedworth.__all__}
    for module in MODULES:
        importlib.import_module(module)
    after = {name: getattr(fedworth, name) for name in fedworth.__all__}
    assert {name: kind_of(found) for name, found in after.items()} == {n: kind_of(f) for n, f in before.items()}
    assert [name for name in fedworth.__all__ if before[name] is not after[name]] == []
    assert {kind_of(found) for found in after.values()} == {"class", "function", "str"}


def test_names_that_are_classes_look_like_classes():
    for name in set(fedworth.__all__) - {"__version__"}:
        assert (kind_of(getattr(fedworth, name)) == "class") == name[0].isupper(), name


def test_the_type_checker_sees_the_same_names():
    tree = ast.parse(Path(fedworth.__file__).read_text())
    *_, block = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {*fedworth.__all__, "flower", "nvflare"} - {"__version__"}
    assert set(fedworth.__all__) <= set(dir(fedworth))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'plan_subsets'"):
        _ = fedworth.plan_subsets


def test_importing_fedworth_does_not_load_torch():
    code = "import sys, fedworth; fedworth.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0


@pytest.mark.parametrize("door", ["flower", "nvflare"])
def test_a_framework_needs_no_import_of_its_own(door):
    """Without the extra it says what to install; in neither case is it an unknown attribute."""
    code = f"import fedworth\ntry: fedworth.{door}.__all__\nexcept ImportError as e: assert 'pip install' in str(e)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_the_api_page_lists_every_public_name_once():
    page = (ROOT / "docs" / "api.md").read_text()
    top, *doors = re.split(r"^## `(fedworth\.\w+)`$", page, flags=re.MULTILINE)
    sections = {"fedworth": top, **dict(zip(doors[::2], doors[1::2], strict=True))}
    assert tuple(sections) == DOORS
    for door, text in sections.items():
        listed = re.findall(r"^\| `(\w+)` \| \S.* \|$", text, flags=re.MULTILINE)
        assert sorted(listed) == sorted(fedworth.__all__ if door == "fedworth" else exported(door))


def blocks(path: Path) -> list[str]:
    """The Python in a page, or a file of Python."""
    text = path.read_text()
    return [text] if path.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def reached(source: str) -> set[str]:
    """Modules of fedworth that a piece of Python imports, and dotted names that it writes out."""
    imported = re.findall(r"^\s*(?:from|import) (fedworth[\w.]*)", source, flags=re.MULTILINE)
    written = re.findall(r"\bfedworth\.(?:flower|nvflare)\.\w+|\bfedworth\.\w+\.\w+(?=[.(])", source)
    return {*imported, *(name.rpartition(".")[0] for name in written if name.split(".")[1][0].islower())}


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_examples_import_from_the_doors_alone(path):
    assert {name for block in blocks(path) for name in reached(block)} <= set(DOORS)


def test_the_reader_of_imports_sees_deep_ones():
    assert reached("from fedworth.task.task import Task") == {"fedworth.task.task"}
    assert reached("x = fedworth.task.task.Task()") == {"fedworth.task"}
    assert reached("import fedworth\nfedworth.flower.record(g)\nfedworth.Task(a)") == {"fedworth", "fedworth.flower"}


def test_paths_may_be_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = fedworth.SimulationSettings(n_clients=3, copies=(), n_participants=2, n_rounds=2, train_limit=60)
    ledger = fedworth.simulate(settings, "l")
    assert fedworth.Ledger.open("l").chain == fedworth.Ledger.verify("l").chain == ledger.chain
    federation = fedworth.Federation(ledger, fedworth.task_of(ledger))
    federation.utility_matrix().save("u.npz")
    utilities = fedworth.UtilityMatrix.load("u.npz")
    fedworth.report_on(utilities, methods=["comfedsv"]).write("r")
    values = fedworth.value(utilities, "comfedsv").values
    assert (fedworth.Report.read("r").valuations[0].values == values).all()
    fedworth.LedgerWriter.create("mine", aggregation="uniform").close(ledger.final_model())
    assert fedworth.LedgerWriter.resume("mine").is_closed
    fedworth.record_into("recorded").close(ledger.final_model())
    assert fedworth.Ledger.open("recorded").is_closed
    report = fedworth.run(fedworth.RunSettings(settings), "run")
    assert report.clients == ledger.clients


def named(name: str) -> Any:
    """What a public name, or the method `Class.method` of one, stands for."""
    return attrgetter(name)(fedworth)


def example_of(found: object) -> str:
    """The lines under "Example:" at the end of a docstring."""
    text = inspect.getdoc(found) or ""
    return textwrap.dedent(text.split("Example:\n")[1]) if "Example:\n" in text else ""


NAMES = [name for name in fedworth.__all__ if name != "__version__"]
FUNCTIONS = [name for name in NAMES if kind_of(getattr(fedworth, name)) == "function"]
MADE_BY_READERS = [
    name for name in NAMES if name.endswith(("Settings", "Oracle")) or name in ("Answer", "Budget", "Task")
]
OF_EXTRAS = ("Task.from_transformers",)  # its example needs a model of transformers
METHODS = [
    f"{name}.{method}"
    for name in NAMES
    if kind_of(getattr(fedworth, name)) == "class"
    for method, found in inspect.getmembers(getattr(fedworth, name), inspect.isroutine)
    if not method.startswith("_") and "Example:\n" in (inspect.getdoc(found) or "")
]
WITH_ARGUMENTS = [name for name in METHODS if "Args:\n" in (inspect.getdoc(named(name)) or "")]
RETURNED = [ClientValue, FactorCompletion, Receipt, Rewards]


@pytest.mark.parametrize("name", [*FUNCTIONS, *MADE_BY_READERS, *WITH_ARGUMENTS])
def test_every_argument_and_what_comes_back_is_explained(name):
    found = named(name)
    text = inspect.getdoc(found) or ""
    signature = inspect.signature(found)
    for argument in set(signature.parameters) - {"self"}:
        assert re.search(rf"(?m)^    (?:\*\*)?{argument}: \S|`{argument}`", text), argument
    assert kind_of(found) == "class" or signature.return_annotation is None or len(text.split("Example:")[0]) > 60


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """What readers have on their disks, and what they call by name there: made once."""
    folder = tmp_path_factory.mktemp("reader")
    lay_out(folder)
    with contextlib.chdir(folder):
        return folder, names_of_a_reader()


@pytest.mark.parametrize("name", [*NAMES, *(name for name in METHODS if name not in OF_EXTRAS)])
def test_the_example_of_every_public_name_runs_and_names_it(name, laid_out, tmp_path, monkeypatch, capsys):
    example = example_of(named(name))
    if name in FUNCTIONS or name in MADE_BY_READERS:
        assert f"fedworth.{name}(" in example
    if name in METHODS:
        assert f".{name.split('.')[1]}(" in example
    run_example(example, name, laid_out, tmp_path, monkeypatch)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", RETURNED)
def test_the_example_of_what_comes_back_runs(kind, laid_out, tmp_path, monkeypatch):
    assert example_of(kind)
    assert kind.__name__ not in fedworth.__all__
    run_example(example_of(kind), kind.__name__, laid_out, tmp_path, monkeypatch)


def run_example(example, name, laid_out, tmp_path, monkeypatch):
    """Run an example on a copy of the reader's folder."""
    folder, names = laid_out
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "folder"))
    exec(compile(example, name, "exec"), dict(names))
