"""The dashboard: a web page and a JSON API for operators. It needs the extra `dashboard`.

settings    people, roles, the trusted proxy, masks and limits
access      the person of a request: tokens, passwords, sessions
app         the ASGI application: limits, rights, origin and CSRF, errors, headers
calls       one table for routes, rights and the OpenAPI document (`openapi`); `given`: their values
api         the JSON API; `pages`: the same as HTML, with `charts`
views       answers as data; `verdict`: the worst problem in one line; `masks`: hidden values
watch       samples a store on demand, for all viewers; `sample`: one sample
actions     plans of operators' actions; `once` carries each out once
"""

from postroom.dashboard.access import digest_of, hash_password
from postroom.dashboard.app import Dashboard
from postroom.dashboard.settings import DashboardSettings, Person, Proxy, Role, Token, User

__all__ = [
    "Dashboard",
    "DashboardSettings",
    "Person",
    "Proxy",
    "Role",
    "Token",
    "User",
    "digest_of",
    "hash_password",
]
