"""pymongo forgets a socket whose connect is cancelled.

It closes the socket after an OSError or a timeout, not after a cancellation; the collector closes it
later, with a ResourceWarning that fails whichever test runs then. Here such a socket is closed at
once. Sockets that postroom leaves open still fail their tests.
"""

import contextvars
import functools

from pymongo import pool_shared

_connecting = contextvars.ContextVar("_connecting")


def close_cancelled():
    """Close sockets of connects that do not return; wraps pymongo's two functions, once."""
    connect, prepare = pool_shared._async_create_connection, pool_shared._set_keepalive_times
    if hasattr(connect, "__wrapped__"):
        return

    @functools.wraps(prepare)
    def prepared(sock):
        if sockets := _connecting.get(None):
            sockets[0] = sock
        prepare(sock)

    @functools.wraps(connect)
    async def connected(*given):
        token = _connecting.set(sockets := [None])
        try:
            return await connect(*given)
        except BaseException:
            if sockets[0] is not None:
                sockets[0].close()
            raise
        finally:
            _connecting.reset(token)

    pool_shared._set_keepalive_times = prepared
    pool_shared._async_create_connection = connected
