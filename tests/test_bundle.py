"""A step on disk: written, replayed by a process that has never seen its code, and forged in every way."""

import copy
import json
import math
import os
import pickletools
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import environment, run_whyloss
from tape_models import CASES
from whyloss.core.errors import Misuse, NothingToJudge
from whyloss.core.location import Phase
from whyloss.tape.arguments import Reader, encode
from whyloss.tape.bundle import Unwritable, read_bundle, write_bundle
from whyloss.tape.compare import compare, reproduce
from whyloss.tape.generators import GENERATOR
from whyloss.tape.locate import locate
from whyloss.tape.names import call_of
from whyloss.tape.recording import recording
from whyloss.tape.tape import Ref, Role

F = nn.functional
WRITABLE = (
    *("perceptron", "batch_norm_and_dropout", "convolutions_and_norms", "lstm", "gru", "packed_sequences"),
    *("transformer_encoder", "attention_masks", "embeddings", "sparse_embeddings", "tied_weights", "weight_norm"),
    *("variational_autoencoder", "distributions", "complex_numbers", "strange_strides", "double_precision"),
    *("autocast", "autocast_blocks", "autocast_without_cache", "bfloat16_weights", "autocast_and_checkpoint"),
    *("gradient_accumulation", "gradients_never_cleared", "two_losses_of_one_graph", "losses_in_one_call"),
    *("adversarial_networks", "gradient_penalty", "double_backward", "gradient_of_a_vector", "updates_through_data"),
    *("changes_in_place", "views_changed_in_place", "generator_of_the_user", "seeded_within_the_step"),
    *("checkpoint_reentrant", "checkpoint_not_reentrant", "spectral_norm", "prepared_batch", "default_device_blocks"),
)


def tape_of(name):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = CASES[name].make()
        with recording(training.model, training.optimizers[0]) as step:
            training.step()
        return step.tape()


class Net(nn.Module):
    """A little of everything that takes sizes, masks or numbers as arguments."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, tokens, length: int):
        x = self.norm(self.embed(tokens))
        x = torch.cat([x, torch.zeros(len(tokens), 2, 8)], dim=1)[:, :length]
        mask = torch.arange(length).expand(len(tokens), -1) < length - 1
        x = F.dropout(x.masked_fill(~mask.unsqueeze(-1), 0.0), 0.2)
        picked = x[mask].sum().tanh() + torch.full((1,), 0.5)
        x = torch.cat([x.mean(1), x.amax(1)], dim=-1) * self.scale.repeat(16)
        return self.head(x) + picked * F.one_hot(tokens[:, 0] % 3, 3).to(torch.float32)


def net_tape(factor=1.0):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, target = torch.randint(0, 11, (6, 5)), torch.randint(0, 3, (6,))
    with recording(model, optimizer) as step:
        loss = F.cross_entropy(model(tokens, 4), target)
        (loss * torch.log(torch.tensor(factor)).exp()).backward()
        optimizer.step()
    return step.tape()


@pytest.fixture(scope="module")
def tape():
    return net_tape()


@pytest.fixture(scope="module")
def bundle(tape, tmp_path_factory):
    return write_bundle(tape, tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A bundle for each of the models, and what the command line of another process says of it."""
    folder = tmp_path_factory.mktemp("models")
    bundles = {name: write_bundle(tape_of(name), folder / name) for name in WRITABLE}
    code = f"""
import sys
from whyloss.cli import main
for bundle in {[str(b) for b in bundles.values()]}:
    sys.argv = ["whyloss", "replay", bundle, "--format", "json"]
    try:
        main()
    except SystemExit as end:
        print(f"---{{end.code}}", flush=True)
assert "tape_models" not in sys.modules
"""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    parts = [part.rpartition("}") for part in done.stdout.split("---")]
    codes = [int(part.splitlines()[0]) for part in done.stdout.split("---")[1:]]
    texts = [part[0][part[0].find("{") :] + "}" for part in parts[:-1]]
    return {n: (json.loads(t), c, bundles[n]) for n, t, c in zip(bundles, texts, codes, strict=True)}


