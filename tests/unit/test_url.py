"""URLs: parsing, masking, typed options."""

from __future__ import annotations

import traceback

import pytest

from postroom.errors import ConfigError
from postroom.model.url import Host, Url, boolean, one_of, seconds, whole_number


def parts(text):
    url = Url.parse(text)
    return (url.scheme, url.driver, url.user, url.password, url.hosts, url.path, dict(url.query))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://db", ("postgresql", None, None, None, (Host("db"),), "", {})),
        (
            "postgresql+psycopg://ann:s3c@db:5433/shop?sslmode=require&x=",
            (
                "postgresql",
                "psycopg",
                "ann",
                "s3c",
                (Host("db", 5433),),
                "/shop",
                {"sslmode": "require", "x": ""},
            ),
        ),
        (
            "mongodb://a:1,b:2,c/db?replicaSet=rs0",
            (
                "mongodb",
                None,
                None,
                None,
                (Host("a", 1), Host("b", 2), Host("c")),
                "/db",
                {"replicaSet": "rs0"},
            ),
        ),
        (
            "kafka://h1:9092,h2:9092",
            ("kafka", None, None, None, (Host("h1", 9092), Host("h2", 9092)), "", {}),
        ),
        (
            "amqp://guest:p%40ss%2Fw%3Ard%25@mq/%2Fvhost?exchange=a%26b",
            ("amqp", None, "guest", "p@ss/w:rd%", (Host("mq"),), "//vhost", {"exchange": "a&b"}),
        ),
        ("amqp://:only@mq", ("amqp", None, None, "only", (Host("mq"),), "", {})),
        ("amqp://user@mq", ("amqp", None, "user", None, (Host("mq"),), "", {})),
        ("postgresql://u:a:b@db", ("postgresql", None, "u", "a:b", (Host("db"),), "", {})),
        (
            "postgresql://[::1]:5432,[fe80::2]/x",
            ("postgresql", None, None, None, (Host("::1", 5432), Host("fe80::2")), "/x", {}),
        ),
        ("SQLite:///app.db", ("sqlite", None, None, None, (), "/app.db", {})),
        ("handlers:shop.app:handlers", ("handlers", None, None, None, (), "shop.app:handlers", {})),
        ("memory:", ("memory", None, None, None, (), "", {})),
        ("memory://?max_bytes=5", ("memory", None, None, None, (), "", {"max_bytes": "5"})),
        (
            "kafka://h?sasl.username=me@corp&p=a+b",
            ("kafka", None, None, None, (Host("h"),), "", {"sasl.username": "me@corp", "p": "a+b"}),
        ),
    ],
)
def test_parts(text, expected):
    assert parts(text) == expected
    assert Url.parse(text).reveal() == text


def test_first_host_port_and_database():
    url = Url.parse("mongodb://a:1,b:2/shop")
    assert (url.host, url.port, url.database) == ("a", 1, "shop")
    empty = Url.parse("memory:")
    assert (empty.host, empty.port, empty.database) == (None, None, "")


def test_a_url_stays_what_it_is():
    url = Url.parse("kafka://h")
    assert Url.parse(url) is url
    assert url == Url.parse("kafka://h")
    assert hash(url) == hash(Url.parse("kafka://h"))
    assert url != Url.parse("kafka://i")
    assert url != "kafka://h"


# -- SQLite files -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("sqlite:///relative.db", "relative.db"),
        ("sqlite:////var/lib/absolute.db", "/var/lib/absolute.db"),
        ("sqlite:///./with%20space.db", "./with space.db"),
        ("sqlite:///a%3Fb%23.db?timeout=3", "a?b#.db"),
    ],
)
def test_files(text, file):
    assert Url.parse(text).file() == file


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sqlite:///:memory:", "every connection would get its own database"),
        ("sqlite:///file::memory:", "every connection would get its own database"),
        ("sqlite:///%3Amemory%3A", "every connection would get its own database"),
        ("sqlite://", "the file is missing: sqlite:///app.db"),
        ("sqlite:///", "the file is missing"),
        ("sqlite://app.db", "three slashes, sqlite:///relative.db"),
        ("sqlite://user@/app.db", "three slashes"),
    ],
)
def test_files_that_are_none(text, hint):
    with pytest.raises(ConfigError, match=hint.replace("(", r"\(")):
        Url.parse(text)


