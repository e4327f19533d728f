"""Charts of a campaign's course: the best so far, and where its node-hours went."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontrunner.drawing.chart import BLUE, ORANGE, OUTCOMES, Axis, Chart, Panel, Series, Table
from frontrunner.evaluators.insight.history import MEASURED, History, Spent, Step
from frontrunner.text import percent, thousands

TOKENS = "tokens/s"


def history_chart(history: History) -> Chart:
    """tokens/s of every probe, with the best so far, over probes and over node-hours."""
    steps, found_at = history.steps, history.best_found_at
    final = steps[-1].best_tokens_per_s
    reading = "No probe has measured a recipe yet."
    if found_at is not None and final is not None:
        at = steps[found_at - 1]
        reading = (
            f"The best recipe, {thousands(final)} tokens/s, was found by probe {found_at} of {len(steps)}, "
            f"after {at.node_hours:.3g} of {steps[-1].node_hours:.3g} node-hours."
        )
    return Chart(
        reading=reading + " The line is the best so far, repeats of a recipe pooled; failed probes stand at zero.",
        panels=(
            _panel("over probes", "probe", steps, lambda step: step.probe),
            _panel("over node-hours", "node-hours spent", steps, lambda step: step.node_hours),
        ),
        columns=2,
        table=Table(
            header=("probe", "recipe", "outcome", TOKENS, "best so far", "node-hours spent"),
            rows=tuple(_row(step) for step in steps),
        ),
    )


def _panel(title: str, label: str, steps: Sequence[Step], along: Callable[[Step], float]) -> Panel:
    best = [(along(step), step.best_tokens_per_s) for step in steps if step.best_tokens_per_s is not None]
    series = [
        Series(
            kind="step",
            x=tuple(x for x, _ in best),
            y=tuple(y for _, y in best),
            name="best so far",
            colour=ORANGE,
        )
    ]
    for outcome, (colour, symbol) in OUTCOMES.items():
        these = [step for step in steps if step.outcome == outcome]
        if these:
            series.append(
                Series(
                    kind="points",
                    x=tuple(along(step) for step in these),
                    y=tuple(step.tokens_per_s or 0.0 for step in these),
                    name=outcome,
                    colour=colour,
                    symbol=symbol,
                    hover=tuple(f"probe {step.probe}: {step.recipe_id}<br>{step.recipe.describe()}" for step in these),
                )
            )
    return Panel(title=title, x=Axis(label=label), y=Axis(label=TOKENS, from_zero=True), series=tuple(series))


def _row(step: Step) -> tuple[str, ...]:
    return (
        str(step.probe),
        step.recipe_id,
        step.outcome,
        "-" if step.tokens_per_s is None else thousands(step.tokens_per_s),
        "-" if step.best_tokens_per_s is None else thousands(step.best_tokens_per_s),
        f"{step.node_hours:.4g}",
    )


def spending_chart(spent: Sequence[Spent]) -> Chart:
    """Node-hours by outcome, failures included."""
    total = sum(row.node_hours for row in spent)
    wasted = sum(row.node_hours for row in spent if row.outcome != MEASURED)
    probes = sum(row.attempts for row in spent)
    share = percent(wasted / total) if total else "none"
    series = [
        Series(
            kind="rows",
            x=(row.node_hours,),
            y=(float(place),),
            colour=OUTCOMES.get(row.outcome, (BLUE, ""))[0],
            texts=(f"{row.node_hours:.3g} h, {row.attempts} probe{'s' if row.attempts != 1 else ''}",),
        )
        for place, row in enumerate(reversed(spent))
    ]
    return Chart(
        reading=f"{total:.3g} node-hours went to {probes} attempts; {share} of them to attempts that failed.",
        panels=(
            Panel(
                x=Axis(label="node-hours", from_zero=True),
                y=Axis(label="", categories=tuple(row.outcome for row in reversed(spent))),
                series=tuple(series),
            ),
        ),
        table=Table(
            header=("outcome", "attempts", "node-hours", "share"),
            rows=tuple((row.outcome, str(row.attempts), f"{row.node_hours:.4g}", percent(row.share)) for row in spent),
        ),
    )
