"""The journal: what was completed is read back, whatever happened to the process, the disk or the bytes."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whyloss.journal.rows as rows_module
from conftest import environment, write_journal
from whyloss import NothingToJudge, WhylossError, diagnose, read_run
from whyloss.core.errors import Misuse
from whyloss.core.sample import sample_run
from whyloss.core.series import ABSENT, NOT_OBSERVED, absent, not_observed
from whyloss.journal import Journal, add_end, claim, default_folder, rows
from whyloss.journal.folder import make, siblings, taken
from whyloss.journal.rows import HEAD, LIMIT, RowWriter, raw_type, read_rows, read_table, thin_type

WRITER = """
import sys
from pathlib import Path
import numpy as np
from whyloss.journal import Journal
from whyloss.journal.rows import RowWriter

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
journal = Journal(folder)
writer = RowWriter(folder / "updates-o0-s0-r0.rows", ["step", "x"], head=limit // 8, limit=limit)
for step in range(10**9):
    writer.append(step, np.array([step, 0.5]))
    journal.event("skipped", trace=0, step=step)
    if step == 0 or limit != 63:
        print(step, flush=True)
"""


def table_of(folder: Path):
    return read_table(folder / "updates-o0-s0-r0.rows")


def whole(table) -> int:
    """The last step. The column `step` of the rows must tile 0, 1, …, last without a gap or an overlap."""
    low, high = table.low[:, 0], table.high[:, 0]
    assert low[0] == 0.0
    assert np.array_equal(low[1:], high[:-1] + 1)
    return int(high[-1])


def start_writer(folder: Path, limit: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(folder), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


@pytest.mark.parametrize("limit", [64, 4096], ids=["thinning all the time", "default limit"])
def test_ten_kills_at_random_moments_lose_no_completed_row(tmp_path, limit):
    """20 kills in all; the child says a row's number only after it wrote the row."""
    moments = random.Random(limit)
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        child = start_writer(folder, limit)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.15))
        child.kill()
        said = [int(line) for line in child.stdout.read().split("\n")[:-1] if line] or [0]
        child.stdout.close()
        child.wait()
        assert whole(table_of(folder)) >= said[-1]
        assert len(read_run(folder).skipped_updates) >= said[-1]


def test_a_reader_beside_the_writer_sees_whole_tables(tmp_path):
    child = start_writer(tmp_path / "run", 63)  # which says no more than its first row: nobody empties the pipe
    assert child.stdout is not None
    child.stdout.readline()
    try:
        seen = []
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            seen.append(whole(table_of(tmp_path / "run")))
        assert seen == sorted(seen)
        assert seen[-1] > seen[0] + 64
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


@pytest.mark.parametrize("cut", [1, 4, 12, 27])
def test_a_torn_last_row_is_dropped(tmp_path, cut):
    writer = RowWriter(tmp_path / "t.rows", ["step", "x"])
    for step in range(5):
        writer.append(step, np.array([step, 1.0]))
    writer.close()
    data = writer.path.read_bytes()
    writer.path.write_bytes(data[:-cut])
    assert read_table(writer.path).steps.tolist() == [0, 1, 2, 3]


# -- thinning

ROWS = 20_000
SPIKE, BAD = 7_777, 9_999


