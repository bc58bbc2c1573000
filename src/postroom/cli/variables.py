"""Secrets of the configuration from outside: `${NAME}` in URLs, and files with passwords.

A value is taken literally where it is a part of the user name, the password or an option's value:
it is percent-encoded there. Elsewhere (a whole URL, hosts, a path) it is inserted as it is. Errors
name the variable or the file, never a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from postroom.errors import ConfigError
from postroom.model.url import Url

_TOKEN = re.compile(r"\$\$|\$\{([^}]*)\}?|[^$]+|\$")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}")
_PLACEHOLDERS = 0x100000  # private use: one character for each reference
_MOST_BYTES = 65_536


@dataclass(frozen=True)
class Unexpanded:
    """A URL of the file with references to variables, which are looked up when it is used.

    A command that does not use the URL does not need its variables.
    """

    text: str

    def url(self, where: str, environment: Mapping[str, str]) -> Url:
        """Return the URL. Raises ConfigError for an unset variable, which it names."""
        try:
            return Url.parse(expand(self.text, environment))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Return a URL with `${NAME}` and `${NAME:-default}` replaced; `$$` is a dollar sign."""
    template, values = "", list[str]()
    for token in _TOKEN.finditer(text):
        if token[1] is not None:
            template += chr(_PLACEHOLDERS + len(values))
            values.append(_look_up(token[0], environment))
        else:
            template += "$" if token[0] == "$$" else token[0]
    if len(template) == 1 == len(values):
        return values[0]
    literal = set(_literal_parts(template))
    for number, value in enumerate(values):
        mark = chr(_PLACEHOLDERS + number)
        template = template.replace(mark, quote(value, safe="") if mark in literal else value)
    return template


def with_password_of(url: Url, path: str, where: str) -> Url:
    """Return the URL with the password that a file holds; one line break at its end is dropped."""
    if not url.hosts:
        raise ConfigError(f"{where}: {url.scheme} URLs have no password; remove the password file")
    if url.password is not None:
        raise ConfigError(f"{where}: the URL has a password already; remove it, or the file")
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        password = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not UTF-8") from None
    if not password or "\n" in password or len(content) > _MOST_BYTES:
        raise ConfigError(f"{where}: {path} must hold a password in one line")
    return url.with_password(password)


def _look_up(reference: str, environment: Mapping[str, str]) -> str:
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ConfigError(
            "a ${ is not followed by a name and }; write ${NAME} or ${NAME:-default}, and $$ for a "
            "dollar sign"
        )
    name, has_default, default = found.groups()
    value = environment.get(name)
    if has_default:
        return value or default
    if value is None:
        raise ConfigError(
            f"the variable {name} is not set; set it, or write a default: ${{{name}:-…}}"
        )
    return value


def _literal_parts(template: str) -> Iterator[str]:
    """Yield the characters of a URL's user name, password and values of options."""
    body, _, query = template.partition("?")
    authority = body.partition("://")[2].partition("/")[0]
    yield from authority.rpartition("@")[0]
    for part in query.split("&"):
        yield from part.partition("=")[2]
