"""The campaign's specification: everything that a campaign file says, as validated values.

A spec is stored with its campaign as JSON, so that `resume` needs no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.protocol import EVALUATORS, ProbeSetup
from frontrunner.evaluators.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.table_settings import TableSettings
from frontrunner.results.records import IMPORTED
from frontrunner.search.objectives import TOKENS_ALONE, check_objectives
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces.errors import InvalidInput, bad_value, require_above_zero, require_at_least, require_one_of
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space, Survey


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How recipes are chosen.

    `objectives` are what is sought at once: tokens (tokens/s), and beside it memory (headroom) and nodes (few), by the
    strategies that can (`check_objectives`).
    `identical_failures` of the same kind before the first measurement pause the campaign. Where the strategy predicts
    what is left to gain, the campaign ends when the next probe's expected gain is below `stop_below_improvement`, a
    share of the best tokens/s; 0 never ends it. With `warm_start` such a strategy learns from the store's earlier
    campaigns and imported tables; with `reuse` a recipe that was measured in the same environment not long ago is
    answered from the store. `baseline` is a recipe to measure first, such as today's configuration; it need not be of
    the space.
    """

    strategy: str = "guided"
    objectives: tuple[str, ...] = TOKENS_ALONE
    seed: int = 0
    parallel_probes: int = 1
    identical_failures: int = 5
    stop_below_improvement: float = 0.003
    warm_start: bool = True
    reuse: bool = True
    baseline: Recipe | None = None

    def __post_init__(self) -> None:
        require_one_of("search", "strategy", self.strategy, STRATEGIES)
        check_objectives(self.objectives, self.strategy)
        require_at_least("search", 0, seed=self.seed)
        require_at_least("search", 1, parallel_probes=self.parallel_probes, identical_failures=self.identical_failures)
        if not 0 <= self.stop_below_improvement < 1:
            expected = "a share of at least 0 and below 1, as 0.003 for 0.3 %"
            raise bad_value("search.stop_below_improvement", self.stop_below_improvement, expected)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the campaign may spend; it ends when the first of them is used up. None is no limit.

    `probes` counts outcomes, failures and repeated measurements included; `minutes` the driver's own time, over all
    its runs.
    """

    probes: int | None = None
    minutes: float | None = None
    node_hours: float | None = None

    def __post_init__(self) -> None:
        for key in ("probes", "minutes", "node_hours"):
            value = getattr(self, key)
            if value is not None:
                require_above_zero(f"budget.{key}", value, "a number above 0, or no entry")


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    """One campaign: problem, space, strategy, budget, probe, data, table and evaluator.

    `run_root` is the folder under which the campaign has one for its probes' files; it is set at launch.
    """

    name: str
    problem: Problem
    space: Space
    search: SearchSettings = field(default_factory=SearchSettings)
    budget: Budget = field(default_factory=Budget)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    data: DataSettings = field(default_factory=DataSettings)
    table: TableSettings = field(default_factory=TableSettings)
    evaluator: str = "probe"
    run_root: str | None = None

    def __post_init__(self) -> None:
        if self.evaluator != IMPORTED:  # rows of a table, which nothing evaluates
            require_one_of("campaign", "evaluator", self.evaluator, EVALUATORS)
        parallel, backend = self.search.parallel_probes, self.problem.cluster.backend
        if self.evaluator == "table" and self.table.path is None:
            raise bad_value("table.path", None, 'the path of a CSV file, for evaluator = "table"')
        self._check_baseline()
        if parallel > 1 and backend != "cpu" and self.evaluator == "probe":
            raise bad_value("search.parallel_probes", parallel, f"1: probes would share the {backend} devices")

    def _check_baseline(self) -> None:
        """A probe is made ready for the engines and offloads of the space, and a table holds no other recipe."""
        baseline = self.search.baseline
        if baseline is None:
            return
        reason = why_illegal(baseline, self.problem)
        if reason is not None:
            raise InvalidInput(f"search.baseline: {baseline.describe()} is illegal for this problem: {reason}")
        if self.evaluator == "table":
            raise InvalidInput("search.baseline: a campaign on a table measures what the table holds alone")
        for key in ("engine", "offload"):
            value, known = getattr(baseline, key), getattr(self.space, key)
            if value not in known:
                raise bad_value(f"space.{key}", list(known), f"{value} among them, which search.baseline has")

    @property
    def run_folder(self) -> Path:
        """run_root / name; raises `InvalidInput` for a spec that was never launched."""
        if self.run_root is None:
            raise bad_value("run_root", None, "a folder for the probes' files")
        return Path(self.run_root) / self.name

    def survey(self) -> Survey:
        """The space surveyed for the problem; what is not in its table is illegal to a campaign that has one."""
        found = self.space.survey(self.problem)
        if self.evaluator != "table":
            return found
        from frontrunner.evaluators.table import rows_only  # pandas, which no other evaluator's survey needs

        return rows_only(found, self.table)

    def probe_setup(self) -> ProbeSetup:
        """What this campaign's probes and replays share."""
        return ProbeSetup(
            problem=self.problem,
            probe=self.probe,
            data=self.data,
            work_folder=self.run_folder,
            seed=self.search.seed,
            engines=self.space.engine,
            table=self.table,
        )