def long_table() -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(0)
    n = np.arange(ROWS)
    columns = {
        "step": n.astype(float),
        "noise": rng.normal(size=ROWS),
        "constant": np.full(ROWS, 0.1),
        "spike": np.where(n == SPIKE, 1e6, 1.0),
        "nan": np.where(n == BAD, np.nan, 2.0),
        "infinite": np.where(n == BAD, np.inf, 2.0),
        "huge": np.full(ROWS, 1e308),
        "sometimes": np.where(n % 10 == 0, rng.normal(size=ROWS), NOT_OBSERVED),
        "never": np.full(ROWS, NOT_OBSERVED),
        "absent": np.where(n < ROWS // 2, ABSENT, 3.0),
        "absent or unseen": np.where(n % 2 == 0, ABSENT, NOT_OBSERVED),
    }
    return list(columns), np.stack(list(columns.values()), axis=1)


@pytest.fixture(scope="module")
def thinned(tmp_path_factory):
    names, values = long_table()
    writer = RowWriter(tmp_path_factory.mktemp("thin") / "t.rows", names)
    for step, row in enumerate(values):
        writer.append(step, row)
    writer.close()
    return writer, names, values


def test_a_thinned_table_is_bounded_and_keeps_head_and_tail_as_they_were(thinned):
    writer, _, values = thinned
    raw, past = read_rows(writer.path, raw_type)[1], read_rows(writer.thin_path, thin_type)[1]
    assert len(raw) < LIMIT
    assert len(past) <= LIMIT // 2
    table = read_table(writer.path)
    assert whole(table) == ROWS - 1
    assert (np.diff(table.steps) > 0).all()
    tail = len(raw) - HEAD
    for part in (table.values, table.low, table.high):
        assert part[:HEAD].tobytes() == values[:HEAD].tobytes()
        assert part[-tail:].tobytes() == values[-tail:].tobytes()


def test_thinned_rows_all_stand_for_the_same_power_of_two(thinned):
    past = read_rows(thinned[0].thin_path, thin_type)[1]
    widths = past["rows"].tolist()
    assert set(widths[:-1]) == {16}
    assert 0 < widths[-1] <= 16


def naive(block: np.ndarray) -> tuple[float, float, float]:
    """Mean, lowest, highest of the numbers of one column, by plain Python; a mark where there is none."""
    marks = [absent(np.array([v]))[0] or not_observed(np.array([v]))[0] for v in block]
    numbers = [float(v) for v, mark in zip(block, marks, strict=True) if not mark]
    if not numbers:
        mark = ABSENT if any(absent(np.array([v]))[0] for v in block) else NOT_OBSERVED
        return mark, mark, mark
    if any(v != v for v in numbers):
        return np.nan, np.nan, np.nan
    return sum(v / len(numbers) for v in numbers), min(numbers), max(numbers)


def test_mean_lowest_and_highest_agree_with_plain_arithmetic(thinned):
    writer, names, values = thinned
    table = read_table(writer.path)
    ends = [*table.steps[1:], ROWS]
    for i, (begin, end) in enumerate(zip(table.steps, ends, strict=True)):
        if end - begin == 1 and i % 50:
            continue  # raw rows are compared whole above
        for c, _ in enumerate(names):
            want = np.array(naive(values[begin:end, c]))
            got = np.array([table.values[i, c], table.low[i, c], table.high[i, c]])
            assert np.array_equal(not_observed(got), not_observed(want))
            assert np.array_equal(absent(got), absent(want))
            assert np.array_equal(got[1:], want[1:], equal_nan=True)
            np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    constant = table.values[:, names.index("constant")]
    assert set(constant.tolist()) == {0.1}


def test_the_spike_and_the_nan_are_still_there(thinned):
    table = read_table(thinned[0].path)
    spike, bad = table.series("spike"), table.series("nan")
    assert spike is not None
    assert bad is not None
    assert spike.high.max() == 1e6
    assert np.isnan(bad.low).sum() == 1
    at = int(bad.steps[np.isnan(bad.low)][0])
    assert at <= BAD < at + 16


def test_rows_with_gaps_between_their_steps_weigh_the_same(tmp_path):
    """A table of observed updates has a row every ten steps; each is one observation."""
    writer = RowWriter(tmp_path / "t.rows", ["x"], head=4, limit=16)
    steps = [*range(20), *range(20, 1000, 10)]
    for step in steps:
        writer.append(step, np.array([float(step)]))
    writer.close()
    past = read_rows(writer.thin_path, thin_type)[1]
    for row in past:
        inside = [s for s in steps if row["step"] <= s <= row["last"]]
        assert row["rows"] == row["count"][0] == len(inside)
        assert row["values"][0] == pytest.approx(sum(inside) / len(inside))


def fill(writer) -> None:
    for writer.step in range(1000):
        writer.append(writer.step, np.array([float(writer.step)]))


@pytest.mark.parametrize("after", [0, 1], ids=["before the first replace", "between the two"])
def test_a_crash_while_thinning_loses_nothing(tmp_path, monkeypatch, after):
    writer = RowWriter(tmp_path / "t.rows", ["step"], head=8, limit=64)
    calls = []

    def crash(path, data):
        calls.append(path)
        if len(calls) > 2 + after:
            raise KeyboardInterrupt
        replace(path, data)

    replace = rows._replace
    monkeypatch.setattr(rows, "_replace", crash)
    with pytest.raises(KeyboardInterrupt):
        fill(writer)
    assert whole(read_table(writer.path)) == writer.step
    writer.close()


def test_metrics_are_bounded_in_length_and_in_number(tmp_path):
    journal = Journal(tmp_path / "run")
    for i in range(2 * LIMIT):
        journal.metrics(i, {"val": float(i)})
    journal.metrics(3, {f"m{i}": 0.0 for i in range(400)})
    journal.metrics(3, {"more": 0.0, "val": -1.0})
    journal.close()
    run = read_run(tmp_path / "run")
    val = run.metrics["val"]
    assert len(run.metrics) == 256
    assert len(val) < LIMIT + LIMIT // 2
    assert (val.first, val.last, int(val.steps[-1])) == (0.0, -1.0, 2 * LIMIT - 1)
    assert [reason for reason in run.facts.limits if "256 names" in reason] == list(run.facts.limits)


def test_journal_event_takes_metrics_too(tmp_path):
    """As the observer hands them over."""
    journal = Journal(tmp_path / "run")
    journal.event("metrics", step=3, values={"val": float("nan"), "acc": 0.5})
    journal.close()
    run = read_run(tmp_path / "run")
    assert np.isnan(run.metrics["val"].last)
    assert (run.metrics["acc"].steps.tolist(), run.metrics["acc"].last) == ([3], 0.5)


# -- reading


def test_a_run_is_read_back_as_it_was(sample):
    run, want = read_run(sample), sample_run()
    got, trace = run.traces[0], want.traces[0]
    assert (got.tensors, got.modules, got.objectives, got.orders) == (
        trace.tensors,
        trace.modules,
        trace.objectives,
        trace.orders,
    )
    for a, b in ((got.every, trace.every), (got.sampled, trace.sampled)):
        assert dict(a.columns) == dict(b.columns)
        assert a.steps.tolist() == b.steps.tolist()
        assert a.values.tobytes() == np.ascontiguousarray(b.values).tobytes()
    assert (run.facts.end, run.facts.seconds, run.facts.seeds) == ("finished", 2.0, (3,))
    assert run.metrics["val_loss"].values.tolist() == [2.0, 1.0]
    assert read_run(str(sample)).updates == 200


def test_non_finite_figures_of_a_tensor_and_odd_names_are_kept(tmp_path):
    run = sample_run(changed={"fc1.weight": {"std": float("nan"), "largest": float("inf")}})
    journal = write_journal(tmp_path / "run", run)
    first = read_run(journal).traces[0].tensors[0]
    assert first.std is not None
    assert np.isnan(first.std)
    assert first.largest == float("inf")
    odd = Journal(tmp_path / "odd")
    odd.event("start", script="caf\udce9.py", arguments=["é", "\udcff"])
    odd.close()
    assert read_run(tmp_path / "odd").facts.script == "caf?.py"


def test_a_process_of_another_rank_is_found(tmp_path):
    """SLURM_PROCID=3 with one process a folder."""
    journal = Journal(tmp_path / "run", rank=3)
    journal.event("start", script="x.py")
    journal.close()
    assert read_run(tmp_path / "run").facts.script == "x.py"


def copy(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "copy"))


