"""Clients that only follow the server or the others are found at any length and noise; honest ones are not."""

from dataclasses import replace

import pytest
import torch

from fedworth.findings import FOLLOWER, look
from fedworth.ledger.writer import Answer
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate

SETTINGS = SimulationSettings(
    n_clients=8, n_participants=8, n_rounds=8, partition="iid", batch_size=32, model="mlp", hidden=(32,), rate=0.1,
    n_steps=10, with_truth=False, seed=1000,
)  # fmt: skip


def unit_noise(like, rng):
    drawn = {name: torch.randn(tensor.shape, generator=rng) for name, tensor in like.items()}
    length = sum(float((t**2).sum()) for t in drawn.values()) ** 0.5
    return {name: tensor / length for name, tensor in drawn.items()}


class Follower:
    """Client 0 sends `factor` times the server's last step, or the others' mean, with noise of `share` its length."""

    def __init__(self, factor=1.0, share=0.1, of_mean=False):
        self.factor, self.share, self.of_mean = factor, share, of_mean
        self.before, self.rng = None, torch.Generator().manual_seed(0)

    def __call__(self, _round_index, start, answers):
        others = [answer.model for name, answer in answers.items() if name != "0"]
        if self.of_mean:
            step = {name: torch.stack([m[name] for m in others]).mean(0) - start[name] for name in start}
        else:
            step = {name: start[name] - (start if self.before is None else self.before)[name] for name in start}
        length = sum(float((t**2).sum()) for t in step.values()) ** 0.5 or 0.01
        noise = unit_noise(start, self.rng)
        sent = {name: start[name] + self.factor * (step[name] + self.share * length * noise[name]) for name in start}
        self.before = start
        return {**answers, "0": Answer(sent, answers["0"].n_samples)}


def followers(ledger):
    return {name: found for found in look(ledger)[0] if found.kind is FOLLOWER for name in found.clients}


@pytest.mark.parametrize(
    "act",
    [Follower(), Follower(3.0), Follower(1.0, 1.0), Follower(3.0, 0.3), Follower(of_mean=True)],
    ids=["last", "long", "noisy", "long and noisy", "mean"],
)
def test_a_follower_is_found_at_any_length_and_under_noise(act, tmp_path):
    found = followers(simulate(SETTINGS, tmp_path / "l", misconduct=act))
    assert set(found) == {"0"}
    assert found["0"].confidence > 0.95
    assert found["0"].evidence["own"] < 0.1 * found["0"].evidence["usual"]
    assert "nothing of its own" in found["0"].sentence


def test_a_client_that_sends_no_update_hides_no_follower(tmp_path):
    follow = Follower(3.0)

    def act(round_index, start, answers):
        return {**follow(round_index, start, answers), "7": Answer(dict(start), answers["7"].n_samples)}

    ledger = simulate(SETTINGS, tmp_path / "l", misconduct=act)
    assert set(followers(ledger)) == {"0"}
    assert FOLLOWER in look(ledger)[1]


def halved(_round_index, start, answers):
    """Client 0 trains, and sends half of its update and half of another's."""
    mixed = {name: (answers["0"].model[name] + answers["1"].model[name]) / 2 for name in start}
    return {**answers, "0": Answer(mixed, answers["0"].n_samples)}


def longer(_round_index, start, answers):
    """Client 0 trains, sends its update four times as long, and so decides the average that it is compared with."""
    sent = {name: start[name] + 4 * (tensor - start[name]) for name, tensor in answers["0"].model.items()}
    return {**answers, "0": Answer(sent, answers["0"].n_samples)}


@pytest.mark.parametrize("misconduct", [None, halved, longer], ids=["clean", "half its own", "longer"])
def test_a_client_with_a_part_of_its_own_is_not_called_a_follower(misconduct, tmp_path):
    settings = replace(SETTINGS, partition="dirichlet", alpha=0.5) if misconduct is longer else SETTINGS
    assert followers(simulate(settings, tmp_path / "l", misconduct=misconduct)) == {}
