"""Small campaigns for tests of the driver: values, files, drivers as child processes, and what they
leave behind.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.evaluators.nodes.child_processes import DRIVER_TAG
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.settings import DataSettings
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.recipe import Recipe
from support.commands import warm_command_line

Table = dict[str, Any]
WIDE: Table = {
    "name": "wide",
    "evaluator": "simulated",
    "model": {"layers": 16, "heads": 16, "hidden": 64},
    "cluster": {"devices_per_node": 8},
    "problem": {"global_batch": 64},
    "space": {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2, 4, 8],
        "micro_batch_seqs": [1, 2, 4, 8],
        "sharding": ["none", "zero-1", "zero-2", "zero-3"],
        "recompute": ["none", "selective", "full"],
    },
}
"""A campaign over hundreds of recipes."""


def tiny(**sections: Table) -> Table:
    """A campaign table: 2 layers of width 64 on 2 CPU ranks, nine legal recipes, unless sections
    are changed.
    """
    table: Table = {
        "name": "tiny",
        "model": {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 257},
        "cluster": {
            "device": "test-cpu",
            "backend": "cpu",
            "devices_per_node": 2,
            "memory_gib_per_device": 2.0,
        },
        "problem": {"sequence_length": 32, "global_batch": 8, "precision": "fp32"},
        "space": {
            "tensor_parallel": [1, 2],
            "pipeline_parallel": [1, 2],
            "micro_batch_seqs": [1, 2, 4],
        },
        "search": {"strategy": "random", "seed": 3},
        "budget": {},
        "probe": {
            "warm_up_steps": 1,
            "measured_steps": 2,
            "deadline_s": 600,
            "step_deadline_s": 300,
        }
        | {"foreign_load_limit": 1.0},  # tests share their machine
    }
    for name, section in sections.items():
        table[name] = {**table[name], **section} if isinstance(table.get(name), dict) else section
    return table


def spec_of(table: Table, run_root: Path | None = None) -> CampaignSpec:
    """The table as a specification, with a folder for its probes' files where one is given."""
    spec = parse_campaign(table, default_name="tiny", base=Path()).spec
    return replace(spec, run_root=str(run_root)) if run_root else spec


def setup_of(folder: Path, **sections: Table) -> ProbeSetup:
    """What the probes of such a campaign share, with `folder` for their files."""
    spec = spec_of(tiny(**sections))
    return ProbeSetup(
        problem=spec.problem,
        probe=spec.probe,
        data=DataSettings(),
        work_folder=folder,
        seed=spec.search.seed,
    )


def tiny_recipe(**changes: Any) -> Recipe:
    """Two ranks of data parallelism, micro-batch 2 x 2."""
    return Recipe(**({"devices": 2, "micro_batch_seqs": 2, "accumulation": 2} | changes))


def order(setup: ProbeSetup, recipe: Recipe | None = None, token: str = "00001.1") -> ProbeOrder:
    return ProbeOrder(
        token=token, recipe=recipe or tiny_recipe(), run_folder=setup.work_folder / token
    )


def write_toml(path: Path, table: Table) -> Path:
    """The table as a campaign file."""
    lines = [f'{key} = "{value}"' for key, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def run_folders(folder: Path) -> list[Path]:
    """The run folders of a tiny campaign that was launched in `folder`."""
    return sorted((folder / "frontrunner-runs" / "tiny").glob("0*"))


def metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of a replay's metrics."""
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same_rows(mine: list[dict[str, str]], theirs: list[dict[str, str]], steps: int) -> None:
    """Each step once, with the losses of the other run; fp32 on the same machine leaves no room for
    more.
    """
    assert [row["step"] for row in mine] == [str(step) for step in range(1, steps + 1)]
    for column in ("loss", "learning_rate", "gradient_norm"):
        assert [float(row[column]) for row in mine] == pytest.approx(
            [float(row[column]) for row in theirs], rel=1e-6
        )
    assert float(mine[-1]["evaluation_loss"]) == pytest.approx(
        float(theirs[-1]["evaluation_loss"]), rel=1e-6
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "frontrunner.cli", *arguments]


def frontrunner(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return warm_command_line().run(arguments, cwd=cwd, environment=environment())


def needless_imports(module: str) -> str:
    """The modules that a rank needs not and this one imports, as a list."""
    program = f"""
import sys, importlib
importlib.import_module("{module}")
heavy = {{"deepspeed", "optuna", "pandas", "sqlalchemy", "deephyper", "scipy"}}
floors = ("frontrunner.results", "frontrunner.search")
print(sorted(name for name in sys.modules if name in heavy or name.startswith(floors)))
"""
    called = [sys.executable, "-P", "-c", program]
    return subprocess.run(called, capture_output=True, text=True, check=True).stdout.strip()


def launched(folder: Path, table: Table) -> Table:
    """What `launch --json` prints of a campaign that is run in `folder`."""
    write_toml(folder / "tiny.toml", table)
    done = frontrunner("launch", "tiny.toml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FRONTRUNNER_")}
    return kept | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command under way; killed at the end where it still runs."""
    with (cwd / "stdout").open("w") as out, (cwd / "stderr").open("w") as err:
        process = subprocess.Popen(
            command(*arguments), cwd=cwd, env=environment(), stdout=out, stderr=err, text=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def wait_for(condition: Callable[[], Any], timeout_s: float = 600.0, pause_s: float = 0.02) -> Any:
    """The condition's first true value; fails the test where there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause_s)
    return found


def wait_until_none(find: Callable[[], Any], timeout_s: float = 600.0) -> None:
    """Wait until nothing is found; fails the test, with what is still there, where that does not
    happen in time.
    """
    deadline = time.monotonic() + timeout_s
    while found := find():
        assert time.monotonic() < deadline, f"still there: {found}"
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that waits for its parent to hear of its end does not."""
    try:
        return process.is_running() and process.status() not in (
            psutil.STATUS_ZOMBIE,
            psutil.STATUS_DEAD,
        )
    except psutil.NoSuchProcess:
        return False


def marked(variable: str, value: str) -> list[psutil.Process]:
    """The live processes that carry an environment variable with this value, except the test's
    own.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if (
                is_alive(process)
                and process.pid != os.getpid()
                and process.environ().get(variable) == value
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def processes_of(driver_pid: int) -> list[psutil.Process]:
    """The fork server and the ranks of a driver, dead or alive."""
    return marked(DRIVER_TAG, str(driver_pid))


def ranks_of(driver_pid: int) -> list[psutil.Process]:
    """The ranks alone: what the fork server has forked, in rank order."""
    processes = {process.pid: process for process in processes_of(driver_pid)}
    return sorted(
        (p for p in processes.values() if p.ppid() in processes), key=lambda process: process.pid
    )


def steps_written(folder: Path) -> int:
    """The steps that rank 0 of a run has reported."""
    path = folder / "progress.jsonl"
    return path.read_text().count('"event": "step"') if path.exists() else 0
