"""The section [dashboard] of the configuration file: stores, users, tokens, proxy, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroom.cli.configuration import Configuration
from postroom.cli.variables import expand
from postroom.errors import ConfigError
from postroom.model.suggest import unknown
from postroom.model.url import Url

if TYPE_CHECKING:
    from postroom.dashboard.settings import DashboardSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8_321
KEYS: Mapping[str, type | tuple[type, ...]] = {
    "host": str,
    "port": int,
    "stores": dict,
    "masks": list,
    "secret_file": str,
    "session_seconds": (int, float),
    "refresh_seconds": (int, float),
    "secure_cookies": bool,
    "prefix": str,
    "user": list,
    "token": list,
    "proxy": dict,
}
USER_KEYS = {"name": str, "password_hash": str, "role": str, "payloads": bool}
TOKEN_KEYS = {"name": str, "sha256": str, "role": str, "payloads": bool}
PROXY_KEYS = {
    "addresses": list,
    "header": str,
    "role": str,
    "role_header": str,
    "payloads": bool,
}


@dataclass(frozen=True)
class Section:
    """The settings of `postroom dashboard`."""

    host: str
    port: int
    stores: Mapping[str, Url]
    settings: DashboardSettings

    def with_token(self, name: str, digest: str) -> DashboardSettings:
        """Return the settings with one token, for everything."""
        from postroom.dashboard.settings import Role, Token

        return replace(self.settings, tokens=[Token(name, digest, Role.ADMIN, payloads=True)])


def read_section(configuration: Configuration) -> Section:
    """Return the section, or the defaults. Raises ConfigError for an unknown key or value."""
    from postroom.dashboard.settings import DashboardSettings, Proxy, Token, User

    given = configuration.dashboard
    where = f"{configuration.source.path}: [dashboard]"
    _check(where, given, KEYS)
    options: dict[str, Any] = {
        name: given[name]
        for name in ("session_seconds", "refresh_seconds", "secure_cookies", "prefix")
        if name in given
    }
    if "masks" in given:
        options["masks"] = _texts(where, "masks", given["masks"])
    if "secret_file" in given:
        options["secret"] = _secret(where, given["secret_file"])
    users = [_checked(where, "user", one, USER_KEYS) for one in given.get("user", ())]
    tokens = [_checked(where, "token", one, TOKEN_KEYS) for one in given.get("token", ())]
    try:
        options["users"] = [User(**one) for one in users]
        options["tokens"] = [Token(**one) for one in tokens]
        if "proxy" in given:
            proxy = _checked(where, "proxy", given["proxy"], PROXY_KEYS)
            proxy["addresses"] = tuple(_texts(where, "addresses", proxy.get("addresses", [])))
            options["proxy"] = Proxy(**proxy)
    except TypeError as error:
        raise ConfigError(
            f"{where}: a user needs name and password_hash, a token sha256"
        ) from error
    stores = {}
    for name, url in given.get("stores", {}).items():
        if not isinstance(url, str):
            raise ConfigError(f"{where}: stores.{name} must be a URL")
        stores[name] = Url.parse(expand(url, configuration.variables))
    return Section(
        given.get("host", DEFAULT_HOST),
        given.get("port", DEFAULT_PORT),
        stores,
        DashboardSettings(**options),
    )


def _checked(where: str, name: str, given: Any, known: Mapping[str, type]) -> dict[str, Any]:
    from postroom.dashboard.settings import Role

    place = f"{where} {name}"
    if not isinstance(given, dict):
        raise ConfigError(f"{place} must be a table")
    _check(place, given, known)
    found = dict(given)
    if "role" in found:
        if found["role"] not in list(Role):
            raise ConfigError(f"{place}: {unknown('role', found['role'], list(map(str, Role)))}")
        found["role"] = Role(found["role"])
    return found


def _check(where: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"{where}: {unknown('key', name, list(known))}")
        wanted = known[name]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise ConfigError(f"{where}: {name} has the wrong type")


def _texts(where: str, name: str, given: Sequence[Any]) -> list[str]:
    if not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{where}: {name} must be a list of texts")
    return list(given)


def _secret(where: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path}: {error.strerror}") from error
