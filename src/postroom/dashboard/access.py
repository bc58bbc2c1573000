"""The person of a request: tokens, passwords, sessions, a trusted proxy, a hook.

A session is a signed cookie with the name of a user or token, not their role: a changed role counts
at once, a removed user is signed out. The CSRF token of a session is derived from it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import json
import secrets
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from starlette.requests import Request

from postroom.dashboard.settings import DashboardSettings, Person, Role, Token, User

COOKIE: Final = "postroom_session"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
_N, _R, _P, _KEY_BYTES = 1 << 14, 8, 1, 32
_MAX_PASSWORD_BYTES = 1_024
_REMEMBERED_SECONDS = 60.0
_MOST_REMEMBERED = 1_000
_FAILURES, _WINDOW_SECONDS = 10, 60.0
_MOST_COUNTED = 10_000


class Identity(NamedTuple):
    """A person, and how the request proved it.

    ambient     the browser adds the proof to every request, so that requests need a CSRF token
    csrf        the CSRF token of this person's forms
    """

    person: Person
    ambient: bool
    csrf: str


class TooManyAttemptsError(Exception):
    """Signing in failed too often from this address."""


def hash_password(password: str) -> str:
    """Return a password's scrypt hash, for `User.password_hash`."""
    salt = secrets.token_bytes(16)
    return f"scrypt${_N}${_R}${_P}${salt.hex()}${_scrypt(password, salt, _N, _R, _P).hex()}"


def verify_password(password: str, stored: str) -> bool:
    """Return whether a password has this hash."""
    _, n, r, p, salt, wanted = stored.split("$")
    found = _scrypt(password, bytes.fromhex(salt), int(n), int(r), int(p))
    return hmac.compare_digest(found.hex(), wanted)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    given = password.encode(errors="replace")[:_MAX_PASSWORD_BYTES]
    return hashlib.scrypt(given, salt=salt, n=n, r=r, p=p, dklen=_KEY_BYTES, maxmem=1 << 27)


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token, for `Token.sha256`."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


class Failures:
    """Counts failed sign-ins of an address, or for a name, in the last minute."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, list[float]] = OrderedDict()

    def is_full(self, *names: str) -> bool:
        return any(len(self._recent(name)) >= _FAILURES for name in names)

    def add(self, *names: str) -> None:
        for name in names:
            self._times[name] = [*self._recent(name), time.monotonic()]
            self._times.move_to_end(name)
        while len(self._times) > _MOST_COUNTED:
            self._times.popitem(last=False)

    def _recent(self, name: str) -> list[float]:
        oldest = time.monotonic() - _WINDOW_SECONDS
        return [at for at in self._times.get(name, ()) if at > oldest]


class Access:
    """Identifies requests by the ways of the settings."""

    def __init__(self, settings: DashboardSettings) -> None:
        self._settings = settings
        self._key = hashlib.sha256((settings.secret or secrets.token_hex(32)).encode()).digest()
        self._users = {user.name: user for user in settings.users}
        self._tokens = {token.sha256: token for token in settings.tokens}
        self._named_tokens = {token.name: token for token in settings.tokens}
        self._failures = Failures()
        self._verified: OrderedDict[str, float] = OrderedDict()
        self._dummy = hash_password(secrets.token_hex(8)) if settings.users else ""

    async def identify(self, request: Request) -> Identity | None:
        """Return the person of a request; None: not signed in.

        Raises TooManyAttemptsError.
        """
        hook = self._settings.authenticate
        if hook is not None:
            found = hook(request)
            person = await found if inspect.isawaitable(found) else found
            if person is not None:
                return self._ambient(person)
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            person = self.of_token(request, credentials.strip())
            return None if person is None else Identity(person, ambient=False, csrf="")
        if scheme.lower() == "basic":
            name, password = _basic(credentials.strip())
            person = await self.of_password(request, name, password)
            return None if person is None else self._ambient(person)
        proxied = self._of_proxy(request)
        if proxied is not None:
            return self._ambient(proxied)
        return self._of_session(request)

    # -- the ways -----------------------------------------------------------------------------
    def of_token(self, request: Request, token: str) -> Person | None:
        """Return the person of a token. Raises TooManyAttemptsError."""
        address = _address(request)
        if self._failures.is_full(address):
            raise TooManyAttemptsError
        found = self._tokens.get(digest_of(token))
        if found is None:
            self._failures.add(address)
            return None
        return _person(found)

    async def of_password(self, request: Request, name: str, password: str) -> Person | None:
        """Return the person with this name and password. Raises TooManyAttemptsError."""
        names = (_address(request), f"name {name[:200]}")
        user = self._users.get(name)
        known = digest_of(f"{name}\x00{password}\x00{user.password_hash if user else ''}")
        if user is not None and self._verified.get(known, 0.0) > time.monotonic():
            return _person(user)
        if self._failures.is_full(*names):
            raise TooManyAttemptsError
        stored = user.password_hash if user is not None else self._dummy
        if not stored:
            return None
        is_right = await asyncio.to_thread(verify_password, password, stored)
        if user is None or not is_right:
            self._failures.add(*names)
            return None
        self._verified[known] = time.monotonic() + _REMEMBERED_SECONDS
        while len(self._verified) > _MOST_REMEMBERED:
            self._verified.popitem(last=False)
        return _person(user)

    def _of_proxy(self, request: Request) -> Person | None:
        proxy = self._settings.proxy
        if proxy is None or request.client is None or not proxy.is_it(request.client.host):
            return None
        names = request.headers.getlist(proxy.header)
        name = names[0].strip() if len(names) == 1 else ""  # twice: a client added one
        if not name or not name.isprintable() or len(name) > 200:
            return None
        roles = request.headers.getlist(proxy.role_header) if proxy.role_header else []
        role = roles[0].strip().lower() if len(roles) == 1 else ""
        return Person(name, Role(role) if role in list(Role) else proxy.role, proxy.payloads)

    # -- sessions -----------------------------------------------------------------------------
    def new_session(self, person: Person) -> str:
        """Return the value of a session's cookie."""
        facts = {"n": person.name, "x": secrets.token_hex(8)}
        facts["u"] = str(int(time.time() + self._settings.session_seconds))
        body = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode().rstrip("=")
        return f"{body}.{self._sign('session', body)}"

    def _of_session(self, request: Request) -> Identity | None:
        body, _, signature = request.cookies.get(COOKIE, "").partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        facts = json.loads(base64.urlsafe_b64decode(body + "=="))
        if int(facts["u"]) < time.time():
            return None
        found = self._users.get(facts["n"]) or self._named_tokens.get(facts["n"])
        if found is None:
            return None
        return Identity(_person(found), ambient=True, csrf=self._sign("csrf", body))

    def _ambient(self, person: Person) -> Identity:
        return Identity(person, ambient=True, csrf=self._sign("csrf", f"name {person.name}"))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\x00{text}".encode(), "sha256").hexdigest()


def _person(found: User | Token) -> Person:
    return Person(found.name, Role(found.role), found.payloads)


def _address(request: Request) -> str:
    return f"address {request.client.host}" if request.client else "address unknown"


def _basic(credentials: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, password
