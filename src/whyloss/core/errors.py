"""Errors that a user can do something about.

WhylossError
├── Misuse          the command or call can't be carried out as given (exit code 2)
└── NothingToJudge  it was carried out, but there is nothing to draw a conclusion from (exit code 3)
"""


class WhylossError(Exception):
    """Says what was given, what was expected and what to do. `exit_code` is what the command line ends with."""

    exit_code = 1


class Misuse(WhylossError):
    exit_code = 2


class NothingToJudge(WhylossError):
    exit_code = 3
