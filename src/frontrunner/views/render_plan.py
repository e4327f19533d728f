"""A plan on the terminal: the fastest recipes that fit, what limits each, and how far to trust it; and scaling."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from frontrunner.evaluators.analytic.accuracy_bounds import Trust
from frontrunner.evaluators.analytic.estimates import Estimate, Plan
from frontrunner.evaluators.analytic.scaling import Bound, Scaling, ScalingRow
from frontrunner.spaces.problem import GlobalBatch
from frontrunner.text import gib, percent, seconds, thousands
from frontrunner.views.columns import Column, fitted_table
from frontrunner.views.render import batch, console, layout, options, sharding

WORDS = {
    "compute": "compute",
    "recompute": "recompute",
    "tensor_parallel": "TP traffic",
    "context_parallel": "CP traffic",
    "pipeline_transfer": "PP transfer",
    "bubble": "bubble",
    "data_parallel": "DP traffic",
    "host_transfer": "host transfer",
    "optimizer": "optimizer",
    "memory": "memory",
}
"""The parts of a step, and what else limits a recipe, as people call them."""


def print_plan(plan: Plan, *, top: int, file: str) -> None:
    """The plan; its front follows where it holds more than the first recipe, and the command that looks closer."""
    out = console()
    fitting = plan.table.fitting
    left_out = sum(plan.not_modelled.values())
    out.print(
        f"{plan.legal:,} legal recipes: {fitting:,} are estimated to fit in {gib(plan.memory_limit_bytes)} GiB "
        "a device" + (f", {left_out:,} are not estimated" if left_out else "")
    )
    for reason, count in plan.not_modelled.items():
        out.print(f"note: {count:,} recipes are left out: the formulas do not know {reason}", style="dim")
    if fitting:
        print_estimates("estimated, fastest first", plan.fastest(top))
    if len(plan.front) > 1:
        print_estimates("speed against memory: what nothing else beats in both", plan.front[:top])
    if len(plan.table):
        out.print()
        print_trust(plan.trust)
    for best in plan.fastest(1):
        closer = f"frontrunner explain --campaign {shlex.quote(file)} {best.recipe_id}"
        out.print(f"{closer}  # what the first one's step and memory go to", style="dim", markup=False, soft_wrap=True)


def limited_by(estimate: Estimate) -> str:
    """What limits a recipe, with its share of the step."""
    share = estimate.step_parts_s.get(estimate.limit)
    word = WORDS[estimate.limit]
    return word if share is None else f"{word} {percent(share / estimate.step_time_s, 0)}"


_Numbered = tuple[int, Estimate]
_ESTIMATE_COLUMNS: tuple[Column[_Numbered], ...] = (
    Column("#", lambda row: str(row[0]), drop=4),
    Column("recipe", lambda row: row[1].recipe_id, is_number=False),
    Column("tp x pp x dp", lambda row: layout(row[1].recipe), is_number=False),
    Column("batch", lambda row: batch(row[1].recipe), is_number=False),
    Column("sharding", lambda row: sharding(row[1].recipe), is_number=False),
    Column("options", lambda row: options(row[1].recipe), is_number=False, least=12, drop=1),
    Column("tokens/s", lambda row: thousands(row[1].tokens_per_s)),
    Column("step", lambda row: seconds(row[1].step_time_s), drop=3),
    Column("MFU", lambda row: percent(row[1].mfu), drop=5),
    Column("peak GiB", lambda row: gib(row[1].peak_memory_bytes)),
    Column("limited by", lambda row: limited_by(row[1]), is_number=False, drop=2),
)


def print_estimates(title: str, estimates: Sequence[Estimate]) -> None:
    """A row a recipe."""
    out = console()
    rows = list(enumerate(estimates, start=1))
    out.print()
    out.print(fitted_table(title, _ESTIMATE_COLUMNS, rows, width=out.width, bold=lambda row: row[0] == 1))


def _of_best(cell: Callable[[Estimate], str]) -> Callable[[ScalingRow], str]:
    return lambda row: "-" if row.best is None else cell(row.best)


def _batch(row: ScalingRow) -> str:
    """The best recipe's own, where the problem leaves a range."""
    if row.best is not None:
        return f"{row.best.recipe.global_batch_seqs:,}"
    return "-" if row.global_batch is None else _batches(row.global_batch)


