"""One name for one thing: a class's name means one class, and words that mean something else here are not used."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fedworth

ROOT = Path(fedworth.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
DOORS = (ROOT / "flower.py", ROOT / "nvflare.py")

INSTEAD = {
    "partner": "client",
    "party": "client",
    "player": "client",
    "players": "client",
    "scenario": "federation",
    "experiment": "federation, or study",
    "selections": "participants",
    "scorer": "oracle",
    "evaluator": "oracle",
    "reward": "utility (rewards are money)",
    "imputation": "completion",
    "utils": "a name that says what it is for",
    "helpers": "a name that says what it is for",
    "manager": "a name that says what it does",
}
PREFIXES = ("get_", "compute_")
FLOWERS = {"client_manager"}
"""What a framework calls its own."""


def names_in(tree: ast.Module) -> Iterator[str]:
    """Every name that a module gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_a_class_name_means_one_class():
    classes = Counter(
        node.name
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name[0] != "_" and path not in DOORS
    )
    assert [name for name, n in classes.items() if n > 1] == []


def test_nothing_is_named_by_a_word_that_is_ruled_out():
    found = [
        f"{path.relative_to(ROOT)}: {name}; write {INSTEAD.get(part, 'it without get_ or compute_')}"
        for path, tree in TREES.items()
        for name in set(names_in(tree)) - FLOWERS
        for part in (*name.strip("_").lower().split("_"), "")
        if part in INSTEAD or (not part and name.startswith(PREFIXES))
    ]
    assert found == []
