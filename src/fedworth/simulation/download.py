"""Finds the files of a published data set, fetches missing ones, and checks every one.

Files are looked for in a data folder: the one given, else the one that `FEDWORTH_DATA` names, else fedworth's own
cache. `PUBLISHED` gives their paths in it. A missing file is fetched into the same folder. A file whose sha256 is not
the published one is refused, since it would change every value.
"""

import hashlib
import logging
import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pooch

from fedworth.errors import DataError, unknown_name

FOLDER_VARIABLE = "FEDWORTH_DATA"


@dataclass(frozen=True, slots=True)
class Published:
    """A published data set: single files or, with an `archive_hash`, one archive."""

    home: str
    folder: str
    sha256: dict[str, str]
    archive_hash: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """The path of each file under the data folder, and its sha256."""
        return {f"{self.folder}/{name}": sha256 for name, sha256 in self.sha256.items()}


PUBLISHED = {
    "mnist": Published(
        # LeCun's own page no longer hands out the files; this copy is the one torchvision reads.
        home="https://ossci-datasets.s3.amazonaws.com/mnist/",
        folder="mnist",
        sha256={
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": Published(
        home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        folder="fashion-mnist",
        sha256={
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": Published(
        home="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        folder="cifar-10-batches-bin",
        sha256={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        archive_hash="md5:c32a1d4ab5d03f1284b67883e8d87530",  # the only sum its home publishes
    ),
}


def data_files(name: str, folder: Path | None = None) -> tuple[Path, ...]:
    """The files of a published data set, in the order of `PUBLISHED`, each fetched if absent and checked."""
    if name not in PUBLISHED:
        raise unknown_name("published data set", name, PUBLISHED)
    files, root = PUBLISHED[name].files, data_folder(folder)
    absent = [file for file in files if not (root / file).is_file()]
    if absent:
        _fetch(name, absent, root)
    for file, sha256 in files.items():
        check_sha256(root / file, sha256)
    return tuple(root / file for file in files)


def data_folder(given: Path | None = None) -> Path:
    """Where data files are: the folder given, else the one `FEDWORTH_DATA` names, else fedworth's cache."""
    if given is not None:
        return given
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(pooch.os_cache("fedworth"))


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file that differs from the published one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise DataError(
            f"{path}: sha256 is {found}, expected {expected}; the file is cut short or altered: "
            "delete it, then copy it again or let fedworth fetch it"
        )


def _fetch(name: str, absent: list[str], root: Path) -> None:
    published = PUBLISHED[name]
    pooch.get_logger().setLevel(logging.ERROR)  # it would print its downloads
    try:
        if published.archive_hash is not None:
            _fetch_archive(published, absent, root)
            return
        for file in absent:
            target, expected = root / file, f"sha256:{published.files[file]}"
            pooch.retrieve(published.home + target.name, expected, fname=target.name, path=target.parent)
    except (OSError, ValueError, KeyError) as error:  # no network, no room; another sum; another archive
        raise DataError(
            f"data set {name!r}: {', '.join(absent)} not found in {root}, "
            f"and fetching from {published.home} failed ({type(error).__name__}: {error}); "
            f"set {FOLDER_VARIABLE} to a folder that holds {', '.join(published.files)}"
        ) from error


def _fetch_archive(published: Published, files: list[str], root: Path) -> None:
    """Fetch an archive, extract its files, each completely or not at all, and delete it."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=root) as folder:
        archive = pooch.retrieve(published.home, published.archive_hash, fname="archive.tar.gz", path=folder)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, [tar.getmember(file) for file in files], filter="data")
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / file).replace(root / file)
