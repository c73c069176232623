"""fedworth init: a task file for the project in the current folder, and the lines that record its federation.

The project's files are read, never run: the model is a class derived from `Module` or a function annotated to return
one, or a model of Hugging Face; the test set comes from a function that is named after it. What is not found is marked
in the file.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fedworth.cli.show import show
from fedworth.errors import UsageError

TASK = Path("mytask.py")
TEST_SET = re.compile(
    r"(load|get|make|build|read).*(test|central|holdout|valid)|(test|valid)_?(set|data|loader|samples)"
)
TRANSFORMER = re.compile(r"(Peft|PreTrained|LMHead)Model$|For(SequenceClassification|CausalLM)$")
SKIPPED = re.compile(r"^(\.|test|tests$|docs$|build$|dist$|venv|env$|node_modules|site-packages)")
MOST_FILES = 500
Definition = ast.ClassDef | ast.FunctionDef

TEXT = '''"""What the members' models are judged by: your model, and a test set that no member has.

    fedworth report my.ledger --task {file}:task

Written by `fedworth init {framework}`; it is yours to change. Nothing here reaches the members.
"""

from fedworth import Task
{imports}

def task() -> Task:
    """{about}
    """
{test_set}
{model}
    return Task.{maker}(model, batches)
'''
OF_LOADER = """Cross-entropy on logits; for another loss add its name, loss="squared-error", or your own function.

    A batch of the test set is (inputs, labels), or a dictionary with the labels in it. If you have two tensors instead
    of batches, return Task(model, inputs, labels)."""
OF_TRANSFORMERS = """The model's own loss on tokenized samples or batches, and what PEFT exchanges of its adapters.

    The base model must have the weights that the members have."""
MODEL_OPEN = '    raise NotImplementedError("{file}: name your model here: model = MyNet()")'
TEST_SET_OPEN = '    raise NotImplementedError("{file}: load your test set here: batches = …")'


@dataclass(frozen=True)
class Line:
    """A line to add, and where: the line that it goes with, 0 if that was not found."""

    file: str
    number: int
    code: str


@dataclass(frozen=True)
class Source:
    """A Python file of the project."""

    path: Path
    tree: ast.Module

    @property
    def module(self) -> str:
        """Its name for `import`, from the project's folder."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of these functions or methods."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _last_name(node.func) in names:
                yield node


@dataclass(frozen=True)
class Init:
    """Write a task file for the project in this folder, and show the lines that record its federation.

    Args:
        framework: What the federation is trained with: flower, nvflare or loop (a loop of your own).

    Example:
        fedworth init flower
    """

    framework: Literal["flower", "nvflare", "loop"]

    def run(self, *, as_json: bool) -> None:
        from fedworth.storage import refuse_existing

        refuse_existing(TASK, "a task file")
        sources = list(_sources(Path()))
        transformer, test_set = _found(sources, _is_transformer), _found(sources, _is_test_set)
        model = transformer or _found(sources, _is_model)
        lines = {"flower": _flower, "nvflare": _nvflare, "loop": _loop}[self.framework](sources)
        kind = ("from_loader", OF_LOADER) if transformer is None else ("from_transformers", OF_TRANSFORMERS)
        TASK.write_text(_text(self.framework, model, test_set, *kind), encoding="utf-8")
        found = {"model": model, "test_set": test_set}
        named = {what: None if place is None else ".".join(place) for what, place in found.items()}
        document = {"task": str(TASK), **named, "lines": [asdict(line) for line in lines]}
        output = [f"{TASK}: written; look at it before you use it"]
        for what, place in found.items():
            where = "not found: name it in the file" if place is None else f"{place[1]} of {place[0]}"
            output += [f"  {what.replace('_', ' ')}: {where}"]
        output += ["", "add (with `import fedworth`):"]
        for file in dict.fromkeys(line.file for line in lines):
            here = [line for line in lines if line.file == file]
            output += [f"  {file}{f', line {here[0].number}' if here[0].number else ''}:"]
            output += [f"      {line.code}" for line in here]
        output += ["", f"then: fedworth report {_ledger()} --task {TASK}:task"]
        show(document, *output, as_json=as_json)


def _text(
    framework: str, model: tuple[str, str] | None, test_set: tuple[str, str] | None, maker: str, about: str
) -> str:
    places = dict.fromkeys(place for place in (model, test_set) if place is not None)
    imports = "".join(f"from {module} import {name}\n" for module, name in places)
    test_set_line = TEST_SET_OPEN if test_set is None else f"    batches = {test_set[1]}()"
    model_line = MODEL_OPEN if model is None else f"    model = {model[1]}()"
    return TEXT.format(
        file=TASK,
        framework=framework,
        imports=imports,
        maker=maker,
        about=about,
        test_set=test_set_line.format(file=TASK),
        model=model_line.format(file=TASK),
    )


