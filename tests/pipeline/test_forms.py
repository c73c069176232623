"""Every form of inputs and of `exchanged` goes through report, watch, verify, live values, Ray."""

import pytest
import torch
from torch import nn

import fedworth
from fedworth.ledger.ledger import Ledger, Model
from fedworth.pipeline.run import update
from fedworth.recording.recorder import LiveRecorder, record_into
from fedworth.task.task import Task
from fedworth.valuation.settings import ValuationSettings

NAMES, N = ("a", "b", "c"), 24


class Three(nn.Module):
    """A frozen part, and two that the federation exchanges; one input alone, or two by place or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head_left, self.head_right = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        right = left[:, :2] if right is None else right
        return {"logits": self.head_left(torch.tanh(self.base(left))) + self.head_right(right)}


MODULE = Three()
HEADS = [name for name in MODULE.state_dict() if name.startswith("head")]
EXCHANGED = {
    "all": None,
    "a part of the names": "head",
    "a list": HEADS,
    "a tuple": tuple(HEADS),
    "a set": {*HEADS},
    "a dictionary": {name: name for name in HEADS},
}
LABELS = torch.arange(N) % 4


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(N, 3, generator=generator), torch.randn(N, 2, generator=generator)


def batches():
    left, right = data()
    return [(left[i : i + 8], right[i : i + 8], LABELS[i : i + 8]) for i in range(0, N, 8)]


FORMS = {
    "a tensor": lambda **more: Task(MODULE, data()[0], LABELS, **more),
    "a tuple": lambda **more: Task(MODULE, data(), LABELS, **more),
    "a dictionary": lambda **more: Task(MODULE, dict(zip(("left", "right"), data(), strict=True)), LABELS, **more),
    "a loader": lambda **more: Task.from_loader(MODULE, batches(), **more),
    "a loader of dictionaries": lambda **more: Task.from_loader(
        MODULE, [dict(zip(("left", "right", "labels"), batch, strict=True)) for batch in batches()], **more
    ),
}
CASES = [*((form, "all") for form in FORMS), *(("a dictionary", how) for how in EXCHANGED if how != "all")]


def recorded(folder, names: list[str]) -> Ledger:
    """Three clients and three rounds, in which only these tensors are sent."""
    model: Model = {name: MODULE.state_dict()[name].clone() for name in names}
    recorder = record_into(folder, aggregation="uniform")
    generator = torch.Generator().manual_seed(4)
    for number in range(3):
        answers = {
            name: {key: t + 0.2 * torch.randn(t.shape, generator=generator) for key, t in model.items()}
            for name in (NAMES if number == 0 else NAMES[:2])
        }
        recorder.start_round(model, asked=list(answers))
        for name, answer in answers.items():
            recorder.client_model(name, answer, n_samples=10)
        recorder.end_round()
        model = {key: torch.stack([answer[key] for answer in answers.values()]).mean(0) for key in model}
    recorder.close(model)
    return fedworth.Ledger.open(folder)


@pytest.mark.parametrize(("form", "exchanged"), CASES)
def test_every_form_is_reported_watched_verified_and_valued_live(form, exchanged, tmp_path):
    task = FORMS[form](exchanged=EXCHANGED[exchanged])
    ledger = recorded(tmp_path / "l", list(MODULE.state_dict()) if exchanged == "all" else HEADS)
    report = fedworth.report_on(ledger, task)
    assert not report.refusals
    assert all(line.value for line in report)
    watched = update(ledger, task, ValuationSettings(), tmp_path / "w")
    again = FORMS[form](exchanged=EXCHANGED[exchanged])  # as another process makes it
    assert update(ledger, again, ValuationSettings(), tmp_path / "w").document() == watched.document()
    assert fedworth.verify_report(watched, ledger.folder, again, path=tmp_path / "w" / "report.json")
    fedsv = report.valued_by("fedsv")
    live = LiveRecorder(fedworth.LedgerWriter.resume(ledger.folder)).values(task)
    expected = dict(zip(fedsv.clients, fedsv.values.tolist(), strict=True))
    assert live == pytest.approx(expected, abs=1e-7)  # measured again: code of one's own is not kept
    assert all(line.value for line in fedworth.report_on(ledger, task, ValuationSettings(test_samples=12)))


@pytest.mark.parametrize("form", FORMS)
def test_a_task_can_be_the_key_of_a_cache(form):
    task = FORMS[form](exchanged=HEADS)
    assert {task: "kept"}[task] == "kept"
    assert task != FORMS[form](exchanged=HEADS)


def test_what_live_values_do_not_know_is_said_and_never_ignored(tmp_path, caplog):
    """An earlier version took any completion for factors."""
    recorder = LiveRecorder(fedworth.LedgerWriter.resume(recorded(tmp_path / "l", HEADS).folder))
    task = FORMS["a tensor"](exchanged="head")
    assert recorder.values(task, completion="kernel") == {}
    assert "completion" in caplog.text
    assert recorder.values(task, method="kernel") == {}
    assert "kernel" in caplog.text
    assert recorder.values(task, method="comfedsv").keys() == {*NAMES}
