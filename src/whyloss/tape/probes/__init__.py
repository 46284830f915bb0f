"""Small experiments on one recorded step: one file a probe, each told by its name and its `probe(bench)`."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from whyloss.core.probe import Probe
from whyloss.tape.edit import Refused
from whyloss.tape.probes import (
    alignment,
    batch_independence,
    causality,
    derivative,
    hand_written,
    input_independence,
    memory,
    padding,
)
from whyloss.tape.probes.bench import Bench, NotMade

MODULES = (derivative, alignment, causality, batch_independence, padding, hand_written, input_independence, memory)
PROBES: Mapping[str, Callable[[Bench], Iterable[Probe]]] = {module.NAME: module.probe for module in MODULES}


def make(bench: Bench, names: Iterable[str]) -> Iterator[Probe]:
    """Makes these experiments, or says of one why it was not made. Never raises."""
    for name in names:
        began = time.perf_counter()
        try:
            found = list(PROBES[name](bench))
        except (NotMade, Refused) as error:
            found = [_not_made(bench, name, str(error))]
        except Exception as error:  # noqa: BLE001 - whatever the program's own functions raise on other data
            found = [_not_made(bench, name, f"it failed: {type(error).__name__}: {str(error)[:200]}")]
        seconds = time.perf_counter() - began
        yield from (replace(probe, seconds=seconds) for probe in found)


def _not_made(bench: Bench, name: str, reason: str) -> Probe:
    return Probe(name=name, trace=bench.tape.trace, step=bench.tape.step, reason=reason)
