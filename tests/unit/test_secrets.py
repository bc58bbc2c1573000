"""No object that postroom makes of a URL shows its password: objects end up in logs."""

from __future__ import annotations

import pytest

from postroom.cli.configuration_file import find_file
from postroom.registry import load_broker, load_source, load_store
from postroom.stores.postgres import PostgresNotifier

SECRET = "s3cret-word"  # noqa: S105 - it is looked for
LOGIN = f"anna:{SECRET}@h"


def parts(thing, seen=None):
    """Yield an object, and the objects of postroom that it holds."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if type(thing).__module__.startswith("postroom."):
        yield thing
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*getattr(thing, "__dict__", ()), *slots]
        for held in (getattr(thing, name, None) for name in names):
            yield from parts(held, seen)


@pytest.mark.parametrize(
    ("load", "url", "kinds"),
    [
        (load_store, f"mysql://{LOGIN}/shop", {"Target", "MysqlSettings"}),
        (load_store, f"mariadb://{LOGIN}/shop", {"Target", "MysqlSettings"}),
        (load_store, f"postgresql://{LOGIN}/shop", {"PostgresSettings"}),
        (load_store, f"mongodb://{LOGIN}/shop", {"Address", "MongoSettings"}),
        (load_store, f"mongodb://h/shop?tlsCertificateKeyFilePassword={SECRET}", {"Address"}),
        (PostgresNotifier, f"postgresql://{LOGIN}/shop", {"PostgresSettings"}),
        (load_broker, f"kafka://{LOGIN}", {"KafkaSettings"}),
        (load_broker, f"kafka://h?sasl.password={SECRET}", {"KafkaSettings"}),
        (load_broker, f"amqp://{LOGIN}", {"Url", "RabbitSettings"}),
        (load_source, f"kafka://{LOGIN}?topic=t&group=g", {"KafkaSourceSettings"}),
        (load_source, f"amqp://{LOGIN}?queue=q", {"Url", "RabbitSourceSettings"}),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else None,
)
async def test_no_object_shows_the_password_of_its_url(load, url, kinds):
    found = list(parts(load(url)))
    assert kinds <= {type(part).__name__ for part in found}
    shown = {
        type(part).__name__: text
        for part in found
        for text in (repr(part), str(part), f"{part}")
        if SECRET in text
    }
    assert shown == {}


def test_a_file_of_settings_does_not_show_its_urls(tmp_path):
    path = tmp_path / "postroom.toml"
    path.write_text(f'store = "mysql://{LOGIN}/shop"\n', encoding="utf-8")
    source = find_file(path, tmp_path)
    assert SECRET in source.values["store"]
    assert SECRET not in repr(source)
