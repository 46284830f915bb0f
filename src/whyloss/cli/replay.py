"""whyloss replay"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whyloss.core.errors import NothingToJudge
from whyloss.core.finding import Place

if TYPE_CHECKING:
    from whyloss.core.location import Location
    from whyloss.tape.compare import Reproduction
    from whyloss.tape.environment import Environment
    from whyloss.tape.tape import Op, Tape
    from whyloss.tape.unpack import Bundle

WIDEST = 48  # characters of a column


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--ops", is_flag=True, help="List the calls of the step: shapes, module and line.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def replay(bundle: Path, ops: bool, form: str) -> None:
    """Replay a recorded step, without its code, and compare.

    BUNDLE is a folder bundle-step<N>. Losses and gradients are compared bit for bit; where torch, the processor or the
    device is another one than there, within a tolerance that is printed. Nothing of the bundle is run as code, and all
    of it is checked before any call of it is made.

    Exit codes: 0 reproduced; 1 not reproduced; 2 no such folder; 3 it can't be read, or not be replayed.
    """
    from whyloss.cli.run import _need_torch
    from whyloss.report.text import clean

    _need_torch()
    try:
        read, made, refused, where = _replayed(bundle)
    except NothingToJudge as error:
        raise NothingToJudge(clean(str(error))) from error
    if form == "json":
        _write_json(_plain(read, made, refused, where, ops))
    else:
        for line in _lines(read, made, refused, where, ops):
            click.echo(clean(line).rstrip())
    if made is None:
        sys.exit(3)
    sys.exit(0 if made.reproduced else 1)


def _replayed(folder: Path) -> tuple["Bundle", "Reproduction | None", str, "Location | None"]:
    """The bundle; what its replay gave, or None and why there is none; where it first turned non-finite, if it did."""
    from whyloss.core.location import Phase
    from whyloss.tape.compare import compare
    from whyloss.tape.unpack import read_bundle

    read = read_bundle(folder)
    try:
        made = compare(read)
    except NothingToJudge as error:
        if not read.redacted:
            raise
        return read, None, str(error), None
    where = _located(read.tape)
    return read, made, "", where if read.nonfinite or where.phase is not Phase.NONE else None


def _located(tape: "Tape") -> "Location":
    from whyloss.core.location import Location, Phase
    from whyloss.tape.locate import locate

    try:
        return locate(tape)
    except Exception as error:  # noqa: BLE001 - whatever a call raises under the taint; the replay itself stands
        return Location(phase=Phase.NONE, text=f"Where it begins could not be found: {error}")


# -- text


def _lines(
    read: "Bundle", made: "Reproduction | None", refused: str, where: "Location | None", ops: bool
) -> Iterator[str]:
    tape = read.tape
    yield f"whyloss {_verdict(made)}  step {tape.step}{_optimizer(tape)}: {len(tape.ops)} calls"
    yield ""
    yield from _row("recorded", _machine(read.recorded))
    if made is None:
        yield from _row("replayed", refused)
    else:
        yield from _compared(read, made)
    if where is not None:
        yield from _row("non-finite", where.text, _at(where.place), *where.doubts)
    if ops:
        yield ""
        yield from _table(
            [("", "call", "gives", "module", "line"), *(_call(i, op, tape) for i, op in enumerate(tape.ops))]
        )


def _verdict(made: "Reproduction | None") -> str:
    if made is None:
        return "not-replayed"
    return "reproduced" if made.reproduced else "not-reproduced"


def _optimizer(tape: "Tape") -> str:
    return f" of {tape.setup.kind.__name__}" if tape.setup is not None else ""


def _machine(there: "Environment") -> str:
    device = ", ".join(there.devices) or there.processor
    threads = f"{there.threads} thread{'s' if there.threads > 1 else ''}"
    return f"torch {there.torch}, Python {there.python}, whyloss {there.whyloss}, {threads}, {device}"


def _compared(read: "Bundle", made: "Reproduction") -> Iterator[str]:
    yield from _row("replayed", _machine(made.here))
    yield from _row("compared", _how(made))
    for recorded, replayed in zip(read.losses, made.losses, strict=True):
        yield from _row("loss", f"{_figure(recorded)} recorded, {_figure(replayed)} replayed")
    yield from _row("gradients", f"{made.agreeing} of {made.compared} the same")
    if made.difference:
        yield from _row("differs", made.difference)


def _how(made: "Reproduction") -> str:
    if not made.elsewhere:
        return "bit for bit"
    return f"within {made.tolerance:g} of each tensor's largest element, because of {'; '.join(made.elsewhere)}"


def _figure(t: Any) -> str:
    return f"{t.item():.9g}" if t.numel() == 1 else f"{tuple(t.shape)}"


def _at(place: Place) -> str:
    from whyloss.report.text import short_path

    if place.file is None:
        return str(place)
    source = f": {place.source}" if place.source else ""
    return f"{short_path(place.file)}:{place.line}{source}"


def _row(name: str, *values: str) -> Iterator[str]:
    for value in values:
        if value:
            yield f"{name:<10} {value}"
            name = ""


def _call(i: int, op: "Op", tape: "Tape") -> tuple[str, ...]:
    line = _at(Place(file=op.place.file, line=op.place.line)) if op.place.file else ""
    shapes = " ".join(_shape(tape, n) for n in op.outputs)
    return str(i), op.name.removeprefix("torch."), shapes, op.module, line


def _shape(tape: "Tape", number: int) -> str:
    return f"[{', '.join(map(str, tape.values[number].shape))}]"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = [[_cut(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST else f"…{cell[1 - WIDEST :]}"


# -- JSON


def _plain(
    read: "Bundle", made: "Reproduction | None", refused: str, where: "Location | None", ops: bool
) -> dict[str, Any]:
    import msgspec

    tape = read.tape
    plain: dict[str, Any] = {
        "bundle": str(read.folder),
        "step": tape.step,
        "verdict": _verdict(made),
        "difference": made.difference if made is not None else refused,
        "faithful": tape.faithful,
        "reason": tape.reason,
        "redacted": read.redacted,
        "calls": len(tape.ops),
        "recorded": msgspec.to_builtins(read.recorded),
        "location": msgspec.to_builtins(where) if where is not None else None,
    }
    if made is not None:
        plain |= {
            "here": msgspec.to_builtins(made.here),
            "elsewhere": made.elsewhere,
            "tolerance": made.tolerance,
            "losses": [
                {"recorded": r.tolist(), "replayed": p.tolist()} for r, p in zip(read.losses, made.losses, strict=True)
            ],
            "gradients": {"compared": made.compared, "same": made.agreeing},
        }
    if ops:
        plain["ops"] = list(_plain_ops(tape.ops, tape))
    return plain


def _plain_ops(ops: Iterable["Op"], tape: "Tape") -> Iterator[dict[str, Any]]:
    for op in ops:
        shapes = [list(tape.values[n].shape) for n in op.outputs]
        yield {"name": op.name, "shapes": shapes, "module": op.module, "file": op.place.file, "line": op.place.line}


def _write_json(plain: dict[str, Any]) -> None:
    import msgspec

    from whyloss.core.plain import speakable

    click.echo(msgspec.json.format(msgspec.json.encode(speakable(plain)), indent=2).decode())