def test_damage_in_the_middle_costs_the_damaged_row_only(sample, tmp_path):
    folder = copy(sample, tmp_path)
    path = folder / "updates-o0-s0-r0.rows"
    data = bytearray(path.read_bytes())
    columns, rows_ = read_rows(path, raw_type)
    begin = data.index(b"\n") + 1
    data[begin + 100 * raw_type(len(columns)).itemsize + 20] ^= 1
    path.write_bytes(data)
    assert read_run(folder).traces[0].every.steps.tolist() == [s for s in range(len(rows_)) if s != 100]


def test_a_hole_of_zeros_is_no_row(sample, tmp_path):
    """What a file system may leave after the power went."""
    folder = copy(sample, tmp_path)
    path = folder / "updates-o0-s0-r0.rows"
    with path.open("ab") as file:
        file.write(bytes(raw_type(len(read_rows(path, raw_type)[0])).itemsize * 3))
    assert read_run(folder).updates == 200


@pytest.mark.parametrize("kept", [0, 1, 30])
def test_a_torn_header_is_a_table_without_rows(sample, tmp_path, kept):
    folder = copy(sample, tmp_path)
    path = folder / "updates-o0-s0-r0.rows"
    path.write_bytes(path.read_bytes()[:kept])
    assert read_run(folder).traces == ()


