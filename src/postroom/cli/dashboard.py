"""`postroom dashboard`: the dashboard as a process."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from postroom.cli.dashboard_section import DEFAULT_HOST, DEFAULT_PORT, Section, read_section
from postroom.cli.exit_codes import ExitCode
from postroom.cli.options import mode_of, shared_store, whoami
from postroom.cli.run import log_to_stderr
from postroom.errors import ConfigError, MissingExtraError
from postroom.model.url import Url
from postroom.store import Store

if TYPE_CHECKING:
    from postroom.dashboard import Dashboard

_TOKEN_BYTES = 24


@click.command(short_help="Serve the dashboard.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="[NAME=]URL",
    help="Database URL; repeat it for several tabs.  [env var: POSTROOM_STORE]",
)
@click.option("--host", help=f"Address to listen on.  [default: {DEFAULT_HOST}]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port; 0: a free one.  [default: {DEFAULT_PORT}]",
)
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash, and end.")
@click.option("--new-token", is_flag=True, help="Print a new token and its SHA-256, and end.")
@click.pass_context
def dashboard(
    ctx: click.Context,
    stores: Sequence[str],
    host: str | None,
    port: int | None,
    hash_password: bool,
    new_token: bool,
) -> int:
    """Serve the dashboard: pages and a JSON API for operators.

    Users, tokens, a trusted proxy, masks and stores are in the section [dashboard] of the
    configuration file. Without users, tokens or a proxy it listens on this machine only, and prints
    an address with a token that is valid until the process ends.

    \b
    Examples:
      postroom dashboard --store sqlite:///app.db
      postroom dashboard --store orders=$ORDERS --store payments=$PAYMENTS
      postroom dashboard --hash-password
    """  # noqa: D301 - click knows the sign
    parts = _load()
    if hash_password:
        click.echo(parts.hash_password(_ask_password()))
        return ExitCode.OK
    if new_token:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        click.echo(f"token   {token}\nsha256  {parts.digest_of(token)}")
        return ExitCode.OK
    mode = mode_of(ctx)
    section = read_section(mode.configuration)
    named = _named(stores, section, mode.configuration.store())
    where = host or section.host
    settings, link = section.settings, ""
    if settings.is_closed:
        if not _is_loopback(where):
            raise ConfigError(
                f"the dashboard does not listen on {where} without authentication; add users, "
                "tokens or a proxy to [dashboard] of postroom.toml"
            )
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        settings = section.with_token(whoami(None), parts.digest_of(token))
        link = f"/login?token={token}"
    app = parts.Dashboard(named, settings)
    log_to_stderr("info", "text")
    return asyncio.run(_serve(app, where, section.port if port is None else port, link))


async def serve_here(store: Store, name: str) -> int:
    """Serve the dashboard of an open store on a free port of this machine."""
    parts = _load()
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    tokens = [parts.Token(whoami(None), parts.digest_of(token), parts.Role.ADMIN, payloads=True)]
    settings = parts.DashboardSettings(tokens=tokens, refresh_seconds=2.0)
    return await _serve(
        parts.Dashboard({name: store}, settings), DEFAULT_HOST, 0, f"/login?token={token}"
    )


async def _serve(app: Dashboard, host: str, port: int, link: str) -> int:
    """Serve until SIGINT or SIGTERM, then end open requests gracefully."""
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another with --host "
            "and --port"
        ) from error
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, server_header=False,
            proxy_headers=False,  # the address of a trusted proxy is that of the connection
            limit_concurrency=500, ws="none", timeout_graceful_shutdown=10,
        )
    )  # fmt: skip
    server.capture_signals = _no_signals  # type: ignore[method-assign]

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop)
    name, number = listening.getsockname()[:2]
    address = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
    click.echo(f"dashboard: http://{address}{link or '/'}", err=True)
    await server.serve(sockets=[listening])
    return ExitCode.OK


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def _load() -> Any:
    try:
        import uvicorn  # noqa: F401

        from postroom import dashboard as parts
    except ImportError as error:
        raise MissingExtraError("dashboard", error.name or "starlette") from error
    return parts


def _ask_password() -> str:
    if not sys.stdin.isatty():
        found = sys.stdin.readline().rstrip("\n")
    else:
        found = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if len(found) < 12:
        raise ConfigError("a password must have at least 12 characters")
    return str(found)


def _named(given: Sequence[str], section: Section, usual: Url | None) -> dict[str, Store]:
    """Return the stores by name: of the options, of the section, or the configured one."""
    urls: dict[str, Url] = {}
    for text in given:
        name, sign, url = text.partition("=")
        if not sign or "/" in name or ":" in name:
            name, url = "", text
        parsed = Url.parse(url)
        urls[_unused(name or _name_of(parsed), urls)] = parsed
    urls = urls or dict(section.stores)
    if not urls and usual is not None:
        urls = {_name_of(usual): usual}
    if not urls:
        raise click.UsageError(
            "Missing option '--store' (env var: 'POSTROOM_STORE', in postroom.toml: store)."
        )
    return {name: shared_store(url) for name, url in urls.items()}


def _name_of(url: Url) -> str:
    """Return a name for a store: that of its database."""
    plain = url.path.rstrip("/").rpartition("/")[2].removesuffix(".db").lower()
    return re.sub(r"[^a-z0-9_-]+", "-", plain).strip("-_")[:40] or str(url.scheme)


def _unused(name: str, taken: dict[str, Url]) -> str:
    return name if name not in taken else f"{name[:36]}-{len(taken) + 1}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
