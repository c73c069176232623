"""Production uses what it has: a public name that only tests and benchmarks reach is dead code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedworth

ROOT = Path(fedworth.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
FRAMEWORKS = ("compile.py", "flower_grid.py", "flower_strategy.py", "nvflare.py", "ray_engine.py")
"""Their methods are called by the framework, not by us."""

CALLED_BY_OTHERS = {"entry", "__version__", "forward"}
"""The script of pyproject.toml, what is asked of a package, and what torch calls of a module."""


def defined(path: Path) -> Iterator[str]:
    """The public functions, classes, constants and methods of a module."""
    for node in TREES[path].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef) and path.name not in FRAMEWORKS:
            yield from (inner.name for inner in node.body if isinstance(inner, ast.FunctionDef))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def mentioned(path: Path) -> Iterator[str]:
    """Every name that a module uses; importing one, or listing it in `__all__`, is no use of it."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname and alias.asname != alias.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield from () if _is_listed(node, path) else (node.value,)  # a quoted type, or a name that is looked up


def _is_listed(node: ast.Constant, path: Path) -> bool:
    lists = [n for n in TREES[path].body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return any(node is found for assigned in lists for found in ast.walk(assigned))


def unused() -> dict[str, list[str]]:
    used = {name for path in TREES for name in mentioned(path)} | set(fedworth.__all__) | CALLED_BY_OTHERS
    doors = {name for door in ("flower.py", "nvflare.py") for name in _exported(ROOT / door)}
    found = {
        str(path.relative_to(ROOT)): [n for n in defined(path) if not n.startswith("_") and n not in used | doors]
        for path in TREES
    }
    return {path: names for path, names in found.items() if names}


def _exported(path: Path) -> list[str]:
    (assigned,) = [n for n in TREES[path].body if isinstance(n, ast.Assign)]
    return list(ast.literal_eval(assigned.value))


def test_production_uses_every_public_name():
    assert unused() == {}


def test_the_search_reads_the_tree():
    assert sum(len(list(defined(path))) for path in TREES) > 500