def test_a_torn_line_of_events_is_passed_over(sample, tmp_path):
    folder = copy(sample, tmp_path)
    path = folder / "events-r0.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert read_run(folder).facts.end == "running"
    add_end(folder, "killed", "signal SIGKILL")
    facts = read_run(folder).facts
    assert (facts.end, facts.error) == ("killed", "signal SIGKILL")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "empty"),
        ('{"step": 1, "loss": 2}\n', "no line of it is whyloss's"),
        ("\x00\xff\n[1]\n3\n", "no line of it is whyloss's"),
        ('{"event": "start", "format": 7}\n', "format 7"),
        ('{"event": "trace", "trace": 0}\n', "line 1, trace"),
        ('{"event": "start"}\n{"event": "pending", "backwards": "many"}\n', "line 2, pending"),
        ('{"event": "skipped", "trace": 0, "step": -1}\n', "line 1, skipped"),
        ('{"event": "skipped", "trace": 0, "step": 99999999999999999999}\n', "line 1, skipped"),
        ('{"event": "metrics", "tables": {"x": "../../etc"}}\n', "line 1, metrics"),
    ],
)
def test_what_is_no_journal_is_refused_with_the_reason(tmp_path, lines, says):
    (tmp_path / "events-r0.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(NothingToJudge, match=says):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "header", [b"not json\n", b"{}\n", b'{"format": 1}\n', b'{"format": 2, "columns": []}\n', b"[]\n"]
)
def test_a_foreign_table_is_refused_by_name(sample, tmp_path, header):
    folder = copy(sample, tmp_path)
    path = folder / "updates-o0-s0-r0.rows"
    path.write_bytes(header + b"abc")
    with pytest.raises(NothingToJudge, match=path.name):
        read_run(folder)


def test_a_line_of_a_later_version_is_passed_over(sample, tmp_path):
    folder = copy(sample, tmp_path)
    with (folder / "events-r0.jsonl").open("ab") as file:
        file.write(b'{"event": "tape", "bytes": [1, 2]}\n{"event": 3}\n')
    assert read_run(folder).updates == 200


# -- fuzzing

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attempt(folder: Path, *, judge: bool = False) -> None:
    """Reading may refuse, in words, and diagnosing nothing; nothing else may come out."""
    try:
        run = read_run(folder)
    except WhylossError:
        return
    if judge:
        assert diagnose(run).verdict


@FUZZ
@given(data=st.binary(max_size=400))
def test_any_bytes_as_events(tmp_path, data):
    (tmp_path / "events-r0.jsonl").write_bytes(data)
    attempt(tmp_path)


