"""The OpenAPI document of the JSON API, made from the table of calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from postroom._version import __version__
from postroom.dashboard.calls import API, Call

_PROBLEM = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_ANSWERS = {
    400: "a value is missing or wrong",
    401: "not signed in",
    403: "the role or the right does not suffice, or the request comes from another site",
    404: "there is no such event, key, group, operation or store",
    409: "the event has changed, or was edited before",
    413: "the body is too large",
    429: "too many failed attempts to sign in",
    500: "unexpected error; the log has it",
    503: "the store does not answer",
}


def document(calls: Iterable[Call], stores: Sequence[str], base: str) -> dict[str, Any]:
    """Return the document; `base` is the path under which the dashboard is mounted."""
    index = {"stores": {"type": "array"}, "person": {"type": "object"}}
    told = _operation("The stores, and the person that asks", "index")
    paths: dict[str, Any] = {API: {"get": {**told, "responses": _responses(index)}}}
    for call in calls:
        if call.is_api:
            paths.setdefault(call.path, {})[call.method.lower()] = _described(call, stores)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "postroom dashboard",
            "version": __version__,
            "description": "Everything that the dashboard shows and does.",
        },
        "servers": [{"url": base or "/"}],
        "security": [{"token": []}, {"password": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
            "schemas": {"Problem": _PROBLEM},
        },
    }


def _operation(summary: str, name: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": name}


def _described(call: Call, stores: Sequence[str]) -> dict[str, Any]:
    name = call.path.partition("{store}/")[2].replace("/", "-") or "index"
    needs = f"Needs the role {call.role}" + (" and the right payloads." if call.payloads else ".")
    store = {
        "name": "store", "in": "path", "required": True,
        "schema": {"type": "string", "enum": list(stores)},
    }  # fmt: skip
    found: dict[str, Any] = {
        **_operation(call.summary, name),
        "description": needs,
        "parameters": [store],
        "responses": _responses(call.answer),
    }
    if call.change:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(call)}},
        }
        return found
    found["parameters"] += [
        {
            "name": one.name, "in": "query", "description": one.text,
            "required": one.required, "schema": dict(one.schema),
        }
        for one in call.params
    ]  # fmt: skip
    return found


def _body(call: Call) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [one.name for one in call.params if one.required],
        "properties": {one.name: {**one.schema, "description": one.text} for one in call.params},
    }


def _responses(answer: Any) -> dict[str, Any]:
    fine = {"type": "object", "required": list(answer), "properties": dict(answer)}
    problem = {"$ref": "#/components/schemas/Problem"}
    return {
        "200": {"description": "the answer", "content": {"application/json": {"schema": fine}}},
        **{
            str(code): {"description": text, "content": {"application/json": {"schema": problem}}}
            for code, text in _ANSWERS.items()
        },
    }
