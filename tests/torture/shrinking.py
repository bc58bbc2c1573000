"""The shortest list of faults that still breaks a promise: halves first, then one by one."""

from __future__ import annotations


def shrink(numbers, breaks):
    """Return a list of fault numbers that `breaks` still calls broken, none of which it can spare.

    `breaks` runs a whole cell each time; it is asked as rarely as possible.
    """
    numbers = list(numbers)
    parts = 2
    while len(numbers) > 1:
        size = max(1, len(numbers) // parts)
        for begin in range(0, len(numbers), size):
            rest = numbers[:begin] + numbers[begin + size :]
            if rest and breaks(rest):
                numbers, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(numbers), parts * 2)
    return numbers
