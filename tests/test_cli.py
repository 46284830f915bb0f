"""The command line in this process: what each misuse says, and what `report` and `explain` print."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import write_journal
from whyloss.cli import main
from whyloss.cli.run import _conclude, _end_of_options, _exit_code
from whyloss.core.sample import flat, sample_run
from whyloss.journal import Journal
from whyloss.live.supervise import Ended, Settings, _Signals, supervise
from whyloss.rules import all_rules


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Calls `whyloss …` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*args) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whyloss", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('never run')\n")
    return path


def refused(answer, *says: str, code: int = 2) -> None:
    """One short message that holds these words, and nothing on stdout."""
    got, out, err = answer
    assert (got, out) == (code, "")
    assert "Traceback" not in err
    for part in says:
        assert part in err


# -- run: what can't be done is said before anything starts


def test_a_missing_script_is_named_with_those_that_are_there(cli, script):
    refused(cli("run", "trian.py"), "whyloss: there is no trian.py; scripts there: train.py")
    refused(cli("run", "no/such/dir.py"), "there is no no/such/dir.py\n")


def test_nothing_to_run(cli):
    for args in (["run"], ["run", "--"], ["run", "--every", "3"]):
        refused(cli(*args), "nothing to run: whyloss run train.py")


def test_a_folder_without_main(cli, script):
    (script.parent / "package").mkdir()
    (script.parent / "package" / "inner.py").write_text("")
    refused(cli("run", "package"), "package is a folder without __main__.py", "inner.py")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"def f(:\n  pass\n", "train.py is not a Python script, line 1: invalid syntax"),
        (b"x = 1\nif x:\npass\n", "line 3: expected an indented block"),
        (b"\x7fELF\x00\x01\x02\xff", "train.py is not a Python script"),
        (b"x = '\xff'\n", "train.py is not a Python script"),
        (b"#!/bin/bash\nset -e\necho $1 && ls\n", "train.py is not a Python script, line 3"),
    ],
    ids=["syntax", "indent", "binary", "not UTF-8", "shell"],
)
def test_what_is_not_python(cli, script, content, says):
    script.write_bytes(content)
    refused(cli("run", "train.py"), says, "whyloss run -- command")


def test_a_syntax_warning_is_left_to_the_script(cli, script, recwarn):
    script.write_text("x = '\\d' is 3\n")
    refused(cli("run", "--out", "train.py", "train.py"), "is a file")
    assert not recwarn.list


def test_no_torch(cli, script, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for args in (["train.py"], ["-m", "package"]):
        refused(cli("run", *args), "torch is not installed for", sys.executable, "pip install 'whyloss[torch]'")


@pytest.mark.parametrize("version", ["2.5.1+cu121", "1.13.1", "2.4.0a0"])
def test_a_torch_that_is_too_old(cli, script, monkeypatch, version):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    refused(cli("run", "train.py"), f"torch {version} is installed; whyloss needs torch 2.6 or newer")


def test_folders_that_hold_something_are_never_used(cli, script, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("precious")
    refused(cli("run", "--out", "full", "train.py"), "--out full is not empty: whyloss never overwrites a run")
    refused(cli("run", "--out", "train.py", "train.py"), "--out train.py is a file")
    refused(cli("run", "--out", "train.py/x", "train.py"), "can't make", "Not a directory")
    assert [p.name for p in full.iterdir()] == ["mine.txt"]


@pytest.fixture
def read_only(tmp_path):
    folder = tmp_path / "fixed"
    folder.mkdir()
    if os.getuid():
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
    else:
        command = ["mount", "-t", "tmpfs", "-o", "ro,size=16k", "tmpfs", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("root can write everywhere, and may not mount")
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_places_that_can_not_be_written_to(cli, script, read_only, sample):
    refused(cli("run", "--out", "fixed", "train.py"), "can't write in", "--out DIR")
    refused(cli("run", "--out", "fixed/new", "train.py"), "can't make", "--out DIR")
    refused(cli("run", "-o", "fixed/o.json", "train.py"), "can't write fixed/o.json")
    refused(cli("report", sample, "-o", "fixed/o.json"), "can't write fixed/o.json")


@pytest.mark.parametrize("verb", [["run", "train.py"], ["report", "run"]])
def test_an_output_file_is_checked_before_the_training(cli, script, verb):
    refused(cli(verb[0], "-o", "no/such/o.json", *verb[1:]), "can't write no/such/o.json: there is no folder")
    refused(cli(verb[0], "-o", ".", *verb[1:]), "it is a folder")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--every", "0", "train.py"], "--every"),
        (["run", "--every", "often", "train.py"], "--every"),
        (["run", "--stop-on", "warning", "train.py"], "--stop-on"),
        (["run", "--fail-on", "info", "train.py"], "--fail-on"),
        (["run", "--format", "html", "train.py"], "--format"),
        (["run", "--evry", "3", "train.py"], "--evry"),
        (["run", "-m"], "-m"),
        (["run", "--out"], "--out"),
        (["report"], "RUN_DIR"),
        (["train.py", "--epochs", "3"], "whyloss run train.py --epochs 3"),
        (["rnu"], "rnu"),
    ],
)
def test_options_that_can_not_be_meant(cli, script, args, says):
    refused(cli(*args), says)


@pytest.mark.parametrize(
    ("args", "at"),
    [
        (["x.py", "--every", "3"], 0),
        (["--every", "3", "x.py"], 2),
        (["--every=3", "x.py", "--"], 1),
        (["-oF", "-m", "p", "--x"], 1),
        (["-o", "F", "-mp", "--x"], 2),
        (["--out", "d", "--", "python", "x.py"], 2),
        (["-h"], 1),
        ([], 0),
    ],
)
def test_where_the_command_begins(args, at):
    assert _end_of_options(args) == at


def test_help_says_where_the_report_goes(cli):
    code, out, _ = cli("run", "--help")
    assert code == 0
    assert "the report goes to stderr, as JSON too where no -o FILE is given" in " ".join(out.split())
    code, out, _ = cli("--help")
    assert code == 0
    assert all(verb in out for verb in ("run", "report", "explain", "Exit codes"))


def test_version(cli):
    assert cli("--version")[:2] == (0, "whyloss, version 0.1.0\n")


# -- run: what must not be lost, whatever is wrong with us


def ended(*folders: Path, code: int = 0) -> Ended:
    return Ended(code, "finished" if code == 0 else "exception", "", folders, ("python", "torch"))


def test_a_report_for_each_process_that_trained(tmp_path, capsys):
    folders = [write_journal(tmp_path / name, sample_run(50)) for name in ("run", "run-2")]
    done = _conclude(ended(*folders), "json", tmp_path / "o.json")
    assert len(done) == 2
    assert json.loads((tmp_path / "o.json").read_text())["folder"].endswith("run")
    assert json.loads((tmp_path / "o-2.json").read_text())["folder"].endswith("run-2")
    assert capsys.readouterr().err.count("whyloss: wrote ") == 4


def test_the_exit_code_survives_a_report_that_fails(tmp_path, sample, monkeypatch, capsys):
    def broken(run, folder=""):
        raise ImportError("a rule of somebody else's")

    monkeypatch.setattr("whyloss.live.finish.diagnose", broken)
    assert _conclude(ended(sample, code=4), "text", None) == []
    assert "could not make the report" in capsys.readouterr().err
    assert _exit_code(ended(sample, code=4), [], "error") == 4


def test_a_child_is_not_left_alone_when_following_it_fails(tmp_path, sample, monkeypatch):
    def broken(self, run):
        raise RuntimeError("ours")

    monkeypatch.setattr("whyloss.live.announce.Announcer.look", broken)
    said: list[str] = []
    command = [sys.executable, "-c", "import time; time.sleep(0.8)"]
    end = supervise(command, sample, Settings(), stop_on_error=False, say=said.append)
    assert (end.code, end.how) == (0, "finished")
    assert said == ["whyloss: can't follow the training (RuntimeError: ours); the report comes at the end"]


def test_a_signal_that_is_ignored_stays_ignored():
    """nohup whyloss run …"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


