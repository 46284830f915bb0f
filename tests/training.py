"""Small trainings for the tests of the observer."""

import contextlib
import itertools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from whyloss.journal import read_run
from whyloss.observe import attach


@dataclass
class Seen:
    """A run under observation; `run` is there after the block."""

    observation: object = None
    run: object = None
    said: list = field(default_factory=list)

    @property
    def trace(self):
        assert len(self.run.traces) == 1, [t.optimizer for t in self.run.traces]
        return self.run.traces[0]

    def values(self, signal, trace=0):
        series = self.run.traces[trace].signal(signal)
        return None if series is None else series.values.tolist()


@contextlib.contextmanager
def observed(folder, **options):
    """Attaches, and reads the journal at the end; fails where the observer gave up."""
    seen = Seen(observation=attach(folder / "run", **options))
    try:
        yield seen
    finally:
        failure = seen.observation._observer.failure
        seen.observation.close()
    assert failure is None, failure
    if seen.observation.folder.exists():
        seen.run = read_run(seen.observation.folder)


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def batch(n=16, features=4, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=g), torch.randint(0, classes, (n,), generator=g)


def names(order):
    return [call.what for call in order]


def train(model, optimizer, steps=3, data=None, loss=F.cross_entropy):
    """zero_grad, forward, backward, step; the losses."""
    x, y = batch() if data is None else data
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def line_of(text, file):
    """The number of the one line of a file that contains the text."""
    with open(file, encoding="utf-8") as source:
        found = [n for n, line in enumerate(source, 1) if text in line]
    assert len(found) == 1, found
    return found[0]


def stderr_lines(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line]
