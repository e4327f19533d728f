"""Short commands of the command line, each in a process of its own, which is forked from one that
is warm.
"""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


class WarmCommandLine:
    """A process that has imported the command line and forks one command after another: see
    `forked_commands`.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("forked_commands.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, arguments: tuple[str, ...], *, cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with these environment variables and no others."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": dict(environment),
            "folder": self._folder.name,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        said = [
            (Path(self._folder.name) / name).read_text(encoding="utf-8")
            for name in ("stdout", "stderr")
        ]
        return subprocess.CompletedProcess(("frontrunner", *arguments), status, *said)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@functools.cache
def warm_command_line() -> WarmCommandLine:
    """The one of this test process, started at first use."""
    line = WarmCommandLine()
    atexit.register(line.close)
    return line