def _sources(folder: Path) -> Iterator[Source]:
    """The Python files of the project, those of its own packages too; a file that is not Python is left out."""
    paths = [path for depth in ("*.py", "*/*.py", "*/*/*.py") for path in sorted(folder.glob(depth))]
    for path in paths[:MOST_FILES]:
        if not any(SKIPPED.match(part) for part in path.parts):
            try:
                yield Source(path, ast.parse(path.read_bytes()))
            except (SyntaxError, ValueError, OSError):
                continue


def _found(sources: list[Source], fits: Callable[[Definition], bool]) -> tuple[str, str] | None:
    """(module, name) of the first class or function that fits and can be called without arguments."""
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, Definition) and fits(node):
                makers = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
                if not any(map(_n_required, makers if isinstance(node, ast.ClassDef) else [node])):
                    return source.module, node.name
    return None


def _n_required(function: ast.FunctionDef) -> int:
    """How many arguments must be given, beside `self`."""
    given = [argument for argument in function.args.args if argument.arg != "self"]
    alone = [default for default in function.args.kw_defaults if default is None]
    return len(given) - len(function.args.defaults) + len(alone)


def _is_model(node: Definition) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(_last_name(base).endswith("Module") for base in node.bases)
    return node.returns is not None and _last_name(node.returns).endswith("Module")


def _is_transformer(node: Definition) -> bool:
    """Whether a function is annotated to return a model of Hugging Face."""
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        return False
    return TRANSFORMER.search(_last_name(node.returns)) is not None


def _is_test_set(node: Definition) -> bool:
    return isinstance(node, ast.FunctionDef) and TEST_SET.search(node.name) is not None


def _last_name(node: ast.AST) -> str:
    """`Module` of `torch.nn.Module`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _ledger() -> str:
    """A path outside the project, whose folder may be sent to every member."""
    return str(Path.cwd().parent / f"{Path.cwd().name}.ledger")


def _flower(sources: list[Source]) -> list[Line]:
    """The line on the server and the line on the clients."""
    server, client = (_component(sources, kind) for kind in ("serverapp", "clientapp"))
    started = [call for call in server.calls("start") if any(word.arg == "grid" for word in call.keywords)]
    old = [] if started else list(server.calls("ServerAppComponents", "start_server"))
    at = (started or old or list(server.calls("ServerApp")))[:1]
    what = "strategy = fedworth.flower.record(strategy" if old else "grid = fedworth.flower.record(grid"
    code = f'{what}, ledger="{_ledger()}"{"" if old else ", strategy=strategy"})  # before this line'
    mods = "ClientApp(…, mods=[fedworth.flower.identity])"
    apps = [call.lineno for call in client.calls("ClientApp")]
    return [Line(str(server.path), at[0].lineno if at else 0, code), Line(str(client.path), (apps or [0])[0], mods)]


def _component(sources: list[Source], kind: str) -> Source:
    """The file of an app that pyproject.toml names, or else the one that makes it."""
    app = "ServerApp" if kind == "serverapp" else "ClientApp"
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
        named = str(settings["tool"]["flwr"]["app"]["components"][kind]).partition(":")[0]
    except (OSError, ValueError, KeyError, TypeError):
        named = ""
    for fits in (lambda source: source.module == named, lambda source: any(source.calls(app))):
        for source in sources:
            if fits(source):
                return source
    raise UsageError(
        f"init flower: no {app} here; start it in the folder of a Flower app, whose pyproject.toml names it"
    )


def _nvflare(sources: list[Source]) -> list[Line]:
    """The line after the recipe or the job is made."""
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
                kind, target = _last_name(node.value.func), node.targets[0]
                if (kind.endswith("Recipe") or kind == "FedJob") and isinstance(target, ast.Name):
                    code = f'fedworth.nvflare.add_valuation({target.id}, ledger="{_ledger()}", task="{TASK}:task")'
                    return [Line(str(source.path), node.end_lineno or node.lineno, f"{code}  # after this line")]
    raise UsageError("init nvflare: no recipe and no FedJob here; start it in the folder of the job's Python file")


def _loop(_sources: list[Source]) -> list[Line]:
    """The calls of the user's own loop."""
    calls = (
        f'ledger = fedworth.record_into("{_ledger()}")  # before the first round',
        "ledger.start_round(model.state_dict(), asked=names)",
        "ledger.client_model(name, its_state_dict, n_samples=its_number_of_samples)  # for each answer",
        "ledger.end_round()",
        "ledger.close(model.state_dict())  # after the last round",
    )
    return [Line("your training loop", 0, code) for code in calls]
