"""optimizer-missing-parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.initialisation import untrained
from whyloss.core.reach import Tensors, listed, norm_at, outside, values
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run, sample_tensors
from whyloss.core.series import ABSENT
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class OptimizerMissingParameters(Rule):
    """The loss reaches trainable parameters that no optimizer holds: they get gradients and stay as they are.

    ## What it detects
    Tensors with requires_grad, a gradient above 0 at `updates` updates and more, in no optimizer that steps, and with a
    norm that never changed.
    ## Why it matters
    They keep their random start. The rest learns on top of it, so the loss may fall and hide the fault. Nobody clears
    their gradients, which grow with every update.
    ## What else looks like this
    A discriminator that the generator's loss reaches (another optimizer holds it); weights that something else moves; a
    loaded backbone left out on purpose (its weights no longer look like an initialisation: an info); inputs with
    requires_grad. A frozen network has requires_grad False and is not reached.
    ## What to do
    Build the optimizer from all parameters, after the last layer was added. Keep layers in nn.ModuleList, not a list.
    """

    name = "optimizer-missing-parameters"
    boundary = Boundary.UPDATE
    explains = (
        *("exploding-gradient", "loss-at-baseline", "loss-flat", "lr-too-low", "underfitting", "plateau-high"),
        *("gradient-not-cleared", "vanishing-gradient", "detached-parameters", "symmetric-init", "not-converged"),
    )
    change = "Give these parameters to the optimizer."
    verify = "Run again: each of them has an update/norm above 0."

    updates: int = threshold(
        3, unit="updates", why="a gradient at three updates is no accident, and stale tensors show by then too"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            missing = outside(run, trace, self.updates)
            if missing:
                yield self._found(trace, missing)
            elif len(trace.every.steps) < self.updates:
                yield self.skipped(f"needs {self.updates} updates")
            else:
                yield self.passed(
                    f"every tensor that the loss reaches is in an optimizer: {len(trace.trained)} in this one"
                )

    def _found(self, trace: Trace, missing: Tensors) -> Finding:
        fresh = untrained(missing)
        fresh = untrained(trace.tensors) if fresh is None else fresh
        listless = tuple(t for t in missing if not t.in_model)
        where = f"; {listed(listless)} stand outside model.parameters(), as in a plain list" if listless else ""
        meant = "; their weights look trained, as of a backbone that is kept as it is" if fresh is False else ""
        all_values = values(t for t in trace.tensors if t.trainable)
        first, last = norm_at(trace, missing, 0), norm_at(trace, missing, -1)
        share = f"{values(missing)} of {all_values} trainable values ({values(missing) / max(all_values, 1):.0%})"
        return self.finding(
            f"{listed(missing)} get gradients and no optimizer holds them: {share} are never updated{where}{meant}",
            Evidence("values that no optimizer holds", values(missing), 0, f"of {all_values} trainable"),
            Evidence(
                "their gradient norm, first → last", f"{first:.3g} → {last:.3g}", None, "", (0, trace.updates - 1)
            ),
            severity=Severity.INFO if fresh is False else Severity.ERROR,
            place=replace(
                trace.place_of(missing[0]), file=trace.place.file, line=trace.place.line, source=trace.place.source
            ),
            certain=fresh is not False,
            change=f"Give {listed(missing)} to {trace.optimizer}"
            + (", and keep the layers in nn.ModuleList so that model.parameters() lists them." if listless else "."),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [t.name for t in sample_tensors()][:4]
        left_out = {n: {"in_optimizer": False} for n in names}
        hidden = {n: {"in_optimizer": False, "in_model": False, "module": f"list[{n[2]}]"} for n in names}
        trained = {n: {"in_optimizer": False, "std": 0.3, "largest": 1.7} for n in names}
        frozen = {n: {"in_optimizer": False, "trainable": False} for n in names}
        bare = {n: {"in_optimizer": False, "in_model": False, "module": "", "kind": ""} for n in names}
        none = {f"grad/norm[{n}]": ABSENT for n in names}
        growing = {f"grad/norm[{n}]": np.linspace(0.1, 9.0, 200) for n in names}
        drift = {f"weight/norm[{n}]": np.linspace(1.0, 2.0, 200) for n in names}
        fixed = {n: {"in_optimizer": False, "std": 0.0, "mean": 1.0, "largest": 1.0} for n in names}
        return (
            fires("encoder not given to the optimizer", sample_run(signals=growing, changed=left_out), Severity.ERROR),
            fires("seen at the third update", sample_run(3, changed=left_out), Severity.ERROR),
            fires("layers in a plain list", sample_run(loss=flat(60), changed=hidden), Severity.ERROR),
            fires("what can't be judged, in a fresh model", sample_run(changed=fixed), Severity.ERROR),
            silent("near miss: loaded backbone left out", sample_run(changed=trained)),
            silent("near miss: frozen", sample_run(signals=none, changed=frozen)),
            silent("near miss: target network without gradient", sample_run(signals=none, changed=left_out)),
            silent("near miss: updated by hand", sample_run(signals=drift, changed=left_out)),
            silent("near miss: inputs that want a gradient", sample_run(signals=growing, changed=bare)),
            silent("near miss: discriminator with an optimizer of its own", _pair()),
        )


def _pair() -> Run:
    """The second optimizer holds what the loss of the first one reaches as well."""
    names = [t.name for t in sample_tensors()]
    generator = sample_run(changed={n: {"in_optimizer": False} for n in names[:4]}).traces[0]
    discriminator = sample_run(changed={n: {"in_optimizer": False} for n in names[4:]}).traces[0]
    return Run(traces=(generator, replace(discriminator, index=1)))
