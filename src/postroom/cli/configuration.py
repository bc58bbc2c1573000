"""Settings from options, then the environment, then a file, then defaults.

Every value keeps its source (an option, a variable, or a file and its line), so that errors and
`postroom config show` can name it. This module opens no store and no broker.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from postroom.cli.configuration_file import Source, find_file
from postroom.cli.variables import Unexpanded, with_password_of
from postroom.errors import ConfigError
from postroom.model.url import Url
from postroom.retry import Backoff, Constant, Exponential, Linear, RetryPolicy
from postroom.settings import RelaySettings

SECTION = "relay"  # [[relay]]: one stream each
CONSUMER = "consumer"  # [[consumer]]: one source each
DASHBOARD = "dashboard"  # [dashboard]: see dashboard_section
PREFIX = "POSTROOM_"
DEFAULT = "default"
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
BACKOFFS: Mapping[str, Callable[[float, float], Backoff]] = {
    "exponential": Exponential,
    "linear": Linear,
    "constant": lambda base, _: Constant(base),
}
_BESIDE = ("CONFIG", "DEBUG", "USER")  # variables that are not settings
_OF_SECTION = ("stream", "broker", "broker_password_file")  # no variable overrides them
_DEFAULTS = RelaySettings()


class Known(NamedTuple):
    """A setting: its kind, its default, and whether a [[relay]] section may contain it."""

    kind: str  # url, text, int, seconds, names, or the allowed words, separated by |
    default: Any
    of_relay: bool = True


SETTINGS: Mapping[str, Known] = {
    "store": Known("url", None, of_relay=False),
    "store_password_file": Known("text", "", of_relay=False),
    "broker": Known("url", None),
    "broker_password_file": Known("text", ""),
    "stream": Known("text", _DEFAULTS.stream),
    "name": Known("text", ""),
    "batch_size": Known("int", _DEFAULTS.batch_size),
    "max_batch_size": Known("int", None),
    "max_batch_bytes": Known("int", _DEFAULTS.max_batch_bytes),
    "poll_seconds": Known("seconds", _DEFAULTS.poll_seconds),
    "lease_seconds": Known("seconds", _DEFAULTS.lease_seconds),
    "keep_done_seconds": Known("seconds", _DEFAULTS.keep_done_seconds),
    "keep_dead_seconds": Known("seconds", None),
    "dedup_seconds": Known("seconds", _DEFAULTS.dedup_seconds),
    "prune_seconds": Known("seconds", _DEFAULTS.prune_seconds),
    "publish_seconds": Known("seconds", _DEFAULTS.publish_seconds),
    "stop_seconds": Known("seconds", _DEFAULTS.stop_seconds),
    "groups": Known("int", _DEFAULTS.groups),
    "linger_seconds": Known("seconds", _DEFAULTS.linger_seconds),
    "suspect_limit": Known("int", _DEFAULTS.suspect_limit),
    "misconfigured_seconds": Known("seconds", _DEFAULTS.misconfigured_seconds),
    "outage_seconds": Known("seconds", _DEFAULTS.outage_seconds),
    "max_outage_seconds": Known("seconds", _DEFAULTS.max_outage_seconds),
    "max_attempts": Known("int", _DEFAULTS.retry.max_attempts),
    "on_exhausted": Known("bury|block", _DEFAULTS.retry.on_exhausted),
    "backoff": Known("|".join(BACKOFFS), "exponential"),
    "backoff_seconds": Known("seconds", Exponential().base),
    "max_backoff_seconds": Known("seconds", Exponential().maximum),
    "metrics_port": Known("int", None, of_relay=False),
    "metrics_host": Known("text", "127.0.0.1", of_relay=False),
    "log_level": Known("|".join(LEVELS), "info", of_relay=False),
    "log_format": Known("|".join(FORMATS), "text", of_relay=False),
    "reconcilers": Known("names", None, of_relay=False),
}


CONSUMER_SETTINGS: Mapping[str, Known] = {
    "source": Known("url", None),
    "source_password_file": Known("text", ""),
    "handlers": Known("url", None),
    "name": Known("text", ""),
    "mode": Known("direct|durable", "direct"),
    "missing_id": Known("hash|reject|offset", "hash"),
    "unhandled": Known("dead|ignore", "dead"),
    "max_in_flight": Known("int", 1_000),
    "max_bytes": Known("int", 16_000_000),
    "max_stored": Known("int", 10_000),
    "batch": Known("int", 1),
    "max_attempts": Known("int", _DEFAULTS.retry.max_attempts),
    "stop_seconds": Known("seconds", 30.0),
    "lease_seconds": Known("seconds", 15.0),
    "dedup_seconds": Known("seconds", 2_592_000.0),
    "keep_dead_seconds": Known("seconds", None),
}


class Setting(NamedTuple):
    """A value and its source."""

    value: Any
    source: str

    @property
    def shown(self) -> Any:
        """The value with secrets masked."""
        return str(self.value) if isinstance(self.value, Url) else self.value


@dataclass(frozen=True)
class RelayPlan:
    """A relay to run: its settings and the source of each."""

    values: Mapping[str, Setting]
    settings: RelaySettings

    @property
    def broker(self) -> Url | None:
        url: Url | None = self.values["broker"].value
        return url


class Configuration:
    """Settings from a file and the environment; options override them."""

    def __init__(self, source: Source, environment: Mapping[str, str]) -> None:
        self.source = source
        self._file: dict[str, Setting] = {}
        self._sections: list[dict[str, Setting]] = []
        self._consumers: list[dict[str, Setting]] = []
        self.dashboard: Mapping[str, Any] = {}
        self._read_file()
        self._variables = environment
        self._environment = dict(_from_environment(environment))

    # -- queries ------------------------------------------------------------------------------
    @property
    def variables(self) -> Mapping[str, str]:
        """The environment, for `${NAME}` in URLs."""
        return self._variables

    def get(self, name: str) -> Setting:
        """Return a setting of the process, without options."""
        found = self._environment.get(name) or self._file.get(name)
        return self._expanded(found or Setting(SETTINGS[name].default, DEFAULT))

    def store(self) -> Url | None:
        """Return the configured URL of the store, with the password of its file."""
        found: Url | None = self.process({})["store"].value
        return found

    def process(self, flags: Mapping[str, Any]) -> dict[str, Setting]:
        """Return the settings that all relays share."""
        given = _from_flags(flags)
        values = {
            n: given.get(n) or self.get(n) for n, known in SETTINGS.items() if not known.of_relay
        }
        if "store" in given:
            values["store_password_file"] = self._of_variables("store_password_file")
        values["store"] = self._complete_url(values["store"], values["store_password_file"])
        return values

    @property
    def consumers(self) -> list[dict[str, Setting]]:
        """The sections of the consumers, with all settings."""
        return [
            {
                **{name: self._expanded(setting) for name, setting in section.items()},
                "source": self._complete_url(section["source"], section["source_password_file"]),
            }
            for section in self._consumers
        ]

    def relays(self, flags: Mapping[str, Any]) -> list[RelayPlan]:
        """Return the relays to run: one for each section, or one from the top-level settings.

        With consumers and no broker there is no relay. Variables do not override a section's own
        `stream` and `broker`. The option --stream selects one of the sections.
        """
        given = _from_flags(flags)
        if not self._sections:
            plan = self._plan({}, given)
            return [] if self._consumers and plan.broker is None else [plan]
        wanted = given.pop("stream", None)
        if "broker" in given and wanted is None and len(self._sections) > 1:
            raise ConfigError(
                f"--broker would send all {len(self._sections)} streams of {self.source.path} to "
                "one broker; select one stream with --stream"
            )
        plans = [self._plan(section, given) for section in self._sections]
        streams = [plan.settings.stream for plan in plans]
        for plan in plans:
            if streams.count(plan.settings.stream) > 1:
                named = plan.values["stream"].source
                where = self.source.path if named == DEFAULT else named
                raise ConfigError(
                    f"{where}: stream {plan.settings.stream!r} occurs in two [[relay]] sections; "
                    "give each section its own stream"
                )
        if wanted is None:
            return plans
        chosen = [plan for plan in plans if plan.settings.stream == wanted.value]
        if not chosen:
            raise ConfigError(
                f"--stream: {self.source.path} has no section for {wanted.value!r}; "
                f"its streams are {', '.join(streams)}"
            )
        return chosen

    def _plan(self, section: Mapping[str, Setting], flags: Mapping[str, Setting]) -> RelayPlan:
        own = {name: section[name] for name in _OF_SECTION if name in section}
        # The password of another broker is not sent to this one.
        if "broker" in flags:
            own["broker_password_file"] = self._of_variables("broker_password_file")
        elif "broker" in own:
            own.setdefault("broker_password_file", Setting("", DEFAULT))
        layers = (flags, own, self._environment, section, self._file)
        values = {}
        for name, known in SETTINGS.items():
            if known.of_relay:
                found = (layer[name] for layer in layers if name in layer)
                values[name] = next(found, Setting(known.default, DEFAULT))
        values["broker"] = self._complete_url(values["broker"], values["broker_password_file"])
        if values["max_batch_size"].value is None:
            biggest = max(values["batch_size"].value, _DEFAULTS.max_batch_size)
            values["max_batch_size"] = Setting(biggest, DEFAULT)
        return RelayPlan(values, settings_of(values))

    # -- the file -----------------------------------------------------------------------------
    def _read_file(self) -> None:
        of_relay = {n: k for n, k in SETTINGS.items() if k.of_relay}
        for name, value in self.source.values.items():
            if name == SECTION:
                self._sections = self._read_sections(name, value, of_relay)
            elif name == CONSUMER:
                self._consumers = self._read_sections(name, value, CONSUMER_SETTINGS)
                for number, section in enumerate(self._consumers):
                    self._complete(section, number)
            elif name == DASHBOARD:
                if not isinstance(value, dict):
                    raise ConfigError(f"{self.source.where(name)}: write [dashboard] as a table")
                self.dashboard = value
            else:
                self._file[name] = self._checked((), name, value, SETTINGS)

    def _read_sections(
        self, name: str, value: Any, known: Mapping[str, Known]
    ) -> list[dict[str, Setting]]:
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise ConfigError(
                f"{self.source.where(name)}: write [[{name}]] with double brackets: "
                "there can be several sections"
            )
        return [
            {n: self._checked((name, str(number)), n, v, known) for n, v in section.items()}
            for number, section in enumerate(value)
        ]

    def _complete(self, section: dict[str, Setting], number: int) -> None:
        for name in ("source", "handlers"):
            if name not in section:
                raise ConfigError(f"{self.source.path}: [[consumer]] {number + 1} needs {name!r}")
        for name, known in CONSUMER_SETTINGS.items():
            section.setdefault(name, Setting(known.default, DEFAULT))

    def _checked(
        self, place: tuple[str, ...], name: str, value: Any, known: Mapping[str, Known]
    ) -> Setting:
        where = self.source.where(*place, name)
        if name not in known:
            if name in SETTINGS and place[:1] == (SECTION,):
                raise ConfigError(
                    f"{where}: {name!r} applies to all relays; move it above the first [[relay]]"
                )
            sections = () if place else (SECTION, CONSUMER, DASHBOARD)
            raise ConfigError(f"{where}: {_unknown(name, [*known, *sections])}")
        if known[name].kind == "url" and isinstance(value, str) and "$" in value:
            return Setting(Unexpanded(value), where)
        return Setting(_convert(where, name, known[name].kind, value), where)

    # -- secrets ------------------------------------------------------------------------------
    def _expanded(self, setting: Setting) -> Setting:
        if not isinstance(setting.value, Unexpanded):
            return setting
        return setting._replace(value=setting.value.url(setting.source, self._variables))

    def _of_variables(self, name: str) -> Setting:
        """Return a setting for a URL from the command line: the file's own is for another URL."""
        return self._environment.get(name) or Setting(SETTINGS[name].default, DEFAULT)

    def _complete_url(self, setting: Setting, password_file: Setting) -> Setting:
        """Return a URL with its variables, and with the password of its file."""
        found = self._expanded(setting)
        if found.value is None or not password_file.value:
            return found
        url = with_password_of(found.value, password_file.value, password_file.source)
        return found._replace(value=url)


