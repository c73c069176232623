"""The completion by models once more, slowly and as the formulas stand: scalars, loops, one solve a prediction."""

import math
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.weighting import participation, round_weights
from fedworth.task.task import Task

A, B, R = (0.5, 0.1, 0.1, 0.03), (0.1, 0.5, 0.3, 0.1), (0.1, 0.1, 0.03, 0.01)
NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class ByHand:
    """A federation whose first round hears everyone; each prediction solves for itself."""

    def __init__(self, ledger: Ledger, task: Task, weighting: Weighting = "uniform") -> None:
        self.task, self.heard = task, participation(ledger)
        self.wandering: float = 1.0
        self.chosen: tuple[float, float] | None = None
        self.T, self.N = self.heard.shape
        self.like = ledger.open_round(0).global_model
        rounds = [ledger.open_round(t) for t in range(self.T)]
        self.w = [self.flat(r.global_model) for r in rounds]
        self.updates = {
            (t, i): self.flat(model) - self.w[t] for t, r in enumerate(rounds) for i, model in r.client_models.items()
        }
        self.weights = [round_weights(ledger, t, weighting) for t in range(self.T)]
        f = [self.logits(w) for w in self.w]
        changes = [self.logits(self.w[0] + self.updates[0, i]) - f[0] for i in range(self.N)]
        d = np.array([[((a - b) ** 2).sum() for b in changes] for a in changes])
        m = np.median([d[i, j] for i, j in combinations(range(self.N), 2)])
        self.C = np.exp(-d / (2 * 0.6**2 * m))
        e = np.array([[((a - b) ** 2).sum() for b in f] for a in f])
        m = np.median([e[t, s] for t, s in combinations(range(self.T), 2)])
        self.E = np.exp(-e / (2 * m))

    def flat(self, model):
        return np.concatenate([model[k].numpy().ravel().astype(np.float64) for k in self.like])

    def unflat(self, vector):
        model, start = {}, 0
        for name, like in self.like.items():
            part = vector[start : start + like.numel()]
            model[name] = torch.tensor(part, dtype=like.dtype).reshape(like.shape)
            start += like.numel()
        return model

    def outputs(self, vector):
        return functional_call(self.task.module.eval(), self.unflat(vector), (self.task.inputs,)).detach()

    def logits(self, vector):
        found = self.outputs(vector).double()
        return (found - found.mean(dim=1, keepdim=True)).numpy().ravel()

    def loss(self, vector):
        return float(F.cross_entropy(self.outputs(vector).double(), self.task.labels))

    def utility(self, t, answers):
        """The utility of the mean of answers {client: update}."""
        total = sum(self.weights[t][i] for i in answers)
        mean = sum(self.weights[t][i] / total * update for i, update in answers.items())
        return self.loss(self.w[t]) - self.loss(self.w[t] + mean)

    def same(self, i, j):
        return self.C[i, j] > 1 - 1e-9

    def k(self, i, t, j, s):
        found = (0.2 + 0.8 * self.C[i, j]) * (0.75 + 0.25 * self.E[t, s])
        if t == s:
            found += 0.025 + 0.04 * self.C[i, j] + (0.05 if self.same(i, j) else 0.0)
        return found

    def points(self, without=None):
        """Heard answers, one of each kind a round; without those of one kind in one round."""
        found: list[tuple[int, int]] = []
        for t, i in sorted(self.updates):
            if without and t == without[0] and self.same(i, without[1]):
                continue
            if not any(t == s and self.same(i, j) for s, j in found):
                found.append((t, i))
        return found

    def predict(self, i, t, points):
        """The update of client i in round t, and its variance."""
        known = [(s, j) for s, j in points if s == t and self.same(i, j)]
        if known:
            return self.updates[known[0]], 0.0
        K = np.array([[self.k(a[1], a[0], b[1], b[0]) for b in points] for a in points])
        near = np.array([self.k(i, t, j, s) for s, j in points])
        weights = np.linalg.solve(K, near)
        made = sum(c * self.updates[p] for c, p in zip(weights, points, strict=True))
        return made, self.k(i, t, i, t) - weights @ near

    def k_lone(self, i, t, j, s):
        near = self.wandering * math.exp(-((t - s) ** 2) / 200)
        return sum(self.C[i, j] ** p * (A[p] + B[p] * near + R[p] * (t == s)) for p in range(4))

    def lone_scale(self):
        rms = []
        for t in range(self.T):
            alone = [self.utility(t, {i: self.updates[t, i]}) for i in range(self.N) if self.heard[t, i]]
            rms.append(math.sqrt(np.mean(np.square(alone))))
        smooth = []
        for t in range(self.T):
            w = [math.exp(-0.5 * ((t - s) / 3) ** 2) for s in range(self.T)]
            smooth.append(math.exp(sum(a * math.log(b) for a, b in zip(w, rms, strict=True)) / sum(w)))
        return smooth

    def lone(self, i, t, points, noise):
        """The lone utility of client i in round t, from the points' lone utilities."""
        known = [(s, j) for s, j in points if s == t and self.same(i, j)]
        if known:
            return self.utility(t, {i: self.updates[known[0]]})
        g = self.lone_scale()
        K = np.array([[self.k_lone(a[1], a[0], b[1], b[0]) for b in points] for a in points])
        u = [self.utility(s, {j: self.updates[s, j]}) / g[s] for s, j in points]
        near = np.array([self.k_lone(i, t, j, s) for s, j in points])
        return g[t] * near @ np.linalg.solve(K + noise * np.eye(len(points)), u)

    def noise(self):
        """The noise that predicts later lone utilities best, together with how much they wander."""
        if self.chosen is None:
            errors = {}
            for self.wandering in (1.0, 0.03):
                for noise in NOISES:
                    errors[self.wandering, noise] = self.left_out_error(noise)
            self.chosen = min(errors, key=lambda choice: errors[choice])
        self.wandering, noise = self.chosen
        return noise

    def left_out_error(self, noise):
        off = []
        for t, i in self.points():
            if t > 0:
                guess = self.lone(i, t, self.points(without=(t, i)), noise)
                off.append((self.utility(t, {i: self.updates[t, i]}) - guess) / self.lone_scale()[t])
        return np.mean(np.square(off))

    def cell(self, t, members):
        """A completed utility."""
        if not members:
            return 0.0
        if all(self.heard[t, i] for i in members):
            return self.utility(t, {i: self.updates[t, i] for i in members})
        points = self.points()
        if len(members) == 1:
            return self.lone(members[0], t, points, self.noise())
        answers = {i: self.updates[t, i] if self.heard[t, i] else self.predict(i, t, points)[0] for i in members}
        return self.utility(t, answers)

    def held_out(self, t, i):
        """The errors of client i's held-out answer by coalition size, up to N, and the prediction's variance."""
        points = self.points(without=(t, i))
        made, variance = self.predict(i, t, points)
        others = [j for j in range(self.N) if self.heard[t, j] and not self.same(i, j)]
        means = []
        for k in range(len(others) + 1):
            off = []
            for rest in combinations(others, k):
                true = {j: self.updates[t, j] for j in rest}
                guess = self.utility(t, {**true, i: made}) if k else self.lone(i, t, points, self.noise())
                off.append(self.utility(t, {**true, i: self.updates[t, i]}) - guess)
            means.append(np.mean(off))
        fading = [means[-1] * len(means) / k for k in range(len(means) + 1, self.N + 1)]
        return np.array([*means, *fading]) / self.lone_scale()[t], variance
