"""Profiles of recipes: a probe whose ranks go on to trace some steps, and where the time of those
steps goes.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count, groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from frontrunner.evaluators.diagnostics.step_breakdown import (
    Breakdown,
    break_down,
    events_of,
    last_step,
    mean,
)
from frontrunner.evaluators.nodes.settings import SPARE_WALLTIME_S, NodeSource
from frontrunner.evaluators.programs.jobs import profile_job
from frontrunner.evaluators.programs.preflight import prepare_recipe, source_for
from frontrunner.evaluators.programs.ranks import RankProgram
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.evaluators.runs.files import write_json
from frontrunner.evaluators.runs.probes import probes_on
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, require_at_least
from frontrunner.spaces.recipe import Recipe

PATIENCE = 4.0
"""Times a probe's deadlines that a profile may take: tracing and writing traces cost time."""
UNTRACED_STEPS = 5
"""Measured before the profiler starts, if the campaign's probes are adaptive: enough to show the
usual step.
"""
MOST_STEPS = 50
"""Traced steps: a trace takes megabytes per step and rank."""
FAST = 1
MEASURED_STEP = "step.json"
"""File of a profile with its last step by pipeline rank."""
POLL_S = 1.0
TOKEN = "profile"  # noqa: S105 - it names the one order

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Settings of a profile: `steps` under torch's profiler and as many under pyinstrument, if it
    is installed.
    """

    steps: int = 3
    folder: Path | None = None

    def __post_init__(self) -> None:
        require_at_least("profile", 1, steps=self.steps)
        if self.steps > MOST_STEPS:
            raise InvalidInput(f"profile.steps = {self.steps}: expected at most {MOST_STEPS}")


@dataclass(frozen=True, kw_only=True)
class ProfilePlan:
    """Profile that is ready to run. `measured_step_time_s` is the median that the campaign's probes
    measured.
    """

    recipe_id: str
    recipe: Recipe
    setup: ProbeSetup
    folder: Path
    steps: int
    samples_host: bool
    measured_step_time_s: float | None
    differences: tuple[str, ...]
    source: NodeSource | None


@dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """Time of a recipe's steps by part and rank.

    `step_time_s_untraced` is the median before the profiler was on in the same run,
    `measured_step_time_s` that of the campaign's probes. `on_cpu`: idle is the host's own time.
    """

    recipe_id: str
    recipe: Recipe
    folder: Path
    steps: int
    ranks: tuple[Breakdown, ...]
    step_time_s_untraced: float
    measured_step_time_s: float | None
    traces: tuple[Path, ...]
    joined_trace: Path
    host_trees: tuple[Path, ...]
    on_cpu: bool

    @property
    def mean(self) -> Breakdown:
        """Mean over all ranks."""
        return mean(self.ranks)

    @property
    def slowest_rank(self) -> int:
        """Rank that waits least: the others' steps end together with its own because they wait for
        it.
        """
        return min(range(len(self.ranks)), key=lambda rank: self.ranks[rank].waiting_s)

    @property
    def stages(self) -> Mapping[int, Breakdown]:
        """Mean over the ranks of each pipeline stage."""
        place_of, ranks = self.recipe.pipeline_rank, enumerate(self.ranks)
        ordered = groupby(
            sorted(ranks, key=lambda rank: place_of(rank[0])), key=lambda rank: place_of(rank[0])
        )
        return {place: mean([found for _, found in group]) for place, group in ordered}

    @property
    def tracing_slowdown(self) -> float:
        """Step time under the profiler / step time without, in the same run."""
        return self.mean.step_time_s / self.step_time_s_untraced


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_step_time_s: float | None,
    settings: ProfileSettings,
    anyway: bool,
) -> ProfilePlan:
    """Check a profile against this machine; nothing is written. `anyway` lets the machine differ
    from the recipe's.
    """
    source = source_for(recipe_id, recipe, setup, doing="profile")
    differences = prepare_recipe(
        recipe_id, recipe, setup.problem.cluster, source, doing="profile", anyway=anyway
    )
    named, usual = settings.folder, _profiles(setup.work_folder.parent, recipe_id)
    if named is not None and named.exists() and (not named.is_dir() or any(named.iterdir())):
        raise InvalidInput(
            f"{named} is there already and not an empty folder", hint="choose another --folder"
        )
    deadline_s = PATIENCE * setup.probe.deadline_s
    if source is not None and setup.dispatch.walltime_s > 0:
        deadline_s = min(deadline_s, setup.dispatch.walltime_s - SPARE_WALLTIME_S)
    probe = replace(
        setup.probe,
        measured_steps=setup.probe.measured_steps or UNTRACED_STEPS,
        deadline_s=deadline_s,
        step_deadline_s=PATIENCE * setup.probe.step_deadline_s,
    )
    free = (path for number in count(1) if not (path := usual / str(number)).exists())
    return ProfilePlan(
        recipe_id=recipe_id,
        recipe=recipe,
        setup=replace(setup, probe=probe, engines=(recipe.engine,)),
        folder=(named or next(free)).resolve(),
        steps=settings.steps,
        samples_host=find_spec("pyinstrument") is not None,
        measured_step_time_s=measured_step_time_s,
        differences=differences,
        source=source,
    )


def run(chosen: ProfilePlan, on_progress: OnProgress | None = None) -> ProfileReport:
    """Run a profile to its end; raise `FrontrunnerError` with the kind of failure and the log's end
    if it fails.
    """
    folder = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / "job.json").touch(exist_ok=False)  # of two that start at once only one creates it
    except FileExistsError:
        raise InvalidInput(
            f"{folder} holds a profile", hint="run it again, or choose another --folder"
        ) from None
    outcome = _outcome(chosen, on_progress)
    if isinstance(outcome, Failure):
        raise FrontrunnerError(
            f"the profile failed, {outcome.kind}: {outcome.message}\n{outcome.log_tail}".rstrip(),
            hint=f"the whole log: {outcome.log_path}",
        )
    ranks, joined = range(chosen.recipe.devices), folder / "trace.json.gz"
    traces = tuple(folder / f"rank-{rank}.trace.json.gz" for rank in ranks)
    found = join_traces(traces, joined)
    first = {chosen.recipe.pipeline_rank(rank): traces[rank] for rank in reversed(ranks)}
    write_measured_step(first, folder / MEASURED_STEP)
    return ProfileReport(
        recipe_id=chosen.recipe_id,
        recipe=chosen.recipe,
        folder=folder,
        steps=chosen.steps,
        ranks=found,
        step_time_s_untraced=statistics.median(outcome.step_times_s),
        measured_step_time_s=chosen.measured_step_time_s,
        traces=traces,
        joined_trace=joined,
        on_cpu=chosen.setup.problem.cluster.backend == "cpu",
        host_trees=(
            tuple(folder / f"rank-{rank}.host.txt" for rank in ranks) if chosen.samples_host else ()
        ),
    )


def _outcome(chosen: ProfilePlan, on_progress: OnProgress | None) -> Measurement | Failure:
    job = partial(profile_job, steps=chosen.steps, samples_host=chosen.samples_host)
    probe = probes_on(chosen.source, RankProgram(chosen.setup, job))
    try:
        probe.start(ProbeOrder(token=TOKEN, recipe=chosen.recipe, run_folder=chosen.folder))
        while True:
            for finished in probe.finished(POLL_S):
                return finished.outcome
            progress = probe.progress(TOKEN)
            if on_progress is not None and progress is not None:
                on_progress(progress)
    finally:
        probe.close()


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """The last traced step: of the first device of each pipeline rank, each part as (name, begin,
    end) in seconds.
    """

    step_time_s: float
    ranks: tuple[tuple[tuple[str, float, float], ...], ...]


def write_measured_step(traces: Mapping[int, Path], file: Path) -> None:
    """Write the last step of the traces, by pipeline rank, on one axis of time."""
    rows: dict[int, list[tuple[str, float, float]]] = {}
    for place, path in traces.items():
        trace = _read(path)
        base_us = int(trace.get("baseTimeNanoseconds", 0)) / 1000
        rows[place] = [
            (one.part, one.span[0] + base_us, one.span[1] + base_us)
            for one in last_step(events_of(trace))
        ]
    begin = min(start for row in rows.values() for _, start, _ in row)
    end = max(stop for row in rows.values() for _, _, stop in row)
    ranks = tuple(
        tuple(
            (part, (start - begin) / 1e6, (stop - begin) / 1e6) for part, start, stop in rows[place]
        )
        for place in sorted(rows)
    )
    write_json(file, asdict(MeasuredStep(step_time_s=(end - begin) / 1e6, ranks=ranks)))


def newest_measured_step(run_root: str | Path, recipe_id: str) -> MeasuredStep | None:
    """Return the last step of a recipe's newest profile beside campaigns' folders; None where there
    is none.
    """
    files = sorted(
        _profiles(Path(run_root), recipe_id).glob(f"*/{MEASURED_STEP}"),
        key=lambda file: file.stat().st_mtime,
    )
    if not files:
        return None
    try:
        return TypeAdapter(MeasuredStep).validate_json(files[-1].read_bytes())
    except (
        OSError,
        ValueError,
    ):  # of another version, or half copied; the formulas' timeline needs it not
        return None


def _profiles(run_root: Path, recipe_id: str) -> Path:
    return run_root / "profiles" / recipe_id


def _read(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError) as error:
        raise FrontrunnerError(f"{path} cannot be read as a trace: {error}") from error


def join_traces(traces: Sequence[Path], joined: Path) -> tuple[Breakdown, ...]:
    """Write the spans of the ranks' traces, given in rank order, to one gzipped Chrome trace; break
    each down.
    """
    processes: dict[tuple[int, int], int] = {}
    events: list[dict[str, Any]] = []
    breakdowns = []
    base_ns: list[int] = []
    for rank, path in enumerate(traces):
        trace = _read(path)
        try:
            breakdowns.append(break_down(events_of(trace)))
        except (ValueError, KeyError) as error:
            raise FrontrunnerError(f"{path} cannot be read as a trace: {error}") from error
        base_ns.append(int(trace.get("baseTimeNanoseconds", 0)))
        for event in trace["traceEvents"]:
            if event.get("ph") not in ("X", "M") or not isinstance(event["pid"], int):
                # Arrows, whose numbers are of one rank, and the profiler's own marks, whose ids are
                # text
                continue
            number = processes.setdefault((rank, event["pid"]), len(processes) + 1)
            start_us = event.get("ts", 0) + (base_ns[rank] - base_ns[0]) / 1000
            events.append(event | {"pid": number, "ts": start_us})
            if event["name"] == "process_name":
                events[-1]["args"] = {"name": f"rank {rank}: {event['args']['name']}"}
            elif event["name"] == "process_sort_index":
                events[-1]["args"] = {"sort_index": rank}
    with gzip.open(joined, "wt", encoding="utf-8", compresslevel=FAST) as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": events}, file)
    return tuple(breakdowns)
