"""Secrets of the configuration from the environment and from files; none of them is shown."""

from __future__ import annotations

import json

import pytest

from postroom.cli.configuration import load
from postroom.cli.variables import expand
from postroom.errors import ConfigError
from postroom.model.url import Url
from tests.cli.command import call

SECRET = "p@ss/w?rd&%2F$#"  # noqa: S105 - it is looked for
ENCODED = "p%40ss%2Fw%3Frd%26%252F%24%23"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("amqp://h/", "amqp://h/"),
        ("amqp://u:${P}@h/", f"amqp://u:{ENCODED}@h/"),
        ("amqp://${U}:${P}@${H}/${V:-shop}", f"amqp://anna:{ENCODED}@a:1,b:2/shop"),
        ("${URL}", "kafka://u:x%40y@h:9092?acks=all"),
        ("${NOT:-kafka://h}", "kafka://h"),
        ("kafka://h?sasl.password=${P}&x=${N:-1}", f"kafka://h?sasl.password={ENCODED}&x=1"),
        ("kafka://h?${O}", "kafka://h?a=b&c=d"),
        ("amqp://u:a$$b@h/$x$", "amqp://u:a$b@h/$x$"),
        ("amqp://u:$${P}@h", "amqp://u:${P}@h"),
        ("amqp://${EMPTY:-guest}@h/${EMPTY}", "amqp://guest@h/"),
        ("amqp://u:${NOT:-}@h", "amqp://u:@h"),
    ],
)
def test_references_are_replaced(text, expanded):  # U14
    variables = {
        "P": SECRET, "U": "anna", "H": "a:1,b:2", "O": "a=b&c=d", "EMPTY": "",
        "URL": "kafka://u:x%40y@h:9092?acks=all",
    }  # fmt: skip
    assert expand(text, variables) == expanded
    assert Url.parse(expand("amqp://u:${P}@h/", variables)).password == SECRET


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp://u:${PASSWORD}@h", "the variable PASSWORD is not set; .*: [$]{PASSWORD:-…}"),
        ("amqp://u:${PASSWORD@h", "write [$]{NAME}"),
        ("amqp://u:${}@h", "write [$]{NAME}"),
        ("amqp://u:${1A}@h", "write [$]{NAME}"),
        ("amqp://u:${A-b}@h", "write [$]{NAME}"),
    ],
)
def test_a_wrong_reference_is_an_error(text, said):  # U14
    with pytest.raises(ConfigError, match=said) as caught:
        expand(text, {"OTHER": SECRET})
    assert SECRET not in str(caught.value)


