"""The command line: one file a verb, each imported when it is asked for."""

import contextlib
import importlib
import os
import sys

import click

from whyloss.core.errors import WhylossError

VERBS = {
    "run": "Run a training script, unchanged, and say why it does not learn.",
    "report": "Diagnose a recorded run again and print its report.",
    "replay": "Replay a recorded step, without its code, and compare.",
    "explain": "Print what a cause means and how it is recognised.",
}


class Verbs(click.Group):
    """Loads a verb's file only when it is used, and turns our errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"whyloss.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].endswith(".py"):
            msg = f"No such command '{args[0]}': whyloss run {' '.join(args)}"
            raise click.UsageError(msg, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="whyloss", prog_name="whyloss")
def cli() -> None:
    """Finds out why a neural network won't learn.

    \b
    whyloss run train.py          diagnose a training, script unchanged
    whyloss report RUN_DIR        the report of a run that is over
    whyloss replay BUNDLE         a recorded step again, without its code
    whyloss explain dead-relu     what a cause means and how it is recognised

    Exit codes: 0 or the script's own; 1 a finding at or above --fail-on; 2 misuse; 3 nothing to judge.
    """


def main() -> None:
    # an arrow must not end in a traceback where the terminal has no word for it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        cli(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except WhylossError as error:
        click.echo(f"whyloss: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `whyloss report … | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
