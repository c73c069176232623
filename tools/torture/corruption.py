"""Ways to harm a ledger, and whether they are found out.

Each harm is done to a copy of one small ledger: bits flipped, bytes cut off, put in or zeroed, files swapped, copied
over, removed or added, lines of the manifest edited, reordered, doubled or dropped.
"""

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch

from fedworth.errors import FedworthError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter


def content(folder: Path) -> dict[str, bytes]:
    """All files and their bytes, without what was left of a kill and what the cache keeps."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "utilities" not in path.parts]
    return {str(path): path.read_bytes() for path in files if not path.name.endswith(".partial")}


def small_ledger(folder: Path) -> None:
    """Five small rounds, with models apart and a final one."""
    writer = LedgerWriter.create(folder, ["a", "b", "c"], aggregation="samples", settings={"source": "torture"})
    for t in range(5):
        rng = torch.Generator().manual_seed(t)
        models = [{"w": torch.randn(3, 4, generator=rng), "n": torch.tensor(t)} for _ in range(4)]
        answers = {name: Answer(model, 10 + t) for name, model in zip("abc", models, strict=False)}
        apart = {"c": answers.pop("c")} if t else {}
        writer.record_round(models[3], answers, apart=apart)
    writer.close(models[3])


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def grow(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.randrange(1, 50)) + data[place:]


def blank(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    stop = rng.randrange(start, len(data)) + 1
    return data[:start] + bytes(stop - start) + data[stop:]


def edit(data: bytes, rng: random.Random) -> bytes:
    """Another number, name or type somewhere in a line of JSON."""
    lines = data.decode().splitlines()
    row = rng.randrange(len(lines))
    document = json.loads(lines[row])
    key = rng.choice(sorted(document))
    document[key] = rng.choice([None, True, -1, 7, 1e9, "x", [], [0], [0, 1, 2], ["a"], {}, document[key]])
    lines[row] = json.dumps(document, separators=rng.choice([(", ", ": "), (",", ":")]))
    return ("\n".join(lines) + "\n").encode()


def reorder(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    how = rng.randrange(4)
    a, b = rng.sample(range(len(lines)), 2)
    if how == 0:
        lines[a], lines[b] = lines[b], lines[a]
    elif how == 1:
        lines.insert(b, lines[a])
    elif how == 2:
        del lines[a]
    else:
        rng.shuffle(lines)
    return b"".join(lines)


def swapped(folder: Path, files: list[str], rng: random.Random) -> str:
    first, second = (folder / name for name in rng.sample([f for f in files if "safetensors" in f], 2))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    if rng.random() < 0.5:
        second.write_bytes(one)
    return "swapped or copied over"


def removed(folder: Path, files: list[str], rng: random.Random) -> str:
    (folder / rng.choice(files)).unlink()
    return "removed"


def added(folder: Path, files: list[str], rng: random.Random) -> str:
    source = rng.choice([f for f in files if f.startswith(("rounds", "apart"))])
    copy = f"{rng.randrange(5, 99):06d}.safetensors"
    shutil.copy(folder / source, (folder / source).with_name(copy))
    return "duplicated"


BYTES = {"bit flips": flip, "truncated": cut, "grown": grow, "zeroed": blank}
MANIFEST = {"edited": edit, "reordered": reorder}
FILES = (swapped, removed, added)


def corrupt(folder: Path, rng: random.Random) -> str:
    """Do one harm; what it was."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    kind = rng.randrange(10)
    if kind < 2:
        return rng.choice(FILES)(folder, files, rng)
    name, change = rng.choice(sorted((MANIFEST if kind < 5 else BYTES).items()))
    file = folder / ("manifest.jsonl" if kind < 5 else rng.choice(files))
    file.write_bytes(change(file.read_bytes(), rng))
    return f"{name} manifest" if file.name == "manifest.jsonl" else name


def corruptions(job: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    """So many corrupted copies of one ledger: how many of each kind were found out, and what was not."""
    seed, n = job
    rng, found, missed = random.Random(seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="fedworth-torture-") as place:
        original, folder = Path(place) / "original", Path(place) / "copy"
        small_ledger(original)
        whole = content(original)
        while found.total() < n:
            shutil.copytree(original, folder)
            kind = corrupt(folder, rng)
            same = {name.replace("/copy/", "/original/"): data for name, data in content(folder).items()} == whole
            if not same:
                found[kind] += 1
                missed += [f"{kind}: {problem}" for problem in undetected(folder, original)]
            shutil.rmtree(folder)
    return found, missed


def undetected(folder: Path, original: Path) -> Iterable[str]:
    """What should have been noticed and was not: by verify, and by whoever opens the rounds to value them."""
    try:
        Ledger.verify(folder)
        yield "verify found nothing"
    except FedworthError as error:
        if not str(error):
            yield "no message"
    changed = [f for f in ("federation.json", "manifest.jsonl") if not same_file(folder / f, original / f)]
    rounds = [f"rounds/{t:06d}.safetensors" for t in range(5)]
    if changed or not all(same_file(folder / name, original / name) for name in rounds):
        try:
            for _ in Ledger.open(folder).rounds():
                pass
            yield "it could have been valued"
        except FedworthError:
            pass


def same_file(one: Path, other: Path) -> bool:
    return one.is_file() and one.read_bytes() == other.read_bytes()
