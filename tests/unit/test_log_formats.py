"""Log lines for people and for programs: the same facts, no secrets, no control characters."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from postroom.cli.run import log_to_stderr
from postroom.telemetry.log import JsonFormatter, TextFormatter, say


class Kept(logging.Handler):
    def __init__(self, formatter):
        super().__init__()
        self.setFormatter(formatter)
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


@pytest.fixture
def logger():
    logger = logging.Logger("postroom.test")  # noqa: LOG001 - of this test alone

    def with_format(formatter):
        handler = Kept(formatter)
        logger.handlers = [handler]
        return handler.lines

    logger.with_format = with_format
    return logger


@pytest.mark.req("S4.9")
def test_facts_are_fields(logger):
    lines = logger.with_format(JsonFormatter())
    say(logger, logging.INFO, "settled", {"stream": "main", "done": 3, "ok": True, "error": "a\nb"})
    told = json.loads(lines[0])
    at = told.pop("at")
    assert at.endswith("Z")
    assert told == {
        "level": "info", "logger": "postroom.test", "event": "settled", "stream": "main",
        "done": 3, "ok": True, "error": "a\nb",
    }  # fmt: skip
    assert "\n" not in lines[0]


def test_secrets_are_masked_in_both(logger):
    for formatter in (JsonFormatter(), TextFormatter()):
        lines = logger.with_format(formatter)
        say(
            logger,
            logging.WARNING,
            "trouble",
            {"error": "amqp://u:s3cret@h refused, password=s3cret"},
        )
        logger.warning("a library says: amqp://u:%s@h", "s3cret")
        try:
            raise ValueError("token=s3cret")
        except ValueError:
            logger.exception("it failed")
        assert "s3cret" not in "".join(lines)
        assert "***" in lines[0]
        assert "Traceback" in lines[2]


def test_control_characters_do_not_reach_a_terminal(logger):
    lines = logger.with_format(TextFormatter())
    logger.error("\x1b[31mred\x07 \x9b")
    assert lines[0].endswith("\\x1b[31mred\\x07 \\x9b")
    json_lines = logger.with_format(JsonFormatter())
    logger.error("\x1b[31mred")
    assert "\x1b" not in json_lines[0]
    assert json.loads(json_lines[0])["message"] == "\x1b[31mred"


def test_long_texts_are_cut(logger):
    lines = logger.with_format(JsonFormatter())
    logger.error("x" * 10_000)
    assert len(json.loads(lines[0])["message"]) == 500
    assert sys.getsizeof(lines[0]) < 1_000


@pytest.mark.req("S4.9")
@pytest.mark.parametrize(
    ("level", "ours", "others"),
    [
        ("debug", logging.DEBUG, logging.INFO),  # drivers write statements there, with payloads
        ("info", logging.INFO, logging.INFO),
        ("error", logging.ERROR, logging.ERROR),
    ],
)
def test_debug_is_for_our_own_lines(monkeypatch, level, ours, others):
    given = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **options: given.update(options))
    logger = logging.getLogger("postroom")
    before = logger.level
    try:
        log_to_stderr(level)
        assert (logger.level, given["level"]) == (ours, others)
    finally:
        logger.setLevel(before)
