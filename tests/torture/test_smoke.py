"""A short torture of two pairs, in every run of the tests."""

import json
import subprocess
import sys

import pytest

SECONDS = 280


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(("store", "broker"), [("sqlite", "handlers"), ("postgres", "kafka")])
@pytest.mark.promise("G1", "G2", "G3", "G4", "G5", "G6", "G7")
def test_no_promise_is_broken(store, broker):
    command = [
        sys.executable, "-m", "tests.torture", "cell", store, broker,
        "--events", "300", "--faults", "3",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["violations"] == []
    assert summary["events"] >= 290
    assert summary["faults"] == 3
