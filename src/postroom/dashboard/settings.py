"""Settings of the dashboard: its people, the trusted proxy, masks and limits."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

from postroom.errors import ConfigError
from postroom.model.text import check_setting

MAX_NAME_BYTES = 200
_STORE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_HASH = re.compile(r"scrypt\$\d{1,6}\$\d{1,2}\$\d{1,2}\$[0-9a-f]{16,128}\$[0-9a-f]{32,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")


class Role(StrEnum):
    """The rights of a person; each role includes the ones before it.

    viewer      read everything but payloads and the values of headers
    operator    replay, bury, skip, retry, pause, limit, operations; edit with the right `payloads`
    admin       purge, too
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role may do all that the other may do."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class Person(NamedTuple):
    """A signed-in person or program. `name` is written into audit entries.

    payloads    may see payloads and the values of headers
    """

    name: str
    role: Role = Role.VIEWER
    payloads: bool = False


Hook = Callable[[Any], "Person | Awaitable[Person | None] | None"]
"""Returns the person of a request (a `starlette.requests.Request`), or None."""


@dataclass(frozen=True)
class User:
    """A person with a password; `postroom dashboard --hash-password` prints its hash."""

    name: str
    password_hash: str
    role: Role = Role.VIEWER
    payloads: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not _HASH.fullmatch(self.password_hash):
            raise ConfigError(
                f"the password of dashboard user {self.name!r} is not a hash; make one with: "
                "postroom dashboard --hash-password"
            )


@dataclass(frozen=True)
class Token:
    """A token, as its SHA-256 in hexadecimal: for programs, and to sign in."""

    name: str
    sha256: str
    role: Role = Role.VIEWER
    payloads: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not _DIGEST.fullmatch(self.sha256):
            raise ConfigError(
                f"the dashboard token {self.name!r} needs `sha256`: 64 hexadecimal digits of the "
                "SHA-256 of the token"
            )


@dataclass(frozen=True)
class Proxy:
    """A proxy that signs people in and names them in a header.

    addresses       IP addresses or networks of the proxy; from any other one the header is ignored
    header          the header with the person's name
    role            the role of everyone that comes through it
    role_header     a header with the role; a missing or unknown value gives `role`
    """

    addresses: tuple[str, ...]
    header: str = "X-Forwarded-User"
    role: Role = Role.VIEWER
    role_header: str = ""
    payloads: bool = False

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ConfigError("the dashboard's proxy needs its address: any client could be it")
        for one in self.addresses:
            try:
                ip_network(one)
            except ValueError as error:
                raise ConfigError(f"the address of the dashboard's proxy: {error}") from error
        for name in (self.header, *([self.role_header] if self.role_header else [])):
            if not _HEADER.fullmatch(name):
                raise ConfigError(f"{name!r} is not the name of a header")

    def is_it(self, address: str | None) -> bool:
        """Return whether a connection comes from the proxy."""
        try:
            client = ip_address(address or "")
        except ValueError:
            return False
        return any(client in ip_network(one) for one in self.addresses)


@dataclass(frozen=True)
class DashboardSettings:
    """Settings of the dashboard.

    users, tokens, proxy, authenticate   ways to sign in; without any of them no request is served
    secret              signs session cookies; the same in all processes. Default: random, so that
                        sessions end with the process
    session_seconds     how long a session lasts
    secure_cookies      True: cookies are sent over HTTPS only. None: if the request came by HTTPS
    masks               names of fields, or paths such as `$.customer.email`, whose values are
                        replaced in payloads and headers, for everyone
    refresh_seconds     the shortest time between two samples of a store
    max_body_bytes      of a request
    timeout_seconds     of a request
    prefix              the path under which it is mounted, if the framework does not set root_path
    """

    users: Sequence[User] = ()
    tokens: Sequence[Token] = ()
    proxy: Proxy | None = None
    authenticate: Hook | None = None
    secret: str = field(default="", repr=False)
    session_seconds: float = 43_200.0
    secure_cookies: bool | None = None
    masks: Sequence[str] = ()
    refresh_seconds: float = 5.0
    max_body_bytes: int = 2_000_000
    timeout_seconds: float = 30.0
    prefix: str | None = None

    def __post_init__(self) -> None:
        names = [*(user.name for user in self.users), *(token.name for token in self.tokens)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"the dashboard has two users or tokens named {name!r}")
        if self.secret and len(self.secret) < 32:
            raise ConfigError("the dashboard's secret must have at least 32 characters")
        if self.prefix is not None and self.prefix and not self.prefix.startswith("/"):
            raise ConfigError("the dashboard's prefix must begin with /")

    @property
    def is_closed(self) -> bool:
        """Whether there is no way to sign in."""
        return not (self.users or self.tokens or self.proxy or self.authenticate)


def check_store_name(name: str) -> None:
    """Raise ConfigError unless a store can have this name in paths."""
    if not _STORE_NAME.fullmatch(name):
        raise ConfigError(
            f"a store's name on the dashboard has at most 40 lower-case letters, digits, - and _; "
            f"{name!r} is not one"
        )


def _check_name(name: str) -> None:
    check_setting("the name of a dashboard user", name, MAX_NAME_BYTES)
