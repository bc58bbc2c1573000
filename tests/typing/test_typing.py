"""The public API is typed as the documentation uses it."""

import subprocess
import sys
from pathlib import Path


def test_the_public_api_type_checks():
    program = Path(__file__).with_name("public_api.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
