"""Data flows one way: a module imports from its own stage and earlier ones only; third parties stay in their room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedworth

ROOT = Path(fedworth.__file__).parent
GROUND = "ground"
STAGES = (
    GROUND,
    "ledger",
    "task",
    "simulation",
    "oracle",
    "games",
    "completion",
    "valuation",
    "findings",
    "theory",
    "report",
    "pipeline",
    "recording",
    "cli",
)
"""Modules at the top of the package are the ground that every stage stands on."""

BACKWARDS: tuple[tuple[str, str], ...] = ()
"""To be mended."""

DOORS = {"fedworth", "fedworth.flower", "fedworth.nvflare", "fedworth.__main__"}
PICKLERS = {"pickle", "cloudpickle", "joblib", "dill"}


def module_name(path: Path) -> str:
    parts = ["fedworth", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in PATHS.items()}


def imports(name: str) -> Iterator[str]:
    """Every module that this one imports, wherever in it the import stands."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in PATHS else source


def stage(name: str) -> int:
    """How far along the way a module stands; the doors come after everything."""
    if name in DOORS:
        return len(STAGES)
    room = name.split(".")[1]
    return STAGES.index(room) if PATHS.get(f"fedworth.{room}", Path()).name == "__init__.py" else 0


def test_a_module_imports_only_from_its_own_stage_and_earlier_ones():
    later = {
        name: {found for found in imports(name) if found.split(".")[0] == "fedworth" and stage(found) > stage(name)}
        for name in PATHS
        if name not in DOORS
    }
    assert {name: found for name, found in later.items() if found} == {}


def test_only_the_command_line_prints():
    printing = [
        f"{name}:{node.lineno}"
        for name in PATHS
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert [where for where in printing if not where.startswith("fedworth.cli")] == []


def test_nothing_is_pickled():
    for name in PATHS:
        assert not PICKLERS & {found.split(".")[0] for found in imports(name)}, name
        for node in ast.walk(TREES[name]):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", name
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "torch.save", name
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in [ast.unparse(keyword) for keyword in node.keywords], name
