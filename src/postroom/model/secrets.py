"""Masking of passwords and other secrets in texts that are logged, printed or stored."""

from __future__ import annotations

import re

_WORD = re.compile(r"\S+")
_URL_PASSWORD = re.compile(r"(://[^\s/@:]*:)[^\s@]+(?=@)")
_NAMED_SECRET = re.compile(
    r"\b(\w*(?:password|passwd|passphrase|pwd|secret|token|api_?key)\s*[=:]\s*)"
    r"(?:'[^']*'|\"[^\"]*\"|[^\s,;&]+)",
    re.IGNORECASE,
)


def mask(text: str) -> str:
    """Return the text with passwords masked, in time linear in its length."""
    if "@" in text and "://" in text:
        text = _WORD.sub(_mask_url, text)
    return _NAMED_SECRET.sub(r"\1***", text)


def _mask_url(word: re.Match[str]) -> str:
    """Mask the passwords of URLs in one word.

    Only the part before the last @ is searched, so that every search for an @ succeeds: a word
    made of `://:` would otherwise take quadratic time.
    """
    text = word[0]
    end = text.rfind("@") + 1
    return _URL_PASSWORD.sub(r"\1***", text[:end]) + text[end:]
