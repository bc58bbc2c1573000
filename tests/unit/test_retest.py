"""CI's second look: it forgives a test that is only unsteady, and nothing else."""

import json

import pytest

from tests import retest

TESTS = """
from pathlib import Path

def test_sound():
    pass

def test_broken():
    assert False

def test_red_the_third_time():
    with Path("tries").open("a") as tries:
        tries.write(".")
    assert len(Path("tries").read_text()) < 3
"""


@pytest.fixture
def failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # to load them takes longer than all
    (tmp_path / "test_sample.py").write_text(TESTS)

    def write(*names):
        cache = tmp_path / retest.CACHE
        cache.parent.mkdir(parents=True)
        cache.write_text(json.dumps({f"test_sample.py::{name}": True for name in names}))

    return write


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["test_sound"], 0),
        (["test_sound", "test_broken"], 1),
        (["test_red_the_third_time"], 1),
        ([], 1),
        ([f"test_{n}" for n in range(4)], 1),
    ],
    ids=["unsteady", "broken", "red once in three", "none", "too many"],
)
def test_the_second_look(failed, names, code, capfd):
    failed(*names)
    assert retest.main() == code
    said = capfd.readouterr().out
    assert all(f"test_sample.py::{name}" in said for name in names)


def test_a_run_that_ended_before_any_test_is_no_success(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert retest.main() == 1
