"""Vertical federations: values of embeddings against their definition."""

import numpy as np
import pytest
import torch
from torch import nn

import fedworth
from fedworth import Federation, ValuationSettings, WorkSettings
from fedworth.errors import FedworthError, UsageError, ValuationError
from fedworth.findings import looked_for_in_values
from fedworth.task.vertical import Vertical
from tests.support.vertical import random_federation, values_by_definition

VERFEDSV_FIRST = ("verfedsv", "refitted-head")
PLAIN = WorkSettings(cache=False, n_threads=1)


@pytest.mark.parametrize("combine", ["concatenation", "sum"])
@pytest.mark.parametrize("n_clients", [2, 5, 8])
def test_values_are_those_of_the_definition(tmp_path, combine, n_clients):
    ledger, vertical, heads, sent = random_federation(tmp_path / "l", n_clients=n_clients, n_rounds=3, combine=combine)
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    expected = values_by_definition(vertical, heads, sent)
    assert np.abs(made.by_round - expected).max() < 1e-12
    assert expected[0] == pytest.approx(np.zeros(n_clients), abs=0)  # the first embeddings are where clients start
    assert made.uncertainty is not None


def test_an_absent_client_keeps_its_embeddings_and_gets_exactly_nothing(tmp_path):
    absent = {(1, 2), (0, 3)}  # client 3 is first heard in the second round: that is where it starts
    ledger, vertical, heads, sent = random_federation(tmp_path / "l", n_rounds=4, absent=absent)
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert np.abs(made.by_round - values_by_definition(vertical, heads, sent)).max() < 1e-12
    assert made.by_round is not None
    assert made.by_round[1, 2] == 0
    assert made.by_round[1, 3] == 0


def test_a_client_that_changes_nothing_is_worth_exactly_nothing(tmp_path):
    vertical = Vertical(nn.Linear(4, 2), torch.arange(40) % 2, {"a": 2, "b": 2})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    generator = torch.Generator().manual_seed(0)
    same = torch.randn(40, 2, generator=generator)
    for _ in range(4):
        recorder.start_round(vertical.head.state_dict(), asked=["a", "b"])
        recorder.client_embedding("a", torch.randn(40, 2, generator=generator))
        recorder.client_embedding("b", same)
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    made = Federation(fedworth.Ledger.open(tmp_path / "l"), vertical.task(), work=PLAIN).value("verfedsv")
    assert made.values[1] == 0
    assert made.values[0] != 0


def test_of_one_round_it_is_said_why_nothing_has_a_value(tmp_path):
    ledger, vertical, *_ = random_federation(tmp_path / "l", n_rounds=1)
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert not made.values.any()
    assert made.uncertainty is None
    assert any("nothing that clients sent changed" in note and "two rounds" in note for note in made.notes)


def test_a_client_left_out_stays_where_it_started(tmp_path):
    ledger, vertical, heads, sent = random_federation(tmp_path / "l", n_clients=3)
    made = Federation(ledger, vertical.task(), ValuationSettings(without=("client-1",)), work=PLAIN).value("verfedsv")
    for row in sent[1:]:
        row[1] = None
    expected = values_by_definition(vertical, heads, sent).sum(axis=0)
    assert made.values[[0, 2]] == pytest.approx(expected[[0, 2]], abs=1e-12)
    assert np.isnan(made.values[1])


def test_heads_may_have_no_parameters(tmp_path):
    head = nn.Identity()
    labels = torch.arange(20) % 2
    vertical = Vertical(head, labels, {"a": 2, "b": 2}, combine="sum")
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for t in range(3):
        recorder.start_round(head.state_dict(), asked=["a", "b"])
        for name, sign in (("a", 1.0), ("b", -1.0)):
            recorder.client_embedding(name, sign * t * nn.functional.one_hot(labels, 2).float().numpy())
        recorder.end_round()
    recorder.close(head.state_dict())
    ledger = fedworth.Ledger.verify(tmp_path / "l")
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert made.values[0] > 0 > made.values[1]


def test_batches_are_carried_forward(tmp_path):
    """Samples outside of a batch keep their embeddings: the same values as if all had been sent, unchanged."""
    generator, names = torch.Generator().manual_seed(1), ["a", "b"]
    vertical = Vertical(nn.Linear(4, 2).double(), torch.arange(12) % 2, dict.fromkeys(names, 2))
    whole, some = (fedworth.record_into(tmp_path / name, vertical=vertical) for name in ("whole", "some"))
    held = {name: torch.randn(12, 2, generator=generator, dtype=torch.float64) for name in names}
    for t in range(4):
        for recorder in (whole, some):
            recorder.start_round(vertical.head.state_dict(), asked=names)
        for name in names:
            batch = torch.randperm(12, generator=generator)[:5] if t else torch.arange(12)
            if t:
                held[name] = held[name].clone()
                held[name][batch] = torch.randn(5, 2, generator=generator, dtype=torch.float64)
            whole.client_embedding(name, held[name])
            some.client_embedding(name, held[name][batch], batch)
        for recorder in (whole, some):
            recorder.end_round()
    for recorder in (whole, some):
        recorder.close(vertical.head.state_dict())
    last = ValuationSettings(unsent="last")
    values = [
        Federation(fedworth.Ledger.open(tmp_path / name), vertical.task(), last, work=PLAIN).value("verfedsv").values
        for name in ("whole", "some")
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-15)


