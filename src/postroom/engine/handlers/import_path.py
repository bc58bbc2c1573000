"""Handlers named by a URL: `handlers:package.module:attribute`."""

from __future__ import annotations

import importlib
from typing import Any

from postroom.engine.handlers.handlers import Handlers
from postroom.errors import ConfigError
from postroom.model.suggest import unknown
from postroom.model.url import Url


def import_handlers(url: Url) -> Handlers:
    """Return the Handlers object that `handlers:package.module:attribute` names."""
    url.options({})
    module_name, colon, attribute = url.path.partition(":")
    if url.hosts or not module_name or not colon or not attribute:
        raise ConfigError("write it as handlers:package.module:attribute")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r}; is its folder on PYTHONPATH?"
            ) from error
        raise ConfigError(f"importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise ConfigError(
            f"importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            public = [n for n in dir(found) if isinstance(getattr(found, n), Handlers)]
            raise ConfigError(f"{module_name}: " + unknown("attribute", name, public))
        found = getattr(found, name)
    if not isinstance(found, Handlers):
        raise ConfigError(
            f"{module_name}:{attribute} is {type(found).__name__}, not postroom's Handlers"
        )
    return found