# -- finding and reading ----------------------------------------------------------------------
def load(
    path: Path | None, environment: Mapping[str, str], folder: Path | None = None
) -> Configuration:
    """Read the named file, or the one found in the folder (default: the current folder)."""
    return Configuration(find_file(path, folder or Path()), environment)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    names = [PREFIX + name.upper() for name in SETTINGS]
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in SETTINGS:
            if text != "":
                value = _convert(variable, name, SETTINGS[name].kind, text, from_text=True)
                yield name, Setting(value, variable)
        elif variable.removeprefix(PREFIX) not in _BESIDE:
            near = difflib.get_close_matches(variable, names, 1, 0.85)
            if near:  # applications may use the prefix for their own variables
                raise ConfigError(f"unknown variable {variable}; did you mean {near[0]}?")


def _from_flags(flags: Mapping[str, Any]) -> dict[str, Setting]:
    return {
        name: Setting(
            _convert(flag_of(name), name, SETTINGS[name].kind, value, from_text=True),
            flag_of(name),
        )
        for name, value in flags.items()
        if value is not None
    }


def flag_of(name: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{name.replace('_', '-')}"


# -- values -----------------------------------------------------------------------------------
def _convert(where: str, name: str, kind: str, value: Any, *, from_text: bool = False) -> Any:
    """Return a value of the setting's kind; errors do not repeat URLs, which may hold secrets."""
    if kind == "url":
        try:
            return Url.parse(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    if isinstance(value, str) and from_text and kind in ("int", "seconds"):
        number = _number(value, whole=kind == "int")
        if number is None:
            raise _refused(where, name, kind, value)
        return number
    if kind == "names" and isinstance(value, str) and from_text:
        value = [name.strip() for name in value.split(",") if name.strip()]
    fits = {
        "names": isinstance(value, list) and all(isinstance(name, str) for name in value),
        "text": isinstance(value, str),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "seconds": _is_finite(value),
    }.get(kind)
    if fits is None:
        value = value.lower() if from_text else value
        fits = value in kind.split("|")
    if not fits:
        raise _refused(where, name, kind, value)
    return float(value) if kind == "seconds" else value


def _number(text: str, *, whole: bool) -> float | None:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        return None
    return number if whole or isfinite(number) else None


def _is_finite(value: object) -> bool:
    """Return whether a value is a finite float; TOML allows nan, inf and huge integers."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def _refused(where: str, name: str, kind: str, value: Any) -> ConfigError:
    words = {
        "names": "a list of names",
        "text": "text",
        "int": "a whole number",
        "seconds": "a number of seconds",
    }
    expected = words.get(kind) or f"one of {', '.join(kind.split('|'))}"
    return ConfigError(f"{where}: {name} must be {expected}, not {value!r}")


def settings_of(values: Mapping[str, Setting]) -> RelaySettings:
    """Return the settings of a relay; errors name the source of the value."""
    plain = {name: setting.value for name, setting in values.items()}
    try:
        backoff = BACKOFFS[plain.pop("backoff")](
            plain.pop("backoff_seconds"), plain.pop("max_backoff_seconds")
        )
        retry = RetryPolicy(plain.pop("max_attempts"), backoff, plain.pop("on_exhausted"))
        for name in ("broker", "broker_password_file"):
            plain.pop(name)
        return RelaySettings(**plain, retry=retry)
    except ConfigError as error:
        raise ConfigError(f"{_source_of(str(error), values)}{error}") from error


def _source_of(message: str, values: Mapping[str, Setting]) -> str:
    """Return `source: ` of the first setting in an error's text that is not a default."""
    words = re.findall(r"[a-z_]+", message)
    if "backoff" in words:
        words += ["backoff_seconds", "max_backoff_seconds"]
    for word in words:
        if word in values and values[word].source != DEFAULT:
            return f"{values[word].source}: "
    return ""


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`postroom config show` lists all keys"
    return f"unknown key {name!r}; {hint}"