# -- secrets ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:s3c@db:5433/shop", "postgresql://ann:***@db:5433/shop"),
        ("postgresql+psycopg://ann:s%40c@db", "postgresql+psycopg://ann:***@db"),
        ("redis://:s3c@h", "redis://:***@h"),
        ("amqp://ann:@h", "amqp://ann:***@h"),
        ("kafka://h1:9092,h2?acks=all", "kafka://h1:9092,h2?acks=all"),
        ("kafka://h?sasl.password=s3c&a=b", "kafka://h?sasl.password=***&a=b"),
        ("kafka://h?ssl.key.password=s3c", "kafka://h?ssl.key.password=***"),
        (
            "kafka://h?sasl.oauthbearer.client.secret=s3c",
            "kafka://h?sasl.oauthbearer.client.secret=***",
        ),
        ("kafka://h?ssl.key.pem=s3c", "kafka://h?ssl.key.pem=***"),
        ("postgresql://h?PASSWORD=s3c", "postgresql://h?PASSWORD=***"),
        ("postgresql://h?pass%77ord=s3c", "postgresql://h?pass%77ord=***"),
        ("x://h?access_token=s3c&api_key=s3c", "x://h?access_token=***&api_key=***"),
        (
            "mongodb://h?authMechanismProperties=AWS_SESSION_TOKEN:s3c",
            "mongodb://h?authMechanismProperties=***",
        ),
        ("x://h?proxy=http://ann:s3c@p:8080", "x://h?proxy=***"),
        ("x://h?proxy=http://:s3c@p:8080", "x://h?proxy=***"),
        # X-M7
        ("kafka://h?sasl.oauthbearer.config=s3c", "kafka://h?sasl.oauthbearer.config=***"),
        ("postgresql://h/d?options=-c%20app.password=s3c", "postgresql://h/d?options=***"),
        (
            "kafka://h?message.key=plain&sslpassword=s3c",
            "kafka://h?message.key=plain&sslpassword=***",
        ),
    ],
)
def test_secrets_are_masked_wherever_a_url_is_printed(text, shown):
    url = Url.parse(text)
    assert str(url) == shown
    assert repr(url) == f"Url({shown!r})"
    assert f"{url}" == shown
    assert "s3c" not in str(url) + repr(url)
    assert url.reveal() == text


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:s3/cret@db/shop",
        "postgresql://ann:77/s3cret@db/shop",
        "postgresql://ann:77?s3cret@db/shop",
        "postgresql://ann:s3?cret@db/shop",
        "postgresql://ann:s3#cret@db/shop",
        "postgresql://ann:s3 cret@db/shop",
        "postgresql://ann:s3@cret@db/shop",
        "postgresql://ann:s3cret@db:port/shop",
        "postgresql://ann:s3cret@db:99999/shop",
        "postgresql://ann:s3cret%FF@db/shop",
        "postgresql://ann:s3cret%00@db/shop",
        "postgresql://ann:s3cret@,/shop",
        "postgresql://ann:s3cret@[::1/shop",
        "host=db password=s3cret",
        "ann:s3cret@db/shop",  # X-M7: the scheme was forgotten
        "ann:s3cret@db:77/shop?x=1",
        "s3cret",
        "postgresql://ann:s3cret\n@db",
    ],
)
def test_an_error_never_shows_the_password(text):
    with pytest.raises(ConfigError) as caught:
        Url.parse(text)
    shown = "".join(traceback.format_exception_only(caught.value))
    for part in ("s3", "cret", "77"):
        assert part not in shown
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("bad", ["", "app.db", "://x", "1a://x", None, 5, b"kafka://h"])
def test_what_is_no_url(bad):
    with pytest.raises(ConfigError, match="URL"):
        Url.parse(bad)


# -- options ----------------------------------------------------------------------------------
KNOWN = {
    "timeout": seconds,
    "retries": whole_number,
    "tls": boolean,
    "mode": one_of("a", "b"),
    "password": whole_number,
    "plain": int,
}


def test_options_are_read_by_their_converters():
    url = Url.parse("kafka://h?timeout=1.5&retries=3&tls=Yes&mode=b&plain=-4")
    assert url.options(KNOWN) == {
        "timeout": 1.5,
        "retries": 3,
        "tls": True,
        "mode": "b",
        "plain": -4,
    }
    assert Url.parse("kafka://h").options(KNOWN) == {}
    assert Url.parse("kafka://h?tls=off").options(KNOWN) == {"tls": False}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "timout=1",
            "kafka URL: unknown option 'timout'; did you mean 'timeout'? Known: mode, password, plain, retries, timeout, tls",
        ),
        (
            "zzz=1",
            "kafka URL: unknown option 'zzz'. Known: mode, password, plain, retries, timeout, tls",
        ),
        ("timeout=soon", "kafka URL: option 'timeout' must be a number of seconds, not 'soon'"),
        ("timeout=-1", "kafka URL: option 'timeout' must be a number of seconds, not '-1'"),
        ("timeout=nan", "kafka URL: option 'timeout' must be a number of seconds, not 'nan'"),
        ("retries=1.5", "kafka URL: option 'retries' must be a whole number, not '1.5'"),
        ("retries=²", "kafka URL: option 'retries' must be a whole number, not '²'"),
        ("tls=maybe", "kafka URL: option 'tls' must be true or false, not 'maybe'"),
        ("mode=c", "kafka URL: option 'mode' must be one of a, b, not 'c'"),
        ("plain=x", "kafka URL: option 'plain' must be a whole number, not 'x'"),
        ("password=s3c", "kafka URL: option 'password' must be a whole number, not its value"),
        ("tls=1&tls=0", "kafka URL: option 'tls' is given twice"),
    ],
)
def test_options_that_make_no_sense(query, message):
    with pytest.raises(ConfigError) as caught:
        Url.parse(f"kafka://h?{query}").options(KNOWN)
    assert str(caught.value) == message
    assert caught.value.__context__ is None
