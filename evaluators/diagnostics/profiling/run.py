"""Running a profile: a probe whose ranks go on to trace some steps, and what the traces say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.diagnostics.profiling.breakdown import Breakdown, break_down, mean
from frontrunner.evaluators.diagnostics.profiling.events import read_events
from frontrunner.evaluators.diagnostics.profiling.joined import join_traces
from frontrunner.evaluators.diagnostics.profiling.plan import ProfilePlan
from frontrunner.evaluators.diagnostics.profiling.trace import timeline
from frontrunner.evaluators.probe.job import Corpus, profile_job
from frontrunner.evaluators.probe.training_probe import TrainingProbe
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup, Progress
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from frontrunner.spaces.recipe import Recipe

POLL_S = 1.0
ORDER = "profile"

OnProgress = Callable[[Progress], None]
"""Called every second with how far the ranks have come."""


@dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """Where the time of a recipe's steps went, by rank.

    `step_time_s_untraced` is the median of the same run's steps before the profiler was on, `measured_step_time_s`
    that of the campaign's probes, None where none measured it. `joined_trace` holds all ranks' `traces`. `host_trees`
    are pyinstrument's, by rank; empty where it is not installed. `on_cpu`: the ranks' devices are the host's
    processors, so that idle is the host's own time.
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
        """The mean over all ranks."""
        return mean(self.ranks)

    @property
    def slowest_rank(self) -> int:
        """The rank that waits least: the others' steps end together with its own because they wait for it."""
        return min(range(len(self.ranks)), key=lambda rank: self.ranks[rank].waiting_s)

    @property
    def stages(self) -> Mapping[int, Breakdown]:
        """The mean over the ranks of each place in the pipeline."""
        places: dict[int, list[Breakdown]] = {place: [] for place in range(self.recipe.pipeline_parallel)}
        for rank, found in enumerate(self.ranks):
            places[self.recipe.pipeline_rank(rank)].append(found)
        return {place: mean(ranks) for place, ranks in places.items()}

    @property
    def tracing_slowdown(self) -> float:
        """Step time under the profiler / step time without, in the same run."""
        return self.mean.step_time_s / self.step_time_s_untraced


def run(chosen: ProfilePlan, on_progress: OnProgress | None = None) -> ProfileReport:
    """Run a profile to its end.

    Raises `InvalidInput` if another profile has taken its folder, and `FrontrunnerError`, with the kind of failure
    and the log's end, if the run fails.
    """
    _take(chosen.folder)
    outcome = _outcome(chosen, on_progress)
    if isinstance(outcome, Failure):
        raise FrontrunnerError(
            f"the profile failed, {outcome.kind}: {outcome.message}\n{outcome.log_tail}".rstrip(),
            hint=f"the whole log: {outcome.log_path}",
        )
    ranks = range(chosen.recipe.devices)
    traces = tuple(chosen.folder / f"rank-{rank}.trace.json.gz" for rank in ranks)
    breakdowns = tuple(_breakdown(trace) for trace in traces)
    joined = chosen.folder / "trace.json.gz"
    join_traces(traces, joined)
    return ProfileReport(
        recipe_id=chosen.recipe_id,
        recipe=chosen.recipe,
        folder=chosen.folder,
        steps=chosen.steps,
        ranks=breakdowns,
        step_time_s_untraced=statistics.median(outcome.step_times_s),
        measured_step_time_s=chosen.measured_step_time_s,
        traces=traces,
        joined_trace=joined,
        on_cpu=chosen.setup.problem.cluster.backend == "cpu",
        host_trees=tuple(chosen.folder / f"rank-{rank}.host.txt" for rank in ranks) if chosen.samples_host else (),
    )


def _take(folder: Path) -> None:
    """Make the folder this run's own: of two that begin at once only one makes the job file."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / "job.json").touch(exist_ok=False)
    except FileExistsError:
        raise InvalidInput(f"{folder} holds a profile", hint="run it again, or choose another --folder") from None


def _outcome(chosen: ProfilePlan, on_progress: OnProgress | None) -> Measurement | Failure:
    order = ProbeOrder(token=ORDER, recipe=chosen.recipe, run_folder=chosen.folder)

    def job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus) -> dict[str, object]:
        return profile_job(setup, recipe, run_folder, tokens, steps=chosen.steps, samples_host=chosen.samples_host)

    probe = TrainingProbe(chosen.setup, make_job=job)
    try:
        probe.start(order)
        while True:
            for finished in probe.finished(POLL_S):
                return finished.outcome
            progress = probe.progress(ORDER)
            if on_progress is not None and progress is not None:
                on_progress(progress)
    finally:
        probe.close()


def _breakdown(trace: Path) -> Breakdown:
    try:
        return break_down(timeline(read_events(trace)))
    except (OSError, ValueError, KeyError) as error:
        raise FrontrunnerError(f"{trace} cannot be read as a trace: {error}") from error
