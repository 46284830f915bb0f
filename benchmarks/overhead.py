"""What observing costs: thread CPU time inside the observer over the rest of the same step, on four models.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/overhead.py [--models a,c] [--steps 30] [--quick]

docs/overhead.md says how the figures are made and what they leave out. The JSON goes to benchmarks/results/.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyloss.observe import activations
from whyloss.observe.attach import attach
from whyloss.observe.observer import Observer
from whyloss.observe.tapes import Tapes
from whyloss.tape.record import Recorder

RESULTS = Path(__file__).parent / "results" / "overhead.json"
WARM = 32  # updates before anything is measured: the first 20 are all observed, the 30th is recorded
NEVER = 10**9
TIERS = {"light": NEVER, "every step": 1, "every 10": 10, "every 100": 100}
BARS = {
    ("c", "light"): 0.005,
    ("c", "every step"): 0.04,
    ("c", "every 10"): 0.005,
    ("a", "every 10"): 0.02,
}
RECORDED_BARS = {"c": (3.0, 2.0)}
HOLDING_BARS = {"c": 0.002}
HOLDING = {
    Tapes: ("_call_begins", "_call_ends", "backward_begins", "update_begins", "before_update", "updated"),
    Recorder: ("guarded",),
}  # what holds the current step in case it turns non-finite
READS = {"cpu", "item", "tolist", "__bool__", "__float__", "__int__"}  # each brings values from a device to the host


# -- the four models


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 1024, length: int = 128, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.flatten(0, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after, pool in ((3, 32, False), (32, 32, True), (32, 64, False), (64, 64, True), (64, 128, True)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def many_small() -> nn.Module:
    layers = [nn.Linear(64, 64, bias=False) for _ in range(200)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)  # the default would shrink the signal to nothing over 200 layers
    return nn.Sequential(*layers)


Batch = tuple[Tensor, Tensor]
MODELS: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], Batch]]] = {
    "a": ("MLP 784-512-512-10, batch 128", mlp, lambda: (torch.randn(128, 784), torch.randint(10, (128,)))),
    "b": ("CNN 32x32, batch 64", cnn, lambda: (torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))),
    "c": ("GPT 4 x 256, 8 x 128 tokens", GPT, lambda: (torch.randint(1024, (8, 128)), torch.randint(1024, (1024,)))),
    "d": ("200 x Linear(64, 64), batch 128", many_small, lambda: (torch.randn(128, 64), torch.randint(64, (128,)))),
}


# -- measuring


class Counting(TorchFunctionMode):
    """Counts the calls of torch functions by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class Meter:
    """Adds up the thread CPU time within some functions, less what reading the clock takes itself."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.entries = 0
        self.counting: Counting | None = None
        self._inside = False
        began = time.thread_time()
        empty = self.timed(lambda: None)
        for _ in range(20_000):
            empty()
        self.entry_seconds = (time.thread_time() - began) / self.entries  # what timing adds to a step, an entry
        self.bias = self.spent / self.entries  # and how much of that is taken for the observer's

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if self._inside:
                return original(*args)
            if self.counting is not None:
                with self.counting:
                    return original(*args)
            self._inside = True
            began = time.thread_time()
            try:
                return original(*args)
            finally:
                self.spent += time.thread_time() - began
                self.entries += 1
                self._inside = False

        return wrapped

    def measure(self, step: Callable[[], None]) -> tuple[float, float]:
        """Thread CPU seconds of the observer within a step, and of the rest of it."""
        spent, entries = self.spent, self.entries
        began = time.thread_time()
        step()
        total = time.thread_time() - began
        entries = self.entries - entries
        observer = self.spent - spent - entries * self.bias
        return observer, total - entries * self.entry_seconds - observer


@contextmanager
def metered() -> Iterator[Meter]:
    """Times every way into the observer: `Observer.see`, and the hooks that run within the forward pass."""
    meter = Meter()
    see, hook = Observer.see, activations.Hook.__call__
    timed_see, timed_hook = meter.timed(see), meter.timed(hook)

    Observer.see = lambda self, *args: timed_see(self, *args)  # type: ignore[method-assign]
    activations.Hook.__call__ = lambda self, *args: timed_hook(self, *args)  # type: ignore[method-assign]
    try:
        yield meter
    finally:
        Observer.see, activations.Hook.__call__ = see, hook  # type: ignore[method-assign]


@contextmanager
def metered_holding() -> Iterator[Meter]:
    """Times what holds the current step, and what logs the calls between the model and backward."""
    meter, before = Meter(), []
    for owner, names in HOLDING.items():
        for name in names:
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, meter.timed(before[-1][2]))
    try:
        yield meter
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


class Training:
    """A model that is observed, after its first WARM updates."""

    def __init__(self, name: str, every: int, folder: Path, meter: Meter) -> None:
        torch.manual_seed(0)
        _, make, self.batch = MODELS[name]
        self.model, self.meter = make(), meter
        self.observation = attach(folder, every=every)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.observer: Observer = self.observation._observer
        for _ in range(WARM):
            self.step()

    def step(self) -> tuple[float, float]:
        """Seconds of the observer and of the rest."""
        x, y = self.batch()

        def update() -> None:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            torch.autograd.backward(loss)
            self.optimizer.step()

        return self.meter.measure(update)

    def share(self, steps: int) -> float:
        """The observer's time over the rest's, of so many steps together."""
        both = [self.step() for _ in range(steps)]
        return sum(observer for observer, _ in both) / sum(rest for _, rest in both)

    def count(self) -> Counter[str]:
        """The torch functions that the observer calls in one observed step."""
        self.meter.counting = Counting()
        self.step()
        calls, self.meter.counting = self.meter.counting.calls, None
        return calls

    def against_bare(self, pairs: int) -> float:
        """Process CPU time of observed steps over that of steps that the observer sleeps through, in turn."""
        (watch,) = self.observer.watches.values()
        assert watch.sketch is not None
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for i in range(2 * pairs):
            self.observer.active = i % 2 == 0
            (watch.sketch.arm if self.observer.active else watch.sketch.disarm)()
            began = time.process_time()
            self.step()
            seconds[self.observer.active].append(time.process_time() - began)
        self.observer.active = True
        return statistics.median(seconds[True]) / statistics.median(seconds[False])


@dataclass(frozen=True)
class Share:
    """The observer's share of a step without it: median and extremes over `periods` of so many steps each."""

    model: str
    tier: str
    median: float
    low: float
    high: float
    periods: int
    bar: float | None


