"""Notifies relays in other processes of commits, from the writer's process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Unpack

import psycopg

from postroom.model.pauses import Pauses
from postroom.model.url import Url
from postroom.notifier import forget_connection, report_connection
from postroom.options import PostgresOptions
from postroom.stores.postgres.connector import Connector
from postroom.stores.postgres.errors import first_line
from postroom.stores.postgres.settings import PostgresSettings

_GAP_SECONDS = 0.005  # kicks within this time after a NOTIFY share the next one
_RETRY_SECONDS, _LONGEST_RETRY = 1.0, 10.0  # after an error, and after many
_CLOSE_SECONDS = 5.0
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, '')"
_log = logging.getLogger(__name__)


class PostgresNotifier:
    """Sends a NOTIFY for kicks, on its own connection and in its own thread.

    `notify` only sets a flag: it never blocks, never raises and never uses the caller's
    transaction; NOTIFY there would make all commits of the database wait for one another. Many
    kicks become one NOTIFY. If the server is unreachable, the last kick is sent when it is back.
    Pass the URL of the relay's store, with the same `prefix` and `schema`.
    """

    def __init__(
        self, url: str | Url | PostgresSettings, **options: Unpack[PostgresOptions]
    ) -> None:
        settings = url if isinstance(url, PostgresSettings) else PostgresSettings.read(url, options)
        self._connector = Connector(settings)
        self._channel = settings.channel
        self._wanted = False
        self._stirred = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def notify(self, streams: Collection[str] | None = None) -> None:  # noqa: ARG002 - any stream
        """Notify the relays; returns at once."""
        if self._process != os.getpid():  # forked: threads are not inherited
            self._stirred, self._lock = threading.Event(), threading.Lock()
            self._process, self._thread = os.getpid(), None
        self._wanted = True
        self._stirred.set()
        if self._thread is None and not self._closed.is_set():
            self._start()

    def close(self) -> None:
        """Send a pending NOTIFY and end; idempotent. A later `notify` does nothing."""
        self._closed.set()
        self._stirred.set()
        thread = self._thread
        if thread is not None and self._process == os.getpid():
            thread.join(_CLOSE_SECONDS)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="postroom-notifier", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending, or there are no more threads
                    self._thread = None

    def _run(self) -> None:
        connection: psycopg.Connection[tuple[object, ...]] | None = None
        told, pauses = False, Pauses(_RETRY_SECONDS, _LONGEST_RETRY)
        while True:
            self._stirred.wait()
            closing = self._closed.is_set()
            self._stirred.clear()
            wanted, self._wanted, pause = self._wanted, False, _GAP_SECONDS
            try:
                if wanted:
                    connection = connection or self._connector.connect_sync()
                    connection.execute(_NOTIFY, (self._channel,))
                    report_connection(self, "notifier", works=True)
                    if told:
                        _log.info("notifying other relays works again")
                    told = False
                    pauses.reset()
            except Exception as error:
                if not told:
                    _log.warning("cannot notify other relays; they poll: %s", first_line(error))
                told = True
                report_connection(self, "notifier", works=False)
                if connection is not None:
                    with suppress(psycopg.Error):
                        connection.close()
                connection = None
                pause = pauses.grow()
                self._wanted = True
                self._stirred.set()
            if closing:
                break
            self._closed.wait(pause)
        forget_connection(self)
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
