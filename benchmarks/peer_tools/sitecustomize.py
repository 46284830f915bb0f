"""Attaches one other tool to an unchanged script, as its documentation attaches it to a loop.

PEER_TOOL names the tool, PEER_OUT the file that gets a JSON line for each message: `kind` message or crash, `text`,
`alarm`. The tool is attached to the model behind each of the first optimizers; it is told the loss at each update.
"""

import atexit
import contextlib
import copy
import gc
import io
import json
import os
import sys
import traceback

MOST = 4  # optimizers
LOSSES = ("cross_entropy", "mse_loss", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
TOOL, OUT = os.environ["PEER_TOOL"], os.environ["PEER_OUT"]


def write(kind, text, alarm=True):
    with open(OUT, "a") as out:
        out.write(json.dumps({"kind": kind, "text": str(text)[:500], "alarm": alarm}) + "\n")


def guarded(what):
    """A tool that fails is noted, once; the script goes on."""

    def call(self, *args):
        if self.broken:
            return None
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                return what(self, *args)
        except Exception as error:  # noqa: BLE001
            self.broken = True
            write("crash", f"{type(error).__name__}: {error}")

    return call


class Tool:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.steps, self.broken = model, optimizer, 0, False
        self.begin()

    @guarded
    def begin(self):
        self.attach()

    @guarded
    def before(self, loss):
        self.before_step(loss)

    @guarded
    def after(self, loss):
        self.after_step(loss)
        self.steps += 1

    @guarded
    def end(self):
        self.finish()

    def attach(self): ...
    def before_step(self, loss): ...
    def after_step(self, loss): ...
    def finish(self): ...


class TorchMortem(Tool):
    def attach(self):
        from torchmortem import Autopsy

        self.autopsy = Autopsy(self.model, optimizer=self.optimizer)
        self.autopsy.attach()

    def after_step(self, loss):
        self.autopsy.step(loss=loss)

    def finish(self):
        self.autopsy.detach()
        report = self.autopsy.get_report()
        for found in [*report.insights, *report.findings]:
            severity = getattr(getattr(found, "severity", None), "name", "WARNING")
            write("message", f"{found.title}: {found.summary}", severity not in ("INFO", "HEALTHY"))


class TorchDiag(Tool):
    """check_gradients and check_dead_neurons at updates 0, 1, 50 and 200; verify_step once, on a copy."""

    def attach(self):
        import torchdiag

        self.diag = torchdiag
        self.said = set()
        self.tell(self.printed(torchdiag.summary, self.model))

    def printed(self, call, *args):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            call(*args)
        return [line.strip(" •") for line in out.getvalue().splitlines() if line.strip().startswith("•")]

    def tell(self, lines):
        for line in lines:
            if line not in self.said:
                self.said.add(line)
                write("message", line)

    def before_step(self, loss):
        if self.steps in (0, 1, 50, 200):
            self.tell(self.printed(self.diag.check_gradients, self.model))
        if self.steps in (0, 50, 200) and INPUT:
            self.tell(self.printed(self.diag.check_dead_neurons, copy.deepcopy(self.model), INPUT[-1]))
        if self.steps == 0 and INPUT and LOSS_CALL:
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
            function, target = LOSS_CALL[-1]
            self.tell(self.printed(self.diag.verify_step, model, optimizer, function, INPUT[-1], target))


class TorCheck(Tool):
    def attach(self):
        import torcheck

        torcheck.register(self.optimizer)
        torcheck.add_module(self.model, module_name="model", changing=True, check_nan=True, check_inf=True)


class GradSnitch(Tool):
    def attach(self):
        import gradsnitch

        self.monitor = gradsnitch.watch(self.model, self.optimizer)

    def before_step(self, loss):
        self.monitor.log(self.steps, loss)

    def finish(self):
        for found in self.monitor.report():
            write("message", f"{found.code} {found.name}: {found.likely_cause}", found.severity in ("error", "warning"))


class TorchAudit(Tool):
    def attach(self):
        from torch_audit import autopatch

        self.auditor = autopatch(
            self.model, optimizer=self.optimizer, every_n_steps=10, reporters=[], run_static=True, run_init=True
        )

    def finish(self):
        for found in self.auditor.finish(report=False).findings:
            write("message", f"{found.rule_id} {found.message}", found.severity.name in ("WARN", "ERROR", "FATAL"))


class TrainingDoctor(Tool):
    def attach(self):
        from training_doctor import Doctor

        self.doctor = Doctor()
        self.doctor.set_auto_print(False)

    def before_step(self, loss):
        import torch

        grads = [p.grad for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
        self.doctor.log(step=self.steps, loss=loss, lr=float(self.optimizer.param_groups[0]["lr"]), grad_norm=norm)

    def finish(self):
        seen = set()
        for found in [*self.doctor.diagnoses, *self.doctor.analyze()]:
            if found.problem not in seen:
                seen.add(found.problem)
                write("message", f"{found.detector_name}: {found.problem}", found.severity.name != "INFO")


TOOLS = {
    "torchmortem": TorchMortem,
    "torchdiag": TorchDiag,
    "torcheck": TorCheck,
    "gradsnitch": GradSnitch,
    "torch-audit": TorchAudit,
    "training-doctor": TrainingDoctor,
}
ATTACHED, INPUT, LOSS_CALL, LAST = {}, [], [], [float("nan")]


def model_of(optimizer):
    """The outermost module that holds most of the optimizer's parameters."""
    import torch

    wanted = {id(p) for g in optimizer.param_groups for p in g["params"]}
    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    inner = {id(c) for m in modules for c in m._modules.values()}
    outer = [(m, {id(p) for p in m.parameters()}) for m in modules if id(m) not in inner]
    best = max(outer, key=lambda mp: (len(mp[1] & wanted), -len(mp[1])), default=None)
    return best[0] if best is not None and best[1] & wanted else None


def watch(optimizer):
    if id(optimizer) in ATTACHED or len(ATTACHED) >= MOST:
        return
    model = model_of(optimizer)
    if model is None:
        return
    if TOOL == "torchdiag":
        model.register_forward_pre_hook(
            lambda _, args: INPUT.__setitem__(slice(None), [args[0].detach()]) if args else None
        )
    ATTACHED[id(optimizer)] = TOOLS[TOOL](model, optimizer)


def watch_backward(torch):
    backward = torch.autograd.backward

    def noting(tensors, *args, **kwargs):
        first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        if isinstance(first, torch.Tensor) and first.numel() == 1:
            LAST[0] = float(first.detach())
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = noting


def watch_optimizers(torch):
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    init = torch.optim.Optimizer.__init__

    def built(self, *args, **kwargs):
        init(self, *args, **kwargs)
        watch(self)

    torch.optim.Optimizer.__init__ = built
    register_optimizer_step_pre_hook(lambda o, *_: ATTACHED[id(o)].before(LAST[0]) if id(o) in ATTACHED else None)
    register_optimizer_step_post_hook(lambda o, *_: ATTACHED[id(o)].after(LAST[0]) if id(o) in ATTACHED else None)


def keep_loss_calls(torch):
    """What torchdiag's verify_step is given: the loss function of the script, and its last target."""

    def keeping(function):
        def call(*args, **kwargs):
            if len(args) > 1 and torch.is_grad_enabled():
                LOSS_CALL[:] = [(lambda out, y: function(out, y, *args[2:], **kwargs), args[1])]
            return function(*args, **kwargs)

        return call

    functional = torch.nn.functional
    for name in LOSSES:
        setattr(functional, name, keeping(getattr(functional, name)))


def note_exceptions():
    """A tool that raises has said something, too."""
    excepthook = sys.excepthook

    def raised(kind, error, trace):
        files = "".join(traceback.format_tb(trace))
        write("message" if TOOL in files or TOOL.replace("-", "_") in files else "crash", error)
        excepthook(kind, error, trace)

    sys.excepthook = raised


def install():
    import torch

    watch_backward(torch)
    watch_optimizers(torch)
    if TOOL == "torchdiag":
        keep_loss_calls(torch)
    atexit.register(lambda: [tool.end() for tool in list(ATTACHED.values())])
    note_exceptions()


install()
