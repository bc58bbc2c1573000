"""The `postroom` command group; maps errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from postroom._version import __version__
from postroom.cli.audit import audit
from postroom.cli.config import config
from postroom.cli.dashboard import dashboard
from postroom.cli.dead import dead
from postroom.cli.demo import demo
from postroom.cli.doctor import doctor
from postroom.cli.edit import edit
from postroom.cli.exit_codes import TABLE, ExitCode, close_output, complain
from postroom.cli.forget import forget
from postroom.cli.health import health
from postroom.cli.key import key
from postroom.cli.limit import limit
from postroom.cli.list_events import list_events
from postroom.cli.migrate import migrate
from postroom.cli.operations import operations
from postroom.cli.options import Mode
from postroom.cli.pause import pause, resume
from postroom.cli.prune import prune
from postroom.cli.purge import purge
from postroom.cli.reconcile import reconcile
from postroom.cli.replay import bury, replay, skip
from postroom.cli.retry_now import retry_now
from postroom.cli.run import run
from postroom.cli.show import show
from postroom.cli.status import status
from postroom.cli.story import story
from postroom.cli.version import version
from postroom.cli.waiting import cancel, reschedule


class ReaderGoneError(Exception):
    """The reader of the output closed the pipe."""


class PipedGroup(click.Group):
    """Reports a broken pipe as ReaderGoneError; click would exit with code 1."""

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
    help="Print the traceback of an error.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="POSTROOM_CONFIG",
    show_envvar=True,
    help="Configuration file.  [default: postroom.toml, then pyproject.toml]",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, debug: bool, config: Path | None) -> None:
    """postroom: a transactional outbox and inbox.

    \b
    Try it:         postroom demo
    Create tables:  postroom migrate --store sqlite:///app.db
    Deliver:        postroom run --store sqlite:///app.db --broker handlers:app:h
    Monitor:        postroom status --store sqlite:///app.db
    Troubleshoot:   postroom dead, postroom doctor, postroom COMMAND --help

    Data goes to stdout, logs and errors to stderr. Settings come from options, then environment
    variables such as POSTROOM_STORE, then postroom.toml; `postroom config show` prints the source
    of each.

    \b
    Shell completion for bash (also: zsh, fish):
      eval "$(_POSTROOM_COMPLETE=bash_source postroom)"
    """  # noqa: D301 - click knows the sign
    mode = ctx.ensure_object(Mode)
    mode.debug, mode.config = debug, config
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(ExitCode.USAGE)


for command in (
    audit, bury, cancel, config, dashboard, dead, demo, doctor, edit, forget, health, key, limit,
    list_events, migrate, operations, pause, prune, purge, reconcile, replay, reschedule, resume,
    retry_now, run, show, skip, status, story, version,
):  # fmt: skip
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
