"""A handler that failed because the body of its event cannot be decoded: it never will be."""

from __future__ import annotations

from postroom.errors import Reject, Retry
from postroom.model.codec import JSON, decode_json
from postroom.record import Record, short_error

_MAX_DEPTH = 5


def undecodable(record: Record, error: BaseException) -> Reject | None:
    """Return what to raise instead, if the handler failed at a body that claims to be JSON.

    Only its own failure to decode counts: a body whose media type was guessed may be no JSON, and a
    handler that does not decode it may fail for any other reason, or ask for a retry.
    """
    if record.content_type != JSON or not _is_of_decoding(error):
        return None
    try:
        decode_json(record.payload)
    except (ValueError, RecursionError) as found:
        return Reject(f"the body is not JSON, although {JSON} declares it: {short_error(found)}")
    return None


def _is_of_decoding(error: BaseException | None) -> bool:
    """Say whether the error, or one that it was raised from, is that of a decoder."""
    if isinstance(error, (Retry, Reject)):
        return False
    for _ in range(_MAX_DEPTH):
        if error is None:
            return False
        if isinstance(error, (UnicodeDecodeError, RecursionError)):
            return True
        if type(error).__name__ == "JSONDecodeError":
            return True
        error = error.__cause__ or error.__context__
    return False
