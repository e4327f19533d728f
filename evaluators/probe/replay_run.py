"""Running a replay: torchrun as a child, its progress followed, nothing left behind however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from frontrunner.evaluators.probe.descent import die_with_parent
from frontrunner.evaluators.probe.disk import remove_disk_folder
from frontrunner.evaluators.probe.files import read_json, tail, write_json
from frontrunner.evaluators.probe.replay import ReplayPlan
from frontrunner.results.provenance import collect
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput

POLL_S = 0.2
STOP_GRACE_S = 20.0
MARKER = "FRONTRUNNER_REPLAY"
"""Environment variable with the replay's folder: torchrun gives each rank a session of its own, so that only this
finds the ranks of a torchrun that was killed."""

OnStep = Callable[[Mapping[str, Any]], None]
"""Called with each line of progress.jsonl: an event, its step, loss and time."""


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """A finished replay, its throughput beside the probe's.

    `tokens_per_s` is that of the median step of this run; None where an earlier run had done every step.
    `measured_tokens_per_s` is None where no probe measured the recipe.
    """

    recipe_id: str
    folder: Path
    final_step: int
    tokens_per_s: float | None
    measured_tokens_per_s: float | None
    final_loss: float | None
    evaluation_losses: Mapping[int, float | None]

    @property
    def ratio_to_probe(self) -> float | None:
        """tokens_per_s / measured_tokens_per_s; None where there is nothing to compare."""
        if self.tokens_per_s is None or self.measured_tokens_per_s is None:
            return None
        return self.tokens_per_s / self.measured_tokens_per_s


def prepare(chosen: ReplayPlan) -> None:
    """Write the job file that the plan's command reads; a folder that holds another run is not touched.

    Raises `InvalidInput` for such a folder.
    """
    chosen.folder.mkdir(parents=True, exist_ok=True)
    job_path = chosen.folder / "job.json"
    earlier = read_json(job_path)
    if earlier is not None:
        changed = sorted(key for key in earlier if earlier[key] != chosen.job.get(key) and key != "train")
        if changed:
            raise InvalidInput(
                f"{chosen.folder} holds a run that differs in {', '.join(changed)}",
                hint="choose another folder with --folder",
            )
    write_json(job_path, dict(chosen.job))


def run(chosen: ReplayPlan, on_step: OnStep | None = None) -> ReplayResult:
    """Run a replay to its end, going on from the newest checkpoint in its folder.

    Raises `InvalidInput` if the folder holds another run or one that is under way, and `FrontrunnerError`
    with the log's end if the run fails; its checkpoints stay, and the same call goes on from them.
    """
    prepare(chosen)
    with _locked(chosen.folder):
        _kill_ranks(chosen.folder)  # of a run whose torchrun was killed together with whoever watched it
        remove_disk_folder(chosen.job)
        (chosen.folder / "result.json").unlink(missing_ok=True)
        _write_provenance(chosen)
        status = _train(chosen, on_step)
    log = chosen.folder / "replay.log"
    if status != 0:
        raise FrontrunnerError(
            f"the replay ended with status {status}:\n{tail(log)}",
            hint=f"the whole log: {log}; the same command goes on from the newest checkpoint",
        )
    return _result(chosen)


def _train(chosen: ReplayPlan, on_step: OnStep | None) -> int:
    """Run torchrun to its end and return its exit status; on an exception it and its ranks are ended first."""
    with (chosen.folder / "replay.log").open("ab") as output:
        process = subprocess.Popen(
            chosen.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **chosen.environment, MARKER: str(chosen.folder)},
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one thread here
        )
    try:
        _follow(process, chosen.folder / "progress.jsonl", on_step)
    finally:
        _end(process)
        _kill_ranks(chosen.folder)
        remove_disk_folder(chosen.job)
    return process.returncode


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the system lets go of it when the process ends, however it ends."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"a replay is running in {folder}", hint="wait for it, or choose another folder with --folder"
            ) from None
        yield


def _write_provenance(chosen: ReplayPlan) -> None:
    provenance = asdict(collect(str(chosen.job["device"])))
    differences = {"differences": list(chosen.differences), "recipe_id": chosen.recipe_id}
    write_json(chosen.folder / "provenance.json", provenance | differences)


def _follow(process: subprocess.Popen[bytes], progress: Path, on_step: OnStep | None) -> None:
    """Pass the events on that are written from now on, until the process has ended."""
    offset = progress.stat().st_size if progress.exists() else 0
    while True:
        ended = process.poll() is not None
        if progress.exists() and on_step is not None:
            with progress.open("rb") as file:
                file.seek(offset)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            offset += len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):  # a line that a kill has cut short is no event
                    on_step(json.loads(line))
        if ended:
            return
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have torchrun end its ranks, if it still runs."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _kill_ranks(folder: Path) -> None:
    """Kill every process of this user that carries the replay's mark, and wait until they are gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or somebody else's
            if process.environ().get(MARKER) == str(folder) and process.pid != os.getpid():
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=STOP_GRACE_S)


def _result(chosen: ReplayPlan) -> ReplayResult:
    result = read_json(chosen.folder / "result.json")
    if not isinstance(result, dict) or result.get("status") != "trained":
        raise FrontrunnerError(
            f"the replay's result is not that of a finished run: {result!r}"[:500],
            hint=f"see {chosen.folder / 'replay.log'}",
        )
    times = result["step_times_s"]
    return ReplayResult(
        recipe_id=chosen.recipe_id,
        folder=chosen.folder,
        final_step=result["final_step"],
        tokens_per_s=chosen.tokens_per_step / statistics.median(times) if times else None,
        measured_tokens_per_s=chosen.measured_tokens_per_s,
        final_loss=result.get("final_loss"),
        evaluation_losses=dict(result.get("evaluation_losses", [])),
    )
