"""Options are parsed before anything heavy is imported: help, the version and a mistyped option answer at once.

Names of modules are bounded, not seconds: what is not imported takes no time on any machine.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
before = set(sys.modules)
from fedworth.cli.main import main
try:
    code = main(json.loads(sys.argv[1]))
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """The exit code of a command line in a process of its own, and the modules that it loaded."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["run", "--help"], 0),
        (["theory", "fairness", "--help"], 0),
        (["runn"], 2),
        (["run", "--rounds", "many", "--out", "x"], 2),
        (["run", "--oracle", "fsat", "--out", "x"], 2),
        (["value", "x.npz", "--rank", "0"], 2),
        (["observe", "ledger", "--out", "x", "--until-ranked"], 2),
        (["watch", "ledger", "--rank", "auto"], 2),
    ],
)
def test_what_needs_no_numbers_loads_no_library(arguments, code):
    found, modules = loaded(*arguments)
    assert found == code
    foreign = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    assert foreign == {"fedworth"}
    ours = {name for name in modules if name.split(".")[0] == "fedworth"}
    assert {name for name in ours if not name.startswith("fedworth.cli")} == {
        "fedworth",
        "fedworth.errors",
        "fedworth.names",
        "fedworth.notices",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        "run --copy 3 --out x",
        "run --clients 4 --copy 9=0 --out x",
        "run --rounds 0 --out x",
        "run --noise step:2 --out x",
        "run --hidden 0 --out x",
        "run --local-epochs 0 --out x",
        "run --schedule proposition-2 --out x",
        "run --sampler stratified --out x",
        "run --rank auto --penalty 1 --out x",
        "simulate --clients 0 --out x",
        "simulate --batch-size 0 --out x",
        "simulate --flips 0.1,0.2 --out x",
        "observe ledger --no-fedsv --out x",
        "complete utilities.npz --rank auto --penalty 1 --out x",
        "watch ledger --sampler stratified",
        "report ledger --sampler stratified",
        "check ledger --rank auto --penalty 1",
        "compare one two --methods all",
        "theory observation-1 --clients 10 --participants 3 --rounds 0",
        "theory rank-bound --lipschitz 1 --smoothness 1 --epsilon 0.1",
    ],
)
def test_values_that_no_command_can_use_are_refused_before_a_library_is_loaded(arguments):
    found, modules = loaded(*arguments.split())
    assert found == 2
    assert {name.split(".")[0] for name in modules} - sys.stdlib_module_names == {"fedworth"}


def test_a_run_on_a_perceptron_loads_no_compiler_of_torch(tmp_path):
    sizes = ["--rounds", "2", "--clients", "4", "--copy", "none", "--no-truth"]
    code, modules = loaded("run", *sizes, "--out", str(tmp_path / "run"))
    assert code == 0
    assert {"torch._dynamo", "sympy"}.isdisjoint(modules)