FILE = """\
store = "postgresql://app:${DB_PASSWORD}@db/shop"

[[relay]]
stream = "orders"
broker = "kafka://app@k:9092"
broker_password_file = "kafka.txt"

[[relay]]
stream = "mail"
broker = "amqp://u:${RABBIT}@r/vhost"

[[consumer]]
source = "amqp://u@r/?queue=q"
source_password_file = "rabbit.txt"
handlers = "handlers:app:handlers"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "postroom.toml").write_text(FILE)
    (tmp_path / "kafka.txt").write_text(SECRET + "\n")
    (tmp_path / "rabbit.txt").write_text(SECRET + "\r\n")
    return tmp_path


def test_urls_have_the_passwords_of_variables_and_files(folder):  # U14
    found = load(None, {"DB_PASSWORD": SECRET, "RABBIT": SECRET}, folder)
    orders, mail = found.relays({})
    (consumer,) = found.consumers
    urls = [found.store(), orders.broker, mail.broker, consumer["source"].value]
    assert [url.password for url in urls] == [SECRET] * 4
    assert [url.user for url in urls] == ["app", "app", "u", "u"]
    assert consumer["source"].value.query == (("queue", "q"),)
    shown = [found.process({}), orders.values, mail.values, consumer]
    text = str([setting.shown for values in shown for setting in values.values()])
    assert SECRET not in text
    assert ENCODED not in text
    assert SECRET not in repr(found._file) + repr(orders)


def test_a_command_needs_only_the_variables_of_the_urls_that_it_uses(folder):  # U14
    found = load(None, {"DB_PASSWORD": SECRET}, folder)
    assert found.store().password == SECRET
    with pytest.raises(ConfigError, match=r"postroom\.toml:10: the variable RABBIT is not set"):
        found.relays({})


def test_a_password_file_is_for_the_url_of_its_place(folder):  # U14
    """The password of one broker is never sent to another."""
    (folder / "postroom.toml").write_text(
        'broker = "kafka://app@k"\nbroker_password_file = "kafka.txt"\n'
        'store = "mysql://app@db/shop"\nstore_password_file = "kafka.txt"\n'
    )
    plain = load(None, {}, folder)
    assert plain.relays({})[0].broker.password == SECRET
    assert plain.relays({"broker": "amqp://u@elsewhere"})[0].broker.password is None
    assert plain.process({"store": "mysql://u@elsewhere/x"})["store"].value.password is None
    given = {"POSTROOM_STORE_PASSWORD_FILE": "rabbit.txt"}
    given["POSTROOM_BROKER_PASSWORD_FILE"] = "rabbit.txt"
    named = load(None, given, folder)
    assert named.process({"store": "mysql://u@db/x"})["store"].value.password == SECRET
    assert named.relays({"broker": "amqp://u@r"})[0].broker.password == SECRET
    (folder / "postroom.toml").write_text('[[relay]]\nbroker = "amqp://u@r/"\n')
    assert load(None, given, folder).relays({})[0].broker.password is None


@pytest.mark.parametrize(
    ("store", "content", "said"),
    [
        ("mysql://app@db/shop", None, ":2: cannot read secret.txt: No such file"),
        ("mysql://app@db/shop", b"", "must hold a password in one line"),
        ("mysql://app@db/shop", b"one\ntwo\n", "must hold a password in one line"),
        ("mysql://app@db/shop", b"x" * 70_000, "must hold a password in one line"),
        ("mysql://app@db/shop", b"\xff", "is not UTF-8"),
        ("mysql://app:x@db/shop", b"y", "has a password already"),
        ("sqlite:///app.db", b"y", "sqlite URLs have no password"),
    ],
)
def test_what_is_wrong_with_a_password_file(folder, store, content, said):  # U14
    (folder / "postroom.toml").write_text(f'store = "{store}"\nstore_password_file = "secret.txt"')
    if content is not None:
        (folder / "secret.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load(None, {}, folder).store()


@pytest.mark.parametrize(
    "url", ["kafka://h?ca=/etc/x", "kafka://u@h", "amqp://h/v?x=a@b", "postgresql://a,b:1/x"]
)
def test_a_password_is_inserted_in_its_place(url):  # U14
    before, after = Url.parse(url), Url.parse(url).with_password(SECRET)
    assert after.password == SECRET
    parts = ("scheme", "user", "hosts", "path", "query")
    assert [getattr(after, p) for p in parts] == [getattr(before, p) for p in parts]
    assert SECRET not in str(after) + repr(after)


def test_no_output_shows_them(folder):  # U14
    variables = {"DB_PASSWORD": SECRET, "RABBIT": SECRET}
    for options in ([], ["--json"]):
        done = call("config", "show", *options, cwd=folder, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert "amqp://u:***@r/vhost" in done.stdout
        assert "kafka.txt" in done.stdout
        assert not {SECRET, ENCODED, json.dumps(SECRET)} & set(done.stdout.split('"'))
        assert SECRET not in done.stdout
        assert ENCODED not in done.stdout
    failed = call(
        "status", "--store", "sqlite:///no.db", cwd=folder, POSTROOM_STORE_PASSWORD_FILE="kafka.txt"
    )
    assert failed.returncode == 2
    assert "POSTROOM_STORE_PASSWORD_FILE" in failed.stderr
    assert SECRET not in failed.stderr