@pytest.mark.parametrize(
    ("embedding", "samples", "reason"),
    [
        (torch.zeros(20, 3), None, "expected floats of shape"),
        (torch.zeros(19, 2), None, "expected floats of shape"),
        (torch.full((20, 2), torch.nan), None, "NaN"),
        (torch.zeros(2, 2), [0, 0], "different places"),
        (torch.zeros(2, 2), [0, 20], "beyond the 20"),
        (torch.zeros(20, 2, dtype=torch.int64), None, "expected floats"),
    ],
)
def test_what_are_no_embeddings_is_quarantined(tmp_path, embedding, samples, reason):
    vertical = Vertical(nn.Linear(4, 2), torch.arange(20) % 2, {"a": 2, "b": 2})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    recorder.start_round(vertical.head.state_dict(), asked=["a", "b"])
    recorder.client_embedding("a", torch.zeros(20, 2))
    recorder.client_embedding("b", embedding, samples)
    recorder.end_round()
    recorder.release()
    (entry,) = fedworth.Ledger.verify(tmp_path / "l").entries
    assert entry.participants == (0,)
    assert reason in entry.quarantine_reasons[0]


def test_a_client_that_was_not_named_is_quarantined(tmp_path):
    vertical = Vertical(nn.Linear(4, 2), torch.arange(20) % 2, {"a": 2, "b": 2})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    recorder.start_round(vertical.head.state_dict(), asked=["a", "c"])
    recorder.client_embedding("a", torch.zeros(20, 2))
    recorder.client_embedding("c", torch.zeros(20, 2))
    recorder.end_round()
    recorder.release()
    (entry,) = fedworth.Ledger.verify(tmp_path / "l").entries
    assert "named when it starts" in entry.quarantine_reasons[0]


def test_a_task_of_another_kind_or_form_is_refused(tmp_path):
    ledger, vertical, _, _ = random_federation(tmp_path / "l", n_clients=2)
    plain = fedworth.Task(nn.Linear(2, 3), torch.zeros(30, 2), vertical.labels)
    other = Vertical(nn.Linear(5, 3), vertical.labels, {"client-0": 3, "client-1": 2})
    for task in (plain, other.task()):
        with pytest.raises(UsageError, match=str(ledger.folder)):
            Federation(ledger, task, work=PLAIN)


@pytest.mark.parametrize("settings", [{"weighting": "uniform"}, {"clip": "median"}, {"as_average": True}])
def test_options_about_averages_are_refused(tmp_path, settings):
    ledger, vertical, _, _ = random_federation(tmp_path / "l", n_clients=2)
    with pytest.raises(UsageError):
        Federation(ledger, vertical.task(), ValuationSettings(**settings), work=PLAIN)


def test_methods_about_models_are_refused(tmp_path):
    ledger, vertical, _, _ = random_federation(tmp_path / "l", n_clients=3)
    federation = Federation(ledger, vertical.task(), work=PLAIN)
    for method in ("comfedsv-models", "comfedsv", "fedsv-equal", "cosine", "retraining"):
        with pytest.raises(ValuationError, match="vertical"):
            federation.value(method)
    for method in ("leave-one-out", "banzhaf", "least-core", "large-coalitions", "tmc"):
        assert np.isfinite(federation.value(method).values).all()


def test_forms_that_cannot_be_are_refused():
    with pytest.raises(FedworthError, match="equal widths"):
        Vertical(nn.Linear(2, 2), torch.arange(4) % 2, {"a": 1, "b": 2}, combine="sum")


def test_many_clients_are_sampled(tmp_path):
    """Beyond twelve clients coalitions are drawn, with a standard error that holds the exact value."""
    ledger, vertical, _, _ = random_federation(tmp_path / "l", n_clients=14, n_rounds=2, n_samples=60)
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    gained = Federation(ledger, vertical.task(), work=PLAIN).game(1).utilities(np.ones((1, 14), dtype=bool)).sum()
    assert made.values.sum() == pytest.approx(gained, abs=1e-9)
    assert made.uncertainty is not None
    threads = WorkSettings(cache=False, n_threads=4)  # draws belong to a round, not to a thread
    assert Federation(ledger, vertical.task(), work=threads).value("verfedsv").values.tolist() == made.values.tolist()


