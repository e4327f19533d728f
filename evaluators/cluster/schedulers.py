"""What a batch system says of a job: how much of its time is left, and why it has ended.

Its own commands are asked, with argument lists and a time limit. No answer is an answer too: these questions only make
messages better and placements safer.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

ANSWER_TIMEOUT_S = 10.0
_SLURM_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
"""days-hours:minutes:seconds, as squeue shortens it."""


def why_ended(scheduler: str, job_id: str) -> str | None:
    """The batch system's own words for how a job has ended; None where it does not tell."""
    ask = _REASONS.get(scheduler)
    return None if ask is None else ask(job_id)


def seconds_left(scheduler: str, job_id: str) -> float | None:
    """What is left of a running job's walltime; None where it has no end, or nobody knows it."""
    if scheduler != "slurm":
        return None
    found = _SLURM_LEFT.fullmatch(_answer("squeue", "--noheader", f"--job={job_id}", "--format=%L").strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 86_400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds


def _slurm_reason(job_id: str) -> str | None:
    fields = dict(word.partition("=")[::2] for word in _answer("scontrol", "--oneliner", "show", "job", job_id).split())
    state, reason = fields.get("JobState"), fields.get("Reason", "None")
    if state is None or state in ("PENDING", "RUNNING"):
        return None
    return f"Slurm: {state}" if reason in ("None", state) else f"Slurm: {state}, {reason}"


def _pbs_reason(job_id: str) -> str | None:
    try:
        jobs = json.loads(_answer("qstat", "-x", "-f", "-F", "json", job_id)).get("Jobs", {})
    except ValueError:
        return None
    job: dict[str, object] = next(iter(jobs.values()), {})
    said = [f"exit status {job['Exit_status']}"] if "Exit_status" in job else []
    said += [str(job["comment"])] if job.get("comment") else []
    return f"PBS: {', '.join(said)}" if said else None


def _lsf_reason(job_id: str) -> str | None:
    said = " ".join(_answer("bjobs", "-noheader", "-o", "stat exit_reason", job_id).split())
    return f"LSF: {said}" if said else None


def _answer(*command: str) -> str:
    """A command's output; empty where there is no such command, it fails or it takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


_REASONS: dict[str, Callable[[str], str | None]] = {"slurm": _slurm_reason, "pbs": _pbs_reason, "lsf": _lsf_reason}
