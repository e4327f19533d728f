"""A plan on the terminal: the fastest recipes that fit, what limits each, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from frontrunner.evaluators.analytic.estimate import Estimate, Plan
from frontrunner.render import batch, console, layout, options, sharding
from frontrunner.text import gib, percent, seconds, thousands

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


def print_plan(plan: Plan, *, top: int) -> None:
    """The plan; its front follows where it holds more than the first recipe."""
    out = console()
    fitting = plan.fitting
    left_out = sum(plan.not_modelled.values())
    out.print(
        f"{plan.legal:,} legal recipes: {len(fitting):,} are estimated to fit in {gib(plan.memory_limit_bytes)} GiB "
        f"a device, {len(plan.estimates) - len(fitting):,} are not"
        + (f", {left_out:,} are not estimated" if left_out else "")
    )
    for reason, count in plan.not_modelled.items():
        out.print(f"note: {count:,} recipes are left out: the formulas do not know {reason}", style="dim")
    if fitting:
        print_estimates("estimated, fastest first", fitting[:top])
    if len(plan.front) > 1:
        print_estimates("speed against memory: what nothing else beats in both", plan.front[:top])
    if plan.estimates:
        print_trust(plan)


def print_estimates(title: str, estimates: Sequence[Estimate]) -> None:
    """A row a recipe."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("#", "recipe", "tp x pp x dp", "batch", "sharding", "options", "tokens/s", "step", "MFU", "peak GiB"):
        is_number = name in ("#", "tokens/s", "step", "MFU", "peak GiB")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name != "options")
    table.add_column("limited by", no_wrap=True)
    for number, found in enumerate(estimates, start=1):
        table.add_row(
            str(number),
            found.recipe_id,
            layout(found.recipe),
            batch(found.recipe),
            sharding(found.recipe),
            options(found.recipe),
            thousands(found.tokens_per_s),
            seconds(found.step_time_s),
            percent(found.mfu),
            gib(found.peak_memory_bytes),
            limited_by(found),
            style="bold" if number == 1 else None,
        )
    console().print(table)


def limited_by(estimate: Estimate) -> str:
    """What limits a recipe, with its share of the step."""
    share = estimate.step_parts_s.get(estimate.limit)
    word = WORDS[estimate.limit]
    return word if share is None else f"{word} {percent(share / estimate.step_time_s, 0)}"


def print_trust(plan: Plan) -> None:
    """How far to trust the figures."""
    out = console()
    out.print(
        f"estimates, not measurements: expect step times to be off by {percent(plan.expected_error, 0)} on average; "
        "`frontrunner launch` measures",
        style="dim",
    )
    if plan.assumed:
        keys = ", ".join(f"cluster.{key}" for key in plan.assumed)
        out.print(f"unknown and assumed, therefore so wide: {keys}", style="dim")
    for remark in plan.remarks:
        out.print(f"note: {remark}", style="dim")