@pytest.fixture(scope="module")
def informative(tmp_path_factory):
    """Embeddings of 400 samples: a has a signal, its twin has the same, b another one, noise has none."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(400) % 2
    noise = [torch.randn(400, 2, generator=generator, dtype=torch.float64) for _ in range(3)]
    sent = {"a": noise[0] + labels[:, None], "b": noise[1] + labels[:, None], "noise": noise[2]}
    sent["twin"] = sent["a"]
    vertical = Vertical(nn.Linear(8, 2).double(), labels, dict.fromkeys(sent, 2))
    folder = tmp_path_factory.mktemp("informative") / "l"
    recorder = fedworth.record_into(folder, vertical=vertical)
    for _ in range(2):
        recorder.start_round(vertical.head.state_dict(), asked=list(sent))
        for name, embedding in sent.items():
            recorder.client_embedding(name, embedding)
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    return fedworth.Ledger.open(folder), vertical.task()


def refitted(informative, **settings):
    ledger, task = informative
    made = Federation(ledger, task, ValuationSettings(**settings), work=PLAIN).value("refitted-head")
    return {line.client: line for line in made}, made


def test_a_refitted_head_shares_out_what_is_known_of_the_labels(informative):
    lines, made = refitted(informative)
    assert lines["a"].value == pytest.approx(lines["twin"].value, abs=1e-9)
    assert lines["b"].value > 1.5 * lines["a"].value  # nobody else has its signal
    assert abs(lines["noise"].value) < 0.01 < lines["a"].value
    assert lines["b"].low > 0
    assert made.groups is not None
    assert made.groups.values.sum(axis=1) == pytest.approx(made.values)


def of_many_numbers(folder, seed, n_samples=200, width=8):
    """A ledger of many numbers for few samples: `knows` tells something of the labels, three others tell nothing."""
    generator, labels = torch.Generator().manual_seed(seed), torch.arange(n_samples) % 2
    names = ("knows", "one", "two", "three")
    vertical = Vertical(nn.Linear(4 * width, 2).double(), labels, dict.fromkeys(names, width))
    recorder = fedworth.record_into(folder, vertical=vertical)
    for _ in range(4):
        recorder.start_round(vertical.head.state_dict(), asked=list(names))
        for name in names:
            embedding = torch.randn(n_samples, width, generator=generator, dtype=torch.float64)
            recorder.client_embedding(name, embedding + 0.2 * (name == "knows") * (2 * labels[:, None] - 1))
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    return fedworth.Ledger.open(folder), vertical.task()


def test_clients_that_tell_nothing_are_worth_nothing_within_their_intervals(tmp_path):
    """However many numbers they send: heads that fit them do worse on other samples, and this is not their value."""
    values, intervals = [], []
    for seed in range(6):
        ledger, task = of_many_numbers(tmp_path / str(seed), seed)
        made = Federation(ledger, task, work=PLAIN).value("refitted-head")
        values.append(made.values)
        intervals.append(made.intervals)
    low, high = np.array(intervals).transpose(2, 0, 1)
    useless = np.array(values)[:, 1:]
    assert (low[:, 0] > 0).all()  # the client that knows something
    assert abs(useless.mean()) < 0.01 < 0.1 * np.array(values)[:, 0].mean()
    assert ((low <= 0) & (high >= 0))[:, 1:].sum() >= 15  # of 18


def test_no_client_harms_a_head_that_is_fitted_to_it(tmp_path):
    ledger, task = of_many_numbers(tmp_path / "l", 1)
    report = fedworth.report_on(ledger, task, ValuationSettings(given=("knows",)), work=PLAIN)
    assert report.chosen.method == "refitted-head"
    assert not {"harm", "negative value"} & {finding.kind.name for finding in report.all_findings}
    assert not {"harm", "negative value"} & {kind.name for kind in looked_for_in_values(report.chosen)}


@pytest.mark.parametrize("measure", ["loss", "accuracy"])
def test_parts_of_classes_and_blocks_add_up(tmp_path, measure):
    """Some blocks have samples of one class only."""
    ledger, task = of_many_numbers(tmp_path / "l", 0, n_samples=100, width=2)
    made = Federation(ledger, task, ValuationSettings(measure=measure), work=PLAIN).value("refitted-head")
    assert made.groups is not None
    assert made.groups.values.sum(axis=1) == pytest.approx(made.values, abs=1e-12)
    assert made.block_values is not None
    assert made.block_values.sum(axis=1) == pytest.approx(made.values, abs=1e-12)
    assert made.uncertainty is not None
    assert 0 < made.uncertainty.standard_deviations.max() < 0.2


@pytest.mark.parametrize(
    ("loss", "mean", "unit"), [("squared-error", 0, 1), ("squared-error", 2000, 10), ("cox", 0, 1)]
)
def test_a_head_is_refitted_by_the_loss_of_the_task(tmp_path, loss, mean, unit):
    """Of numbers in any unit, and of times to an event, a loss of all samples together."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(150, 4, generator=generator, dtype=torch.float64)
    time = torch.exp(features[:, 0] + 0.3 * torch.randn(150, generator=generator, dtype=torch.float64))
    labels = mean + unit * time.log() if loss == "squared-error" else torch.stack([time, torch.ones(150).double()], 1)
    vertical = Vertical(nn.Linear(4, 1).double(), labels, {"knows": 2, "noise": 2}, loss=loss)
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    recorder.start_round(vertical.head.state_dict(), asked=["knows", "noise"])
    recorder.client_embedding("knows", features[:, :2])
    recorder.client_embedding("noise", features[:, 2:])
    recorder.end_round()
    recorder.close(vertical.head.state_dict())
    made = Federation(fedworth.Ledger.open(tmp_path / "l"), vertical.task(), work=PLAIN).value("refitted-head")
    assert made.intervals is not None
    assert made.intervals[0, 0] > 0.2 * unit**2
    assert made.intervals[1, 0] < 0 < made.intervals[1, 1]
    expected = {"squared-error": np.var(time.log().numpy()) * unit**2, "cox": made.values[0]}[loss]
    assert made.values[0] == pytest.approx(expected, rel=0.25)  # nearly all that there is


