"""Options of stores, brokers, sources, relays and consumers: read from a URL, merged, checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from postroom.errors import ConfigError
from postroom.model.durations import to_seconds
from postroom.model.suggest import unknown
from postroom.model.url import Url, boolean, one_of, seconds, whole_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)
else:
    Settings = TypeVar("Settings")

Readers = Mapping[str, Callable[[str], Any]]

_LONGEST_SECONDS = 100 * 366 * 86_400.0
_NUMBERS = ("int", "float", "int | None", "float | None")
_FROM_TEXT: Mapping[object, Callable[[str], Any]] = {
    str: str,
    int: whole_number,
    float: seconds,
    bool: boolean,
    tuple[str, ...]: lambda text: tuple(text.split(",")),
}


def names_of(settings: type[DataclassInstance]) -> list[str]:
    """Return the names of the settings."""
    return [field.name for field in fields(settings)]


def readers(settings: type[DataclassInstance], *, skip: Collection[str] = ()) -> Readers:
    """Return, for each setting, the converter from the text of a URL, chosen by its type."""
    hints = get_type_hints(settings)
    return {name: _reader(hints[name]) for name in names_of(settings) if name not in skip}


def _reader(hint: Any) -> Callable[[str], Any]:
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    if hint in _FROM_TEXT:
        return _FROM_TEXT[hint]
    (kind,) = (kind for kind in get_args(hint) if kind is not type(None))
    return _reader(kind)


def read_options(
    url: Url, known: Readers, given: Mapping[str, Any], *, also: Collection[str] = ()
) -> dict[str, Any]:
    """Merge the options of a URL with those given by name.

    `also` can only be given by name. Raises ConfigError for an unknown option, and for one that is
    given in both places.
    """
    refuse_unknown(f"{url.scheme} option", given, {*known, *also})
    found: dict[str, Any] = url.options(known)
    for name in found.keys() & given.keys():
        raise ConfigError(f"option {name!r} is given both in the URL and as an argument")
    return {**found, **given}


def with_options(settings: Settings, options: Mapping[str, Any], what: str) -> Settings:
    """Return the settings with these changed. Raises ConfigError for an unknown name."""
    refuse_unknown(what, options, names_of(type(settings)))
    return replace(settings, **options) if options else settings


def refuse_unknown(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError, with a suggestion, for a name that is not known."""
    for name in given:
        if name not in known:
            raise ConfigError(unknown(what, name, known))


def check_numbers(
    settings: DataclassInstance, what: str = "", *, may_be_zero: Collection[str] = ()
) -> None:
    """Check all numbers of a dataclass of settings; a timedelta becomes a number of seconds.

    Numbers must be more than 0, or at least 0 for names in `may_be_zero`. Called by
    `__post_init__`; messages begin with `what`.
    """
    for field in fields(settings):
        if field.type in _NUMBERS:
            _check_number(settings, field, what, zero=field.name in may_be_zero)


def check_words(settings: DataclassInstance, what: str = "") -> None:
    """Check all settings that are one of several words. Raises ConfigError with a suggestion."""
    for name, hint in get_type_hints(type(settings)).items():
        words, value = _words(hint), getattr(settings, name)
        if words and value not in words and not (value is None and type(None) in get_args(hint)):
            problem = (
                unknown(name, value, words)
                if isinstance(value, str)
                else (f"{name} must be one of {', '.join(words)}, not {value!r}")
            )
            raise ConfigError(f"{what}: {problem}" if what else problem)


def _words(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((get_args(part) for part in get_args(hint) if get_origin(part) is Literal), ())


def _check_number(settings: object, field: Field[Any], what: str, *, zero: bool) -> None:
    name, kind, value = field.name, str(field.type), getattr(settings, field.name)
    start = f"{what}: {name}" if what else name
    if value is None and kind.endswith("None"):
        return
    if isinstance(value, timedelta) and name.endswith("_seconds"):
        value = to_seconds(value)
        object.__setattr__(settings, name, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{start} must be a number, not {value!r}")
    if zero and not value >= 0:
        raise ConfigError(f"{start} must be 0 or more, not {value!r}")
    if not zero and not value > 0:
        raise ConfigError(f"{start} must be more than 0, not {value!r}")
    if kind.startswith("int") and not isinstance(value, int):
        raise ConfigError(f"{start} must be a whole number, not {value!r}")
    if name.endswith("_seconds") and value > _LONGEST_SECONDS:
        raise ConfigError(f"{start} must be at most 100 years in seconds, not {value!r}")
