"""The group of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from postroom.cli.demo.command import demo
from postroom.cli.exits import TABLE, ExitCode, close_output, complain
from postroom.cli.migrate import migrate
from postroom.cli.run import run
from postroom.cli.status import status
from postroom.cli.version import version


class ReaderGoneError(Exception):
    """Whoever read the output does not any more."""


class PipedGroup(click.Group):
    """Commands whose output may end in a pipe. click itself would end with code 1 if it breaks."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _pipe():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipe():
            return super().invoke(ctx)


@contextmanager
def _pipe() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


@dataclass
class Mode:
    """How this call of the command line behaves."""

    debug: bool = False


@click.group(
    cls=PipedGroup,
    epilog=TABLE,
    invoke_without_command=True,
    context_settings={"max_content_width": 96},
)
@click.option(
    "--debug",
    is_flag=True,
    envvar="POSTROOM_DEBUG",
    show_envvar=True,
    help="Show where an error comes from.",
)
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """postroom: a transactional outbox and inbox.

    \b
    See it work:    postroom demo
    Set it up:      postroom migrate --store sqlite:///app.db
    Deliver:        postroom run --store sqlite:///app.db --broker handlers:app:handlers
    Look:           postroom status --store sqlite:///app.db

    Data goes to stdout, logs and errors to stderr. POSTROOM_STORE and POSTROOM_BROKER stand in for
    --store and --broker.
    """  # noqa: D301 - click knows the sign
    ctx.ensure_object(Mode).debug = debug
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(ExitCode.USAGE)


for command in (demo, migrate, run, status, version):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    sys.exit(int(execute(arguments)))


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    mode = Mode()
    try:
        code = cli.main(arguments, prog_name="postroom", standalone_mode=False, obj=mode)
    except ReaderGoneError:
        close_output()
        return ExitCode.PIPE
    except (Exception, KeyboardInterrupt) as error:
        return complain(error, debug=mode.debug)
    return code if isinstance(code, int) else ExitCode.OK