def test_a_constant_client_is_worth_nothing_by_accuracy_too(tmp_path):
    """A constant head is wrong in each block that was left out, if classes are balanced."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(200) % 2
    vertical = Vertical(nn.Linear(4, 2).double(), labels, {"knows": 2, "constant": 2})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    recorder.start_round(vertical.head.state_dict(), asked=["knows", "constant"])
    knows = torch.randn(200, 2, generator=generator, dtype=torch.float64) + labels[:, None]
    recorder.client_embedding("knows", knows)
    recorder.client_embedding("constant", torch.ones(200, 2).double())
    recorder.end_round()
    recorder.close(vertical.head.state_dict())
    settings = ValuationSettings(measure="accuracy")
    made = Federation(fedworth.Ledger.open(tmp_path / "l"), vertical.task(), settings, work=PLAIN).value(
        "refitted-head"
    )
    assert made.values[1] == pytest.approx(0, abs=1e-9)
    assert made.values[0] > 0.2


def test_labels_that_do_not_count_may_fill_a_block(tmp_path):
    """Maps of classes: half of the samples have no label that counts."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.randn(40, 3, generator=generator) > 0).long()
    labels[:20] = -100
    head = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))).double()
    vertical = Vertical(head, labels, {"knows": 3, "noise": 3}, loss="segmentation")
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    recorder.start_round(head.state_dict(), asked=["knows", "noise"])
    recorder.client_embedding("knows", 2.0 * labels + torch.randn(40, 3, generator=generator, dtype=torch.float64))
    recorder.client_embedding("noise", torch.randn(40, 3, generator=generator, dtype=torch.float64))
    recorder.end_round()
    recorder.close(head.state_dict())
    made = Federation(fedworth.Ledger.open(tmp_path / "l"), vertical.task(), work=PLAIN).value("refitted-head")
    assert np.isfinite(made.values).all()
    assert made.values[0] > made.values[1]


def test_far_more_numbers_than_samples_are_used_with_care(tmp_path):
    ledger, task = of_many_numbers(tmp_path / "l", 0, n_samples=20, width=16)
    made = Federation(ledger, task, work=PLAIN).value("refitted-head")
    (caution,) = made.cautions
    assert "192 numbers of 20 samples" in caution


def refitted_to(folder, labels, loss, head, measure="loss"):
    """Values of two clients, of which the first knows the labels of classes, by the refitted head."""
    generator, n = torch.Generator().manual_seed(0), len(labels)
    vertical = Vertical(head.double(), labels, {"knows": 2, "noise": 2}, loss=loss)
    recorder = fedworth.record_into(folder, vertical=vertical)
    recorder.start_round(vertical.head.state_dict(), asked=["knows", "noise"])
    knows = torch.randn(n, 2, generator=generator, dtype=torch.float64) + labels.reshape(n, -1)[:, :1]
    recorder.client_embedding("knows", knows)
    recorder.client_embedding("noise", torch.randn(n, 2, generator=generator, dtype=torch.float64))
    recorder.end_round()
    recorder.close(vertical.head.state_dict())
    settings = ValuationSettings(measure=measure)
    return Federation(fedworth.Ledger.open(folder), vertical.task(), settings, work=PLAIN).value("refitted-head")


@pytest.mark.parametrize("measure", ["loss", "auc"])
def test_a_loss_that_is_not_finite_without_some_samples_is_refused(tmp_path, measure):
    one_positive = (torch.arange(60) == 3).double()
    with pytest.raises(ValuationError, match="pairwise of a constant head is not finite"):
        refitted_to(tmp_path / "l", one_positive, "pairwise", nn.Linear(4, 1), measure)


def test_a_loss_of_probabilities_is_refused(tmp_path):
    with pytest.raises(ValuationError, match="a loss of logits instead"):
        refitted_to(
            tmp_path / "l", torch.arange(60) % 2, "probabilities", nn.Sequential(nn.Linear(4, 2), nn.Softmax(1))
        )


