"""A real web server whose relay crashes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
APP = "tests.scenario.web_process:app"
SERVER = (sys.executable, "-m", "uvicorn", APP, "--port", "0", "--no-access-log")


async def read_until(log, pattern):
    """Return the match of the first line that matches."""
    lines = []
    async for line in log:
        lines.append(line.decode())
        if found := re.search(pattern, lines[-1]):
            return found
    raise AssertionError(f"the process ended before it logged {pattern!r}:\n{''.join(lines)}")


async def test_stop_process_answers_open_requests_and_ends_the_process():
    process = await asyncio.create_subprocess_exec(
        *SERVER, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            port = (await read_until(process.stderr, r"running on http://127.0.0.1:(\d+)"))[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Length: 2\r\n\r\n{")
            await read_until(process.stderr, "the relay of stream main crashed and stops")
            await read_until(process.stderr, r"Relay crashed; this process stops \(SIGTERM\)")
            await read_until(process.stderr, "Waiting for connections to close")
            writer.write(b"}")
            head, body = (await reader.read()).split(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert json.loads(body) == {"bytes": 2, "other": True}
    assert out.decode() == "closed; ZeroDivisionError('a bug'), other.is_running=False\n"
    assert process.returncode == -signal.SIGTERM
