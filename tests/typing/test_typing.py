"""The public API is typed: two type checkers accept what is right and refuse what is wrong.

`accepted.py` has no error; in `refused.py` each line marked `# refused` has one, and no other line.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = [HERE / "accepted.py", HERE / "refused.py"]


def mypy():
    """Return the lines that mypy reports, by file. It shares its cache with `make check`."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, PROGRAMS)],
        cwd=HERE.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    found = re.findall(r"^.*?(\w+\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [(name, int(line), said) for name, line, said in found]


def pyright(tmp_path):
    """Return the lines that basedpyright reports in pyright's standard mode."""
    config = tmp_path / "pyrightconfig.json"
    files = [str(program) for program in PROGRAMS]
    config.write_text(json.dumps({"include": files, "typeCheckingMode": "standard"}))
    done = subprocess.run(
        [
            sys.executable, "-m", "basedpyright", "-p", str(config), "--outputjson",
            "--pythonpath", sys.executable,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in report["generalDiagnostics"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_is_accepted_and_what_is_refused(checker, tmp_path):
    found = mypy() if checker == "mypy" else pyright(tmp_path)
    assert [each for each in found if each[0] == "accepted.py"] == []
    lines = (HERE / "refused.py").read_text().splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(wanted) > 35
    assert {line for _, line, _ in found} - wanted == set(), found
    assert [lines[line - 1] for line in wanted - {line for _, line, _ in found}] == []