def test_too_many_outputs_are_refused_before_they_fill_the_memory(tmp_path):
    head = nn.Sequential(nn.Linear(4, 100_000), nn.Unflatten(1, (2, 50_000)))
    with pytest.raises(ValuationError, match="100000 outputs for each of 60 samples"):
        refitted_to(tmp_path / "l", torch.zeros(60, 50_000).long(), "segmentation", head)


def test_clients_that_tell_nothing_have_no_auc(tmp_path):
    """Heads without a block of samples share the constant of the head for all, so ranks compare over blocks."""
    generator, values = torch.Generator().manual_seed(0), []
    for seed in range(12):
        labels = (torch.rand(200, generator=generator) < 0.5).double()
        vertical = Vertical(nn.Linear(4, 1).double(), labels, {"one": 2, "two": 2}, loss="binary")
        recorder = fedworth.record_into(tmp_path / str(seed), vertical=vertical)
        recorder.start_round(vertical.head.state_dict(), asked=["one", "two"])
        for name in ("one", "two"):
            recorder.client_embedding(name, torch.randn(200, 2, generator=generator, dtype=torch.float64))
        recorder.end_round()
        recorder.close(vertical.head.state_dict())
        ledger, settings = fedworth.Ledger.open(tmp_path / str(seed)), ValuationSettings(measure="auc")
        values.append(Federation(ledger, vertical.task(), settings, work=PLAIN).value("refitted-head").values)
    assert abs(np.mean(values)) < 0.02


def test_two_samples_are_too_few_for_heads(tmp_path):
    ledger, task = of_many_numbers(tmp_path / "l", 0, n_samples=2, width=2)
    with pytest.raises(ValuationError, match="expected 5 at least"):
        Federation(ledger, task, work=PLAIN).value("refitted-head")


def test_a_client_split_in_two_keeps_its_sum(tmp_path):
    """By the refitted head: the halves know together what the whole knew, and the others know the same."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(400) % 2
    wide, other = (torch.randn(400, 4, generator=generator, dtype=torch.float64) + 0.5 * labels[:, None] for _ in "ab")
    found = {}
    for case, sent in {
        "whole": {"wide": wide, "other": other},
        "halves": {"left": wide[:, :2], "right": wide[:, 2:], "other": other},
    }.items():
        vertical = Vertical(nn.Linear(8, 2).double(), labels, {name: h.shape[1] for name, h in sent.items()})
        recorder = fedworth.record_into(tmp_path / case, vertical=vertical)
        recorder.start_round(vertical.head.state_dict(), asked=list(sent))
        for name, embedding in sent.items():
            recorder.client_embedding(name, embedding)
        recorder.end_round()
        recorder.close(vertical.head.state_dict())
        ledger = fedworth.Ledger.open(tmp_path / case)
        found[case] = Federation(ledger, vertical.task(), work=PLAIN).value("refitted-head").values
    assert found["halves"][:2].sum() == pytest.approx(found["whole"][0], rel=0.1)
    assert found["halves"][2] == pytest.approx(found["whole"][1], rel=0.1)
    assert found["halves"].min() > 0.01


def test_changes_of_embeddings_tell_what_the_last_ones_have_lost(tmp_path):
    """A client that knew something before it left it to another still knows it."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(400) % 2
    noise = [torch.randn(400, 1, generator=generator, dtype=torch.float64) for _ in range(4)]
    signal = (2.0 * labels - 1)[:, None].double()
    vertical = Vertical(nn.Linear(2, 2).double(), labels, {"party": 1, "partner": 1})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for party in (noise[0], noise[0] + signal + noise[1], noise[0]):  # learned, and then left to the partner
        recorder.start_round(vertical.head.state_dict(), asked=["party", "partner"])
        recorder.client_embedding("party", party)
        recorder.client_embedding("partner", signal + noise[1])
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    ledger, given = fedworth.Ledger.open(tmp_path / "l"), ValuationSettings(given=("party",))
    alone = Federation(ledger, vertical.task(), work=PLAIN).value("refitted-head")
    beside = Federation(ledger, vertical.task(), given, work=PLAIN).value("refitted-head")
    assert alone.values[1] > 0.1
    assert abs(beside.values[1]) < 0.01


def test_given_its_twin_a_client_adds_nothing(informative):
    lines, _ = refitted(informative, given=("a",))
    assert lines["a"].value is None
    assert abs(lines["twin"].value) < 0.01
    assert lines["b"].value > 0.1
    assert lines["b"].value == pytest.approx(refitted(informative, given=("twin",))[0]["b"].value, abs=1e-6)


