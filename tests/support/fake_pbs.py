"""A batch system with PBS's commands, for tests: `qsub` runs the script as a child of its own, at
once.

Installed under the names qsub, qstat and qdel into a folder that a test puts on the PATH. Jobs live
in the folder that FAKE_PBS names: N.json says what process group a job is, N.exit its exit status
once it has ended.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

NAMES = ("qsub", "qstat", "qdel")
SIGTERM_STATUS = 271
"""What PBS calls the exit of a job that a signal ended: 256 and the signal's number."""


def install(folder: Path) -> dict[str, str]:
    """The commands in `folder`, and the environment that finds them."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name in NAMES:
        script = commands / name
        script.write_text(
            f"#!{sys.executable}\n" + Path(__file__).read_text(encoding="utf-8"), encoding="utf-8"
        )
        script.chmod(0o755)
    return {
        "FAKE_PBS": str(folder),
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def qsub(folder: Path, arguments: list[str]) -> None:
    """Start a script on as many nodes as it selects, each named once for each of two slots, as PBS
    does.
    """
    queue = arguments[arguments.index("-q") + 1] if "-q" in arguments else "default"
    if queue == "closed":
        sys.exit("qsub: Queue is not enabled MSG=queue is disabled: closed")
    number = 1 + len(list(folder.glob("*.json")))
    script = Path(arguments[-1])
    if queue == "never":
        (folder / f"{number}.json").write_text(json.dumps({"group": None}))
        print(f"{number}.fake")  # noqa: T201
        return
    selected = re.search(r"^#PBS -l select=(\d+)", script.read_text(encoding="utf-8"), re.MULTILINE)
    nodes = [f"fake{place}" for place in range(1, 1 + int(selected.group(1) if selected else 1))]
    node_file = folder / f"{number}.nodes"
    node_file.write_text("".join(f"{node}\n{node}\n" for node in nodes))
    environment = {**os.environ, "PBS_JOBID": f"{number}.fake", "PBS_NODEFILE": str(node_file)}
    keeper = f'bash "$1"; status=$?; echo $status > "{folder}/{number}.exit"'
    with (folder / f"{number}.out").open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", keeper, "job", str(script)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (folder / f"{number}.json").write_text(json.dumps({"group": process.pid}))
    print(f"{number}.fake")  # noqa: T201


def qstat(folder: Path, arguments: list[str]) -> None:
    """Tell of jobs as `qstat -x -f -F json` does."""
    jobs = {}
    for job in (argument for argument in arguments if argument.endswith(".fake")):
        ended = folder / f"{job.partition('.')[0]}.exit"
        waits = json.loads(ended.with_suffix(".json").read_text())["group"] is None
        jobs[job] = {"job_state": "F" if ended.exists() else "Q" if waits else "R"}
        if ended.exists():
            status = int(ended.read_text())
            jobs[job] |= {
                "Exit_status": status,
                "comment": "ended by qdel" if status == SIGTERM_STATUS else "ended",
            }
    print(json.dumps({"Jobs": jobs}))  # noqa: T201


def qdel(folder: Path, arguments: list[str]) -> None:
    """End jobs with everything in their process groups."""
    for job in arguments:
        number = job.partition(".")[0]
        if not (folder / f"{number}.exit").exists():
            (folder / f"{number}.exit").write_text(str(SIGTERM_STATUS))
            group = json.loads((folder / f"{number}.json").read_text())["group"]
            if group is not None:
                os.killpg(group, signal.SIGKILL)


if __name__ == "__main__" and shutil.which("bash"):
    {"qsub": qsub, "qstat": qstat, "qdel": qdel}[Path(sys.argv[0]).name](
        Path(os.environ["FAKE_PBS"]), sys.argv[1:]
    )