def _batches(batch: GlobalBatch) -> str:
    return f"{batch.minimum:,}" if batch.minimum == batch.maximum else str(batch)


_SCALING_COLUMNS: tuple[Column[ScalingRow], ...] = (
    Column("nodes", lambda row: f"{row.nodes:,}"),
    Column("devices", lambda row: f"{row.devices:,}", drop=6),
    Column("global batch", _batch, drop=5),
    Column("best recipe", _of_best(lambda best: best.recipe_id), is_number=False, drop=1),
    Column("tp x pp x dp", _of_best(lambda best: layout(best.recipe)), is_number=False),
    Column("batch", _of_best(lambda best: batch(best.recipe)), is_number=False, drop=7),
    Column("sharding", _of_best(lambda best: sharding(best.recipe)), is_number=False, drop=8),
    Column("step", _of_best(lambda best: seconds(best.step_time_s)), drop=4),
    Column("tokens/s", _of_best(lambda best: thousands(best.tokens_per_s))),
    Column("tok/s/device", lambda row: _rate(row.tokens_per_s_per_device), drop=3),
    Column("MFU", _of_best(lambda best: percent(best.mfu)), drop=3),
    Column("efficiency", lambda row: percent(row.efficiency)),
    Column("peak GiB", _of_best(lambda best: gib(best.peak_memory_bytes)), drop=2),
    Column("node-h / 1e9 tok", lambda row: _digits(row.node_hours_per_billion_tokens)),
    Column("limited by", _of_best(limited_by), is_number=False, drop=9),
)


def print_scaling(found: Scaling) -> None:
    """Both tables, the reasons of their gaps, and what may bound them."""
    out = console()
    _print_table("strong scaling: the same global batch on all", found.strong)
    _print_table("weak scaling: the global batch grows with the nodes", found.weak)
    out.print("\nefficiency: tokens/s a device against the smallest count's that has a recipe", style="dim")
    for bound in found.bounds:
        out.print(f"note: {_bounded(bound)}", style="dim")
    if found.devices_ignored:
        out.print("note: space.devices is left aside: each count uses all its devices", style="dim")
    print_trust(found.trust)


def _print_table(title: str, rows: Sequence[ScalingRow]) -> None:
    out = console()
    out.print()
    out.print(fitted_table(title, _SCALING_COLUMNS, rows, width=out.width, bold=lambda _: False))
    for row in rows:
        if row.reason is not None:
            out.print(f"{row.nodes:,} node{'s' if row.nodes > 1 else ''}: {row.reason}", markup=False)


def _rate(value: float | None) -> str:
    return "-" if value is None else thousands(value)


def _digits(value: float | None) -> str:
    """Three digits throughout, so that a column reads as one."""
    return f"{value:#.3g}" if value is not None and 0.01 <= value < 100 else _rate(value)


def _bounded(bound: Bound) -> str:
    *most, last = (f"{count:,}" for count in bound.nodes)
    nodes = f"{', '.join(most)} and {last} nodes" if most else f"{last} nodes"
    return (
        f"space.{bound.dimension} goes up to {bound.largest}, which is best on {nodes}: a longer list may hold "
        "something faster"
    )


def print_trust(trust: Trust) -> None:
    """How far to trust the figures."""
    out = console()
    out.print(
        f"estimates, not measurements: expect step times to be off by {percent(trust.expected_error, 0)} on average; "
        "`frontrunner launch` measures",
        style="dim",
    )
    if trust.assumed:
        keys = ", ".join(f"cluster.{key}" for key in trust.assumed)
        out.print(f"unknown, and a common value assumed: {keys}", style="dim")
    for remark in trust.remarks:
        out.print(f"note: {remark}", style="dim")
