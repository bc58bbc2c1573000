"""Exit codes, and errors as one line that names the next step."""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum
from typing import Final

import click

from postroom.admin.texts import one_line
from postroom.errors import ConfigError, EventError, PostroomError, SchemaError, StoreError


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    BROKEN = 1
    USAGE = 2
    STORE = 3
    LEFT = 4
    FAILED = 5
    BUG = 70
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: Final = {
    ExitCode.OK: "success, including a graceful shutdown",
    ExitCode.BROKEN: "a check failed",
    ExitCode.USAGE: "invalid usage or configuration",
    ExitCode.STORE: "the store is unreachable or not migrated",
    ExitCode.LEFT: "`run --drain` ended before all due events were sent",
    ExitCode.FAILED: "events failed or became dead letters during `run --drain`",
    ExitCode.BUG: "unexpected error; please report it",
    ExitCode.INTERRUPTED: "interrupted; a second signal stopped the process immediately",
    ExitCode.PIPE: "the reader of the output closed the pipe",
}
TABLE: Final = "\b\nExit codes:\n" + "\n".join(f"  {n:>3}  {m}" for n, m in MEANINGS.items())


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error."""
    match error:
        case ConfigError() | EventError() | click.UsageError():
            return ExitCode.USAGE
        case SchemaError() | StoreError():
            return ExitCode.STORE
        case click.Abort() | KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case PostroomError() | click.ClickException():
            return ExitCode.BROKEN
        case _:
            return ExitCode.BUG


def complain(error: BaseException, *, debug: bool) -> ExitCode:
    """Print an error on stderr as one line; returns the exit code."""
    code = code_of(error)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if code is not ExitCode.INTERRUPTED:
        click.echo(one_line(_message(error, code, debug=debug)), err=True)
    return code


def close_output() -> None:
    """Redirect stdout to /dev/null, so that Python's exit does not report the broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message(error: BaseException, code: ExitCode, *, debug: bool) -> str:
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "postroom"
        return f"{path}: {error.format_message()} See: {path} --help"
    if isinstance(error, click.ClickException):
        return f"postroom: {error.format_message()}"
    if code is ExitCode.BUG:
        hint = "" if debug else "; run `postroom --debug …` for the traceback"
        return f"postroom: unexpected {type(error).__name__}: {error}{hint}"
    return f"postroom: {error}"
