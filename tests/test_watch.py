"""`with whyloss.watch(…)`: the report comes, and nothing else changes for the training."""

import math

import numpy as np
import pytest
import torch

import whyloss
from whyloss import Misuse
from whyloss.report import read_json


@pytest.fixture
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


@pytest.fixture
def optimizer(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


def train(net, optimizer, steps=25):
    x, y = torch.randn(32, 4, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 2
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        yield loss


def run_through(steps) -> None:
    for _ in steps:
        pass


def test_the_report_is_written_and_printed_to_stderr(net, optimizer, tmp_path, capfd):
    with whyloss.watch(net, optimizer, out=tmp_path / "run") as run:
        assert run.report is None
        run_through(train(net, optimizer))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("whyloss ")
    assert "report.json" in err.splitlines()[-1]
    assert run.folder == tmp_path / "run"
    assert run.report == read_json((run.folder / "report.json").read_text(encoding="utf-8"))
    assert (run.report.training.steps, run.report.training.end) == (25, "finished")
    assert whyloss.read_run(run.folder).updates == 25


def test_logged_figures_are_in_the_report(net, optimizer, tmp_path):
    with whyloss.watch(net, optimizer, out=tmp_path / "run", quiet=True) as run:
        for i, loss in enumerate(train(net, optimizer)):
            if i % 10 == 0:
                run.log(val_loss=2.0 - i / 10, acc=np.float32(i / 100), loss=loss.item(), whole=i)
        run.log(step=90, val_loss=math.nan, best=True)
    metrics = run.report.metrics
    assert metrics["val_loss"] == (2.0, None)
    assert metrics["whole"] == (0.0, 20.0)
    assert metrics["best"] == (1.0, 1.0)
    assert whyloss.read_run(run.folder).metrics["val_loss"].steps.tolist() == [1, 11, 21, 90]


def test_an_exception_goes_through_and_the_report_is_there(net, optimizer, tmp_path, capfd):
    with pytest.raises(ZeroDivisionError), whyloss.watch(net, optimizer, out=tmp_path / "run") as run:  # noqa: PT012
        for i, _ in enumerate(train(net, optimizer)):
            1 / (i - 22)
    assert run.report.training.steps == 23
    assert (run.report.training.end, run.report.training.error) == ("exception", "ZeroDivisionError: division by zero")
    assert capfd.readouterr().out == ""


def test_ctrl_c_is_an_interruption(net, optimizer, tmp_path):
    with pytest.raises(KeyboardInterrupt), whyloss.watch(net, optimizer, out=tmp_path / "r", quiet=True) as run:  # noqa: PT012
        run_through(train(net, optimizer))
        raise KeyboardInterrupt
    assert run.report.training.end == "interrupted"


def test_closing_twice_reports_once(net, optimizer, tmp_path, capfd):
    run = whyloss.watch(net, optimizer, out=tmp_path / "run")
    run_through(train(net, optimizer))
    first = run.close()
    assert first is not None
    assert run.close() is first
    run.log(late=1.0)
    assert capfd.readouterr().err.count("wrote") == 1


def test_updates_by_hand_are_said_to_be_unseen(net, tmp_path, capfd):
    with whyloss.watch(net, out=tmp_path / "run") as run:
        for _ in range(5):
            net(torch.ones(1, 4)).sum().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
    assert run.report is None
    assert capfd.readouterr().err.startswith("whyloss: backward passes were seen, but no step of a torch.optim")


def test_closing_twice_without_a_step_says_so_once(net, optimizer, tmp_path, capfd):
    with whyloss.watch(net, optimizer, out=tmp_path / "run") as run:
        run.close()
    assert run.report is None
    assert capfd.readouterr().err == "whyloss: no backward pass was seen inside the `with` block: nothing to judge\n"
    assert not (tmp_path / "run").exists()


def test_quiet_is_quiet_also_where_something_is_certain(net, tmp_path, capfd):
    frozen = torch.optim.SGD(net.parameters(), lr=0.0)
    with whyloss.watch(net, frozen, out=tmp_path / "run", quiet=True) as run:
        run_through(train(net, frozen))
    assert run.report.causes[0].name == "lr-zero"
    assert capfd.readouterr() == ("", "")


def test_what_is_certain_is_said_inside_the_block(net, tmp_path, capfd):
    frozen = torch.optim.SGD(net.parameters(), lr=0.0)
    with whyloss.watch(net, frozen, out=tmp_path / "run"):
        run_through(train(net, frozen))
        assert "whyloss: error lr-zero: " in capfd.readouterr().err


@pytest.mark.parametrize("value", ["0.5", [0.5], {"x": 1}, None, 1j, "tensor", "graph", "array"])
def test_what_is_no_number_is_refused_with_the_remedy(net, optimizer, tmp_path, value):
    special = {"tensor": torch.ones(()), "graph": net(torch.ones(1, 4)).sum(), "array": np.ones(2)}
    value = special.get(value, value) if isinstance(value, str) else value
    run = whyloss.watch(net, optimizer, out=tmp_path / "run", quiet=True)
    with pytest.raises(Misuse, match=r"run\.log\(val_loss=…\) was given a .*: pass val_loss\.item\(\), or a mean"):
        run.log(val_loss=value)
    run.close()


@pytest.mark.parametrize("step", [-1, 1.5, "3"])
def test_a_step_that_is_none_is_refused(net, optimizer, tmp_path, step):
    run = whyloss.watch(net, optimizer, out=tmp_path / "run", quiet=True)
    with pytest.raises(Misuse, match=r"run\.log\(step="):
        run.log(step=step, x=1.0)
    run.close()


def test_places_in_use_are_refused(net, optimizer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Misuse, match="is in use: whyloss never overwrites"):
        whyloss.watch(net, optimizer, out=tmp_path)
    with pytest.raises(Misuse, match="is a file: whyloss never overwrites"):
        whyloss.watch(net, optimizer, out=tmp_path / "file")


@pytest.mark.parametrize("every", [0, -3, 2.5, "10"])
def test_every_is_a_number_of_updates(net, optimizer, tmp_path, every):
    with pytest.raises(Misuse, match="every="):
        whyloss.watch(net, optimizer, out=tmp_path / "run", every=every)


def test_what_is_no_module_and_no_optimizer_is_refused(net, optimizer):
    with pytest.raises(Misuse, match="a torch Module was expected, str was given"):
        whyloss.watch("net")
    with pytest.raises(Misuse, match="a torch Optimizer was expected, Linear was given"):
        whyloss.watch(net, net[0])
    with pytest.raises(Misuse, match="a torch Module was expected, SGD was given"):
        whyloss.watch([net, optimizer])


def test_a_report_that_fails_takes_neither_result_nor_exception(net, optimizer, tmp_path, monkeypatch, capfd):
    def broken(run, folder=""):
        raise RuntimeError("ours")

    monkeypatch.setattr("whyloss.live.finish.diagnose", broken)
    with pytest.raises(ZeroDivisionError), whyloss.watch(net, optimizer, out=tmp_path / "run") as run:  # noqa: PT012
        run_through(train(net, optimizer))
        raise ZeroDivisionError
    assert run.report is None
    assert "whyloss: could not make the report: RuntimeError: ours" in capfd.readouterr().err


def test_a_report_that_can_not_be_written_is_still_given(net, optimizer, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("whyloss.live.finish.REPORT", "no/such/report.json")
    with whyloss.watch(net, optimizer, out=tmp_path / "run") as run:
        run_through(train(net, optimizer))
    assert run.report.training.steps == 25
    assert "could not write no/such/report.json: No such file or directory" in capfd.readouterr().err


def test_everything_is_undone_at_the_end(net, optimizer, tmp_path):
    before = torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.__init__
    with whyloss.watch(net, optimizer, out=tmp_path / "run", quiet=True):
        run_through(train(net, optimizer))
    assert (torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.__init__) == before
    assert not any(m._forward_hooks for m in net.modules())
