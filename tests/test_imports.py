"""What is loaded when: nobody waits for torch, SciPy or scikit-learn who does not need them."""

import json
import subprocess
import sys

import pytest

from conftest import environment
from whyloss.cli import VERBS, cli

HEAVY = {"torch", "scipy", "sklearn", "pandas", "matplotlib"}
COUNT = """
import sys
before = set(sys.modules)
{code}
import json
print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""
VERB = """
sys.argv = {argv}
from whyloss.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded(code: str) -> set[str]:
    """The modules that a piece of code loads in a Python of its own."""
    command = [sys.executable, "-c", COUNT.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def heavy(modules: set[str]) -> set[str]:
    return {m.partition(".")[0] for m in modules} & HEAVY


def test_import_whyloss_loads_next_to_nothing():
    modules = loaded("import whyloss")
    assert {m for m in modules if m.startswith("whyloss")} == {"whyloss"}
    assert len(modules) < 40


@pytest.mark.parametrize(
    ("argv", "most"),
    [(["--help"], 180), (["--version"], 220), (["run", "--help"], 200), (["report", "--help"], 200)],
)
def test_help_loads_neither_numpy_nor_rich(argv, most):
    modules = loaded(VERB.format(argv=["whyloss", *argv]))
    assert not heavy(modules)
    assert not {"numpy", "rich", "msgspec"} & modules
    assert len(modules) < most


def test_explain_loads_numpy_and_nothing_heavier():
    modules = loaded(VERB.format(argv=["whyloss", "explain", "lr-zero"]))
    assert not heavy(modules)
    assert "rich" not in modules
    assert len(modules) < 480


def test_report_loads_no_torch(sample):
    modules = loaded(VERB.format(argv=["whyloss", "report", str(sample)]))
    assert not heavy(modules)
    assert len(modules) < 560


def test_the_list_of_verbs_says_what_their_own_help_says():
    context = cli.make_context("whyloss", ["run"])
    for name, summary in VERBS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == summary


def test_public_names_are_what_they_say_whatever_was_imported_before():
    """It is not shadowed by a subpackage of its name."""
    import whyloss.diagnosis.fold
    import whyloss.live.watch
    import whyloss.report.text

    for name in whyloss.__all__:
        assert callable(getattr(whyloss, name)), name
    run = whyloss.Run()
    assert whyloss.diagnose(run).verdict == "nothing-seen"
    with pytest.raises(AttributeError, match="whyloss"):
        _ = whyloss.nonsense
