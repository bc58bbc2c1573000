"""Progress of the demo: one line that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_CLEAR = "\r\x1b[2K"
_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 3.0
_BAR = 16


class Screen:
    """Writes to a terminal or a log. News stays; progress is overwritten on a terminal."""

    def __init__(
        self, stream: TextIO | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._monotonic = monotonic
        self._live = self._stream.isatty()
        self._drawn = False
        self._at = 0.0

    def news(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(text + "\n")

    def progress(self, text: str) -> None:
        """Show progress, at a limited rate."""
        now = self._monotonic()
        if now - self._at < (_REDRAW_SECONDS if self._live else _PLAIN_SECONDS):
            return
        self._at = now
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._write(_CLEAR + text[: columns - 1])
            self._drawn = True
        else:
            self._write(text + "\n")

    def clear(self) -> None:
        """Remove the progress line."""
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def bar(self, part: float) -> str:
        """Return a bar of fixed width."""
        full = round(_BAR * min(max(part, 0.0), 1.0))
        return "[" + "#" * full + "." * (_BAR - full) + "]"

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()