# -- report


def test_report_prints_the_recorded_run_again(cli, sample):
    code, out, err = cli("report", sample)
    assert (code, err) == (0, "")
    assert out.startswith("whyloss healthy")
    assert "200 steps of Adam" in out
    assert "val_loss 2 → 1 (from run.log)" in out


def test_report_as_json_on_stdout_or_in_a_file(cli, sample, tmp_path):
    code, out, err = cli("report", sample, "--format", "json")
    assert (code, err, json.loads(out)["verdict"]) == (0, "", "healthy")
    code, empty, err = cli("report", sample, "--format", "json", "-o", "o.json")
    assert (code, empty, err) == (0, "", "whyloss: wrote o.json\n")
    assert (tmp_path / "o.json").read_text(encoding="utf-8") == out


@pytest.mark.parametrize(("fail_on", "code"), [("never", 0), ("error", 1), ("warning", 1)])
def test_report_fails_on_what_it_is_told_to(cli, tmp_path, fail_on, code):
    folder = write_journal(tmp_path / "run", sample_run(loss=flat(60), signals={"lr[0]": 0.0}))
    assert cli("report", folder, "--fail-on", fail_on)[0] == code


def test_report_of_what_is_no_run(cli, tmp_path, sample):
    refused(cli("report", "nowhere"), "nowhere does not exist")
    (tmp_path / "file").write_text("")
    refused(cli("report", "file"), "file is a file: give the folder it stands in")
    (tmp_path / "foreign").mkdir()
    refused(cli("report", "foreign"), "foreign holds no whyloss run", code=3)
    (tmp_path / "foreign" / "events-r0.jsonl").write_text('{"loss": 1}\n')
    refused(cli("report", "foreign"), "no line of it is whyloss's", code=3)
    (tmp_path / "foreign" / "events-r0.jsonl").write_text("")
    refused(cli("report", "foreign"), "it is empty: the process ended before its first step", code=3)


