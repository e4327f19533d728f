"""The campaign's specification: everything that a campaign file says, as validated values.

A spec is stored with its campaign as JSON, so that `resume` needs no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from frontrunner.evaluators.cluster.settings import SPARE_WALLTIME_S, DispatchSettings
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.registry import COMMAND, EVALUATORS, commands_of, require_evaluator_name
from frontrunner.evaluators.tables.table_settings import TableSettings
from frontrunner.results.records import IMPORTED
from frontrunner.search.strategy import STRATEGIES, TOKENS_ALONE, check_objectives
from frontrunner.spaces.errors import InvalidInput, bad_value, require_above_zero, require_at_least, require_one_of
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space, Survey

PREDICTING = "guided"
"""The strategy that says what it expects of recipes that nobody tried (`frontrunner.search.strategy.Predictor`)."""


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
    With `probe_nodes` the campaign is a pair: one whose probes take so many nodes, and this one, of the whole cluster,
    whose recipes are predicted from the first and confirmed by at most `confirm_probes` probes (`small_scale.py`).
    """

    strategy: str = "guided"
    objectives: tuple[str, ...] = TOKENS_ALONE
    seed: int = 0
    parallel_probes: int = 1
    identical_failures: int = 5
    stop_below_improvement: float = 0.003
    warm_start: bool = True
    reuse: bool = True
    probe_nodes: int | None = None
    confirm_probes: int = 3
    baseline: Recipe | None = None

    def __post_init__(self) -> None:
        require_one_of("search", "strategy", self.strategy, STRATEGIES)
        check_objectives(self.objectives, self.strategy)
        require_at_least("search", 0, seed=self.seed)
        require_at_least("search", 1, parallel_probes=self.parallel_probes, identical_failures=self.identical_failures)
        if not 0 <= self.stop_below_improvement < 1:
            expected = "a share of at least 0 and below 1, as 0.003 for 0.3 %"
            raise bad_value("search.stop_below_improvement", self.stop_below_improvement, expected)
        self._check_scales()

    def _check_scales(self) -> None:
        """Only a strategy that predicts can say at one scale what another will do, and of tokens/s alone."""
        require_at_least("search", 0, confirm_probes=self.confirm_probes)
        if self.probe_nodes is None:
            return
        require_at_least("search", 1, probe_nodes=self.probe_nodes)
        if self.strategy != PREDICTING:
            hint = "search.probe_nodes needs a strategy that predicts"
            raise bad_value("search.strategy", self.strategy, f"{PREDICTING!r} with search.probe_nodes", hint=hint)
        if self.objectives != TOKENS_ALONE:
            raise bad_value("search.objectives", list(self.objectives), '["tokens"] with search.probe_nodes')


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the campaign may spend; it ends when the first of them is used up. None is no limit.

    `probes` counts outcomes, failures and repeated measurements included; `minutes` the driver's own time, over all
    its runs. What runs when it is used up runs to its end, unless it is `hard`: then probes are ended early enough for
    no limit to be passed.
    """

    probes: int | None = None
    minutes: float | None = None
    node_hours: float | None = None
    hard: bool = False

    def __post_init__(self) -> None:
        for key in ("probes", "minutes", "node_hours"):
            value = getattr(self, key)
            if value is not None:
                require_above_zero(f"budget.{key}", value, "a number above 0, or no entry")
        if self.hard and self.minutes is None and self.node_hours is None:
            raise bad_value("budget.hard", self.hard, "budget.minutes or budget.node_hours beside it")


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    """One campaign: problem, space, strategy, budget, probe, data, dispatch, table, command and evaluator.

    `run_root` is the folder under which the campaign has one for its probes' files; it is set at launch. So is
    `confirms`: the campaign on fewer nodes whose predictions this one confirms.
    """

    name: str
    problem: Problem
    space: Space
    search: SearchSettings = field(default_factory=SearchSettings)
    budget: Budget = field(default_factory=Budget)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    data: DataSettings = field(default_factory=DataSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    table: TableSettings = field(default_factory=TableSettings)
    command: CommandSettings = field(default_factory=CommandSettings)
    evaluator: str = "probe"
    run_root: str | None = None
    confirms: str | None = None

    def __post_init__(self) -> None:
        fewer, nodes = self.search.probe_nodes, self.problem.cluster.nodes
        if fewer is not None and fewer >= nodes:
            expected = f"fewer than cluster.nodes = {nodes}, or no entry to probe on all of them"
            raise bad_value("search.probe_nodes", fewer, expected)
        if self.evaluator != IMPORTED:  # rows of a table, which nothing evaluates
            require_evaluator_name(self.evaluator)
        parallel, backend = self.search.parallel_probes, self.problem.cluster.backend
        if self.evaluator == "table" and self.table.path is None:
            raise bad_value("table.path", None, 'the path of a CSV file, for evaluator = "table"')
        if self.evaluator == "command" and not self.command.arguments:
            raise bad_value("command.arguments", None, 'a list of arguments, for evaluator = "command"')
        self._check_baseline()
        on_this_machine = self.dispatch.backend in (None, "local") and self.problem.cluster.nodes == 1
        if parallel > 1 and backend != "cpu" and self.evaluator == "probe" and on_this_machine:
            raise bad_value("search.parallel_probes", parallel, f"1: probes would share the {backend} devices")
        self._check_dispatch()

    def _check_dispatch(self) -> None:
        held, fewer = self.dispatch.nodes_per_allocation, self.search.probe_nodes
        key, needed = ("cluster.nodes", self.problem.cluster.nodes) if fewer is None else ("search.probe_nodes", fewer)
        if held is not None and held < needed:
            raise bad_value("dispatch.nodes_per_allocation", held, f"at least {key} = {needed}")
        least_s = self.probe.deadline_s + SPARE_WALLTIME_S
        if self.dispatch.backend == "parsl" and self.dispatch.walltime_s < least_s:
            expected = f"at least probe.deadline_s + {SPARE_WALLTIME_S:g} s = {least_s:g} s"
            raise bad_value("dispatch.walltime", self.dispatch.walltime, expected)
        if self.dispatch.backend not in (None, "local") and self.evaluator != "probe":
            raise bad_value("dispatch.backend", self.dispatch.backend, 'local, or evaluator = "probe"')

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

    @property
    def trainer(self) -> tuple[str, ...]:
        """Whose code trains: a plug-in by its name, or a command; nothing for frontrunner's own trainer."""
        if self.evaluator == IMPORTED or EVALUATORS.get(self.evaluator, COMMAND) != COMMAND:
            return ()
        return self.evaluator, *self.command.arguments

    def survey(self) -> Survey:
        """The space surveyed for the problem.

        What is not in its table is illegal to a campaign that has one, and what another trainer cannot be told to a
        campaign that runs it.
        """
        found = self.space.survey(self.problem)
        make = commands_of(self.evaluator, self.command)
        if make is not None:
            from frontrunner.evaluators.external.config_check import expressible

            return expressible(found, self._setup_before_launch, make)
        if self.evaluator != "table":
            return found
        from frontrunner.evaluators.tables.lookup import rows_only

        return rows_only(found, self.table)

    def check_commands(self, recipe: Recipe) -> None:
        """Raise `InvalidInput` where the campaign runs another trainer whose program is not here."""
        make = commands_of(self.evaluator, self.command)
        if make is not None:
            from frontrunner.evaluators.external.config_check import check_program

            check_program(self._setup_before_launch, make, recipe)

    @property
    def _setup_before_launch(self) -> ProbeSetup:
        """What the probes share, without a folder for their files, which the launch gives."""
        return replace(self, run_root="").probe_setup()

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
            dispatch=self.dispatch,
            command=self.command,
        )