# -- round trip


@pytest.mark.parametrize("name", WRITABLE)
def test_another_process_gets_the_same_bits(written, name):
    said, code, folder = written[name]
    assert (code, said["verdict"], said["difference"], said["elsewhere"]) == (0, "reproduced", "", [])
    assert said["gradients"]["same"] == said["gradients"]["compared"] > 0
    assert sorted(p.name for p in folder.iterdir()) == ["tape.json", "tensors.safetensors"]


def test_the_tape_that_is_read_is_the_one_that_was_written(tape, bundle):
    read = read_bundle(bundle).tape
    for part in ("losses", "values", "modes", "training", "dtype", "faithful", "reason", "doubts", "step", "trace"):
        assert getattr(read, part) == getattr(tape, part), part
    for ours, theirs in zip(read.ops, tape.ops, strict=True):
        for part in ("name", "args", "out", "context", "changed", "module", "place", "inner"):
            assert getattr(ours, part) == getattr(theirs, part), ours.name
        assert dict(ours.kwargs) == dict(theirs.kwargs)
    for n, leaf in tape.leaves.items():
        ours = read.leaves[n]
        assert (ours.role, ours.name, ours.requires_grad) == (leaf.role, leaf.name, leaf.requires_grad)
        assert torch.equal(ours.value, leaf.value)
        assert ours.value.stride() == leaf.value.stride()


def test_the_optimizer_is_kept(tape, bundle):
    ours, theirs = read_bundle(bundle).tape.setup, tape.setup
    assert (ours.kind, ours.groups) == (torch.optim.AdamW, theirs.groups)
    for n, kept in theirs.state.items():
        assert {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in ours.state[n].items()} == {
            k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in kept.items()
        }


def test_a_class_of_the_users_is_a_name(tape, tmp_path):
    class Mine(torch.optim.SGD):
        def __init__(self, *args):
            raise AssertionError

    own = replace(tape.setup, kind=Mine)
    kind = read_bundle(write_bundle(replace(tape, setup=own), tmp_path)).tape.setup.kind
    assert kind.__name__ == "Mine"
    assert not issubclass(kind, torch.optim.Optimizer)


def test_no_pickle_anywhere(bundle):
    content = (bundle / "tensors.safetensors").read_bytes()
    assert len(content) - 8 > int.from_bytes(content[:8], "little")  # a JSON header and bare numbers
    json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    json.loads((bundle / "tape.json").read_bytes())
    for file in bundle.iterdir():
        with pytest.raises((ValueError, AttributeError, KeyError)):
            list(pickletools.genops(file.read_bytes()))


def test_nothing_of_torchs_settings_is_left_changed(bundle):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    assert reproduce(bundle).reproduced
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_is_that_of_the_recording(bundle, tmp_path):
    def two(contents):
        contents["environment"]["threads"] = 2

    threads = torch.get_num_threads()
    made = reproduce(forge(bundle, tmp_path, json_=two))
    assert (made.here.threads, made.elsewhere) == (2, ())  # one thread adds up in another order
    assert torch.get_num_threads() == threads


def test_arrays_of_the_users_become_leaves(tmp_path):
    model, array = nn.Linear(3, 1), np.arange(6.0, dtype=np.float32).reshape(2, 3)
    with recording(model) as step:
        model(torch.as_tensor(array)).sum().mul(np.float64(0.5)).backward()
    tape = step.tape()
    made = reproduce(write_bundle(tape, tmp_path))
    assert made.reproduced
    assert "torch.as_tensor" not in {op.name for op in made.bundle.tape.ops}
    assert [leaf.value.tolist() for leaf in made.bundle.tape.of(Role.CONSTANT)] == [array.tolist()]


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(2**63), 0.1, -0.0, 1e-300, math.inf, -math.inf, 2 + 0.5j, "mean", (), (1, [2.5, None])),
        *({"a": (1,), "b": {}}, slice(1, None, 2), slice(None, Ref(3)), (Ref(4), ...), torch.bfloat16, GENERATOR),
        *(torch.device("cpu"), torch.strided, torch.channels_last, complex(math.inf, 1)),
    ],
    ids=str,
)
def test_arguments_come_back_as_they_were(value):
    back = Reader().decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)
    assert str(back) == str(value)


