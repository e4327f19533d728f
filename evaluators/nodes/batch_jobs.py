"""What a batch system reports of a job: the time that it has left, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from typing import Any

from frontrunner.evaluators.nodes.environment import allocation

QUERY_TIMEOUT_S = 10.0
_TITLES = {"slurm": "Slurm", "pbs": "PBS"}
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


def seconds_left(scheduler: str, job_id: str) -> float | None:
    """Return what is left of a running job's walltime; None if it has no end, or it is unknown."""
    if scheduler == "slurm":
        return _seconds(_query("squeue", "--noheader", f"--job={job_id}", "--format=%L").strip())
    if scheduler != "pbs":
        return None
    job = _pbs_job(job_id)
    limit, used = (
        _seconds(str(dict(job.get(key) or {}).get("walltime")))
        for key in ("Resource_List", "resources_used")
    )
    return None if limit is None else limit - (used or 0.0)


def end_of_job() -> float | None:
    """Return when the batch job that this process is in ends, as monotonic time; None outside one,
    or if unknown.
    """
    held = allocation(os.environ)
    left = None if held is None else seconds_left(held.scheduler, held.job_id)
    return None if left is None else time.monotonic() + left


def _seconds(shown: str) -> float | None:
    """Return the seconds of a batch system's `[days-][hours:]minutes:seconds`; None for any other
    text.
    """
    found = _TIME.fullmatch(shown)
    if found is None:
        return None
    return float(
        sum(
            int(part or 0) * unit
            for part, unit in zip(found.groups(), (86_400, 3600, 60, 1), strict=True)
        )
    )


def _pbs_job(job_id: str) -> dict[str, Any]:
    """Return what PBS reports of a job, also of one that has ended; empty if it reports nothing."""
    with contextlib.suppress(ValueError):
        jobs: dict[str, dict[str, Any]] = json.loads(
            _query("qstat", "-x", "-f", "-F", "json", job_id)
        ).get("Jobs", {})
        return next(iter(jobs.values()), {})
    return {}


def why_ended(scheduler: str, job_id: str) -> str | None:
    """Return the batch system's own words for how a job has ended; None if it reports nothing."""
    words: list[str] = []
    if scheduler == "slurm":
        shown = _query("scontrol", "--oneliner", "show", "job", job_id)
        fields = dict(word.partition("=")[::2] for word in shown.split())
        state, reason = fields.get("JobState", "PENDING"), fields.get("Reason", "None")
        if state not in ("PENDING", "RUNNING"):
            words = [state] if reason in ("None", state) else [state, reason]
    elif scheduler == "pbs":
        job = _pbs_job(job_id)
        words = [f"exit status {job['Exit_status']}"] if "Exit_status" in job else []
        words += [str(job["comment"])] if job.get("comment") else []
    return f"{_TITLES[scheduler]}: {', '.join(words)}" if any(words) else None


def _query(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=QUERY_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
