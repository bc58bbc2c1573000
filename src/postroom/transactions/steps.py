"""Steps: code that is written once and runs for sync and async drivers.

A function of steps yields the result of a driver's call and is sent its value. Under `run` the call
has already happened; under `run_async` it is awaited. Errors are raised inside the steps.
"""

from __future__ import annotations

from collections.abc import Generator
from inspect import isawaitable
from types import CoroutineType
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]


def run(steps: Steps[T]) -> T:
    """Run the steps to their end and return their result."""
    result = None
    while True:
        try:
            result = steps.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T]) -> T:
    """Run the steps to their end, awaiting awaitables, and return their result."""
    try:
        call = next(steps)
        while True:
            try:
                if type(call) is CoroutineType or (call is not None and isawaitable(call)):
                    call = await call
            except BaseException as error:
                call = steps.throw(error)
            else:
                call = steps.send(call)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
