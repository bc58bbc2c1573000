"""URLs of stores, brokers and sources. Printing one never shows its secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

from postroom.errors import ConfigError
from postroom.model.suggest import unknown

T = TypeVar("T")

MASK = "***"

_MAX_DIGITS = 18
_SHAPE = re.compile(r"([a-z][a-z0-9.-]*)(?:\+([a-z0-9_.-]+))?:(.*)", re.IGNORECASE)
_BAD = re.compile(r"[\x00-\x20\x7f-\x9f]")
_SECRET = re.compile(
    r"pass(word|wd|phrase)?$|pwd|secret|token|credential|api.?key|private.?key|(^|[._-])key\.pem$"
    r"|authmechanismproperties|sasl\.jaas|oauthbearer\.config",
    re.IGNORECASE,
)
_HOLDS_SECRET = re.compile(
    r"://[^/@]*:[^/@]*@|(password|passwd|passphrase|pwd|secret|token)\w*\s*=", re.IGNORECASE
)
_ENCODE_HINT = "In a user name or password write @ : / ? # and % as %40 %3A %2F %3F %23 and %25"


class Host(NamedTuple):
    """One server of a URL."""

    name: str
    port: int | None = None


class Url:
    """A parsed URL: `scheme[+driver]://user:password@host:port,host:port/path?option=value`.

    Without `//`, the part after the scheme is the path: `handlers:shop.app:handlers`, `memory:`.
    Values are decoded (%40 → @). `str` and `repr` mask secrets; `reveal` returns the original text.
    """

    __slots__ = (
        "_raw_head",
        "_raw_query",
        "_text",
        "driver",
        "hosts",
        "password",
        "path",
        "query",
        "scheme",
        "user",
    )

    _text: str
    _raw_head: str
    _raw_query: str
    scheme: str
    driver: str | None
    user: str | None
    password: str | None
    hosts: tuple[Host, ...]
    path: str
    query: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str | Url) -> Url:
        """Parse a URL. Raises ConfigError, whose message never contains secret parts."""
        if isinstance(text, Url):
            return text
        if not isinstance(text, str):
            raise ConfigError(f"a URL must be text, not {type(text).__name__}")
        shape = _SHAPE.fullmatch(text)
        if shape is None:
            if _BAD.search(text):
                raise ConfigError(
                    f"a URL must not contain spaces or control characters. {_ENCODE_HINT}"
                )
            raise ConfigError(
                "not a URL: the scheme is missing; expected something like sqlite:///app.db, "
                "kafka://localhost:9092 or handlers:package.module:attribute"
            )
        self = cls.__new__(cls)
        self._text = text
        self.scheme = shape[1].lower()
        self.driver = shape[2]
        self._read(shape[3])
        if self.scheme == "sqlite":
            self.file()
        return self

    def _read(self, rest: str) -> None:
        if _BAD.search(rest):
            raise self._error(f"contains a space or a control character. {_ENCODE_HINT}")
        if "#" in rest:
            raise self._error(f"contains a #. {_ENCODE_HINT}")
        body, mark, query = rest.partition("?")
        if "@" in body and not body.startswith("//"):  # `user:password@host`: not repeated
            raise ConfigError("not a URL: the scheme is missing; expected postgresql://…")
        authority, slash, path = "", "", body
        if body.startswith("//"):
            authority, slash, path = body[2:].partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        user, colon, password = userinfo.partition(":")
        self.user = self._decode(user) if at and user else None
        self.password = self._decode(password) if colon else None
        names = [part.partition("=")[0] for part in query.split("&")]
        may_be_cut = colon if at else ":" in authority  # a raw / or ? ended the authority early
        if "@" in userinfo or (may_be_cut and "@" in path + "".join(names)):
            raise self._error(f"cannot tell where the password ends. {_ENCODE_HINT}")
        self.hosts = tuple(self._host(part) for part in hosts.split(",")) if hosts else ()
        self.path = self._decode(slash + path)
        shown = f"{user}{':' + MASK if colon else ''}{at}{hosts}"
        dialect = f"{self.scheme}+{self.driver}" if self.driver else self.scheme
        self._raw_head = f"{dialect}:{'//' if body.startswith('//') else ''}{shown}{slash}{path}"
        pairs = [part.partition("=") for part in query.split("&") if part]
        self.query = tuple((self._decode(n), self._decode(v)) for n, _, v in pairs)
        self._raw_query = mark + "&".join(
            f"{raw}{equals}{MASK if value and is_secret(name, value) else raw_value}"
            for (raw, equals, raw_value), (name, value) in zip(pairs, self.query, strict=True)
        )

    def _host(self, text: str) -> Host:
        if text.startswith("["):  # IPv6
            name, bracket, port = text[1:].partition("]")
            if not bracket or (port and not port.startswith(":")):
                raise self._error("contains an IPv6 address without its closing bracket")
            port = port[1:]
        else:
            name, _, port = text.partition(":")
        if not name:
            raise self._error("contains an empty host")
        if not port:
            return Host(self._decode(name))
        if not (_is_number(port) and 0 < int(port) < 65_536):
            # The port is not shown: it is part of the password if that contains a raw `/`.
            raise self._error(f"a port must be a number from 1 to 65535. {_ENCODE_HINT}")
        return Host(self._decode(name), int(port))

    def _decode(self, text: str) -> str:
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError:
            decoded = "\x00"
        if "\x00" in decoded:
            raise self._error("contains a %-code that is not UTF-8 text")
        return decoded

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.scheme} URL: {problem}")

    # -- parts --------------------------------------------------------------------------------
    @property
    def host(self) -> str | None:
        """The first host."""
        return self.hosts[0].name if self.hosts else None

    @property
    def port(self) -> int | None:
        """The port of the first host."""
        return self.hosts[0].port if self.hosts else None

    @property
    def database(self) -> str:
        """The path without its first slash: a database, a virtual host."""
        return self.path.removeprefix("/")

    def file(self) -> str:
        """Return the file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
        if self.hosts or self.user:
            raise self._error(
                f"a relative file needs three slashes, {self.scheme}:///relative.db, an absolute "
                f"one four, {self.scheme}:////absolute.db"
            )
        name = self.database
        if not name:
            raise self._error(f"the file is missing: {self.scheme}:///app.db")
        if name.startswith((":memory:", "file:")):
            raise self._error(
                f"{name.split('?')[0]!r} is not supported: every connection would get its own "
                "database. Use a file, or memory: for a store within one process"
            )
        return name

    def options(self, known: Mapping[str, Callable[[str], T]]) -> dict[str, T]:
        """Return the options of the URL, each parsed by its converter.

        Raises ConfigError for an unknown option, an option given twice, and a value for which the
        converter raises ValueError; the message of that error names the expected value.
        """
        found: dict[str, T] = {}
        for name, text in self.query:
            convert = known.get(name)
            if convert is None:
                raise self._error(unknown("option", name, known))
            if name in found:
                raise self._error(f"option {name!r} is given twice")
            try:
                found[name] = convert(text)
            except ConfigError as error:  # a check with its own message
                problem = self._error(f"option {name!r}: {error}")
            except ValueError as error:
                expected = _EXPECTED.get(convert) or str(error)
                shown = "its value" if is_secret(name, text) else repr(text)
                problem = self._error(f"option {name!r} must be {expected}, not {shown}")
            else:
                continue
            raise problem  # outside of `except`: the cause would contain the value
        return found

    def with_password(self, password: str) -> Url:
        """Return the URL with this password; it must have a host and no password."""
        head, _, rest = self._text.partition("://")
        authority, slash, path = rest.partition("/")
        if "?" in authority:  # a URL without a path
            authority, slash, path = rest.partition("?")
        user, _, hosts = authority.rpartition("@")
        secret = quote(password, safe="")
        return Url.parse(f"{head}://{user}:{secret}@{hosts}{slash}{path}")

    # -- as text ------------------------------------------------------------------------------
    def reveal(self) -> str:
        """Return the original text, including secrets."""
        return self._text

    def __str__(self) -> str:
        return self._raw_head + self._raw_query

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Url) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)


def naming(url: str, **options: str | None) -> str:
    """Return a masked URL that also names these options, unless it does so already."""
    for name, value in options.items():
        if value is not None and not re.search(rf"[?&]{name}=", url):
            url += f"{'&' if '?' in url else '?'}{name}={value}"
    return url


def is_secret(name: str, value: str = "") -> bool:
    """Return whether an option must not be printed."""
    return bool(_SECRET.search(name) or _HOLDS_SECRET.search(value))


# -- converters for `options` -----------------------------------------------------------------
def whole_number(text: str) -> int:
    """0 or more."""
    if not _is_number(text):
        raise ValueError("a whole number")
    return int(text)


def _is_number(text: str) -> bool:
    """Return whether a text is digits only, and short enough for a 64-bit integer."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def seconds(text: str) -> float:
    """Seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a number of seconds")
    return value


def boolean(text: str) -> bool:
    """True or false, and the usual synonyms."""
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError("true or false")


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def convert(text: str) -> str:
        if text not in words:
            raise ValueError("one of " + ", ".join(words))
        return text

    return convert


_EXPECTED: Mapping[Callable[[str], object], str] = {int: "a whole number", float: "a number"}
