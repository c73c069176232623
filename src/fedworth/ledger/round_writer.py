"""A round being recorded: its models go to disk as they arrive, and who did what is kept until it ends."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fedworth.errors import FedworthError, LedgerError, ModelError
from fedworth.ledger.counts import Counting, checked_count
from fedworth.ledger.manifest import RoundEntry, check_names
from fedworth.ledger.model import Model, beyond_the_others, check_alike, check_finite
from fedworth.ledger.model_file import ModelFileWriter, start_model_file

T = TypeVar("T")

LONGEST_REASON = 300


@dataclass(frozen=True)
class Answer:
    """What one client sent back: its model and how many samples it was trained on.

    Args:
        model: Its tensors by name.
        n_samples: On how many samples it was trained.

    Example:
        answer = fedworth.Answer({"weight": torch.zeros(2)}, 120)
    """

    model: Model
    n_samples: float


@dataclass
class OpenRound:
    """One round between its start and its commit."""

    folder: Path
    round_index: int
    number: int
    global_model: Model
    clients: list[str]  # known before this round
    announced: list[str]  # who may be asked
    file: ModelFileWriter
    asked: list[str]  # who was; everyone announced, unless the end of the round knows better
    largest_global: float = 0.0  # value in the global model
    apart_file: ModelFileWriter | None = None
    answered: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)  # from which node a client answered
    contested: Sequence[str] = ()  # whose name a second node claimed
    largest: dict[str, float] = field(default_factory=dict)  # value of each model, of those that answered

    @property
    def where(self) -> str:
        return f"{self.folder}, round {self.round_index}"

    @property
    def joined(self) -> list[str]:
        """Who is new, in the order of being announced."""
        known = set(self.clients)
        return [name for name in dict.fromkeys([*self.announced, *self.apart]) if name not in known]

    def answer(self, name: str, answer: Answer, counting: Counting) -> None:
        """Put one client's model on disk, if it can be averaged."""
        self._expect(name)
        n_samples = checked_count(answer.n_samples, counting, f"{self.where}, client {name!r}")
        self.largest[name] = self._put(self.file, f"client/{self._position(name)}", name, answer.model)
        self.answered[name] = n_samples

    def fail(self, name: str, reason: str) -> None:
        """One client said that it could not do its part."""
        self._expect(name)
        self.failed[name] = shown(reason)

    def quarantine(self, name: str, reason: str) -> None:
        """One client's answer is not to be used."""
        self._expect(name)
        self.quarantined[name] = shown(reason.removeprefix(f"{self.where}, client {name!r}: "))

    def keep_apart(self, answers: Mapping[str, Answer]) -> None:
        """Put the models of absent clients on disk, beside the round."""
        check_names([*answers], self.where)
        if not answers:
            return
        path = self.folder / f"apart/{self.round_index:06d}.safetensors"
        self.apart_file = start_model_file(path, self.global_model, len(answers))
        for name, answer in answers.items():
            self.apart[name] = checked_count(answer.n_samples, "any", f"{self.where}, client {name!r}")
            self._put(self.apart_file, f"apart/{self._position(name)}", name, answer.model)

    def hold_against_each_other(self, *, quarantine: bool) -> None:
        """Quarantine the models that are out of all proportion to the others; their bytes stay in the file, unread."""
        for name, reason in beyond_the_others(self.largest, self.largest_global).items():
            if not quarantine:
                raise ModelError(f"{self.where}, client {name!r}: {reason}")
            position = self._position(name)
            self.file.rename(f"client/{position}/", f"quarantined/{position}/")
            del self.answered[name]
            self.quarantined[name] = shown(reason)

    def finish(self, participants: Sequence[str] | None, notes: Sequence[str]) -> RoundEntry:
        """Flush the files and say what the manifest is to hold."""
        taking_part = [*self.answered] if participants is None else participants
        taking_part = [name for name in taking_part if name not in self.quarantined]
        stem = f"{self.round_index:06d}.safetensors"
        return RoundEntry(
            round_index=self.round_index,
            number=self.number,
            file=f"rounds/{stem}",
            sha256=self.file.finish(),
            apart_file=f"apart/{stem}" if self.apart_file else None,
            apart_sha256=self.apart_file.finish() if self.apart_file else None,
            joined=tuple(self.joined),
            asked=self._positions(self.asked),
            answered=self._positions(self.answered),
            participants=self._positions(taking_part),
            sample_counts=self._said(self.answered),
            failed=self._positions(self.failed),
            failure_reasons=self._said(self.failed),
            quarantined=self._positions(self.quarantined),
            quarantine_reasons=self._said(self.quarantined),
            apart=self._positions(self.apart),
            apart_sample_counts=self._said(self.apart),
            notes=tuple(shown(note) for note in notes),
            nodes=self._said({name: self.nodes.get(name, "") for name in self.answered}) if self.nodes else (),
            contested=self._positions({*self.contested} & {*self.asked}),
        )

    @property
    def files(self) -> list[Path]:
        """Where the round's models are once it is committed."""
        return [file.path for file in (self.file, self.apart_file) if file is not None]

    def leave(self) -> None:
        """Close the files and let them lie."""
        for file in (self.file, self.apart_file):
            if file is not None:
                file.leave()

    def abandon(self) -> None:
        """Leave nothing behind."""
        for file in (self.file, self.apart_file):
            if file is not None:
                file.abandon()

    def expects(self, name: str) -> bool:
        """Whether this client was asked and nothing is known of it yet."""
        return name in self.asked and not (name in self.answered or name in self.failed or name in self.quarantined)

    def _expect(self, name: str) -> None:
        if name not in self.asked:
            raise LedgerError(f"{self.where}: client {name!r} was not asked; name it in start_round(asked=…)")
        if not self.expects(name):
            raise LedgerError(f"{self.where}: client {name!r} is reported twice")

    def _put(self, file: ModelFileWriter, owner: str, name: str, model: Model) -> float:
        """Check a model and write it; whatever is wrong with it is the client's trouble, not the round's."""
        where = f"{self.where}, client {name!r}"
        try:
            largest = check_alike(model, self.global_model, where)
            file.add(owner, model)
        except (FedworthError, OSError):
            raise
        except Exception as error:  # a tensor may be of any kind that torch has
            raise ModelError(f"{where}: not readable as numbers ({type(error).__name__}: {error})") from error
        return largest

    def _position(self, name: str) -> int:
        try:
            return [*self.clients, *self.joined].index(name)
        except ValueError:
            raise LedgerError(f"{self.where}: client {name!r} was not asked") from None

    def _positions(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(sorted(self._position(name) for name in names))

    def _said(self, said: Mapping[str, T]) -> tuple[T, ...]:
        """What was said, in the order of the clients' positions."""
        return tuple(said[name] for name in sorted(said, key=self._position))


def open_round(
    folder: Path, round_index: int, number: int, global_model: Model, clients: list[str], asked: Sequence[str]
) -> OpenRound:
    """Begin a round: its global model goes to disk."""
    where = f"{folder}, round {round_index}"
    largest = check_finite(global_model, f"{where}, global model")
    names = list(dict.fromkeys(asked))
    check_names(names, where)
    file = start_model_file(folder / f"rounds/{round_index:06d}.safetensors", global_model, 1 + len(names))
    round_ = OpenRound(folder, round_index, number, global_model, clients, names, file, names, largest)
    try:
        file.add("global", global_model)
    except BaseException:
        file.abandon()
        raise
    return round_


def shown(reason: str) -> str:
    """A reason as one printable line of bounded length: it may come from a client."""
    line = " ".join(str(reason).split())
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return printable if len(printable) <= LONGEST_REASON else printable[: LONGEST_REASON - 1] + "…"