@dataclass(frozen=True)
class Facts:
    """What was measured once a model. `torch_calls` and what follows are of one observed step."""

    model: str
    name: str
    tensors: int
    parameters: int
    step_seconds: float
    against_bare: float
    torch_calls: int
    foreach_calls: int
    transfers: int
    suspects: int  # modules of which all examples are looked at, since some units seem dead


def measure(model: str, tier: str, steps: int) -> tuple[Share, Facts | None]:
    every = TIERS[tier]
    width = every if every < NEVER else 1
    periods = max(3, steps // 10) if width == 10 else 1 if width == 100 else steps
    with tempfile.TemporaryDirectory() as folder, metered() as meter:
        training = Training(model, every, Path(folder) / "run", meter)
        shares = [training.share(width) for _ in range(periods)]
        facts = facts_of(model, training, steps) if tier == "every step" else None
        assert training.observation.active, training.observer.failure
        training.observation.close()
    bar = BARS.get((model, tier))
    return Share(model, tier, statistics.median(shares), min(shares), max(shares), periods, bar), facts


def facts_of(model: str, training: Training, steps: int) -> Facts:
    (watch,) = training.observer.watches.values()
    assert watch.sketch is not None
    calls = training.count()
    parameters = list(training.model.parameters())
    return Facts(
        model=model,
        name=MODELS[model][0],
        tensors=len(parameters),
        parameters=sum(p.numel() for p in parameters),
        step_seconds=statistics.median(training.step()[1] for _ in range(steps)),
        against_bare=training.against_bare(steps),
        torch_calls=sum(n for name, n in calls.items() if name != "__get__"),
        foreach_calls=sum(n for name, n in calls.items() if name.startswith("_foreach")),
        transfers=sum(calls[name] for name in READS),
        suspects=len(watch.sketch.suspects()),
    )


def holding(model: str, steps: int) -> Share:
    """What it costs a step to be held in case it turns non-finite."""
    with tempfile.TemporaryDirectory() as folder, metered_holding() as meter:
        training = Training(model, NEVER, Path(folder) / "run", meter)
        shares = [training.share(1) for _ in range(steps)]
        training.observation.close()
    bar = HOLDING_BARS.get(model)
    return Share(model, "held", statistics.median(shares), min(shares), max(shares), steps, bar)


@dataclass(frozen=True)
class Recorded:
    """A step that is recorded and whose tape is proved, over a bare one: process CPU time, and peak memory beyond what
    Python and torch take."""

    model: str
    time: float
    recording: float  # the step itself and recording it
    tape: float  # making the tape and replaying it once
    memory: float
    peak_bytes: int
    bars: tuple[float, float] | None  # of time and memory


def recorded(model: str, steps: int) -> Recorded:
    def run(variant: str) -> dict[str, Any]:
        command = [sys.executable, str(Path(__file__).parent / "recorded.py"), model, variant, str(steps)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict(json.loads(out))

    idle, bare, found = run("idle"), run("bare"), run("recorded")
    recording, tape = found["recording"] / found["bare"], found["tape"] / found["bare"]
    peaks = [r["peak_bytes"] - idle["peak_bytes"] for r in (found, bare)]
    memory = peaks[0] / peaks[1] if peaks[1] > 0 else float("nan")  # small steps fit into what importing torch took
    return Recorded(model, recording + tape, recording, tape, memory, peaks[0], RECORDED_BARS.get(model))


# -- reporting


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def print_share(share: Share) -> None:
    percent = f"{share.median:8.2%} ({share.low:.2%}–{share.high:.2%})"
    verdict = ""
    if share.bar is not None:
        verdict = f"bar {share.bar:.1%}: " + ("met" if share.median <= share.bar else "MISSED")
    print(f"{share.model}  {share.tier:<11}{percent:<28}{share.periods:>4}  {verdict}", flush=True)


def print_facts(facts: Facts) -> None:
    print(
        f"   {facts.name}: {facts.tensors} tensors, {facts.parameters / 1e6:.2f} M parameters, "
        f"{facts.step_seconds * 1e3:.1f} ms a step\n"
        f"   an observed step: {facts.foreach_calls} foreach calls, {facts.transfers} transfers, "
        f"{facts.torch_calls} torch calls, {facts.suspects} suspect modules\n"
        f"   observed against bare steps, in turn: x{facts.against_bare:.3f} (noisy)",
        flush=True,
    )


def print_recorded(found: Recorded) -> None:
    verdict = ""
    if found.bars is not None:
        met = found.time <= found.bars[0] and found.memory <= found.bars[1]
        verdict = f"   bars x{found.bars[0]:.0f} and x{found.bars[1]:.0f}: " + ("met" if met else "MISSED")
    print(
        f"   a recorded step: x{found.time:.2f} of a bare one (x{found.recording:.2f} recording, x{found.tape:.2f} its "
        f"tape, replayed once), x{found.memory:.2f} of its peak memory{verdict}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="a,b,c,d", help="of a, b, c, d")
    parser.add_argument("--steps", type=int, default=30, help="measured steps of a tier (default 30)")
    parser.add_argument("--quick", action="store_true", help="9 steps, and no 'every 100'")
    chosen = parser.parse_args()
    steps = 9 if chosen.quick else chosen.steps
    torch.set_num_threads(1)
    shares, facts, tapes = [], [], []
    print(f"   {'tier':<11}  median (min–max)          periods")
    for model in chosen.models.split(","):
        for tier in [t for t in TIERS if not (chosen.quick and t == "every 100")]:
            share, more = measure(model, tier, steps)
            print_share(share)
            shares.append(share)
            facts += [more] if more else []
        shares.append(holding(model, steps))
        print_share(shares[-1])
        print_facts(facts[-1])
        tapes.append(recorded(model, max(3, steps // 3)))
        print_recorded(tapes[-1])
    RESULTS.parent.mkdir(exist_ok=True)
    found = {"machine": machine(), "shares": [asdict(s) for s in shares], "models": [asdict(f) for f in facts]}
    found["recorded"] = [asdict(t) for t in tapes]
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
