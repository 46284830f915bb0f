"""`whyloss run`: the script stays what it is, however it ends, and the report comes all the same."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Ran, environment
from whyloss import read_run
from whyloss.report import read_json

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pty.openpty beside threads


def plain(*args, cwd, env=None, stdin=None) -> "subprocess.CompletedProcess[str]":
    """The same script without us."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(**(env or {})),
        input=stdin,
        timeout=60,
    )


# -- the script is its own: none of these needs torch

SELF = """
import json, os, pickle, sys

class Mine:
    x = 3

assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path[0], "cwd": os.getcwd(),
    "stdin": sys.stdin.read(), "main": sorted(vars(sys.modules["__main__"])), "isatty": sys.stdout.isatty(),
    "flags": str(sys.flags), "spec": __spec__ and __spec__.name, "mine": "USER_SITE" in os.environ,
    "python path": os.environ.get("PYTHONPATH", "").split(os.pathsep)[-1],
}))
print("to stderr", file=sys.stderr)
"""
ARGUMENTS = ["--out", "x", "-m", "--", "--help", "a b", "é", "-c"]


@pytest.fixture
def own(tmp_path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(SELF)
    (tmp_path / "package" / "__main__.py").write_text(SELF)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os; os.environ['USER_SITE'] = '1'")
    return tmp_path


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["package/train.py"], ["package/train.py"]),
        (["--every", "3", "package/train.py"], ["package/train.py"]),
        (["package"], ["package"]),
        (["-m", "package.train"], ["-m", "package.train"]),
        (["--", sys.executable, "package/train.py"], ["package/train.py"]),
    ],
    ids=["script", "after options", "folder", "module", "command"],
)
def test_a_script_sees_what_it_would_see_without_us(own, whyloss, ours, theirs):
    """argv, __main__, path, working directory, stdin, the user's own PYTHONPATH and sitecustomize."""
    env = {"PYTHONPATH": str(own / "site")}
    want = plain(*theirs, *ARGUMENTS, cwd=own, env=env, stdin="three\nlines\n")
    got = whyloss("run", *ours, *ARGUMENTS, env=env, input="three\nlines\n")
    assert json.loads(want.stdout)["mine"]
    assert got.stdout == want.stdout
    assert got.stderr.startswith(want.stderr)
    assert "without importing torch" in got.stderr
    assert got.code == 3
    assert not (own / ".whyloss").exists()


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(3)",
        "sys.exit('goodbye')",
        "raise ValueError('mine')",
        "import nowhere",
        "os._exit(5)",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 15)",
        "raise KeyboardInterrupt",
        "open('a/b/c')",
    ],
)
def test_exit_code_and_traceback_are_the_scripts_own(tmp_path, whyloss, ending):
    (tmp_path / "train.py").write_text(f"import os, sys\nprint('hello', flush=True)\n{ending}\n")
    want = plain("train.py", cwd=tmp_path)
    got = whyloss("run", "train.py")
    assert got.code == (want.returncode if want.returncode >= 0 else 128 - want.returncode)
    assert got.stdout == want.stdout == "hello\n"
    assert got.stderr.startswith(want.stderr)
    assert f"(exit code {got.code}) without importing torch" in got.stderr


def test_an_empty_script_left_nothing_to_judge(tmp_path, whyloss):
    (tmp_path / "train.py").write_text("")
    got = whyloss("run", "train.py")
    assert (got.code, got.stdout) == (3, "")
    assert got.stderr == "whyloss: nothing was observed: the script ended (exit code 0) without importing torch\n"


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_a_python_that_ignores_us_is_named(tmp_path, whyloss, flag):
    (tmp_path / "train.py").write_text("print('hello')")
    got = whyloss("run", "--", sys.executable, flag, "train.py")
    assert (got.code, got.stdout) == (3, "hello\n")
    assert "python -I and -E ignore it" in got.stderr


def test_a_command_that_is_not_there_is_misuse(whyloss):
    got = whyloss("run", "--", "no-such-command", "x.py")
    assert got.code == 2
    assert got.stderr == "whyloss: can't start no-such-command: No such file or directory\n"


# -- the report comes


def test_a_training_is_diagnosed_and_its_output_left_alone(recorded):
    assert recorded.code == 0
    assert [line.split(" at ")[0] for line in recorded.stdout.splitlines()] == [
        "step 0",
        "step 10",
        "step 20",
        "step 30",
        "the end",
    ]
    assert recorded.stderr.startswith("whyloss ")
    assert "40 steps of SGD" in recorded.stderr
    assert recorded.stderr.endswith("whyloss: wrote run/report.json\n")
    assert "\x1b" not in recorded.stderr
    report = read_json(recorded.report.read_text(encoding="utf-8"))
    assert (report.training.end, report.training.steps, report.folder) == ("finished", 40, "run")
    assert report.training.script.endswith("train.py")


def saved(ran: Ran):
    return read_json(ran.report.read_text(encoding="utf-8"))


