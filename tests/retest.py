"""Run the tests that failed last once more, alone, three times: `python -m tests.retest`.

A test that fails beside others and passes alone is unsteady, not broken. More than three of them
are no accident, and no failed test at all means that the run ended for another reason.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
TIMES = 3
CACHE = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Return 0 if every one of them has passed every time."""
    failed = sorted(json.loads(CACHE.read_text())) if CACHE.exists() else []
    print(f"{len(failed)} failed beside others", *failed, sep="\n  ", flush=True)
    if not 0 < len(failed) <= MOST:
        return 1
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed]
    if any(subprocess.run(command, check=False).returncode for _ in range(TIMES)):
        return 1
    print("unsteady, to be mended:", *failed, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
