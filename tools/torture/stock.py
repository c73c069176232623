"""What odd calls are made on: the artefacts of one small run, and files and folders that nobody should trust."""

import contextlib
import itertools
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from fedworth.cli.main import main as fedworth_command
from fedworth.ledger.writer import Answer, LedgerWriter
from tools.torture.children import done

SMALL = ["--clients=4", "--participants=2", "--rounds=2", "--train-limit=80", "--test-limit=40", "--local-steps=1"]
ESCAPE = "\x1b[31mred\x07"

PATHS = (
    "run/ledger", "utilities.npz", "run/settings.json", "run/report.json", "run", "models",
    "nothing", "nowhere/at/all", "/dev/null", "/dev/zero", "/dev/full", "/dev/stdin", "pipe", "closed", "closed/x", ".",
    "", "/proc", "/proc/self/mem", "loop", "dangling", "a\udcffb", "a" * 300, "run/report.json/x", "escapes.npz",
    "bomb.npz", "huge.npz", "large.npz", "objects.npz", "text.npz", "empty", "missing.ledger", "bare.ledger",
    "forged.ledger", "key.pem", "broken.json", "sparse.npz", "nul\N{SYMBOL FOR NULL}", "deep.json",
)  # fmt: skip


class Stock:
    """The files, made once."""

    fresh = itertools.count()

    @classmethod
    @contextlib.contextmanager
    def made_at(cls, place: Path) -> Iterator[None]:
        """Make them at `place`, and work there."""
        place.mkdir(parents=True)
        with contextlib.chdir(place):
            ended = done(lambda: fedworth_command(["run", "--out=run", *SMALL]), Path("run.log"), seconds=600)
            if ended.code:
                raise SystemExit(f"the run that everything is tried on failed: {ended.err}")
            observe = ["observe", "run/ledger", "--out=utilities.npz"]
            if (ended := done(lambda: fedworth_command(observe), Path("observe.log"), seconds=600)).code:
                raise SystemExit(f"its utilities could not be measured: {ended.err}")
            for make in (_arrays, _documents, _odd_files, _ledgers, _models):
                make()
            yield

    @classmethod
    def arguments(cls, words: tuple[str, ...], number: int) -> dict[str, list[str]]:
        """The arguments of a call that goes well, by their names."""
        out = {"--out": [f"out-{number}-{next(cls.fresh)}"]}
        small = {text.partition("=")[0]: [text.partition("=")[2]] for text in SMALL}
        return {
            "simulate": {**out, **small},
            "run": {**out, **small},
            "observe": {"ledger": ["run/ledger"], **out},
            "complete": {"source": ["utilities.npz"], **out},
            "value": {"source": ["utilities.npz"]},
            "report": {"ledger": ["run"], **out},
            "statement": {"folder": ["run"], "--client": ["0"], **out},
            "rewards": {"folder": ["run"], "--pool": ["100"], **out},
            "compare": {"runs": ["run", "run"], **out},
            "interactions": {"ledger": ["run"]},
            "watch": {"ledger": ["run/ledger"], "--once": [], **out},
            "verify": {"path": ["run/ledger"]},
            "import": {"folder": ["models"], **out},
            "init": {"framework": ["loop"]},
            "observation-1": {"--clients": ["10"], "--participants": ["3"], "--rounds": ["10"]},
            "rank-bound": {"--ledger": ["run/ledger"], "--lipschitz": ["1"], "--smoothness": ["1"], "--epsilon": ["1"]},
            "rank": {"ledger": ["run/ledger"], "--epsilon": ["0.01"]},
            "fairness": {"ledger": ["run/ledger"]},
        }[words[-1]]


def _arrays() -> None:
    """Utilities with names that paint, numbers of 1e300, headers that ask for terabytes, objects and text."""
    with np.load("utilities.npz") as file:
        good = {name: file[name] for name in file.files}
    n_clients = good["participants"].shape[1]
    np.savez("escapes.npz", **{**good, "clients": np.array([f"{ESCAPE}{k}" for k in range(n_clients)])})
    np.savez("large.npz", **{**good, "utilities": good["utilities"] * 1e300})
    np.savez("text.npz", **{name: array.astype(str) for name, array in good.items()})
    np.savez("objects.npz", **{**good, "clients": np.array([object()], dtype=object)})
    header = str({"descr": "<f8", "fortran_order": False, "shape": (10**12,)}).ljust(117) + "\n"
    with zipfile.ZipFile("huge.npz", "w") as archive:
        archive.writestr("utilities.npy", b"\x93NUMPY\x01\x00v\x00" + header.encode() + bytes(8))
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("utilities.npy", bytes(2**26))
    with open("sparse.npz", "wb") as file_:
        file_.truncate(2**43)


def _documents() -> None:
    Path("key.pem").write_text("-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n")
    Path("broken.json").write_text('{"title": ')
    Path("deep.json").write_text("[" * 100_000)
    Path("empty").mkdir()


def _odd_files() -> None:
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    os.symlink("dangling/nowhere", "dangling")
    Path("closed").mkdir()
    Path("closed").chmod(stat.S_IRUSR)


def _ledgers() -> None:
    """One without rounds, one with missing rounds only, and one whose settings ask for a federation of 10^9 clients."""
    LedgerWriter.create("bare.ledger", ["a"], aggregation="uniform").release()
    writer = LedgerWriter.create("missing.ledger", ["a", "b"], aggregation="uniform", quarantine=True)
    for number in range(3):
        writer.missing_round(number, f"gone {ESCAPE}")
    writer.release()
    settings = {"simulation": {"n_clients": 10**9, "n_rounds": 10**9, "copies": []}, "test_sha256": "0" * 64}
    writer = LedgerWriter.create("forged.ledger", ["a", "b"], aggregation="uniform", settings=settings)
    model = {"weight": torch.ones(2, 3)}
    writer.record_round(model, {"a": Answer(model, 1), "b": Answer(model, 2)})
    writer.close(model)


def _models() -> None:
    for number in range(2):
        folder = Path("models") / str(number)
        folder.mkdir(parents=True)
        for name in ("global", "a", "b"):
            save_file({"w": torch.ones(2, 2)}, folder / f"{name}.safetensors")
    Path("models/samples.json").write_text('{"a": 1, "b": 2}')


def clear(place: Path) -> None:
    """Remove it all, folders that cannot be entered among it."""
    for path in place.rglob("closed"):
        path.chmod(stat.S_IRWXU)
    shutil.rmtree(place / "place", ignore_errors=True)
