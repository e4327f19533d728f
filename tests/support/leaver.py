"""A program that starts another, which leaves things behind, and prints what
`benchmarks/chaos_leftovers.py` finds.

python leaver.py TEMPORARY_FOLDER [process] [file] [memory] [others]
"""

import json
import os
import socket
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from chaos_leftovers import SHARED_MEMORY, Surroundings

GRACE_S = 0.5


def leave(what: list[str], ready: Path) -> None:
    """Be the other program: a child of it goes on where a process is to be left."""
    held = None
    sockets = [socket.create_server(("127.0.0.1", 0))]
    if "file" in what:
        tempfile.mkstemp(prefix="left-")
    if "memory" in what:
        held = (SHARED_MEMORY / f"left-{os.getpid()}").open("w")
    if "process" not in what or os.fork() == 0:
        ready.touch()
        time.sleep(600)
    del sockets, held
    os._exit(0)


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2:]
    ready = folder.parent / "ready"
    with Surroundings(folder, GRACE_S) as surroundings:
        pid = os.fork()
        if pid == 0:
            leave(what, ready)
        while not ready.exists():
            time.sleep(0.01)
        surroundings.look({pid})
        if "process" not in what:
            os.kill(pid, 9)
        os.waitpid(pid, 0)
        if "others" in what:  # of a program that is not ours
            (SHARED_MEMORY / f"left-{pid}").touch()
        left = surroundings.left()
        again = surroundings.left()
    for path in SHARED_MEMORY.glob(f"left-{pid}"):
        path.unlink()
    sys.stdout.write(json.dumps([asdict(left), asdict(again)]))


if __name__ == "__main__":
    main()