def test_a_cause_can_fail_a_pipeline_and_go_to_a_file(whyloss, script, tmp_path):
    """--fail-on, --format json with -o; the text then stays away."""
    got = whyloss("run", "--out", "r", "--fail-on", "error", "--format", "json", "-o", "o.json", script, 0, 30, 0)
    report = read_json((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert got.code == 1
    assert report.causes[0].name == "lr-zero"
    assert (tmp_path / "r" / "report.json").read_text(encoding="utf-8") == (tmp_path / "o.json").read_text("utf-8")
    told = [line for line in got.stderr.splitlines() if " error lr-zero: " not in line]
    assert told == ["whyloss: wrote o.json", "whyloss: wrote r/report.json"]
    assert "the end" in got.stdout


def test_an_exception_keeps_its_traceback_and_gets_a_report(whyloss, script, tmp_path):
    broken = script.read_text() + "\nraise ValueError('mine\\n[red]second line')\n"
    (tmp_path / "train.py").write_text(broken)
    got = whyloss("run", "--out", "r", "--format", "json", "train.py", 0.5, 25, 0, folder=tmp_path / "r")
    line = broken[: broken.index("raise ValueError")].count("\n") + 1
    assert got.code == 1
    assert got.stderr.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line {line}, in <module>\n'
        "    raise ValueError('mine\\n[red]second line')\nValueError: mine\n[red]second line\n"
    )
    told = got.stderr[got.stderr.index("\n{\n") : got.stderr.rindex("}") + 1]
    assert read_json(told) == saved(got)
    assert (saved(got).training.end, saved(got).training.error) == ("exception", "ValueError: mine\n[red]second line")


def test_os_exit_and_a_failing_report_line(whyloss, script, tmp_path):
    (tmp_path / "train.py").write_text(script.read_text() + "\nimport os; os._exit(7)\n")
    got = whyloss("run", "--fail-on", "warning", "--out", "r", "train.py", 0, 25, 0, folder=tmp_path / "r")
    assert got.code == 7
    assert (saved(got).training.end, saved(got).training.error) == ("exception", "exit code 7")
    assert "ended by an error: exit code 7" in " ".join(got.stderr.split())
    again = whyloss("report", "r")
    assert again.code == 0
    assert "exit code 7" in again.stdout


# -- while it runs


class Running:
    """A `whyloss run` in the background, in a process group of its own."""

    def __init__(self, *args, cwd: Path, stderr=subprocess.PIPE, env=None) -> None:
        command = [sys.executable, "-m", "whyloss", "run", "--out", "r", *map(str, args)]
        self.folder = cwd / "r"
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(**(env or {})),
            start_new_session=True,
            preexec_fn=_hears_interrupts,
        )

    def until_updates(self, number: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if self.folder.is_dir() and any(self.folder.glob("events-*")):
                try:
                    if read_run(self.folder).updates >= number:
                        return
                except Exception:  # noqa: BLE001 - not there yet
                    pass
            time.sleep(0.05)
        pytest.fail("no update within a minute")

    @property
    def child(self) -> int:
        """The process id of the script."""
        for line in (self.folder / "events-r0.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "start":
                return int(event["pid"])
        raise AssertionError

    def end(self) -> Ran:
        out, err = self.process.communicate(timeout=60)
        return Ran(self.process.returncode, out.decode(), (err or b"").decode(), self.folder)


def _hears_interrupts() -> None:
    """Even where the tests themselves run in the background, ignoring them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def clock(line: str) -> float:
    return float(line.split(" at ")[1])


def test_what_is_certain_is_said_at_once_and_sigterm_is_passed_on(script, tmp_path):
    running = Running(script, 0, 100_000, 0.02, cwd=tmp_path)
    assert running.process.stderr is not None
    announced = running.process.stderr.readline().decode()
    at = time.time()
    assert re.match(r"whyloss: error lr-zero: .*\(.*train\.py:8\)\n", announced)
    time.sleep(0.3)
    running.process.terminate()
    got = running.end()
    steps = [line for line in got.stdout.splitlines() if " at " in line]
    assert clock(steps[-1]) > at
    assert got.code == 128 + signal.SIGTERM
    assert saved(got).training.end == "terminated"
    assert saved(got).causes[0].name == "lr-zero"
    assert got.stderr.endswith("whyloss: wrote r/report.json\n")
    assert read_run(got.folder).facts.end == "terminated"


def test_a_hopeless_training_is_stopped_where_that_was_asked_for(script, tmp_path):
    running = Running("--stop-on", "error", "--fail-on", "error", script, 0, 100_000, 0.02, cwd=tmp_path)
    got = running.end()
    assert got.code == 128 + signal.SIGINT
    assert "ending the training (--stop-on error): lr-zero is certain" in got.stderr
    assert "KeyboardInterrupt" in got.stderr
    assert saved(got).training.end == read_run(got.folder).facts.end == "stopped"
    assert "the end" not in got.stdout


def test_a_killed_child_leaves_a_report(script, tmp_path):
    running = Running(script, 0.5, 100_000, 0.02, cwd=tmp_path)
    running.until_updates(30)
    os.kill(running.child, signal.SIGKILL)
    got = running.end()
    assert got.code == 137
    assert (saved(got).training.end, saved(got).training.error) == ("killed", "signal SIGKILL")
    assert saved(got).training.steps >= 30


def read_all(terminal: int) -> str:
    data = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            return data.decode()
        if not block:
            return data.decode()
        data += block


def test_a_terminal_gets_a_status_line_and_is_left_as_it_was(script, tmp_path):
    """stderr is a terminal of 30 rows and 50 columns. Ctrl-C: SIGINT to the whole group."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "rows", "30", "columns", "50"], stdin=theirs, check=True)
    running = Running(script, 0.5, 100_000, 0.02, cwd=tmp_path, stderr=theirs, env={"TERM": "xterm"})
    os.close(theirs)
    running.until_updates(60)
    time.sleep(0.7)
    os.killpg(running.process.pid, signal.SIGINT)
    shown = read_all(ours)
    got = running.end()
    os.close(ours)
    status = shown[: shown.rindex("\x1b[r")]
    assert status.count("\x1b[1;29r") == 1
    lines = re.findall(r"\x1b7\x1b\[30;1H\x1b\[K\x1b\[2m(.*?)\x1b\[22m\x1b8", status)
    assert any(re.match(r"whyloss  step \d+  loss [\d.]+", line) for line in lines)
    assert all(len(line) < 50 for line in lines)
    after = shown[shown.rindex("\x1b[r") :]
    assert after.startswith("\x1b[r\x1b[30;1H\x1b[K\x1b8")
    assert not re.search(r"\x1b\[\d+;\d+[Hr]", after.removeprefix("\x1b[r\x1b[30;1H"))
    assert got.code == 130
    assert saved(got).training.end == "interrupted"
    assert "wrote r/report.json" in after
    assert "whyloss" not in got.stdout


# -- other ways to start, other ways to fail

LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset


class Mine(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        torch.manual_seed(i)
        return torch.randn(4), i % 2


if __name__ == "__main__":
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Mine(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print("trained")
"""


def test_workers_that_are_spawned_work_and_leave_no_folder(whyloss, tmp_path):
    (tmp_path / "train.py").write_text(LOADER)
    got = whyloss("run", "train.py")
    assert (got.code, got.stdout) == (0, "trained\n")
    assert "6 steps of SGD" in got.stderr
    assert len(list((tmp_path / ".whyloss").iterdir())) == 1


@pytest.mark.skipif(shutil.which("torchrun", path=Path(sys.executable).parent) is None, reason="no torchrun here")
def test_torchrun_is_only_another_command(whyloss, script, tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")
    got = whyloss("run", "--out", "r", "--", torchrun, "--nproc-per-node", 1, script, 0.5, 25, 0, folder=tmp_path / "r")
    assert got.code == 0, got.stderr
    assert got.stdout.endswith("the end\n")
    assert saved(got).training.steps == 25


DUCK = """
import torch

class Duck:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        with torch.no_grad():
            for p in self.parameters:
                p -= 0.1 * p.grad
                p.grad = None

model = torch.nn.Linear(4, 2)
optimizer = Duck(model.parameters())
for _ in range(5):
    model(torch.ones(3, 4)).pow(2).mean().backward()
    optimizer.step()
"""


def test_an_optimizer_that_is_none_of_torchs_is_said_to_be_so(whyloss, tmp_path):
    (tmp_path / "train.py").write_text(DUCK)
    got = whyloss("run", "train.py")
    assert got.stderr.startswith("whyloss: backward passes were seen, but no step of a torch.optim optimizer")
    assert (got.code, got.stderr.count("\n")) == (3, 1)


def test_a_script_that_only_imports_torch_left_nothing_to_judge(whyloss, tmp_path):
    (tmp_path / "train.py").write_text("import torch\nprint(int(torch.ones(1)))")
    got = whyloss("run", "--out", "r", "train.py")
    assert (got.code, got.stdout) == (3, "1\n")
    assert got.stderr == (
        "whyloss: nothing to judge: the script imported torch and ended (exit code 0); no backward() and no step of a "
        "torch.optim optimizer was seen\n"
    )
    assert not (tmp_path / "r").exists()


@pytest.fixture
def tiny_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", disk], check=False).returncode:
        pytest.skip("needs root, to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_costs_the_observation_and_not_the_training(whyloss, script, tiny_disk):
    got = whyloss("run", "--out", tiny_disk / "r", script, 0.5, 400, 0, folder=tiny_disk / "r")
    assert got.code == 0
    assert got.stdout.endswith("the end\n")
    assert got.stderr.count("stopped observing") == 1
    assert "the training goes on" in got.stderr
    assert re.search(r"only the first \d+ updates were observed: can't write to .*: the disk is full\n", got.stderr)
    assert "whyloss: could not write report.json: No space left on device\n" in got.stderr
