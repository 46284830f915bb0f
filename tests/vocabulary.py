"""The words that a diagnosis may use, by where training fails first."""

BY_BOUNDARY = {
    "data": """data-nonfinite input-unscaled input-constant input-ignored target-unscaled labels-uninformative
        label-range class-imbalance unshuffled-data duplicate-batches padding-leak batch-leak causal-leak
        split-overlap""",
    "forward": """dead-relu saturated-activation activation-collapse activation-explosion symmetric-init bad-init-scale
        missing-nonlinearity output-range softmax-wrong-axis eval-mode-in-training train-mode-in-evaluation
        dropout-always-on batchnorm-tiny-batch unregistered-parameters nonfinite-forward""",
    "objective": """softmax-before-cross-entropy sigmoid-before-bce-with-logits nll-on-probabilities kl-input-not-log
        loss-broadcast loss-reduction loss-sign loss-target-mismatch loss-off-baseline loss-wrong-value target-shift
        targets-all-ignored loss-detached loss-term-constant""",
    "backward": """detached-parameters unused-parameters zero-gradient vanishing-gradient exploding-gradient
        nonfinite-backward gradient-overflow wrong-derivative gradient-not-cleared gradient-cleared-early
        accumulation-scale""",
    "update": """lr-too-high lr-too-low lr-zero lr-schedule-collapsed lr-limited-plateau optimizer-missing-parameters
        optimizer-stale-parameters frozen-parameters step-missing update-not-landing update-lost-to-precision
        clip-too-small clip-before-unscale clip-mid-accumulation clip-after-step scaler-collapsed
        weight-decay-dominates optimizer-recreated""",
    "curve": """loss-flat loss-at-baseline loss-nonfinite loss-diverging plateau-high converged loss-spikes
        loss-oscillating loss-noisy overfitting not-converged underfitting loss-hidden-nan graph-leak""",
    "evaluation": """train-eval-gap nondeterministic-step ema-buffers tying-broken replicas-diverged
        model-bypasses-ddp""",
}
CAUSES = frozenset(name for names in BY_BOUNDARY.values() for name in names.split())
