"""How hard hypothesis tries: the same examples at every run, unless more are asked for.

POSTROOM_TEST_EXAMPLES=50 pytest tests/property     fifty times as many, drawn at random
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def tries(examples: int, *, steps: int = 50) -> settings:
    """Return settings for a property that is tried on so many examples, in runs of so many steps."""
    factor = int(os.environ.get("POSTROOM_TEST_EXAMPLES", "0"))
    return settings(
        max_examples=examples * max(factor, 1),
        stateful_step_count=steps,
        derandomize=factor == 0,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
