"""The dashboard as an ASGI application: checks every request, then calls its handler.

For each request, in this order: size and time limits, the person, the right that the call needs,
and for changes the origin and the CSRF token. Every answer has the security headers. An error never
shows internals: it has a number, under which the log has the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from postroom.dashboard import api, openapi, pages
from postroom.dashboard.access import COOKIE, CSRF_FIELD, CSRF_HEADER, Access, TooManyAttemptsError
from postroom.dashboard.actions import ACTIONS, Outcome
from postroom.dashboard.calls import API, Call, Visit
from postroom.dashboard.given import Given
from postroom.dashboard.masks import Masks
from postroom.dashboard.once import Once
from postroom.dashboard.settings import DashboardSettings, Person, check_store_name
from postroom.dashboard.views import Asker
from postroom.dashboard.watch import StoreWatch
from postroom.errors import (
    ConfigError,
    EventError,
    NotFoundError,
    PostroomError,
    ReplacedError,
    SchemaError,
    StoreError,
)
from postroom.model.secrets import mask
from postroom.model.url import Url
from postroom.registry import load_store
from postroom.store import Store

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_STATIC: Final[Mapping[str, str]] = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_MAX_FIELDS = 2_000
_log = logging.getLogger("postroom.dashboard")

Work = Callable[[Request], Awaitable[Response]]


class Refused(Exception):  # noqa: N818 - a signal
    """An answer that ends the request: a status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Dashboard:
    """The dashboard of one or several stores.

        app.mount("/postroom", Dashboard({"orders": "postgresql://…"}, settings))

    stores      name → URL or store; a store may be shared with relays of the process
    settings    people, masks and limits; without a way to sign in, it serves no request

    Stores are opened at the first request. `close` closes them; the lifespan of a server does it if
    this is the server's application.
    """

    def __init__(
        self,
        stores: Mapping[str, str | Url | Store],
        settings: DashboardSettings | None = None,
    ) -> None:
        self.settings = settings or DashboardSettings()
        if not stores:
            raise ConfigError("the dashboard needs at least one store")
        every = self.settings.refresh_seconds
        self._watches: dict[str, StoreWatch] = {}
        for name, one in stores.items():
            check_store_name(name)
            store = load_store(one) if isinstance(one, str | Url) else one
            self._watches[name] = StoreWatch(name, store, every)
        self.access = Access(self.settings)
        self.masks = Masks(self.settings.masks)
        self.once = Once()
        self.calls: list[Call] = [*pages.calls(), *api.calls()]
        self._static = {name: _load(name, kind) for name, kind in _STATIC.items()}
        routes = [Route(c.path, self._endpoint(c), methods=[c.method]) for c in self.calls]
        routes += [
            Route("/", self._safely(self._home)),
            Route("/login", self._safely(self._login), methods=["GET", "POST"]),
            Route("/logout", self._safely(self._logout), methods=["POST"]),
            Route("/static/{name}", self._safely(self._send_static)),
            Route(API, self._safely(self._index)),
            Route(f"{API}/openapi.json", self._safely(self._openapi)),
        ]
        self._app = Starlette(
            routes=routes, exception_handlers={404: _missing, 405: _missing, 500: _broken}
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, _with_headers(send, scope))
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def close(self) -> None:
        """Close the stores; safe to call twice."""
        for watch in self._watches.values():
            await watch.close()

    @property
    def watches(self) -> list[StoreWatch]:
        return list(self._watches.values())

    def base(self, request: Request) -> str:
        """Return the path under which the dashboard is mounted."""
        prefix = self.settings.prefix
        return (request.scope.get("root_path", "") if prefix is None else prefix).rstrip("/")

    def asker(self, visit: Visit) -> Asker:
        return Asker(visit.person, self.masks)

    def version(self, name: str) -> str:
        """Return a part of a static file's hash, for its URL."""
        return self._static[name][1][1:13]

    async def carry_out(self, visit: Visit, verb: str) -> Outcome:
        """Carry out an action once. Raises ConfigError without a reason or an action id."""
        action_id, order = api.read_order(visit)
        given, watch = visit.given, visit.watch
        fingerprint = given.fingerprint(verb)
        _log.info("action %s of %s in store %s", verb, order.person.name, watch.name)
        return await self.once.run(
            watch, action_id, fingerprint, lambda: ACTIONS[verb].plan(watch, given), order
        )

    # -- requests -----------------------------------------------------------------------------
    def _endpoint(self, call: Call) -> Work:
        async def work(request: Request) -> Response:
            identity = await self.access.identify(request)
            if identity is None:
                return self._sign_in_first(request, call)
            if not call.is_for(identity.person):
                right = f"the role {call.role}" + (", and to see payloads" if call.payloads else "")
                raise Refused(403, f"This needs {right}. Your role is {identity.person.role}.")
            watch = self._watches.get(request.path_params["store"])
            if watch is None:
                raise Refused(404, "There is no such store on this dashboard.")
            given = Given(_query(request))
            if call.change:
                _check_origin(request, ambient=identity.ambient)
                given, csrf = await self._body(request, call)
                if identity.ambient and not _is_same(csrf, identity.csrf):
                    raise Refused(403, "The form is out of date. Load the page again.")
            return await call.handler(Visit(request, identity, self, watch, given))

        return self._safely(work)

    def _safely(self, work: Work) -> Work:
        """Return a handler whose errors become answers without internals."""

        async def handler(request: Request) -> Response:
            try:
                async with asyncio.timeout(self.settings.timeout_seconds):
                    return await work(request)
            except Refused as refused:
                status, text = refused.status, refused.text
            except TooManyAttemptsError:
                status, text = 429, "Too many failed attempts to sign in. Wait a minute."
            except TimeoutError:
                status, text = 503, "This took too long. Narrow the search, or try again."
            except (SchemaError, StoreError) as error:
                status, text = 503, f"The store does not answer ({_logged(error, request)})."
            except NotFoundError as error:
                status, text = 404, mask(str(error))
            except ReplacedError as error:
                status, text = 409, mask(str(error))
            except (ConfigError, EventError, PostroomError) as error:
                status, text = 400, mask(str(error))
            except Exception as error:
                status, text = 500, f"Unexpected error ({_logged(error, request)})."
            return self._problem(request, status, text)

        return handler

    def _problem(self, request: Request, status: int, text: str) -> Response:
        headers = {"retry-after": "60"} if status == 429 else {}
        if status == 401:
            headers["www-authenticate"] = 'Bearer realm="postroom"'
        if request.url.path.startswith(f"{request.scope.get('root_path', '')}{API}"):
            return JSONResponse({"error": text}, status, headers)
        return pages.problem(self, request, status, text, headers)

    def _sign_in_first(self, request: Request, call: Call) -> Response:
        if call.is_api or call.change or self.settings.is_closed:
            raise Refused(401, "Sign in first.")
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        wanted = path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{self.base(request)}/login?next={quote(wanted, safe='')}", 303)

    async def _body(self, request: Request, call: Call) -> tuple[Given, str]:
        """Return the values of a body, and its CSRF token."""
        content = await _read(request, self.settings.max_body_bytes)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        token = request.headers.get(CSRF_HEADER, "")
        if call.is_api:
            if kind != "application/json":
                raise Refused(400, "The body must be JSON, with its content type.")
            try:
                found = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise ConfigError("the body is not valid JSON") from error
            return Given.of_json(found), token
        form = _form(content, kind)
        return Given(form), (form.get(CSRF_FIELD) or [token])[0]

    # -- sign in and out ----------------------------------------------------------------------
    async def _home(self, request: Request) -> Response:
        name = next(iter(self._watches))
        return RedirectResponse(f"{self.base(request)}/s/{name}/", 303)

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return pages.login(self, request, "")
        _check_origin(request, ambient=True)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        form = Given(_form(await _read(request, 10_000), kind))
        token, name, password = (form.text(n) for n in ("token", "name", "password"))
        person: Person | None = None
        if token:
            person = self.access.of_token(request, token.strip())
        elif name and password:
            person = await self.access.of_password(request, name, password)
        if person is None:
            return pages.login(self, request, "Name, password or token are wrong.", 401)
        base, wanted = self.base(request), form.text("next") or "/"
        parts = urlsplit(wanted)
        is_ours = not parts.scheme and not parts.netloc and wanted.startswith("/s/")
        answer = RedirectResponse(f"{base}{wanted if is_ours else '/'}", 303)
        answer.set_cookie(
            COOKIE, self.access.new_session(person), httponly=True, samesite="lax",
            secure=self._is_secure(request), path=base or "/",
            max_age=int(self.settings.session_seconds),
        )  # fmt: skip
        return answer

    async def _logout(self, request: Request) -> Response:
        _check_origin(request, ambient=True)
        base = self.base(request)
        answer = RedirectResponse(f"{base}/login", 303)
        answer.delete_cookie(COOKIE, path=base or "/")
        return answer

    def _is_secure(self, request: Request) -> bool:
        given = self.settings.secure_cookies
        return request.url.scheme == "https" if given is None else given

    # -- everything else ----------------------------------------------------------------------
    async def _index(self, request: Request) -> Response:
        identity = await self.access.identify(request)
        if identity is None:
            raise Refused(401, "Sign in first.")
        person = identity.person
        facts = {"name": person.name, "role": str(person.role), "payloads": person.payloads}
        return JSONResponse({"stores": list(self._watches), "person": facts})

    async def _openapi(self, request: Request) -> Response:
        if await self.access.identify(request) is None:
            raise Refused(401, "Sign in first.")
        found = openapi.document(self.calls, list(self._watches), self.base(request))
        return JSONResponse(found)

    async def _send_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise Refused(404, "There is no such page.")
        content, tag, kind = self._static[name]
        headers = {"etag": tag, "cache-control": "public, max-age=86400"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _load(name: str, kind: str) -> tuple[bytes, str, str]:
    content = (files("postroom.dashboard") / "static" / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', kind


def _query(request: Request) -> dict[str, list[str]]:
    if len(request.url.query) > 200_000:
        raise Refused(413, "The query is too long.")
    return _fields(request.url.query)


def _form(content: bytes, kind: str) -> dict[str, list[str]]:
    if kind != "application/x-www-form-urlencoded":
        raise Refused(400, "The body must be a form.")
    return _fields(content.decode("ascii", "replace"))


def _fields(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise Refused(400, "There are too many fields.") from None


async def _read(request: Request, most: int) -> bytes:
    """Read a body up to a number of bytes."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise Refused(413, f"The body is larger than {most:,} bytes.")
    return content


def _is_same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), wanted.encode())


def _check_origin(request: Request, *, ambient: bool) -> None:
    """Refuse a change that another site makes in a person's browser."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_ours = site == "same-origin"
    elif origin is not None:
        is_ours = urlsplit(origin).netloc == request.headers.get("host", "")
    else:
        is_ours = not ambient  # a program with a token; every browser sends one of the two
    if not is_ours:
        raise Refused(403, "The request comes from another site.")


def _logged(error: BaseException, request: Request) -> str:
    """Log an error; returns the number under which the log has it."""
    number = secrets.token_hex(4)
    _log.error("error %s at %s", number, request.url.path, exc_info=error)
    return f"error {number}; the log has the details"


def _with_headers(send: Send, scope: Scope) -> Send:
    """Return `send` with the security headers on every answer."""

    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = dict(SECURITY_HEADERS)
            if not any(name.lower() == b"cache-control" for name, _ in message["headers"]):
                headers["cache-control"] = "no-store"
            message["headers"] = [
                *message["headers"],
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ]
        await send(message)

    del scope
    return wrapped


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = "There is no such page." if status == 404 else "This method is not possible here."
    if f"{API}" in request.url.path:
        return JSONResponse({"error": text}, status)
    return Response(text, status, media_type="text/plain")


async def _broken(request: Request, error: Exception) -> Response:
    return Response(f"Unexpected error ({_logged(error, request)}).", 500, media_type="text/plain")
