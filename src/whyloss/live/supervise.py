"""Runs the user's command as a child process, follows its journal, and reports when it ends.

The child is the very command: its argv, `__main__`, working directory, stdin and stdout are untouched. Only two things
differ: a folder of ours stands first on PYTHONPATH, and a few WHYLOSS_ variables are set.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from whyloss.core.errors import Misuse, WhylossError
from whyloss.core.finding import Finding, Severity
from whyloss.core.run import Run
from whyloss.journal import read_run
from whyloss.journal.folder import siblings, taken
from whyloss.live.announce import Announcer, announcement
from whyloss.live.status import StatusLine
from whyloss.rules import all_rules

SITE = Path(__file__).resolve().parent.parent / "observe" / "site"
PATIENCE = (10.0, 10.0)  # seconds from interrupt to terminate, from terminate to kill


@dataclass(frozen=True)
class Ended:
    """How the command ended and what of it was observed."""

    code: int  # as a shell gives it: 128 + N after signal N
    how: str  # finished | exception | interrupted | terminated | killed | stopped
    error: str  # the exit code or the signal, where the run itself had no time to say more
    folders: tuple[Path, ...]
    beacon: tuple[str, ...]  # what each child process said of how far it came

    @property
    def reached(self) -> str:
        """refused: …, torch, python or nothing: the furthest that any process came."""
        refused = next((line for line in self.beacon if line.startswith("refused")), None)
        return refused or ("torch" if "torch" in self.beacon else "python" if "python" in self.beacon else "nothing")


@dataclass(frozen=True)
class Settings:
    """What the child is told. `bundles`: updates that are kept on disk; `tape_memory`: MiB for recorded steps."""

    every: int = 10
    bundles: tuple[int, ...] = ()
    redact: bool = False
    tape_memory: int = 512

    @property
    def environment(self) -> dict[str, str]:
        return {
            "WHYLOSS_EVERY": str(self.every),
            "WHYLOSS_BUNDLE": ",".join(map(str, self.bundles)),
            "WHYLOSS_REDACT": "1" if self.redact else "",
            "WHYLOSS_TAPE_MEMORY": str(self.tape_memory),
        }


def supervise(
    command: Sequence[str], folder: Path, settings: Settings, *, stop_on_error: bool, say: Callable[[str], None]
) -> Ended:
    """Runs the command to its end. Ctrl-C reaches it as it would without us; SIGTERM and SIGHUP are passed on.

    Misuse where there is no such command.
    """
    older = taken(folder)
    with tempfile.TemporaryDirectory(prefix="whyloss-", ignore_cleanup_errors=True) as scratch:
        beacon = Path(scratch) / "beacon"
        with _Signals() as caught, StatusLine() as status:
            child = caught.child = _start(command, _environment(folder, settings, beacon))
            follower = _Follower(folder, child, stop_on_error, say)
            while child.poll() is None:
                follower.look(status)
                _wait(child, follower.pause)
        said = tuple(beacon.read_text(encoding="utf-8").split("\n")) if beacon.exists() else ()
    code = child.returncode
    how = "stopped" if follower.stopping is not None else _how(code, caught.last)
    found = tuple(siblings(folder, older))
    return Ended(128 - code if code < 0 else code, how, _error(code), found, said)


def _start(command: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        msg = f"can't start {command[0]}: {error.strerror}"
        raise Misuse(msg) from error


def _how(code: int, caught: int | None) -> str:
    if code == -signal.SIGKILL:
        return "killed"
    if caught in (signal.SIGTERM, signal.SIGHUP) or code in (-signal.SIGTERM, -signal.SIGHUP):
        return "terminated"
    if caught == signal.SIGINT or code == -signal.SIGINT:
        return "interrupted"
    return "exception" if code else "finished"


def _error(code: int) -> str:
    if code >= 0:
        return f"exit code {code}" if code else ""
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _environment(folder: Path, settings: Settings, beacon: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return (
        os.environ
        | settings.environment
        | {
            "PYTHONPATH": str(SITE) if not path else f"{SITE}{os.pathsep}{path}",
            "WHYLOSS_FOLDER": str(folder.absolute()),
            "WHYLOSS_BEACON": str(beacon),
        }
    )


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return


class _Follower:
    """Reads the journal while it grows: the status line, announcements, and the end of a hopeless training."""

    def __init__(self, folder: Path, child: "subprocess.Popen[bytes]", stop: bool, say: Callable[[str], None]) -> None:
        self.folder, self.child, self.stop, self.say = folder, child, stop, say
        self.pause = 0.1
        self.stopping: float | None = None
        self._announcer = Announcer()
        all_rules()  # loaded while the child still imports torch
        self._size = -1
        self._blind = False

    def look(self, status: StatusLine) -> None:
        began = time.monotonic()
        if self.stopping is not None:
            self._insist()
        try:
            run = None if self._blind else self._read()
            if run is None:
                return
            for finding in self._announcer.look(run):
                self._tell(finding)
            status.show(run, len(self._announcer.said))
        except Exception as error:  # noqa: BLE001 - the child must not lose its parent, whatever is wrong with us
            self._blind = True
            self.say(
                f"whyloss: can't follow the training ({type(error).__name__}: {error}); the report comes at the end"
            )
        self.pause = max(0.1, 10 * (time.monotonic() - began))  # at most a tenth of one core

    def _tell(self, finding: Finding) -> None:
        self.say(announcement(finding))
        if self.stop and finding.severity is Severity.ERROR and self.stopping is None and self.child.poll() is None:
            self.say(f"whyloss: ending the training (--stop-on error): {finding.name} is certain")
            self.stopping = time.monotonic()
            self.child.send_signal(signal.SIGINT)

    def _read(self) -> Run | None:
        """The run so far, when there is something new."""
        try:
            size = sum(f.stat().st_size for f in self.folder.iterdir()) if self.folder.is_dir() else 0
            if size == self._size or size == 0:
                return None
            self._size = size
            return read_run(self.folder)
        except (OSError, WhylossError):  # being written, or not there yet
            return None

    def _insist(self) -> None:
        assert self.stopping is not None
        waited = time.monotonic() - self.stopping
        if waited > sum(PATIENCE):
            self.child.kill()
        elif waited > PATIENCE[0]:
            self.child.terminate()


class _Signals:
    """While the child runs: Ctrl-C is the child's, which has it from the terminal; SIGTERM and SIGHUP are passed on.

    What is ignored (nohup, a job in the background) stays ignored.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    @property
    def child(self) -> "subprocess.Popen[bytes] | None":
        return self._child

    @child.setter
    def child(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        if self.last is not None:  # it came before the child did
            child.send_signal(self.last)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.last = number
        # at a terminal the whole foreground group got Ctrl-C; elsewhere, only we may have
        if self._child is not None and (number != signal.SIGINT or not _in_foreground()):
            self._child.send_signal(number)


def _in_foreground() -> bool:
    """Whether our process group is the one that the controlling terminal sends Ctrl-C to."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
