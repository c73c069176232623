"""Data flows one way: a module imports from its own stage and earlier ones only; third parties stay in their room."""

import ast
import graphlib
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedworth

ROOT = Path(fedworth.__file__).parent
GROUND = ("errors", "names", "arrays", "storage", "notices", "machine_code", "compile", "trail", "colours", "threads")
WAY = (
    "",
    "ledger",
    "federation",
    "utility",
    "completion",
    "valuation",
    "theory",
    "report",
    "pipeline",
    "studies",
    "cli",
    "__main__",
)
SUBROOMS = {
    "fedworth.ledger.manifest",
    "fedworth.ledger.oddities",
    "fedworth.utility.fast",
    "fedworth.utility.recheck",
    "fedworth.utility.games",
    "fedworth.completion.by_kernel",
    "fedworth.completion.models",
    "fedworth.valuation.rivals",
    "fedworth.pipeline.checking",
    "fedworth.report.page",
}
"""Folders with a door of their own: nobody outside imports from deeper in them."""

LARGEST_ROOM, LONGEST_MODULE = 18, 300
MEDIAN_BODY, LONG_BODY = 6, 15
"""Lines of a function without its signature and docstring: of half of all at most, of nine tenths at most."""

DOORS = {"fedworth", "fedworth.flower", "fedworth.nvflare"}
PICKLERS = {"pickle", "cloudpickle", "joblib", "dill"}
ROOMS = {
    "flwr": tuple(f"fedworth.federation.live.flower_{what}" for what in ("identity", "grid", "strategy")),
    "nvflare": ("fedworth.federation.live.nvflare", "fedworth.nvflare"),
    "cryptography": ("fedworth.ledger.signature",),
    "ray": ("fedworth.utility.ray_engine",),
}


def module_name(path: Path) -> str:
    parts = ["fedworth", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in PATHS.items()}
INSIDE = [name for name in PATHS if name not in DOORS]
PACKAGES = {name for name, path in PATHS.items() if path.name == "__init__.py"}


def imports(name: str) -> Iterator[str]:
    """Every module that this one imports, wherever in it the import stands."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import; write it out"
            source = node.module or ""
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in PATHS else source


def own_imports(name: str) -> set[str]:
    return {found for found in imports(name) if found.split(".")[0] == "fedworth"}


def level(name: str) -> int:
    """How far along the way a module stands: on the ground, in a stage, where all stages are seen, or in a door."""
    if name in DOORS:
        return len(WAY)
    room = name.split(".")[1]
    return 0 if room in GROUND else WAY.index(room)


def test_every_module_has_its_room():
    assert {name.split(".")[1] for name in INSIDE} <= {*GROUND, *WAY}


def test_a_module_imports_only_from_its_own_stage_and_earlier_ones():
    later = {name: {found for found in own_imports(name) if level(found) > level(name)} for name in INSIDE}
    assert {name: found for name, found in later.items() if found} == {}


def test_nobody_inside_imports_from_a_door():
    assert {name: own_imports(name) & DOORS for name in INSIDE if own_imports(name) & DOORS} == {}


def test_nothing_is_imported_through_a_package_and_no_package_passes_anything_on():
    """A folder's `__init__` imports nothing, and naming the folder is no way to reach what is in it, but for a door."""
    inner = PACKAGES - {"fedworth"} - SUBROOMS
    assert {name: own_imports(name) & inner for name in PATHS if own_imports(name) & inner} == {}
    assert {name: own_imports(name) for name in inner if own_imports(name)} == {}


@pytest.mark.parametrize("room", sorted(SUBROOMS))
def test_a_subroom_is_entered_by_its_door(room):
    outside = [name for name in PATHS if not name.startswith(room)]
    past = {name: {found for found in own_imports(name) if found.startswith(f"{room}.")} for name in outside}
    assert {name: found for name, found in past.items() if found} == {}
    inside = [name for name in PATHS if name.startswith(f"{room}.")]
    assert [name for name in inside if room in own_imports(name)] == []


def test_no_room_is_too_full():
    rooms = Counter(path.parent for path in PATHS.values() if path.name != "__init__.py")
    assert {str(room): n for room, n in rooms.items() if n > LARGEST_ROOM} == {}


def test_no_module_is_too_long():
    lengths = {name: len(path.read_text().splitlines()) for name, path in PATHS.items()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_MODULE} == {}


def body_lengths() -> list[int]:
    functions = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    bodies = [node.body[1:] if ast.get_docstring(node) is not None else node.body for node in functions]
    return [(body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0 for body in bodies]


def test_functions_are_short():
    median, *_, ninth = statistics.quantiles(body_lengths(), n=10)[4:9]
    assert (median <= MEDIAN_BODY, ninth <= LONG_BODY) == (True, True), (median, ninth)


def test_what_is_imported_is_there():
    assert {found for name in PATHS for found in own_imports(name)} <= set(PATHS)


def test_imports_make_no_circle():
    graphlib.TopologicalSorter({name: own_imports(name) for name in PATHS}).prepare()


def test_third_parties_stay_in_their_room():
    for party, rooms in ROOMS.items():
        assert {name for name in PATHS if party in {found.split(".")[0] for found in imports(name)}} <= set(rooms)


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


def test_every_module_says_what_it_is_for():
    assert [name for name in PATHS if not ast.get_docstring(TREES[name])] == []
