"""From URLs to stores and brokers."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from postroom import registry
from postroom.brokers.memory import MemoryBroker, NullBroker
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import ConfigError, MissingExtraError
from postroom.model.url import Url
from postroom.registry import Entry, load_broker, load_source, load_store


def test_brokers_that_need_no_server():
    assert isinstance(load_broker("memory:"), MemoryBroker)
    assert isinstance(load_broker(Url.parse("memory://")), MemoryBroker)
    assert isinstance(load_broker("null:"), NullBroker)
    assert load_broker("memory:?max_bytes=7").capabilities.max_bytes == 7


def test_stores_that_need_no_server(tmp_path):
    assert type(load_store("memory:")).__name__ == "MemoryStore"
    assert type(load_store(f"sqlite:///{tmp_path}/app.db")).__name__ == "SqliteStore"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: load_store("sqlight:///x.db"),
            r"unknown store scheme 'sqlight'; did you mean 'sqlite'\? Known: .*memory.*sqlite",
        ),
        (
            lambda: load_store("oracle://x"),
            r"unknown store scheme 'oracle'\. Known: .*memory.*sqlite",
        ),
        (
            lambda: load_broker("memry:"),
            r"unknown broker scheme 'memry'; did you mean 'memory'\? Known: .*handlers.*memory.*null",
        ),
        (
            lambda: load_broker("memory:?max_byte=7"),
            r"unknown option 'max_byte'; did you mean 'max_bytes'",
        ),
        (lambda: load_broker("null:?x=1"), r"unknown option 'x'\. There are none"),
        (lambda: load_store("app.db"), "the scheme is missing"),
        # U17: what people write first
        (lambda: load_broker("localhost:9092"), r"did you mean 'kafka://localhost:9092'\?"),
        (lambda: load_broker("a:9092,b:9092"), r"did you mean 'kafka://a:9092,b:9092'\?"),
        (lambda: load_broker("localhost:29092"), r"did you mean 'kafka://localhost:29092'\?"),
        (lambda: load_source("localhost:9092"), r"did you mean 'kafka://localhost:9092'\?"),
        (lambda: load_broker("localhost:5672"), r"did you mean 'amqp://localhost:5672'\?"),
        (lambda: load_store("db:5432/shop"), r"did you mean 'postgresql://db:5432/database'\?"),
        (lambda: load_store("localhost:9092"), r"unknown store scheme 'localhost'\. Known"),
        (lambda: load_broker("127.0.0.1:9092"), "something like .* kafka://localhost:9092"),
        (lambda: load_broker("rabbitmq://localhost"), r"did you mean 'amqp://'\?"),
        (lambda: load_source("rabbitmq://u:hunter2@localhost/"), r"did you mean 'amqp://'\?"),
        (lambda: load_store("psql://localhost/shop"), r"did you mean 'postgresql://'\?"),
        (lambda: load_broker("payments:handlers"), r"did you mean 'handlers:payments:handlers'\?"),
        (lambda: load_broker("shop.app:handlers"), r"did you mean 'handlers:shop.app:handlers'\?"),
        (lambda: load_broker("my_app:handlers"), "handlers:package.module:attribute"),
    ],
)
def test_a_wrong_url_says_what_would_be_right(call, message):
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert "hunter2" not in str(caught.value)


def test_a_driver_that_is_missing_names_its_extra(monkeypatch, tmp_path):
    module = tmp_path / "a_store_with_a_driver.py"
    module.write_text("import a_driver_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        registry, "STORES", {"x": Entry("a_store_with_a_driver", "Store", "postgres")}
    )
    with pytest.raises(MissingExtraError) as caught:
        load_store("x://h")
    assert str(caught.value) == (
        "a_driver_that_nobody_has is not installed: pip install 'postroom[postgres]'"
    )
    assert caught.value.extra == "postgres"


def test_a_bug_of_our_own_is_not_taken_for_a_missing_extra(monkeypatch):
    monkeypatch.setattr(
        registry, "STORES", {"x": Entry("postroom.stores.nowhere", "Store", "postgres")}
    )
    with pytest.raises(ModuleNotFoundError):
        load_store("x://h")


# -- handlers of the user ---------------------------------------------------------------------
@pytest.fixture
def shop(tmp_path, monkeypatch):
    package = tmp_path / "postroom_test_shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(
        "from postroom.engine.handlers.handlers import Handlers\n"
        "handlers = Handlers()\n"
        "class App:\n"
        "    inner = Handlers()\n"
        "text = 'text'\n"
    )
    (package / "broken.py").write_text("raise RuntimeError('boom')\n")
    (package / "needy.py").write_text("import nothing_like_this\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "postroom_test_shop"
    for name in [n for n in sys.modules if n.startswith("postroom_test_shop")]:
        del sys.modules[name]


def test_handlers_are_imported(shop):
    found = load_broker(f"handlers:{shop}.app:handlers")
    assert isinstance(found, Handlers)
    assert found is sys.modules[f"{shop}.app"].handlers
    assert load_broker(f"handlers:{shop}.app:App.inner") is sys.modules[f"{shop}.app"].App.inner


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "handlers:package.module:attribute"),
        ("shop.app", "handlers:package.module:attribute"),
        ("shop.app:", "handlers:package.module:attribute"),
        ("//shop.app:1", "handlers:package.module:attribute"),
        (
            "postroom_no_such_module:h",
            "no module 'postroom_no_such_module'; is its folder on PYTHONPATH",
        ),
        ("postroom_test_shop.nowhere:h", "no module 'postroom_test_shop.nowhere'"),
        (
            "postroom_test_shop.broken:h",
            "importing 'postroom_test_shop.broken' failed: RuntimeError: boom",
        ),
        (
            "postroom_test_shop.needy:h",
            "importing 'postroom_test_shop.needy' failed: No module named 'nothing_like_this'",
        ),
        (
            "postroom_test_shop.app:handler",
            r"unknown attribute 'handler'; did you mean 'handlers'\?",
        ),
        ("postroom_test_shop.app:text", "is str, not postroom's Handlers"),
        ("postroom_test_shop.app:handlers?x=1", "unknown option 'x'"),
    ],
)
def test_handlers_that_cannot_be_found(shop, path, message):
    with pytest.raises(ConfigError, match=message):
        load_broker(f"handlers:{path}")


# -- plug-ins ---------------------------------------------------------------------------------
def plugged(monkeypatch, *points):
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: [p for p in points if p.group == group]
    )


def test_others_can_add_schemes(monkeypatch):
    plugged(
        monkeypatch,
        EntryPoint("mine", "postroom.brokers.memory:MemoryBroker", "postroom.brokers"),
        EntryPoint("plain", "postroom.brokers.memory:NullBroker", "postroom.brokers"),
        EntryPoint("function", "tests.unit.test_registry:make", "postroom.brokers"),
    )
    assert load_broker("mine:?max_bytes=3").capabilities.max_bytes == 3
    assert isinstance(load_broker("plain:"), NullBroker)
    assert load_broker("function://h") == ("made", "h")
    with pytest.raises(ConfigError, match="Known: .*function, handlers.*memory, mine, null, plain"):
        load_broker("other:")


def make(url):
    return "made", url.host


def test_a_plug_in_takes_options_by_name_or_says_that_it_does_not(monkeypatch):
    plugged(
        monkeypatch,
        EntryPoint("named", "tests.unit.test_registry:make_with", "postroom.stores"),
        EntryPoint("bare", "tests.unit.test_registry:make", "postroom.stores"),
    )
    assert load_store("named://h", prefix="a_") == ("h", "a_")
    assert load_store("bare://h") == ("made", "h")
    with pytest.raises(ConfigError, match="bare: .*'prefix'; it takes its options in the URL"):
        load_store("bare://h", prefix="a_")


def make_with(url, *, prefix):
    return url.host, prefix


def test_a_plug_in_that_cannot_be_loaded_is_named(monkeypatch):
    plugged(monkeypatch, EntryPoint("mine", "no_such_plugin:Store", "postroom.stores"))
    with pytest.raises(ConfigError, match=r"plug-in for 'mine' \(no_such_plugin:Store\)"):
        load_store("mine://h")


def test_a_plug_in_cannot_take_over_a_scheme(monkeypatch):
    plugged(monkeypatch, EntryPoint("memory", "tests.unit.test_registry:make", "postroom.brokers"))
    assert isinstance(load_broker("memory:"), MemoryBroker)


# -- extras -----------------------------------------------------------------------------------
ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("guessed", "installs"),
    [
        ("mongodb", ["postroom[mongo]"]),
        ("postgresql", ["postroom[postgres]"]),
        ("mariadb", ["postroom[mysql]"]),
        ("amqp", ["postroom[rabbitmq]"]),
    ],
)
def test_extras_have_the_names_that_people_guess(guessed, installs):  # U16
    assert EXTRAS[guessed] == installs


def test_every_scheme_and_integration_has_an_extra_of_its_name_or_its_driver():  # U16
    assert {"asyncpg", "django", "fastapi", "faststream", "sqlalchemy", "alembic"} <= set(EXTRAS)
    for table in (registry.STORES, registry.BROKERS, registry.SOURCES):
        for scheme, entry in table.items():
            if entry.extra is not None:
                assert entry.extra in EXTRAS
                assert scheme.removesuffix("s") in EXTRAS or scheme in EXTRAS


def test_the_page_lists_every_extra():  # U16
    page = (ROOT / "docs/how-to/install.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? *\| ([^|]*) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in row[:2] if name}
    assert listed == set(EXTRAS) - {"test", "lint"}
    for extra, alias, installs in rows:
        if alias:
            assert EXTRAS[alias] == [f"postroom[{extra}]"]
        if extra != "all":
            packages = {re.match(r"[\w-]+", one)[0].lower() for one in EXTRAS[extra]}
            assert packages == {name.strip().lower() for name in installs.split(",")}
