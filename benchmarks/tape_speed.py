"""How long a training on a tape takes over the user's own loop, on the same model, batch and optimizer.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/tape_speed.py [--steps 300] [--rounds 7]

Both are run in turn, from the same start, and the ratio is taken within each round; the table gives its median and
range. Times are CPU time of the process, so that other programs count little; run it with one thread. The preparation
of the tape is part of its time, recording and proving it are not. Writes benchmarks/results/tape_speed.json.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyloss.tape.recording import recording
from whyloss.tape.tape import Tape
from whyloss.tape.train import train

RESULTS = Path(__file__).parent / "results" / "tape_speed.json"
BAR = 1.3


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 5)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.embed(x)).mean(1))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


CASES: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], Tensor], float]] = {
    "transformer": (
        "embedding + 2 encoder layers + head, 8 x 12",
        Transformer,
        lambda: torch.randint(50, (8, 12)),
        1e-3,
    ),
    "mlp": ("MLP 20-32-32-5, batch 8", mlp, lambda: torch.randn(8, 20), 1e-2),
    "cnn": ("CNN 16-16 with batch norm, 8 x 12 x 12", cnn, lambda: torch.randn(8, 3, 12, 12), 1e-2),
}


def own_loop(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> float:
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def recorded(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tape:
    with recording(model, optimizer) as step:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return step.tape()


def measure(name: str, steps: int, rounds: int) -> dict[str, object]:
    title, build, data, rate = CASES[name]
    torch.manual_seed(0)
    model, x, y = build(), data(), torch.randint(5, (8,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    start = copy.deepcopy(model.state_dict())
    tape = recorded(model, optimizer, x, y)
    model.load_state_dict(start)
    own, ours = [], []
    last = final = 0.0
    for turn in range(rounds + 1):
        model.load_state_dict(start)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        began = time.process_time()
        last = own_loop(model, optimizer, x, y, steps)
        middle = time.process_time()
        final = train(tape, steps).losses[-1]
        if turn:  # the first round warms up
            own.append(middle - began)
            ours.append(time.process_time() - middle)
    ratios = [b / a for a, b in zip(own, ours, strict=True)]
    return {
        "model": title,
        "ops": len(tape.ops),
        "own_ms_per_step": round(statistics.median(own) / steps * 1e3, 3),
        "tape_ms_per_step": round(statistics.median(ours) / steps * 1e3, 3),
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "own_loss": last,
        "tape_loss": final,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    figures = {name: measure(name, options.steps, options.rounds) for name in CASES}
    print(f"{'model':<48}{'ops':>5}{'own ms':>9}{'tape ms':>9}{'ratio':>7}{'range':>14}{'loss':>10}{'tape':>10}")
    for f in figures.values():
        spread = f"{f['lowest']}-{f['highest']}"
        times = f"{f['own_ms_per_step']:>9}{f['tape_ms_per_step']:>9}{f['ratio']:>7}{spread:>14}"
        print(f"{f['model']:<48}{f['ops']:>5}{times}{f['own_loss']:>10.5f}{f['tape_loss']:>10.5f}")
    about = {"torch": torch.__version__, "machine": platform.machine(), "threads": os.environ.get("OMP_NUM_THREADS")}
    result = {"steps": options.steps, "rounds": options.rounds, "bar": BAR, **about, "cases": figures}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