def test_report_of_a_run_without_a_step(cli, tmp_path):
    journal = Journal(tmp_path / "run")
    journal.event("start", script="train.py")
    journal.close()
    code, out, _ = cli("report", "run")
    assert code == 3
    assert out.startswith("whyloss nothing-seen  no training step was seen")


def test_report_of_the_folder_of_all_runs_names_the_newest(cli, tmp_path):
    for name in ("20260101-a", "20260102-b"):
        write_journal(tmp_path / ".whyloss" / name, sample_run(3))
    for folder in (".whyloss", "."):
        refused(cli("report", folder), "is not a run, but holds 2. The newest: whyloss report .whyloss/20260102-b")


def test_a_pipe_that_is_closed_is_no_traceback(sample):
    command = f"{sys.executable} -m whyloss report {sample} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_a_terminal_without_arrows_gets_question_marks(sample):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "whyloss", "report", str(sample)], capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert b"val_loss 2 ? 1" in done.stdout


# -- explain


def test_explain_knows_every_rule_by_name(cli):
    code, out, _ = cli("explain", "--all")
    assert code == 0
    for rule in all_rules():
        assert rule.name in out
        code, page, _ = cli("explain", rule.name)
        assert code == 0
        assert page.startswith(f"# {rule.name}\n")
        for heading in ("## What it detects", "## What to do", "## Examples", "## Change", "## Verify"):
            assert heading in page


def test_explain_runs_the_examples(cli):
    page = cli("explain", "lr-zero")[1]
    assert "- rate 0 throughout\n    → error: the rate of Adam is exactly 0 at all 60 updates" in page
    assert "- near miss: warm-up that starts at 0\n    → nothing reported" in page


def test_explain_suggests_names(cli):
    refused(cli("explain", "lr-zer"), "no rule or cause is called 'lr-zer'", "lr-zero", "whyloss explain --all")
    refused(cli("explain", "nonsense"), "'nonsense'", "whyloss explain --all")
    refused(cli("explain"), "give the name of a cause, or --all")
    refused(cli("explain", "lr-zero", "--all"), "give the name of a cause, or --all")
