"""The warm parent of the command line's tests, a program: it forks a process for each command, as a
shell starts one.

Each order is a JSON line on stdin; the answer is a line with the command's exit status. What
commands import first is here already: most of what a short one costs.
"""

import gc
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from frontrunner.cli.main import main

PRELOADED = (
    "frontrunner.cli.options",
    "frontrunner.cli.plan",
    "frontrunner.cli.run",
    "frontrunner.cli.query",
    "frontrunner.views.live",
    "frontrunner.views.results",
    "frontrunner.search.driver",
    "frontrunner.search.guided.strategy",
    "sqlalchemy.dialects.sqlite",
)


def _become(order: dict[str, Any]) -> None:
    """Make this forked process what a shell would have started."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["frontrunner", *order["arguments"]]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(
            os.open(Path(order["folder"]) / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number
        )


def _serve() -> None:
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
            main()
            sys.exit()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