@FUZZ
@given(data=st.binary(max_size=400), name=st.sampled_from(["updates-o0-s0-r0.rows", "updates-o0-s0-r0.thin"]))
def test_any_bytes_as_a_table(small, tmp_path, data, name):
    folder = Path(shutil.copytree(small, tmp_path / "copy", dirs_exist_ok=True))
    (folder / name).write_bytes(data)
    attempt(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_journal(tmp_path_factory.mktemp("small") / "run", sample_run(8))


@FUZZ
@given(data=st.data())
def test_any_change_of_bytes_in_a_table(small, tmp_path, data):
    folder = Path(shutil.copytree(small, tmp_path / "copy", dirs_exist_ok=True))
    path = folder / data.draw(st.sampled_from(["updates-o0-s0-r0.rows", "samples-o0-s0-r0.rows"]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    attempt(folder)


@FUZZ
@given(steps=st.lists(st.integers(0, 2**64 - 1), max_size=8), values=st.lists(st.floats(), min_size=8, max_size=8))
def test_rows_with_valid_crc_and_any_step_or_value(small, tmp_path, steps, values):
    folder = Path(shutil.copytree(small, tmp_path / "copy", dirs_exist_ok=True))
    path = folder / "updates-o0-s0-r0.rows"
    table = np.zeros(len(steps), raw_type(3))
    table["step"] = np.array(steps, dtype=np.uint64)
    table["values"] = np.resize(values, (len(steps), 3))
    header = json.dumps({"format": 1, "columns": ["loss/train", "seconds", "lr[0]"]}).encode()
    path.write_bytes(header + b"\n" + rows.seal(table))
    got = read_table(path).steps
    assert (np.diff(got) >= 0).all()
    attempt(folder)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def changed(value, data):
    """The same JSON with one thing in it taken out or put in the place of another."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(value)))
        rest = {k: v for k, v in value.items() if k != key}
        return rest if data.draw(st.booleans()) else rest | {key: changed(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], changed(value[at], data), *value[at + 1 :]]
    return data.draw(ANY)


@FUZZ
@given(data=st.data())
def test_events_with_missing_keys_and_wrong_types(small, tmp_path, data):
    folder = Path(shutil.copytree(small, tmp_path / "copy", dirs_exist_ok=True))
    path = folder / "events-r0.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    at = data.draw(st.integers(0, len(lines) - 1))
    other = changed(lines[at], data)
    lines[at] = (other if isinstance(other, dict) else {}) | {"event": lines[at]["event"]}
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    attempt(folder, judge=True)


def test_deep_nesting_is_a_damaged_line(tmp_path):
    deep = b'{"event": "trace", "x": ' + b"[" * 100_000
    (tmp_path / "events-r0.jsonl").write_bytes(deep + b"\n" + b'{"event": "start"}\n')
    assert read_run(tmp_path).traces == ()


# -- folders


def test_processes_that_want_one_folder_get_one_each(tmp_path):
    code = (
        "import sys; from pathlib import Path; from whyloss.journal import claim; print(claim(Path(sys.argv[1])).name)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) for _ in range(4)]
    names = sorted(child.communicate()[0].strip() for child in children)
    assert names == ["run", "run-2", "run-3", "run-4"]
    assert [f.name for f in siblings(tmp_path / "run")] == names


def test_ranks_share_a_folder(tmp_path):
    assert claim(tmp_path / "run", 0) == claim(tmp_path / "run", 1) == tmp_path / "run"


def test_folders_of_an_earlier_run_are_not_taken_for_this_one(tmp_path):
    earlier = claim(tmp_path / "run-2")
    older = taken(tmp_path / "run")
    mine = [claim(tmp_path / "run") for _ in range(2)]
    assert siblings(tmp_path / "run", older) == mine == [tmp_path / "run", tmp_path / "run-3"]
    assert earlier not in mine


def test_a_folder_is_made_once(tmp_path):
    assert [make(tmp_path / "a" / "run").name for _ in range(3)] == ["run", "run-2", "run-3"]


def test_a_default_folder_is_named_after_time_and_script_and_is_new(tmp_path):
    first = default_folder("dir/my train.py", tmp_path)
    assert first.parent == tmp_path / ".whyloss"
    assert first.name.endswith("-my_train")
    assert len(default_folder("x" * 300, tmp_path).name) < 120


@pytest.mark.parametrize("ask", [claim, make])
def test_a_folder_below_a_file_is_misuse(tmp_path, ask):
    (tmp_path / "file").write_text("")
    with pytest.raises(Misuse, match="--out"):
        ask(tmp_path / "file" / "run")


# -- a full disk

FULL = """
import sys, resource
from pathlib import Path
import numpy as np
from whyloss.journal import Journal

journal = Journal(Path(sys.argv[1]))
journal.table("updates-o0-s0", ["step", "x"])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    for step in range(100):
        journal.row("updates-o0-s0", step, np.array([step, 1.0]))
        print(step, flush=True)
except OSError as error:
    print(error.errno)
try:
    journal.event("limit", reason="x" * 2000)
except OSError as error:
    journal.event("detached", reason="full")
"""


def test_a_full_disk_is_an_error_that_leaves_whole_rows_and_lines(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    *steps, errno = [int(line) for line in done.stdout.split()]
    assert done.returncode == 0, done.stderr
    assert errno in (27, 28)
    path = tmp_path / "run" / "updates-o0-s0-r0.rows"
    data = path.read_bytes().split(b"\n", 1)[1]
    assert len(data) % raw_type(2).itemsize == 0
    assert read_table(path).steps.tolist() == steps
    assert read_run(tmp_path / "run").facts.detached == "full"


def test_a_thinning_that_finds_no_room_leaves_no_rubbish(tmp_path, monkeypatch):
    writer = RowWriter(tmp_path / "t.rows", ["step"], head=8, limit=64)

    def full(self, data):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        fill(writer)
    writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["t.rows"]
    assert whole(read_table(writer.path)) == 63


def test_every_row_carries_the_crc_of_what_stands_before_it(sample):
    path = sample / "updates-o0-s0-r0.rows"
    header, data = path.read_bytes().split(b"\n", 1)
    width = raw_type(len(json.loads(header)["columns"])).itemsize
    row = data[:width]
    assert zlib.crc32(row[:-4]) == int.from_bytes(row[-4:], "little")
    assert os.path.getsize(path) == len(header) + 1 + 200 * width


def test_a_past_that_is_replaced_while_it_is_read_leaves_no_gap(tmp_path, monkeypatch):
    """The reader had the first row when the writer thinned the table for the first time."""
    path, real = tmp_path / "updates-o0-s0-r0.rows", rows_module.read_rows
    writer = RowWriter(path, ["step", "x"], head=7, limit=63)
    writer.append(0, np.array([0.0, 0.5]))
    slow = [range(1, 80)]

    def read(which, row_type):
        found = real(which, row_type)
        for step in slow.pop() if slow else ():  # once: while the reader was at it
            writer.append(step, np.array([step, 0.5]))
        return found

    monkeypatch.setattr(rows_module, "read_rows", read)
    assert whole(read_table(path)) == 79