def test_given_somebody_the_method_that_sees_what_they_have_comes_first(tmp_path):
    ledger, vertical, _, _ = random_federation(tmp_path / "l", n_samples=60)
    settings = ValuationSettings(given=("client-0",))
    report = fedworth.report_on(ledger, vertical.task(), settings, work=PLAIN)
    assert [made.method for made in report.valuations] == ["refitted-head", "verfedsv", "leave-one-out"]
    (caution,) = report.chosen.cautions
    assert "one training cannot always tell" in caution
    asked = fedworth.report_on(ledger, vertical.task(), settings, methods=["verfedsv"], work=PLAIN)
    (caution,) = (caution for caution in asked.chosen.cautions if "refitted-head sees it" in caution)
    assert caution in asked.chosen.notes


@pytest.fixture(scope="module")
def contradicted(tmp_path_factory):
    """`late` learns the labels while it is recorded; `early` knew them better before, and learns little more."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(400) % 2
    signal = (2.0 * labels - 1)[:, None].double()
    strengths = {"early": (2.0, 0.01), "late": (0.0, 0.5), "other": (0.0, 0.1)}  # at first, and more in every round
    head = nn.Linear(3, 2).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(2, 3))
    vertical = Vertical(head, labels, dict.fromkeys(strengths, 1))
    folder = tmp_path_factory.mktemp("contradicted") / "l"
    recorder = fedworth.record_into(folder, vertical=vertical)
    for t in range(4):
        recorder.start_round(vertical.head.state_dict(), asked=list(strengths))
        for name, (first, more) in strengths.items():
            noise = torch.randn(400, 1, generator=generator, dtype=torch.float64)
            recorder.client_embedding(name, (first + t * more) * signal + noise)
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    return fedworth.Ledger.open(folder), vertical.task()


def test_an_order_that_the_refitted_head_contradicts_is_not_good_to_use(contradicted, tmp_path):
    ledger, task = contradicted
    report = fedworth.report_on(ledger, task, methods=VERFEDSV_FIRST, work=PLAIN)
    assert max(report).client == "late"
    assert max(report.valued_by("refitted-head")).client == "early"
    assert len(report.chosen.cautions) == 1
    assert any("by refitted-head the order differs: early has rank 1" in note for note in report.all_notes)
    for page in (report.page_html(), report.statement_html("other")):
        assert "Use with care" in page
        assert "Good to use" not in page
    assert "orders the clients differently" in report.page_html()
    paid = report.rewards("100")
    assert any("use with care" in note for note in paid.notes)
    report.write(tmp_path)
    assert "orders the clients differently" in (tmp_path / "report.md").read_text()
    assert fedworth.Report.read(tmp_path) == report


def test_an_order_that_the_refitted_head_confirms_is_not_disputed(contradicted):
    ledger, task = contradicted
    settings = ValuationSettings(without=("early",))
    report = fedworth.report_on(ledger, task, settings, methods=VERFEDSV_FIRST, work=PLAIN)
    (caution,) = report.chosen.cautions
    assert "the head was trained with early" in caution


def test_embeddings_out_of_scale_are_named_with_what_can_be_done(contradicted, tmp_path):
    """A client that sends the first ones too large is paid for its return to usual ones."""
    _, task = contradicted
    vertical = Vertical(nn.Linear(3, 2).double(), task.labels, dict.fromkeys(("early", "late", "other"), 1))
    generator = torch.Generator().manual_seed(0)
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for t in range(4):
        recorder.start_round(vertical.head.state_dict(), asked=list(vertical.clients))
        for name in vertical.clients:
            embedding = torch.randn(400, 1, generator=generator, dtype=torch.float64)
            recorder.client_embedding(name, embedding * (1e6 if (name, t) == ("late", 2) else 1))
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    report = fedworth.report_on(
        fedworth.Ledger.open(tmp_path / "l"), vertical.task(), methods=VERFEDSV_FIRST, work=PLAIN
    )
    (note,) = (caution for caution in report.chosen.cautions if "scale" in caution)
    assert "with the new embeddings of late alone" in note
    assert "--method refitted-head" in note


def test_one_client_is_judged_by_its_range(informative):
    ledger, task = informative
    settings = ValuationSettings(without=("b", "noise", "twin"))
    page = fedworth.report_on(ledger, task, settings, methods=["refitted-head"], work=PLAIN).page_html()
    assert "Judge the value by its range." in page
    assert "Do not use" not in page


def test_a_page_made_while_the_federation_trains_says_so_at_the_top(tmp_path):
    vertical = Vertical(nn.Linear(4, 2), torch.arange(20) % 2, {"a": 2, "b": 2})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for number in range(3):
        recorder.start_round(vertical.head.state_dict(), asked=["a", "b"])
        for name in "ab":
            recorder.client_embedding(name, torch.full((20, 2), float(number)) * (torch.arange(20) % 2)[:, None])
        recorder.end_round()
    report = fedworth.report_on(fedworth.Ledger.open(tmp_path / "l"), vertical.task(), work=PLAIN)
    recorder.release()
    for page in (report.page_html(), report.statement_html("a")):
        assert "The federation is still training: values change" in page
        assert "Good to use" not in page


def test_a_refitted_head_needs_derivatives(informative):
    ledger, _ = informative
    vertical = Vertical(nn.Linear(8, 2).double(), torch.arange(400) % 2, dict.fromkeys(ledger.clients, 2), loss=error)
    with pytest.raises(ValuationError, match="derivatives"):
        Federation(ledger, vertical.task(), work=PLAIN).value("refitted-head")


def error(outputs, labels):
    """The share of wrong labels."""
    return (outputs.argmax(dim=1) != labels).double()


def test_a_stopped_recorder_goes_on_with_the_same_form_only(tmp_path):
    vertical = Vertical(nn.Linear(4, 2), torch.arange(20) % 2, {"a": 2, "b": 2})
    for number in range(2):
        recorder = fedworth.record_into(tmp_path / "l", vertical=vertical, resume=number > 0)
        recorder.start_round(vertical.head.state_dict(), asked=["a", "b"])
        recorder.client_embedding("a", torch.full((20, 2), float(number)))
        recorder.end_round()
        recorder.release()
    assert fedworth.Ledger.verify(tmp_path / "l").n_rounds == 2
    other = Vertical(nn.Linear(6, 2), torch.arange(20) % 2, {"a": 3, "b": 3})
    with pytest.raises(FedworthError, match="name another folder"):
        fedworth.record_into(tmp_path / "l", vertical=other, resume=True)
    with pytest.raises(UsageError, match="vertical federation of"):
        fedworth.record_into(tmp_path / "new", ["a", "c"], vertical=vertical)


def recorded_steps(folder, steps):
    """A ledger of 200 samples: `steps[name]` are what each round adds to a client's noise, in the labels' direction."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(200) % 2
    signal, noise = (2.0 * labels - 1)[:, None].double(), {}
    for name in steps:
        noise[name] = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    head = nn.Linear(len(steps), 2).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(2, len(steps)))
    vertical = Vertical(head, labels, dict.fromkeys(steps, 1))
    recorder = fedworth.record_into(folder, vertical=vertical)
    for t in range(max(map(len, steps.values()))):
        names = [name for name, more in steps.items() if t < len(more)]
        recorder.start_round(vertical.head.state_dict(), asked=names)
        for name in names:
            recorder.client_embedding(name, steps[name][t] * signal + noise[name])
        recorder.end_round()
    recorder.close(vertical.head.state_dict())
    return fedworth.Ledger.open(folder), vertical


