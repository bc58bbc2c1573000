"""What comes from outside, whatever it is, is read or refused in words, and no secret is shown."""

from __future__ import annotations

import json
from urllib.parse import quote

from hypothesis import assume, example, given
from hypothesis import strategies as st

from postroom.cli.configuration import SETTINGS, load
from postroom.engine.consumer.messages import restore, to_message, to_record, to_row
from postroom.errors import ConfigError, EventError
from postroom.model import envelope
from postroom.model.envelope import read_headers, write_headers
from postroom.model.incoming import Incoming
from postroom.model.url import Host, Url, boolean, one_of, seconds, whole_number
from postroom.record import Record, key_hash, lane_of
from tests.property.profile import tries

ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=30)
GOOD_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)
NAME = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20
)
MANY_DIGITS = st.integers(4_301, 4_400).map(lambda n: "9" * n)  # more than int() takes
ANY_UNICODE = st.text(st.characters(codec="utf-8"), max_size=30)  # what sources decode to
NESTED = st.integers(1_000, 2_000).map(lambda n: "[" * n)  # more than json takes
PIECES = st.lists(
    st.sampled_from(
        ["sqlite", "kafka", "memory", "+", ":", "/", "//", "@", ",", "?", "&", "=", "#", "%", "%40",
         "%ff", "%00", "[", "]", "::1", "user", "host", "9092", "0", "65536", "topic", " ", "é"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


# -- URLs -------------------------------------------------------------------------------------
@tries(400)
@given(PIECES | ANY_TEXT)
@example("kafka://host:" + "9" * 4_301)
def test_any_text_is_a_url_or_a_config_error(text):
    try:
        url = Url.parse(text)
    except ConfigError:
        return
    assert url.reveal() == text
    assert Url.parse(url) is url
    again = Url.parse(str(url))  # what is printed is a URL, too
    assert (again.scheme, again.hosts, again.path) == (url.scheme, url.hosts, url.path)
    assert str(again) == str(url)


@tries(200)
@given(
    user=NAME,
    password=NAME,
    hosts=st.lists(
        st.tuples(
            st.sampled_from(["a", "b.example", "10.0.0.1"]), st.none() | st.integers(1, 65_535)
        ),
        min_size=1,
        max_size=3,
    ),
    database=GOOD_TEXT,
    option=GOOD_TEXT,
)
def test_what_is_encoded_comes_back(user, password, hosts, database, option):
    def plain(text):
        return quote(text, safe="")

    places = ",".join(name if port is None else f"{name}:{port}" for name, port in hosts)
    text = (
        f"kafka://{plain(user)}:{plain(password)}@{places}/{plain(database)}?topic={plain(option)}"
    )
    url = Url.parse(text)
    assert (url.user, url.password, url.database) == (user, password, database)
    assert url.hosts == tuple(Host(*host) for host in hosts)
    assert url.query == (("topic", option),)
    assert url.options({"topic": str}) == {"topic": option}


SECRET = "hunter2"


@tries(400)
@given(
    before=st.text("ab1:/@#%[], ", max_size=4),
    after=st.text("ab1:/@#%[], ", max_size=4),
    rest=st.sampled_from(["", "/db", "/db?topic=a", "?topic=a@b", ":9092/x", ",other:1"]),
    name=st.sampled_from(["password", "sasl.password", "ssl.key.password", "token"]),
)
@example(before="@/", after="", rest="", name="token")  # ends the authority twice
def test_a_secret_is_never_shown_encoded_or_not(before, after, rest, name):
    for text in (
        f"kafka://user:{before}{SECRET}{after}@host{rest}",
        f"kafka://host{rest}{'&' if '?' in rest else '?'}{name}={before}{SECRET}{after}",
    ):
        try:
            url = Url.parse(text)
        except ConfigError as error:
            assert SECRET not in str(error)
            assert SECRET not in str(error.__cause__)
        else:
            assert SECRET not in f"{url} {url!r}"
            try:
                url.options({"other": whole_number, name: whole_number, "topic": whole_number})
            except ConfigError as refused:
                assert SECRET not in str(refused)
                assert refused.__cause__ is None
                assert refused.__context__ is None
            else:
                assert not url.query


@tries(300)
@given(text=ANY_TEXT | MANY_DIGITS | st.sampled_from(["nan", "inf", "-1", "1e999", "٣", "1_0"]))
@example("9" * 4_301)
def test_converters_take_a_value_or_say_what_is_expected(text):
    for convert in (whole_number, seconds, boolean, one_of("a", "b")):
        try:
            value = convert(text)
        except ValueError as error:
            assert str(error).startswith(("a ", "true or", "one of"))
        else:
            assert (
                value >= 0
                if convert in (whole_number, seconds)
                else value in (True, False, "a", "b")
            )


# -- headers ----------------------------------------------------------------------------------
OURS = st.sampled_from(
    [value for name, value in vars(envelope).items() if name.isupper() and isinstance(value, str)]
)
EXTREMES = st.sampled_from(
    [
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        '[["a","\\ud800"]]',
        '[["a","\\u0000"]]',
    ]
)


def headers_of(text):
    return st.dictionaries(OURS | text, text | MANY_DIGITS | NESTED | EXTREMES, max_size=8)


@tries(400)
@given(headers_of(ANY_TEXT))
@example({envelope.KSEQ: "9" * 4_301})
@example({envelope.CAUSATION_PATH: "[" * 2_000})
def test_headers_of_a_stranger_never_raise(headers):
    found = read_headers(headers)
    assert found.id == headers.get(envelope.ID)
    assert found.kseq is None or found.kseq >= 0
    assert all(isinstance(part, str) for step in found.causation_path for part in step)
    assert not [name for name in found.headers if name.startswith("postroom-")]


@tries(300)
@given(
    topic=ANY_UNICODE,
    body=st.binary(max_size=20),
    headers=headers_of(ANY_UNICODE),
    key=st.none() | ANY_UNICODE,
)
def test_a_message_of_a_stranger_becomes_an_event_that_every_store_takes(topic, body, headers, key):
    message = Incoming(topic, body, headers, key)
    record = to_record(message)
    row = to_row(message, record, "consumer", "inbox.consumer")
    for text in (v for v in row if isinstance(v, str)):
        assert "\x00" not in text
        text.encode()  # no lone surrogates
    assert len(row.id.encode()) <= 100
    assert row.key_hash == record.key_hash
    try:
        to_record(message, "reject")
    except EventError:
        assert not headers.get(envelope.ID)


def record_of(event_id, event_type, key, kind, correlation, path, kseq, cause, user):
    hashed = key_hash(kind, key, event_id)
    return Record(
        1, event_id, "main", lane_of(hashed), hashed, event_type, "topic", key, kind, None, b"{}",
        "application/json", json.dumps(user) if user else None, correlation,
        json.dumps(path) if path else None, 3, kseq, cause, None, None, 1_700_000_000_000_001, 0, "pending", 0,
    )  # fmt: skip


@tries(200)
@given(
    event_id=NAME,
    event_type=NAME,
    key=st.none() | NAME,
    kind=st.none() | NAME,
    correlation=st.none() | NAME,
    path=st.lists(st.tuples(NAME, NAME), max_size=3),
    kseq=st.none() | st.integers(0, 2**63 - 1),
    cause=st.none() | NAME,
    user=st.dictionaries(st.text("abc-", min_size=1, max_size=8), GOOD_TEXT, max_size=3),
)
def test_headers_come_back_as_they_were_written(
    event_id, event_type, key, kind, correlation, path, kseq, cause, user
):
    assume(envelope.CONTENT_TYPE not in user)
    record = record_of(event_id, event_type, key, kind, correlation, path, kseq, cause, user)
    found = read_headers(dict(write_headers(record, "the-outbox")))
    assert found == (
        event_id, event_type, key, kind, None, correlation, tuple(path), 3, "application/json",
        1_700_000_000_000_001, kseq, None if kseq is None else "the-outbox", cause,
        False, user,
    )  # fmt: skip
    sent = to_record(to_message(record, "the-outbox"))
    assert (sent.id, sent.type, sent.key, sent.key_hash) == (
        event_id,
        event_type,
        key,
        record.key_hash,
    )
    assert restore(sent).headers == user


# -- settings ---------------------------------------------------------------------------------
VALUES = st.one_of(
    st.integers(-2, 2**70).map(str),
    st.integers(400, 500).map(lambda n: "9" * n),
    MANY_DIGITS,
    st.floats().map(lambda x: repr(x).replace("inf", "inf")),
    st.sampled_from(
        ["true", '"bury"', '"constant"', '"sqlite:///a.db"', '"kafka://h:1"', '"x"', "[]", "[1]",
         "{}", "[{}]", "{a=1}", "1979-05-27", '""', '"\\u0000"', "0x10"]
    ),
)  # fmt: skip
LINES = st.tuples(st.sampled_from([*SETTINGS, "relay", "no_such", "stream"]), VALUES).map(
    " = ".join
)
SECTIONS = st.sampled_from(["[[relay]]", "[relay]", "[relay.x]", "[[relay.x]]", "[tool.postroom]"])


@tries(400)
@given(lines=st.lists(LINES | SECTIONS, max_size=8))
@example(lines=["relay = [1]"])
@example(lines=["[[relay]]", "[[relay]]"])
@example(lines=["batch_size = " + "9" * 4_301])
@example(lines=["poll_seconds = " + "9" * 400])
@example(lines=["relay = " + "[" * 2_000])
def test_any_file_is_settings_or_a_config_error(lines, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    try:
        plans = load(file, {}).relays({})
    except ConfigError as error:
        assert str(file) in str(error)
        assert len(str(error)) < 20_000
    else:
        assert all(plan.settings.lease_seconds > 0 for plan in plans)


@tries(300)
@given(
    environment=st.dictionaries(
        st.sampled_from([f"POSTROOM_{name.upper()}" for name in SETTINGS] + ["POSTROOM_X", "PATH"]),
        ANY_TEXT | VALUES.map(lambda text: text.strip('"')),
        max_size=4,
    )
)
@example(environment={"POSTROOM_BATCH_SIZE": "9" * 400})
def test_any_environment_is_settings_or_a_config_error(environment, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    try:
        plans = load(None, environment, folder / "empty").relays({})
    except ConfigError as error:
        assert "POSTROOM_" in str(error)
    else:
        assert plans


@tries(200)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_file_or_a_config_error(tmp_path_factory, raw):
    file = tmp_path_factory.getbasetemp() / "raw.toml"
    file.write_bytes(raw)
    try:
        load(file, {})
    except ConfigError as error:
        assert str(file) in str(error)
