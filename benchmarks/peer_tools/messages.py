"""What the messages of other tools are taken to mean, in the words of our causes: generously.

A message counts for every cause whose direct symptom or usual explanation it is. Order does not matter; a message that
no row fits counts for nothing and is listed. Checked against each tool's own source.
"""

import re

VANISHING = (
    "vanishing-gradient",
    "saturated-activation",
    "activation-collapse",
    "zero-gradient",
    "detached-parameters",
)
EXPLODING = (
    "exploding-gradient",
    "gradient-not-cleared",
    "activation-explosion",
    "bad-init-scale",
    "lr-too-high",
    "gradient-overflow",
    "accumulation-scale",
    "loss-reduction",
    "input-unscaled",
    "target-unscaled",
)
NONFINITE = (
    "loss-nonfinite",
    "nonfinite-forward",
    "nonfinite-backward",
    "data-nonfinite",
    "lr-too-high",
    "gradient-overflow",
)
TOO_HIGH = ("lr-too-high", "loss-diverging", "exploding-gradient", "gradient-not-cleared", "loss-oscillating")
TOO_LOW = (
    "lr-too-low",
    "lr-zero",
    "lr-schedule-collapsed",
    "update-lost-to-precision",
    "clip-too-small",
    "clip-before-unscale",
)
STUCK = (
    *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "update-not-landing", "frozen-parameters"),
    *("lr-too-low", "lr-zero", "lr-limited-plateau", "lr-schedule-collapsed", "step-missing", "loss-detached"),
)
NO_GRADIENT = (
    "detached-parameters",
    "unused-parameters",
    "loss-detached",
    "frozen-parameters",
    "unregistered-parameters",
)
UNCHANGED = (
    *("update-not-landing", "lr-zero", "step-missing", "optimizer-missing-parameters", "optimizer-stale-parameters"),
    *("detached-parameters", "frozen-parameters", "unused-parameters", "zero-gradient", "loss-detached", "dead-relu"),
    *("gradient-cleared-early", "update-lost-to-precision", "lr-schedule-collapsed", "scaler-collapsed"),
)

TABLE: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "torchmortem": (
        (r"vanishing", VANISHING),
        (r"exploding|instability feedback|norm explosion", EXPLODING),
        (r"gradient stalling", ("zero-gradient", "vanishing-gradient", "detached-parameters", "unused-parameters")),
        (r"dead units|starvation", ("dead-relu", "zero-gradient")),
        (r"saturation", ("saturated-activation", "output-range", "input-unscaled")),
        (r"update ratio too low", TOO_LOW),
        (r"update ratio too high", TOO_HIGH),
        (r"stagnant weight", UNCHANGED),
        (r"plateau", STUCK),
        (r"divergence", (*TOO_HIGH, "loss-sign")),
        (r"catapult", ("loss-spikes", "lr-too-high")),
        (r"edge of stability|curvature", ("lr-too-high", "loss-oscillating")),
        (
            r"rank collapse|bottleneck",
            ("symmetric-init", "activation-collapse", "missing-nonlinearity", "input-constant"),
        ),
        (r"gradient noise", ("labels-uninformative", "loss-noisy")),
        (r"norm imbalance", ("bad-init-scale",)),
    ),
    "torchdiag": (
        (r"all parameters are frozen", ("frozen-parameters",)),
        (r"gradient is None|None gradients", NO_GRADIENT),
        (r"exploding", EXPLODING),
        (r"vanishing", VANISHING),
        (r"neurons dead", ("dead-relu",)),
        (r"not finite", NONFINITE),
        (r"No parameters changed", UNCHANGED),
    ),
    "torcheck": (
        (r"doesn't belong to any optimizer", ("optimizer-missing-parameters", "optimizer-stale-parameters")),
        (r"should change", UNCHANGED),
        (r"contains NaN|contains inf", NONFINITE),
    ),
    "gradsnitch": (
        (r"^GS001", NONFINITE),
        (r"^GS002", (*NONFINITE, *EXPLODING)),
        (r"^GS003", ("exploding-gradient", "loss-spikes", "clip-mid-accumulation")),
        (r"^GS004", ("overfitting",)),
        (r"^GS005", STUCK),
        (r"^GS006", (*TOO_HIGH, "loss-sign")),
        (r"^GS007", VANISHING),
        (r"^GS008.*low", TOO_LOW),
        (r"^GS008.*high", TOO_HIGH),
        (r"^GS008", (*TOO_LOW, *TOO_HIGH)),
        (r"^GS009", ("loss-oscillating", "lr-too-high")),
        (r"^GS010", ("lr-schedule-collapsed",)),
    ),
    "torch-audit": (
        (r"^TA100", NONFINITE),
        (r"^TA102", EXPLODING),
        (r"^TA103", ("zero-gradient", "dead-relu")),
        (r"^TA104", ("loss-detached", "detached-parameters", "frozen-parameters")),
        (r"^TA105", ("dead-relu", "activation-collapse")),
        (r"^TA301", ("input-unscaled",)),
        (r"^TA302", ("input-constant",)),
        (r"^TA304", ("batchnorm-tiny-batch",)),
        (r"^TA305", ("label-range",)),
        (r"^TA401|^TA402|^TA403", ("weight-decay-dominates",)),
        (r"^TA405", ("bad-init-scale", "symmetric-init")),
        (r"^TA500", ("unused-parameters",)),
        (r"^TA501", ("batchnorm-tiny-batch",)),
        (r"^TA2|^TA400|^TA404", ()),  # speed and style
    ),
    "training-doctor": (
        (r"^lr_too_high", TOO_HIGH),
        (r"^lr_too_low", TOO_LOW),
        (r"^gradient_instability.*(vanish|small)", VANISHING),
        (r"^gradient_instability", EXPLODING),
        (r"^mixed_precision", ("scaler-collapsed", "gradient-overflow", "update-lost-to-precision")),
        (r"^overfitting", ("overfitting",)),
        (r"^train_eval", ("train-eval-gap", "eval-mode-in-training", "train-mode-in-evaluation")),
        (r"plateau", STUCK),
    ),
}


def causes_of(tool: str, message: str) -> tuple[str, ...] | None:
    """None where no row fits."""
    for pattern, causes in TABLE[tool]:
        if re.search(pattern, message, re.IGNORECASE):
            return causes
    return None