def test_steps_that_cancel_are_used_with_care_and_are_no_harm(tmp_path):
    """Of small batches, or of a client that sends bad embeddings in between."""
    there_and_back = [-1.0 + 2 * (t % 2) for t in range(8)] + [-2.0]
    ledger, vertical = recorded_steps(
        tmp_path / "l", {"learns": [0.1 * t for t in range(9)], "returns": there_and_back}
    )
    report = fedworth.report_on(ledger, vertical.task(), methods=VERFEDSV_FIRST, work=PLAIN)
    (caution,) = (caution for caution in report.chosen.cautions if "cancel" in caution)
    assert "returns most of all" in caution
    assert report.chosen.intervals is not None
    assert report.chosen.intervals[1, 1] < 0
    assert "harm" not in {finding.kind.name for finding in report.all_findings}
    assert "Use with care" in report.page_html()
    assert "no sign that what the client knows does harm" in report.statement_html("returns")
    assert "The coordinator’s report says why." in report.statement_html("returns")
    assert "The coordinator’s report says why." not in report.page_html()


def test_who_is_paid_for_a_bad_start_is_disputed_by_the_refitted_head(tmp_path):
    """First embeddings have no value, so the way back from bad ones has one; the refitted head is not moved by it."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(200) % 2
    tells = {"much": 1.0, "little": 0.3}
    noise = {name: torch.randn(200, generator=generator, dtype=torch.float64) for name in tells}
    head = nn.Linear(2, 2).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(2, 2))
    vertical = Vertical(head, labels, dict.fromkeys(tells, 1))
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for t in range(6):
        recorder.start_round(head.state_dict(), asked=list(tells))
        for name, strength in tells.items():
            scale = -3.0 if (name, t) == ("little", 0) else 0.1 * t
            recorder.client_embedding(name, scale * (strength * (2 * labels - 1) + noise[name])[:, None])
        recorder.end_round()
    recorder.close(head.state_dict())
    report = fedworth.report_on(
        fedworth.Ledger.open(tmp_path / "l"), vertical.task(), methods=VERFEDSV_FIRST, work=PLAIN
    )
    assert max(report).client == "little"
    assert max(report.valued_by("refitted-head")).client == "much"
    assert any("orders the clients differently" in caution for caution in report.chosen.cautions)


def test_values_that_add_up_to_less_than_nothing_are_used_with_care(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"a": [1.0, 0.9, 0.8, 0.7], "b": [0.1, 0.2, 0.3, 0.25]})
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    (caution,) = made.cautions
    assert caution.startswith("all values together are -0.")


def test_steps_in_one_direction_do_not_cancel(tmp_path):
    ledger, vertical = recorded_steps(
        tmp_path / "l", {"a": [0.1 * t for t in range(9)], "b": [0.2 * t for t in range(9)]}
    )
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert made.cautions == ()


def test_a_client_that_answered_once_is_said_to_have_nothing_to_value(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"learns": [0, 0.5, 1], "once": [2.0], "frozen": [1.0, 1.0, 1.0]})
    report = fedworth.report_on(ledger, vertical.task(), methods=VERFEDSV_FIRST, work=PLAIN)
    assert report["once"].value == report["frozen"].value == 0
    (caution,) = (caution for caution in report.chosen.cautions if "worth 0 by VerFedSV" in caution)
    assert caution.startswith("nothing that once and frozen sent changed what is measured")


def test_labels_in_another_order_are_refused(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"a": [0.0, 1.0], "b": [0.0, 0.5]})
    shuffled = Vertical(vertical.head, vertical.labels.flip(0), {"a": 1, "b": 1})
    with pytest.raises(UsageError, match="or in another order; give the task the same labels"):
        Federation(ledger, shuffled.task(), work=PLAIN)
    as_floats = Vertical(vertical.head, vertical.labels.to(torch.int32).long(), {"a": 1, "b": 1})
    assert Federation(ledger, as_floats.task(), work=PLAIN).value("verfedsv")["a"].value


def test_other_clients_are_refused(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"a": [0.0, 1.0], "b": [0.0, 0.5]})
    with pytest.raises(UsageError, match="widths 'b' 1, 'a' 1"):
        Federation(ledger, Vertical(vertical.head, vertical.labels, {"b": 1, "a": 1}).task(), work=PLAIN)


def test_rounds_with_everyone_are_nothing_special_where_nobody_is_missing(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"a": [0.0, 1.0], "b": [0.0, 0.5]})
    with pytest.raises(ValuationError, match="use refitted-head or verfedsv"):
        Federation(ledger, vertical.task(), work=PLAIN).value("all-clients-round")


def test_values_after_a_round_are_given_without_naming_a_method(tmp_path):
    vertical = Vertical(nn.Linear(2, 2).double(), torch.arange(60) % 2, {"a": 1, "b": 1})
    recorder = fedworth.record_into(tmp_path / "l", vertical=vertical)
    for t in range(2):
        recorder.start_round(vertical.head.state_dict(), asked=["a", "b"])
        for name in ("a", "b"):
            recorder.client_embedding(name, t * (torch.arange(60) % 2).double()[:, None])
        recorder.end_round()
    assert set(recorder.values(vertical.task())) == {"a", "b"}
    recorder.release()
    ledger = fedworth.Ledger.open(tmp_path / "l")
    assert Federation(ledger, vertical.task(), work=PLAIN).value().method == "refitted-head"


def test_without_the_refitted_head_values_are_used_with_care(informative):
    ledger, _ = informative
    vertical = Vertical(nn.Linear(8, 2).double(), torch.arange(400) % 2, dict.fromkeys(ledger.clients, 2), loss=error)
    report = fedworth.report_on(ledger, vertical.task(), work=PLAIN)
    assert report.chosen.method == "verfedsv"
    assert any("nothing checks these values" in caution for caution in report.chosen.cautions)
    assert "Use with care" in report.page_html()


def test_steps_that_cancel_to_nothing_have_a_readable_number(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"a": [0.0, 1.0, 0.0], "b": [0.0, 1.0, 0.0]})
    made = Federation(ledger, vertical.task(), work=PLAIN).value("verfedsv")
    assert any("over 100 times as much" in caution for caution in made.cautions)


@pytest.mark.parametrize(
    "labels", [torch.arange(20.0)[:, None] % 2, (torch.arange(20) % 2).bool(), torch.arange(20) % 2]
)
def test_equal_labels_of_another_type_or_shape_are_the_same(labels):
    like = Vertical(nn.Linear(2, 1), torch.arange(20.0) % 2, {"a": 1, "b": 1}, loss="binary")
    assert Vertical(nn.Linear(2, 1), labels, {"a": 1, "b": 1}, loss="binary").form == like.form


def test_labels_that_are_no_tensor_are_refused():
    with pytest.raises(UsageError, match="labels: found a list, expected a tensor"):
        Vertical(nn.Linear(2, 1), [0, 1], {"a": 1, "b": 1})  # type: ignore[arg-type]


def test_a_report_by_another_method_knows_that_it_is_vertical(tmp_path):
    ledger, vertical = recorded_steps(tmp_path / "l", {"a": [0.0, 1.0], "b": [0.0, 0.5]})
    page = fedworth.report_on(ledger, vertical.task(), methods=["leave-one-out"], work=PLAIN).page_html()
    assert "the server averages them" not in page
