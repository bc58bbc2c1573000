"""The notifier of PostgreSQL under a failure that never ends."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from postroom.notifier import _connections
from postroom.stores.postgres import PostgresNotifier, notifier


@pytest.mark.promise("F2")
def test_a_notifier_that_always_fails_pauses_ever_longer_and_logs_one_line(monkeypatch, caplog):
    sender, pauses = PostgresNotifier("postgresql://127.0.0.1/x"), []
    works = []
    server = SimpleNamespace(is_there=False)

    class Enough(BaseException):
        pass

    def connect():
        if not server.is_there:
            raise ValueError("no")
        return SimpleNamespace(execute=lambda *_: None, close=lambda: None)

    def wait(seconds):
        pauses.append(seconds)
        works.append(_connections[sender])
        if len(pauses) == 7:
            server.is_there = True
        if len(pauses) == 9:
            raise Enough
        sender._stirred.set()
        sender._wanted = True

    monkeypatch.setattr(sender._connector, "connect_sync", connect)
    monkeypatch.setattr(sender, "_closed", SimpleNamespace(wait=wait, is_set=lambda: False))
    sender._wanted = True
    sender._stirred.set()
    with caplog.at_level(logging.INFO, notifier.__name__), pytest.raises(Enough):
        sender._run()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 0.005, 0.005]
    assert works == [("notifier", False)] * 7 + [("notifier", True)] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "cannot notify other relays; they poll: no",
        "notifying other relays works again",
    ]
