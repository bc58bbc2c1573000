"""Recognizes a handler that failed because its event's body cannot be decoded, ever."""

from __future__ import annotations

from postroom.errors import Reject, Retry
from postroom.model.codec import JSON, decode_json
from postroom.record import Record, short_error

_MAX_DEPTH = 5


def undecodable(record: Record, error: BaseException) -> Reject | None:
    """Return the error to raise instead, if the handler failed to decode a body declared as JSON.

    Only its own failure to decode counts: a body whose media type was guessed may not be JSON, and
    a handler that does not decode it may fail for other reasons, or ask for a retry.
    """
    if record.content_type != JSON or not _is_of_decoding(error):
        return None
    if record.tombstone:
        return Reject("the event is a tombstone and has no body: check event.tombstone first")
    try:
        decode_json(record.payload)
    except (ValueError, RecursionError) as found:
        return Reject(f"the body is not JSON, although {JSON} declares it: {short_error(found)}")
    return None


def _is_of_decoding(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, is a decoding error."""
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
