"""The calls of the dashboard: one table for routes, rights and the OpenAPI document.

Each call names the role that it needs. The application checks it before the handler runs, for every
call in the same place; a test goes through this table for every role.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from postroom.dashboard.access import Identity
from postroom.dashboard.given import Given
from postroom.dashboard.settings import Person, Role
from postroom.dashboard.watch import StoreWatch

if TYPE_CHECKING:
    from postroom.dashboard.app import Dashboard

API = "/api/v1"


class Visit(NamedTuple):
    """One request of an identified person, with the values that it gives."""

    request: Request
    identity: Identity
    dashboard: Dashboard
    watch: StoreWatch
    given: Given

    @property
    def person(self) -> Person:
        return self.identity.person


class Param(NamedTuple):
    """A value of a query or a body, for the OpenAPI document."""

    name: str
    text: str
    schema: Mapping[str, Any] = {"type": "string"}
    required: bool = False


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True)
class Call:
    """A method and a path, the right that they need, and the handler.

    change      it changes state: POST, never GET; it needs a same-origin request and a CSRF token
    answer      the names of the fields of its answer, for the OpenAPI document
    """

    path: str
    handler: Handler
    summary: str
    role: Role = Role.VIEWER
    payloads: bool = False
    change: bool = False
    params: tuple[Param, ...] = ()
    answer: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return "POST" if self.change else "GET"

    @property
    def is_api(self) -> bool:
        return self.path.startswith(API)

    def is_for(self, person: Person) -> bool:
        """Return whether a person may make this call."""
        return person.role.includes(self.role) and (person.payloads or not self.payloads)