def test_nan_comes_back():
    assert math.isnan(Reader().decode(encode(math.nan)))


# -- what can't be written


def test_a_custom_function_is_named_with_its_line(tmp_path):
    with pytest.raises(
        Unwritable, match=r"call 1 \(tape_models\.Cube, .*tape_models\.py:\d+\).*a call of your own code"
    ):
        write_bundle(tape_of("custom_functions"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_object_among_the_arguments_is_named(tape, tmp_path):
    ops = tuple(replace(op, kwargs={"x": object()}) if op.name.endswith("dropout") else op for op in tape.ops)
    with pytest.raises(Unwritable, match=r"dropout, .*test_bundle\.py:\d+\) can't be kept: a object among its arg"):
        write_bundle(replace(tape, ops=ops), tmp_path)


def test_a_size_beyond_the_limit_is_refused_before_anything_is_written(tape, tmp_path):
    with pytest.raises(Unwritable, match=r"the step takes .* MiB; a bundle may take .* MiB \(most_bytes\)"):
        write_bundle(tape, tmp_path / "deep", most_bytes=1000)
    assert not (tmp_path / "deep").exists()


def test_nothing_is_ever_overwritten(tape, tmp_path):
    (tmp_path / "bundle-step0").mkdir()
    (tmp_path / "bundle-step0" / "mine").write_text("kept")
    (tmp_path / "bundle-step0-2").write_text("kept")
    names = [write_bundle(tape, tmp_path).name for _ in range(2)]
    assert names == ["bundle-step0-3", "bundle-step0-4"]
    assert (tmp_path / "bundle-step0" / "mine").read_text() == "kept"
    assert (tmp_path / "bundle-step0-2").read_text() == "kept"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_that_is_a_file_is_misuse(tape, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Misuse, match="can't write a bundle in"):
        write_bundle(tape, tmp_path / "file")


def test_a_failure_half_way_leaves_nothing(tape, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whyloss.tape.bundle.write_tensors", full)
    with pytest.raises(Misuse, match="No space left on device"):
        write_bundle(tape, tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- redacted


def test_redacted_keeps_shapes_and_parameters_only(tape, tmp_path):
    folder = write_bundle(tape, tmp_path, redact=True)
    read = read_bundle(folder)
    assert read.redacted
    assert read.tape.values == tape.values
    for n, leaf in read.tape.leaves.items():
        assert leaf.value.is_meta == (leaf.role is not Role.PARAMETER)
        assert leaf.value.shape == tape.values[n].shape
    kept = safetensors.torch.load_file(folder / "tensors.safetensors")
    parameters = {f"leaf.{n}" for n, leaf in tape.leaves.items() if leaf.role is Role.PARAMETER}
    assert set(kept) == parameters
    with pytest.raises(NothingToJudge, match="it can be read, but not replayed"):
        compare(read)


def test_redacted_hides_numbers_of_torch_tensor(tmp_path):
    model = nn.Linear(2, 1)
    with recording(model) as step:
        model(torch.tensor([[0.123456, 7.654321]])).sum().backward()
    text = (write_bundle(step.tape(), tmp_path, redact=True) / "tape.json").read_text()
    assert '"torch.tensor"' not in text


# -- the command


@pytest.fixture
def replay(tmp_path):
    return lambda *args: run_whyloss("replay", *args, cwd=tmp_path)


def test_the_command_says_what_it_did(bundle, replay):
    done = replay(bundle, "--ops")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("whyloss reproduced  step 0 of AdamW: ")
    assert f"recorded   torch {torch.__version__}, Python" in done.stdout
    assert "compared   bit for bit" in done.stdout
    assert "gradients  6 of 6 the same" in done.stdout
    assert "nn.functional.embedding" in done.stdout
    assert "test_bundle.py:" in done.stdout


def test_the_command_locates_what_is_not_finite(tmp_path, replay):
    done = replay(write_bundle(net_tape(factor=0.0), tmp_path / "here"))
    assert done.code == 0
    assert "non-finite torch.log gives -inf" in done.stdout or "bit for bit" in done.stdout


def test_a_nan_is_located_from_disk(tmp_path):
    model, x = nn.Linear(4, 4), torch.randn(8, 4)
    with recording(model) as step:
        torch.log(model(x).relu()).mean().sqrt().backward()
    read = read_bundle(write_bundle(step.tape(), tmp_path))
    assert read.nonfinite
    assert compare(read).reproduced
    found = locate(read.tape)
    assert (found.phase, found.op) == (Phase.FORWARD, "torch.log")
    assert found.place.source.startswith("torch.log(model(x)")


def test_other_values_are_not_reproduced(bundle, tmp_path, replay):
    forged = forge(bundle, tmp_path, tensors=lambda t: first_gradient(t).add_(1e-6))
    done = replay(forged, "--format", "json")
    said = json.loads(done.stdout)
    assert (done.code, said["verdict"]) == (1, "not-reproduced")
    assert said["difference"].startswith("the gradient of ")
    assert said["gradients"]["same"] == said["gradients"]["compared"] - 1


def test_exit_codes_of_what_is_no_bundle(tmp_path, replay):
    missing = replay("nowhere")
    assert missing.code == 2
    assert "nowhere does not exist. A bundle is a folder called bundle-step<N>" in missing.stderr
    empty = replay(".")
    assert (empty.code, empty.stderr) == (3, "whyloss: . is no bundle: there is no tape.json in it\n")


def test_redacted_says_so(tape, tmp_path, replay):
    done = replay(write_bundle(tape, tmp_path, redact=True), "--ops")
    assert done.code == 3
    assert done.stdout.startswith("whyloss not-replayed  step 0 of AdamW")
    assert "it can be read, but not replayed" in done.stdout
    assert "nn.functional.embedding" in done.stdout


def test_elsewhere_a_tolerance_holds(bundle, tmp_path):
    def older(contents):
        contents["environment"]["torch"] = "2.6.0"

    near = forge(bundle, tmp_path / "near", json_=older, tensors=lambda t: first_gradient(t).mul_(1 + 1e-5))
    made = reproduce(near)
    assert made.reproduced
    assert made.tolerance == 1e-3
    assert made.elsewhere == (f"torch {torch.__version__}, not 2.6.0",)
    far = forge(bundle, tmp_path / "far", json_=older, tensors=lambda t: first_gradient(t).mul_(1.1))
    assert "recorded" in reproduce(far).difference


def test_an_unfaithful_tape_is_held_against_a_tolerance(tape, tmp_path):
    unsure = replace(tape, faithful=False, reason="its ops are not deterministic: two replays differ")
    made = reproduce(write_bundle(unsure, tmp_path))
    assert made.reproduced
    assert made.tolerance == 1e-3
    assert made.elsewhere == (f"a tape that was not exact where it was recorded ({unsure.reason})",)


# -- forged


def forge(bundle, folder, json_=None, tensors=None):
    """A copy of the bundle, changed by these two functions."""
    target = folder / "forged"
    shutil.copytree(bundle, target)
    contents = json.loads((target / "tape.json").read_text())
    if json_ is not None:
        json_(contents)
    (target / "tape.json").write_text(json.dumps(contents))
    if tensors is not None:
        there = safetensors.torch.load_file(target / "tensors.safetensors")
        tensors(there)
        safetensors.torch.save_file(there, target / "tensors.safetensors")
    return target


def first_gradient(tensors):
    return tensors[min(key for key in tensors if key.startswith("gradient."))]


def op_called(contents, name):
    return next(op for op in contents["ops"] if op["name"] == name)


def leaf_number(contents, role):
    return next(n for n, leaf in contents["leaves"].items() if leaf["role"] == role)


def unknown_call(c):
    op_called(c, "torch.nn.functional.dropout")["name"] = "os.system"


def loads(c):
    c["ops"][0] |= {"name": "torch.load", "args": {"tuple": ["/etc/passwd"]}}


def reads_a_file(c):
    c["ops"][0] |= {"name": "torch.from_file", "args": {"tuple": ["/etc/passwd"]}}


def hooks(c):
    c["ops"][0]["name"] = "torch.Tensor.register_hook"


def huge_zeros(c):
    op_called(c, "torch.zeros")["args"] = {"tuple": [[10**12]]}


def huge_zeros_declared(c):
    op = op_called(c, "torch.zeros")
    op["args"] = {"tuple": [[10**12]]}
    c["values"][str(op["out"]["ref"])]["shape"] = [10**12]


def huge_full(c):
    op_called(c, "torch.full")["args"] = {"tuple": [{"tuple": [10**7, 10**7]}, 0.5]}


def huge_repeat(c):
    op_called(c, "torch.Tensor.repeat")["args"]["tuple"][1] = 10**13


def huge_expand(c):
    op = op_called(c, "torch.Tensor.expand")
    op["args"]["tuple"][1:] = [10**9, 10**9, -1]


def huge_classes(c):
    op_called(c, "torch.nn.functional.one_hot")["args"]["tuple"][1] = 10**13


def other_shape(c):
    c["values"][str(op_called(c, "torch.nn.functional.embedding")["out"]["ref"])]["shape"] = [6, 5, 9]


def negative_shape(c):
    c["values"][str(c["losses"][0])]["shape"] = [-1]


def huge_shape_of_a_leaf(c):
    n = leaf_number(c, "input")
    c["values"][n]["shape"] = c["tensors"][f"leaf.{n}"]["shape"] = [2**40, 2**40]


def traversal(c):
    c["tensors"]["../../../etc/passwd"] = {"shape": [1], "dtype": "float32"}


def other_key(c):
    n = leaf_number(c, "input")
    c["tensors"]["/etc/passwd"] = c["tensors"].pop(f"leaf.{n}")


def wrong_dtype(c):
    c["tensors"][f"leaf.{leaf_number(c, 'input')}"]["dtype"] = "float64"


def unknown_dtype(c):
    c["tensors"][f"leaf.{leaf_number(c, 'input')}"]["dtype"] = "__class__"


def overlapping_strides(c):
    c["tensors"][f"leaf.{leaf_number(c, 'input')}"]["strides"] = [1, 1]


def dangling(c):
    c["ops"][0]["args"]["tuple"][0] = {"ref": 999999}


def cyclic(c):
    first, last = c["ops"][0], c["ops"][-2]
    first["args"]["tuple"][0] = last["out"]


def made_twice(c):
    c["ops"][-2]["out"] = c["ops"][0]["out"]


def leaf_made_again(c):
    c["ops"][1]["out"] = {"ref": int(leaf_number(c, "parameter"))}


def deep(c):
    tree = 1
    for _ in range(100):
        tree = {"tuple": [tree]}
    c["ops"][0]["kwargs"] = {"dict": {"x": tree}}


def list_for_a_number(c):
    c["step"] = [1]


def text_for_a_shape(c):
    c["values"][str(c["losses"][0])]["shape"] = "[]"


def nan_for_a_number(c):
    c["tolerance"] = "nan"


def unknown_field(c):
    c["code"] = "import os"


def unknown_tag(c):
    c["ops"][0]["kwargs"] = {"dict": {"x": {"pickle": "gASVAAAA"}}}


def two_tags(c):
    c["ops"][0]["kwargs"] = {"dict": {"x": {"ref": 0, "tuple": []}}}


def no_arguments(c):
    c["ops"][0]["args"] = []


def surplus_arguments(c):
    c["ops"][0]["args"]["tuple"] += [1, 2, 3, 4, 5, 6, 7]


def newer(c):
    c["format"] = 2


def gone(c):
    del c["leaves"]


def other_losses(c):
    c["losses"] = [int(leaf_number(c, "parameter"))]


def a_million_threads(c):
    c["environment"]["threads"] = 10**6


def secretly_withheld(c):
    c["tensors"][f"leaf.{leaf_number(c, 'input')}"]["withheld"] = True


def autocast_to_text(c):
    c["ops"][0]["autocast"] = [["cpu", "int64"]]


def bad_generator(c):
    op = next(op for op in c["ops"] if op.get("drawn"))
    op["drawn"] = ["/dev/random"]


def wrong_form(c):
    op_called(c, "torch.nn.functional.embedding")["out"] = {
        "tuple": [op_called(c, "torch.nn.functional.embedding")["out"]]
    }


FORGERIES = {
    unknown_call: "'os.system', which is not among those that a bundle may hold",
    loads: "'torch.load', which is not among",
    reads_a_file: "'torch.from_file', which is not among",
    hooks: "'torch.Tensor.register_hook', which is not among",
    huge_zeros: r"call \d+ \(torch\.zeros, .*\) wants 3\.73e\+03 GiB; this machine has",
    huge_zeros_declared: "GiB; this machine has",
    huge_full: "GiB; this machine has",
    huge_repeat: "GiB; this machine has",
    huge_expand: "makes a tensor of shape|can't be run",
    huge_classes: "makes a tensor of shape|GiB; this machine has",
    other_shape: r"gives the shape \[6, 5, 8\], but the tape says \[6, 5, 9\]",
    negative_shape: "Expected `int` >= 0",
    huge_shape_of_a_leaf: "an impossible shape",
    traversal: r"no values for the tensor '../../../etc/passwd'",
    other_key: r"no values for the tensor '/etc/passwd'",
    wrong_dtype: r"as \(6, 5\) int64, but describes it as \(6, 5\) float64",
    unknown_dtype: "an unknown dtype, '__class__'",
    overlapping_strides: "impossible strides",
    dangling: "uses tensor 999999, which nothing before it makes",
    cyclic: "which nothing before it makes",
    made_twice: "which there is already",
    leaf_made_again: "which there is already",
    deep: "arguments in more than 64 containers",
    list_for_a_number: "Expected `int`, got `array`",
    text_for_a_shape: "Expected `array`, got `str`",
    nan_for_a_number: "Expected `float`, got `str`",
    unknown_field: "unknown field `code`",
    unknown_tag: "an unknown kind, 'pickle'",
    two_tags: "an argument with 2 kinds",
    no_arguments: "without a tuple and a dict of arguments",
    surplus_arguments: "can't be run: TypeError",
    newer: "it has format 2; this whyloss reads format 1",
    gone: "missing required field `leaves`",
    other_losses: "other losses than those from which",
    a_million_threads: "Expected `int` <= 1024",
    secretly_withheld: "values for a tensor that it does not describe",
    autocast_to_text: "autocast to 'int64'",
    bad_generator: "an unknown device, '/dev/random'",
    wrong_form: "gives something of another form",
}


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fails the test where a bundle is replayed."""

    def played(*args, **kwargs):
        raise AssertionError("it was replayed")

    monkeypatch.setattr("whyloss.tape.compare.replay", played)


@pytest.mark.parametrize("change", FORGERIES, ids=lambda f: f.__name__)
def test_a_forged_bundle_is_refused_before_anything_runs(bundle, tmp_path, nothing_runs, change):
    with pytest.raises(NothingToJudge, match=FORGERIES[change]) as refused:
        reproduce(forge(bundle, tmp_path, json_=change))
    assert str(refused.value).startswith(f"{tmp_path / 'forged'} can't be read as a bundle: ")


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[1]", b'{"format": 1', b'{"format": NaN}', b"\x80\x04\x95", b'{"format":1,"ops":' + b"[" * 10**6],
    ids=["empty", "null", "list", "cut", "NaN", "pickle", "deep"],
)
def test_what_is_no_json_is_refused(bundle, tmp_path, nothing_runs, text):
    target = forge(bundle, tmp_path)
    (target / "tape.json").write_bytes(text)
    with pytest.raises(NothingToJudge, match="can't be read as a bundle"):
        reproduce(target)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(bundle, tmp_path, nothing_runs, keep):
    target = forge(bundle, tmp_path)
    content = (target / "tensors.safetensors").read_bytes()
    (target / "tensors.safetensors").write_bytes(content[:keep])
    with pytest.raises(NothingToJudge, match="a tensors file that can't be read"):
        reproduce(target)


def test_a_torch_file_in_place_of_the_tensors_is_refused(bundle, tmp_path, nothing_runs):
    target = forge(bundle, tmp_path)
    torch.save({"leaf.0": torch.zeros(1)}, target / "tensors.safetensors")
    with pytest.raises(NothingToJudge, match="a tensors file that can't be read"):
        reproduce(target)


def test_more_tensors_than_described_are_refused(bundle, tmp_path, nothing_runs):
    def more(tensors):
        tensors["x"] = torch.zeros(1)

    with pytest.raises(NothingToJudge, match="values for a tensor that it does not describe, 'x'"):
        reproduce(forge(bundle, tmp_path, tensors=more))


def test_a_missing_file_is_named(bundle, tmp_path):
    target = forge(bundle, tmp_path)
    (target / "tensors.safetensors").unlink()
    with pytest.raises(NothingToJudge, match=r"is no bundle: there is no tensors\.safetensors in it"):
        reproduce(target)


def test_a_pipe_is_not_waited_for(bundle, tmp_path):
    target = forge(bundle, tmp_path)
    (target / "tape.json").unlink()
    os.mkfifo(target / "tape.json")
    with pytest.raises(NothingToJudge, match=r"there is no tape\.json"):
        reproduce(target)


@pytest.mark.parametrize(
    ("make", "name", "role"),
    [
        (lambda x, n: x.repeat_interleave(n, dim=0), "torch.Tensor.repeat_interleave", "input"),
        (lambda x, n: F.one_hot(n).float().sum() * x, "torch.nn.functional.one_hot", "input"),
        (lambda x, n: torch.bincount(n).float().sum() * x, "torch.bincount", "input"),
    ],
    ids=["repeat_interleave", "one_hot", "bincount"],
)
def test_values_that_ask_for_memory_are_refused_when_they_are_seen(tmp_path, make, name, role):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x, n):
            return self.layer(make(x, n))

    model, counts = Model(), torch.tensor([1, 2, 3])
    with recording(model) as step:
        model(torch.randn(3, 2), counts).sum().backward()
    folder = write_bundle(step.tape(), tmp_path)
    number = next(n for n, leaf in read_bundle(folder).tape.leaves.items() if leaf.name == "n")
    target = forge(folder, tmp_path, tensors=lambda t: t[f"leaf.{number}"].fill_(10**12))
    with pytest.raises(NothingToJudge, match=r"can't be replayed: wants a tensor of .* elements"):
        reproduce(target)


def test_a_mask_can_not_blow_up_an_index(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 2, 3))

        def forward(self, index, mask):
            return self.weight[index, mask]

    model = Model()
    with recording(model) as step:
        model(torch.tensor([0, 1]), torch.tensor([True, True])).sum().backward()
    assert reproduce(write_bundle(step.tape(), tmp_path)).reproduced


def test_the_command_refuses_without_a_traceback(bundle, tmp_path, replay):
    def escapes(contents):
        contents["ops"][0]["name"] = "\x1b[2Jtorch.load"

    done = replay(forge(bundle, tmp_path / "here", json_=escapes))
    assert (done.code, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert "not among those that a bundle may hold" in done.stderr


# -- any mutation

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 3, 7, 64, 10**6, 10**12, 2**63, -(2**63)]),
    st.sampled_from([0.0, -1.5, 1e308, 0.5]),
    st.sampled_from(["", "nan", "cuda", "meta", "float16", "int64", "torch.load", "torch.Tensor.sum", "torch.matmul"]),
    st.sampled_from(["torch.Tensor.as_strided", "torch.Tensor.view", "torch.zeros", "torch.Tensor.set_", "os.system"]),
    st.sampled_from([[], {}, [0], {"ref": 3}, {"tuple": []}, {"slice": [0, 10**12, 1]}, {"float": "nan"}]),
    st.integers(0, 60).map(lambda n: {"ref": n}),
)
WATCHED = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "subprocess",
    "socket",
    "pickle",
    "shutil",
)
_audited: list[str] | None = None


def _audit(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if _audited is not None and (writes or event.startswith(WATCHED)):
        _audited.append(f"{event} {args}")


sys.addaudithook(_audit)


def nodes(tree):
    """Every container below, with each key of it."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from nodes(tree[key])


@pytest.fixture(scope="module")
def loaded(bundle):
    """The bundle without what only other tests need: fewer places, each more often hit."""
    return json.loads((bundle / "tape.json").read_text())


def _outcome(folder):
    """What a user would read; anything but these two outcomes is a failure."""
    try:
        made = reproduce(folder)
    except NothingToJudge as error:
        return str(error)
    return made.difference or "reproduced"


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_mutation_runs_anything_else_or_ends_in_a_traceback(bundle, loaded, tmp_path_factory, data):
    global _audited
    contents = copy.deepcopy(loaded)
    part = data.draw(st.sampled_from(["ops", "ops", "ops", "values", "tensors", "leaves", None]))
    places = list(nodes(contents[part] if part else contents))
    for _ in range(data.draw(st.integers(1, 3))):
        tree, key = places[data.draw(st.integers(0, len(places) - 1))]
        if isinstance(tree, dict) and key not in tree:
            continue
        how = data.draw(st.sampled_from(["replace", "delete", "twin"]))
        if how == "delete" and isinstance(tree, dict):
            del tree[key]
        elif how == "twin":
            other, at = places[data.draw(st.integers(0, len(places) - 1))]
            if isinstance(other, list) or at in other:
                tree[key] = copy.deepcopy(other[at])
        else:
            tree[key] = data.draw(VALUES)
    target = tmp_path_factory.mktemp("mutation") / "bundle"
    target.mkdir()
    os.link(bundle / "tensors.safetensors", target / "tensors.safetensors")
    (target / "tape.json").write_text(json.dumps(contents))
    _audited = []
    try:
        said = _outcome(target)
    finally:
        seen, _audited = _audited, None
    assert said
    assert seen == []


# -- names


def test_names_lead_to_arithmetic_only():
    for name in (
        *("torch.load", "torch.save", "torch.from_file", "torch.compile", "torch.Tensor.apply_", "torch.Tensor.map_"),
        *(
            "torch.Tensor.register_hook",
            "torch.Tensor.share_memory_",
            "torch.Tensor.__reduce_ex__",
            "torch.Tensor.set_",
        ),
        *("torch.Tensor.data_ptr", "torch.Tensor.numpy", "torch.Tensor.backward", "torch.Tensor.storage", "os.system"),
        *("torch.Tensor.__setstate__", "torch.Tensor.__class__", "torch.Tensor.__deepcopy__", "torch.jit.load"),
        *("torch.set_rng_state", "torch.set_num_threads", "torch.hub.load", "torch.Tensor._make_subclass", "torch"),
        *("torch.nn.functional.handle_torch_function", "torch.Tensor.grad.__set__", "torch.Tensor.resize_", ""),
        *("torch.Tensor.__array__", "torch.Tensor.__dlpack__", "torch.vmap", "torch.cond", "torch.autograd.Function"),
    ):
        assert call_of(name) is None, name


def test_names_lead_to_the_calls_that_tapes_hold():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(call_of("torch.Tensor.T")(x), x.T)
    assert torch.equal(call_of("torch.Tensor.data")(x), x)
    assert call_of("torch.nn.functional.relu") is F.relu
    call_of("torch.Tensor.requires_grad.__set__")(x, True)
    assert x.requires_grad


def test_help_and_misuse_load_no_torch(tmp_path):
    code = "import sys; from whyloss.cli import replay; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_without_torch_it_says_so(monkeypatch, capsys):
    from whyloss.cli import main

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["whyloss", "replay", "x"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "torch is not installed for" in capsys.readouterr().err
