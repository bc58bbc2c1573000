"""Translates messages of foreign senders to the headers of `postroom.model.envelope`.

CloudEvents, in binary and structured mode, and headers named by an option (as sent by Debezium's
outbox router) carry the same facts as postroom's headers. They are translated once, on arrival.
postroom's own headers take precedence.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from json.decoder import JSONDecoder
from typing import Any, NamedTuple

from postroom.model.envelope import (
    AGGREGATE_ID,
    CONTENT_TYPE,
    CORRELATION_ID,
    ID,
    KEY,
    OCCURRED_AT,
    TYPE,
)
from postroom.model.incoming import Incoming

_PREFIXES = ("ce_", "ce-", "cloudEvents:", "cloudEvents_")
_STRUCTURED = "application/cloudevents"
_NAMES = {
    "type": TYPE,
    "time": OCCURRED_AT,
    "subject": AGGREGATE_ID,
    "partitionkey": KEY,
    "correlationid": CORRELATION_ID,
    "datacontenttype": CONTENT_TYPE,
    "traceparent": "traceparent",
    "tracestate": "tracestate",
}


class Names(NamedTuple):
    """The headers in which foreign senders put id and type; empty: no such header."""

    id: str = ""
    type: str = ""


NO_NAMES = Names()


def translate(message: Incoming, names: Names = NO_NAMES) -> Incoming:
    """Return the message with postroom's headers. Never raises: errors go to `problem`."""
    headers = message.headers
    if message.problem or not headers:
        return message
    said = _named(headers, names)
    kind = headers.get(CONTENT_TYPE, "")
    if kind[: len(_STRUCTURED)].lower() == _STRUCTURED:
        return _structured(message._replace(headers={**said, **headers}), kind)
    cloud = _binary(headers)
    if cloud:
        said = {**_translated(cloud, message), **said}
    return message._replace(headers={**said, **headers}) if said else message


def cloud_id(source: str, event_id: str) -> str:
    """Return the id of a CloudEvent: source and id together are unique, the id alone is not.

    A source is a URI reference and contains no space.
    """
    return f"{source.replace(' ', '%20')} {event_id}" if source else event_id


def _named(headers: Mapping[str, str], names: Names) -> dict[str, str]:
    """Return the values of the headers that options name, under postroom's names."""
    found: dict[str, str] = {}
    for name, ours in ((names.id, ID), (names.type, TYPE)):
        if name and headers.get(name):
            found[ours] = headers[name]
    return found


def _binary(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a CloudEvent in binary mode; empty for other messages."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                found.setdefault(name[len(prefix) :], value)
    return found if found.get("id") else {}


def _translated(attributes: Mapping[str, str], message: Incoming) -> dict[str, str]:
    """Return the attributes under postroom's names."""
    found = {ours: attributes[name] for name, ours in _NAMES.items() if attributes.get(name)}
    found[ID] = cloud_id(attributes.get("source", ""), attributes["id"])
    if message.key is not None:  # the broker's key determines the order
        found.pop(KEY, None)
    return found


def _structured(message: Incoming, kind: str) -> Incoming:
    media_type = kind.partition(";")[0].strip().lower()
    if media_type != f"{_STRUCTURED}+json":
        return message._replace(
            problem=f"CloudEvents as {media_type} are not supported; send {_STRUCTURED}+json"
        )
    try:
        attributes, data = _members(message.body.decode("utf-8-sig"))
        body, content_type = _content(attributes, data)
    except (ValueError, RecursionError, TypeError) as error:
        return message._replace(problem=f"not a valid CloudEvent ({media_type}): {error}")
    attributes["datacontenttype"] = content_type
    said = _translated(attributes, message)
    known = {f"ce_{name}": value for name, value in attributes.items()}
    others = {name: value for name, value in message.headers.items() if name != CONTENT_TYPE}
    return message._replace(headers={**known, **said, **others}, body=body)


def _members(text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the attributes of a structured event as text, and its data verbatim.

    The data is not decoded and encoded again: numbers keep the sender's notation.
    """
    decoder, attributes, data = JSONDecoder(), dict[str, str](), dict[str, Any]()
    place = _after(text, 0)
    if text[place : place + 1] != "{":
        raise ValueError("not a JSON object")
    place = _after(text, place + 1)
    while text[place : place + 1] != "}":
        name, place = decoder.raw_decode(text, place)
        place = _after(text, place)
        if not isinstance(name, str) or text[place : place + 1] != ":":
            raise ValueError(f"expected a name and a colon at character {place}")
        start = _after(text, place + 1)
        value, place = decoder.raw_decode(text, start)
        if name in ("data", "data_base64"):
            data[name], data[f"{name} as written"] = value, text[start:place]
        elif isinstance(value, (str, int, float)):  # an attribute has no other types; bool is int
            attributes[name] = value if isinstance(value, str) else json.dumps(value)
        place = _after(text, place)
        if text[place : place + 1] == ",":
            place = _after(text, place + 1)
        elif text[place : place + 1] != "}":
            raise ValueError(f"expected a comma at character {place}")
    if not attributes.get("id") or not attributes.get("source") or not attributes.get("type"):
        raise ValueError("id, source or type is missing")
    return attributes, data


def _content(attributes: Mapping[str, str], data: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the body of the event in binary mode, and its media type."""
    said = attributes.get("datacontenttype", "")
    if data.get("data_base64") is not None:
        return b64decode(data["data_base64"], validate=True), said or "application/octet-stream"
    if "data" not in data:
        return b"", said or "application/json"
    plain = said.partition(";")[0].strip().lower()
    is_json = not plain or plain == "application/json" or plain.endswith("+json")
    if not is_json and isinstance(data["data"], str):
        return data["data"].encode(), said
    return data["data as written"].encode(), said or "application/json"


def _after(text: str, place: int) -> int:
    """Return the position of the next character that is not white space."""
    while text[place : place + 1] in (" ", "\t", "\n", "\r"):
        place += 1
    return place
