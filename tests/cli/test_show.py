"""What `show` prints for a person: readable, within 80 columns, and nothing that a terminal obeys."""

from __future__ import annotations

from postroom.cli.show import describe, render
from postroom.lookup import Details
from postroom.model.history import Entry, append
from postroom.store import Lease
from postroom.testing.broker_tools import make_record

DETAILS = Details("over", None, 1_700_000_000_000_000, None, None, None)


def shown(record, details=DETAILS, lane=(None, "")):
    return "\n".join(render(describe(record, details, lane)))


def test_text_of_all_languages_is_shown_and_control_characters_are_not():
    text = '{"name":"Зоя äöü 東京","evil":"\\u001b[31m\\u202e\\u0085","line":"a\\nb"}'
    said = shown(make_record(payload=text.encode()))
    assert '"name": "Зоя äöü 東京"' in said
    assert '"evil": "\\u001b[31m\\u202e\\u0085"' in said
    assert '"line": "a\\nb"' in said
    assert all(c.isprintable() or c == "\n" for c in said)


def test_long_errors_are_wrapped_under_their_name():
    error = "ConnectionError: " + "the bank refused the connection " * 6
    said = shown(make_record(last_error=error.strip()))
    lines = [line for line in said.splitlines() if "bank" in line]
    assert len(lines) > 2
    assert all(len(line) <= 80 for line in said.splitlines())
    start = lines[0].index("ConnectionError")
    assert all(line[:start].strip() == "" and line[start] != " " for line in lines[1:])


def test_a_blocked_key_is_told_in_words():
    details = DETAILS._replace(stage="waiting", settled_us=None, barrier=184)
    lane = (Lease(3, "owner-1", 7, True), "box-1")
    said = shown(make_record(), details, lane)
    assert "events of this key after seq 184 wait" in said
    assert "lane_relay       box-1" in said
    assert "wait" not in shown(make_record())


def test_options_are_shown_if_there_are_any():
    record = make_record(key="k", payload=b"", options_json='{"tombstone":true,"partition":3}')
    said = shown(record)
    assert "options          {'tombstone': True, 'partition': 3}" in said
    assert said.endswith("\nnull")
    assert "options" not in shown(make_record())


def test_the_timeline_tells_of_attempts_and_commands():
    text = None
    for n in range(1, 11):
        us = 1_600_000_000_000_000 + n * 1_000_000
        entry = Entry(us, "box-1", "failed", n, "boom\x1b[31m", "  in charge\x1b\nKeyError")
        text = append(text, entry)
    text = append(text, Entry(1_600_000_020_000_000, "anna", "bury", None, "no such order"))
    details = DETAILS._replace(history=text)
    said = shown(make_record(), details).splitlines()
    assert "2020-09-13T12:26:41Z         attempt 1 by box-1: failed: boom\\x1b[31m" in said
    assert "2020-09-13T12:27:00Z         bury by anna: no such order" in said
    left_out = said.index("2020-09-13T12:26:43Z         … 3 more, left out")
    assert "attempt 3 by" in said[left_out - 1]
    assert "attempt 7 by" in said[left_out + 1]
    assert said[said.index("traceback of attempt 10:") + 1] == "  in charge\\u001b"
    assert all(line.isprintable() for line in said)
    facts = describe(make_record(), details, (None, ""))
    assert facts["history"]["dropped"] == 3
    assert len(facts["history"]["entries"]) == 8
