"""The campaign's specification: the content of a campaign file as validated values.

It is stored with its campaign as JSON, so that `resume` needs no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.settings import SPARE_WALLTIME_S, DispatchSettings
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.registry import (
    EvaluatorKind,
    code_of,
    commands_of,
    kind_of,
    require_evaluator_name,
)
from frontrunner.evaluators.runs.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.tables import TableSettings
from frontrunner.search.strategy import SHORT_NAMES, STRATEGIES, TOKENS_ALONE, check_objectives
from frontrunner.spaces.custom import AT_IMPORT
from frontrunner.spaces.errors import (
    InvalidInput,
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space, Survey
from frontrunner.spaces.validation import LARGEST_NUMBER
from frontrunner.spaces.variants import AROUND

SURROGATES = {"extra-trees": "ET", "random-forest": "RF", "gaussian-process": "GP"}
"""Models of DeepHyper with its own names for them; those that work with the installed
scikit-learn.
"""
ACQUISITIONS = ("UCB", "UCBd", "EI", "EId", "PI", "PId")
FAILURES = ("min", "mean", "ignore")


@dataclass(frozen=True, kw_only=True)
class DeepHyperSettings:
    """Settings of `search.strategy = "deephyper"`."""

    surrogate: str = "extra-trees"
    """The model of tokens/s: `extra-trees`, `random-forest` or `gaussian-process`."""
    acquisition: str = "UCBd"
    """How a recipe is chosen: upper confidence bounds (`UCB`), expected improvement (`EI`) or the
    probability of one (`PI`). `UCBd`, `EId` and `PId` leave noise out of the uncertainty, which
    only forests can.
    """
    kappa: float = 1.96
    """Of `UCB`: standard deviations above the expectation; more explores more."""
    xi: float = 0.1
    """Of `EI` and `PI`: the improvement that counts, in units of DeepHyper's scaled objective; more
    explores more.
    """
    initial_measurements: int = 8
    """Random measurements before the model chooses."""
    failures: str = "min"
    """What a failed recipe counts as: the slowest one (`min`), an average one (`mean`), or nothing
    (`ignore`).
    """

    def __post_init__(self) -> None:
        owner = "search.deephyper"
        require_one_of(owner, "surrogate", self.surrogate, tuple(SURROGATES))
        require_one_of(owner, "acquisition", self.acquisition, ACQUISITIONS)
        require_one_of(owner, "failures", self.failures, FAILURES)
        if self.surrogate == "gaussian-process" and self.acquisition.endswith("d"):
            expected = f"{self.acquisition[:-1]} with surrogate = {self.surrogate!r}"
            raise bad_value(f"{owner}.acquisition", self.acquisition, expected)
        require_at_least(owner, 1, initial_measurements=self.initial_measurements)
        require_at_least(owner, 0, kappa=self.kappa, xi=self.xi)


MOST_MEASUREMENTS = 5


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How recipes are chosen."""

    strategy: str = "guided"
    """See [strategies](strategies.md)."""
    objectives: tuple[str, ...] = TOKENS_ALONE
    """`tokens` (tokens/s), alone or with `memory` (headroom of the fullest rank) and `nodes` (few;
    give `space.devices` a list): see [several objectives](strategies.md#several-objectives). Or
    alone, so that more nodes do not always win: `tokens_per_device`, or `tokens_per_cost` by
    `cluster.price_per_node_hour`.
    """
    seed: int = 0
    """Same seed, same campaign: proposals, initial weights and data."""
    parallel_probes: int = 1
    """Probes at a time, on [several nodes](clusters.md). On one machine they share its cores, so
    more than 1 only ranks memory; its accelerators take 1.
    """
    identical_failures: int = 5
    """Failures of one kind, before anything was measured, that pause the campaign; see
    [failures](failures.md#when-everything-fails)."""
    stop_below_improvement: float = 0.003
    """End when the next probe is expected to gain less than this share of the best tokens/s (of the
    front's worth), twice in a row and after three measured recipes; 0 never does. For [strategies
    that predict](strategies.md#strategies-that-predict).
    """
    warm_start: bool = True
    """Whether a strategy that predicts learns from the store's earlier campaigns: see [warm
    starts](warm-starts.md).
    """
    repeats: int = 1
    """How often each recipe that can be measured is, at most 5 times."""
    reuse: bool = True
    """Whether a result of the same environment and the last 7 days, without noise, is taken instead
    of a probe.
    """
    prune_infeasible: bool = True
    """Whether recipes that surely do not fit, by the memory formulas, are never probed: see
    [what does not fit](strategies.md#what-does-not-fit). Not for `guided`, `exhaustive`,
    `sweep` and `scale`, nor tables."""
    deephyper: DeepHyperSettings = field(default_factory=DeepHyperSettings)
    """Settings of `strategy = "deephyper"`, [below](#searchdeephyper)."""
    baseline: Recipe | None = None
    """Path of a recipe file (`frontrunner import-config --out`): measured first and compared with
    the best. The space needs its `engine` and `offload` only. The strategies `sweep` and `scale`
    measure what is around it.
    """

    def __post_init__(self) -> None:
        # A frozen dataclass is changed here alone: one strategy has one name everywhere.
        object.__setattr__(self, "strategy", SHORT_NAMES.get(self.strategy, self.strategy))
        require_one_of("search", "strategy", self.strategy, STRATEGIES)
        check_objectives(self.objectives, self.strategy)
        require_at_least("search", 0, seed=self.seed)
        require_at_least(
            "search",
            1,
            parallel_probes=self.parallel_probes,
            identical_failures=self.identical_failures,
        )
        if not 1 <= self.repeats <= MOST_MEASUREMENTS:
            raise bad_value(
                "search.repeats",
                self.repeats,
                f"1 to {MOST_MEASUREMENTS} measurements of each recipe",
            )
        if not 0 <= self.stop_below_improvement < 1:
            expected = "a share of at least 0 and below 1, as 0.003 for 0.3 %"
            raise bad_value("search.stop_below_improvement", self.stop_below_improvement, expected)
        if self.strategy in AROUND and self.baseline is None:
            raise bad_value(
                "search.baseline", None, f'a recipe file, for search.strategy = "{self.strategy}"'
            )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the campaign may spend: it ends at the first limit, after the probes that run unless it
    is `hard`.
    """

    probes: int | None = None
    """Outcomes, failures and repeated measurements included; by default no limit."""
    minutes: float | None = None
    """The driver's own time over all its runs, except while all of its probes wait for nodes that
    it has requested; by default no limit.
    """
    node_hours: float | None = None
    """Nodes times hours of probes, failures included; by default no limit."""
    cost: float | None = None
    """Price of the probes' node-hours, by `cluster.price_per_node_hour`; by default no limit."""
    hard: bool = False
    """End running probes 15 s before `minutes`, `node_hours` or `cost` would be passed, and start
    none after that. What is cut off is no failure of its recipe.
    """

    def __post_init__(self) -> None:
        for key in ("probes", "minutes", "node_hours", "cost"):
            given = getattr(self, key)
            require_above_zero(
                f"budget.{key}", given, "a number above 0, or no entry", most=LARGEST_NUMBER
            )
        if self.hard and self.minutes is None and self.node_hours is None and self.cost is None:
            raise bad_value(
                "budget.hard",
                self.hard,
                "budget.minutes, budget.node_hours or budget.cost beside it",
            )


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    """One campaign. Set at launch: `run_root`, the parent of its folder for probes' files, `file`,
    the path that it was read from, `changes`, values by key that the file has and that `--set`
    put in their place. Where `problem.software` names no code it is that of the evaluator.
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
    file: str | None = None
    changes: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        search, dispatch, nodes = self.search, self.dispatch, self.problem.cluster.nodes
        parallel, backend = search.parallel_probes, self.problem.cluster.backend
        if self.problem.cluster.price_per_node_hour is None:
            expected = "cluster.price_per_node_hour beside it"
            if self.budget.cost is not None:
                raise bad_value("budget.cost", self.budget.cost, expected)
            if "tokens_per_cost" in search.objectives:
                raise bad_value("search.objectives", list(search.objectives), expected)
        require_evaluator_name(self.evaluator)
        if (
            code := self.problem.software.code or code_of(self.evaluator, self.command)
        ) is not None:
            software = replace(self.problem.software, code=code)
            object.__setattr__(self, "problem", replace(self.problem, software=software))
        kind = self.evaluator_kind
        trainer = self.command.trainer if kind.has_section else None
        if self.problem.trainer != trainer:
            object.__setattr__(self, "problem", replace(self.problem, trainer=trainer))
        if kind.looks_up and self.table.path is None:
            raise bad_value("table.path", None, 'the path of a CSV file, for evaluator = "table"')
        if kind.has_section and not self.command.arguments:
            raise bad_value(
                "command.arguments", None, 'a list of arguments, for evaluator = "command"'
            )
        self._check_baseline()
        self._check_custom()
        is_here = nodes == 1 and not dispatch.has_nodes
        if parallel > 1 and backend != "cpu" and kind.trains and is_here:
            raise bad_value(
                "search.parallel_probes", parallel, f"1: probes would share the {backend} devices"
            )
        self._check_dispatch()

    def _check_dispatch(self) -> None:
        dispatch, nodes = self.dispatch, self.problem.cluster.nodes
        least_s = self.probe.deadline_s + SPARE_WALLTIME_S
        held = dispatch.nodes_per_allocation
        if held is not None and held < nodes:
            expected = f"at least cluster.nodes = {nodes}"
            raise bad_value("dispatch.nodes_per_allocation", held, expected)
        if dispatch.reads("walltime") and dispatch.walltime_s < least_s:
            expected = f"at least probe.deadline_s + {SPARE_WALLTIME_S:g} s = {least_s:g} s"
            raise bad_value("dispatch.walltime", dispatch.walltime, expected)
        if dispatch.has_nodes and not self.evaluator_kind.uses_nodes:
            expected = (
                'no section [dispatch] (--set dispatch={}), or evaluator = "probe" or "command"'
            )
            raise bad_value("dispatch.backend", dispatch.backend, expected)
        if not dispatch.shares_files and self.evaluator_kind.runs_commands:
            expected = "true with commands of other trainers, whose arguments name files"
            raise bad_value("dispatch.shared_files", dispatch.shared_files, expected)
        if not dispatch.has_nodes and nodes > 1 and self.command.start_per == "rank":
            expected = (
                'node, or dispatch.backend = "allocation", "parsl" or "ray" to start ranks on'
                " several nodes"
            )
            raise bad_value("command.start_per", "rank", expected)

    def _check_custom(self) -> None:
        """Knobs of the user's own are given in a way that the evaluator's trainer can be given
        them.
        """
        for name, knob in self.space.custom.items():
            owner = f"space.custom.{name}"
            if self.evaluator_kind.trains and knob.flag is not None:
                hint = 'evaluator = "command" runs a trainer that takes arguments'
                raise bad_value(
                    f"{owner}.flag",
                    knob.flag,
                    "env: the built-in trainer takes no arguments",
                    hint=hint,
                )
            if self.evaluator_kind.trains and AT_IMPORT.fullmatch(knob.env or ""):
                expected = (
                    "a variable that is read later: ranks are forked from a process that has"
                    " imported torch"
                )
                raise bad_value(f"{owner}.env", knob.env, expected)
            if knob.env in self.command.environment:
                raise bad_value(
                    f"{owner}.env", knob.env, "a variable that command.environment does not set"
                )

    def _check_baseline(self) -> None:
        """Probes are prepared for the engines and offloads of the space, and a table holds no other
        recipe.
        """
        baseline = self.search.baseline
        if baseline is None:
            return
        reason = why_illegal(baseline, self.problem)
        if reason is not None:
            raise InvalidInput(
                f"search.baseline: {baseline.describe()} is illegal for this problem: {reason}"
            )
        if self.evaluator_kind.looks_up:
            raise InvalidInput(
                "search.baseline: a campaign on a table measures what the table holds alone"
            )
        for key in ("engine", "offload"):
            value, known = getattr(baseline, key), getattr(self.space, key)
            if value not in known:
                raise bad_value(
                    f"space.{key}", list(known), f"{value} among them, which search.baseline has"
                )

    @property
    def run_folder(self) -> Path:
        """run_root / name; raises `InvalidInput` for a spec that was never launched."""
        if self.run_root is None:
            raise bad_value("run_root", None, "a folder for the probes' files")
        return Path(self.run_root) / self.name

    @property
    def evaluator_kind(self) -> EvaluatorKind:
        """Return what the evaluator does and accepts."""
        return kind_of(self.evaluator)

    @property
    def trainer(self) -> tuple[str, ...]:
        """The trainer's plug-in name or command; empty for frontrunner's own trainer."""
        if not self.evaluator_kind.runs_commands:
            return ()
        return self.evaluator, *self.command.arguments

    def survey(self) -> Survey:
        """Survey the space; recipes that a table lacks, or another trainer cannot express, are
        illegal.
        """
        found = self.space_survey()
        if (make := commands_of(self.evaluator, self.command)) is not None:
            from frontrunner.evaluators.programs.command import expressible

            return expressible(found, replace(self, run_root="").probe_setup(), make)
        if not self.evaluator_kind.looks_up:
            return found
        from frontrunner.evaluators.tables.lookup import rows_only

        return rows_only(found, self.table)

    def space_survey(self) -> Survey:
        """Survey the space, or what the strategy measures of it around the baseline, whoever runs
        the recipes.
        """
        if self.search.baseline is None or self.search.strategy not in AROUND:
            return self.space.survey(self.problem)
        return AROUND[self.search.strategy](self.space, self.search.baseline, self.problem)

    def check_commands(self, recipe: Recipe) -> None:
        """Raise `InvalidInput` where the campaign runs another trainer whose program is missing."""
        if (make := commands_of(self.evaluator, self.command)) is not None:
            from frontrunner.evaluators.programs.command import check_program

            check_program(replace(self, run_root="").probe_setup(), make, recipe)

    def probe_setup(self) -> ProbeSetup:
        """Return what this campaign's probes and replays share."""
        shared = ("problem", "probe", "data", "table", "dispatch", "command")
        return ProbeSetup(
            work_folder=self.run_folder,
            seed=self.search.seed,
            engines=self.space.engine,
            **{key: getattr(self, key) for key in shared},
        )
