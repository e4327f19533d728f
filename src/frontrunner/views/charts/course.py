"""Charts of a campaign's course: the best so far, and where its node-hours went."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontrunner.evaluators.insight.history import MEASURED, SECONDS_PER_HOUR, History, Spent, Step
from frontrunner.text import node_time, node_unit, percent, thousands
from frontrunner.views.charts.chart import BLUE, ORANGE, OUTCOMES, Axis, Chart, Panel, Series, Table

TOKENS = "tokens/s"


def history_chart(history: History) -> Chart:
    """tokens/s of every probe, with the best so far, over probes and over the time of nodes."""
    steps, found_at = history.steps, history.best_found_at
    unit, per_hour = _unit(steps[-1].node_hours)
    final = steps[-1].best_tokens_per_s
    reading = "No probe has measured a recipe yet."
    if found_at is not None and final is not None:
        at = steps[found_at - 1]
        reading = (
            f"The best recipe, {thousands(final)} tokens/s, was found by probe {found_at} of {len(steps)}, "
            f"after {thousands(per_hour * at.node_hours)} of {thousands(per_hour * steps[-1].node_hours)} {unit}."
        )
    return Chart(
        reading=reading + " The line is the best so far, repeats of a recipe pooled; failed probes stand at zero.",
        panels=(
            _panel("over probes", "probe", steps, lambda step: step.probe),
            _panel(f"over {unit}", f"{unit} spent", steps, lambda step: per_hour * step.node_hours),
        ),
        columns=2,
        table=Table(
            header=("probe", "recipe", "outcome", TOKENS, "best so far", f"{unit} spent"),
            rows=tuple(_row(step, per_hour) for step in steps),
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


def _unit(most_node_hours: float) -> tuple[str, float]:
    """The unit in which a chart tells time of nodes, up to this much, and how many of it are in an hour."""
    unit, size_s = node_unit(SECONDS_PER_HOUR * most_node_hours)
    return unit, SECONDS_PER_HOUR / size_s


def _row(step: Step, per_hour: float) -> tuple[str, ...]:
    return (
        str(step.probe),
        step.recipe_id,
        step.outcome,
        "-" if step.tokens_per_s is None else thousands(step.tokens_per_s),
        "-" if step.best_tokens_per_s is None else thousands(step.best_tokens_per_s),
        f"{per_hour * step.node_hours:.4g}",
    )


def spending_chart(spent: Sequence[Spent]) -> Chart:
    """Time of nodes by outcome, failures included."""
    total = sum(row.node_hours for row in spent)
    whole = node_time(SECONDS_PER_HOUR * total)
    unit, per_hour = _unit(total)
    wasted = sum(row.node_hours for row in spent if row.outcome != MEASURED)
    probes = sum(row.attempts for row in spent)
    share = percent(wasted / total) if total else "none"
    series = [
        Series(
            kind="rows",
            x=(per_hour * row.node_hours,),
            y=(float(place),),
            colour=OUTCOMES.get(row.outcome, (BLUE, ""))[0],
            texts=(_cost(row),),
        )
        for place, row in enumerate(reversed(spent))
    ]
    return Chart(
        reading=f"{whole} went to {probes} attempts; {share} of them to attempts that failed.",
        panels=(
            Panel(
                x=Axis(label=unit, from_zero=True),
                y=Axis(label="", categories=tuple(row.outcome for row in reversed(spent))),
                series=tuple(series),
            ),
        ),
        table=Table(
            header=("outcome", "attempts", unit, "share"),
            rows=tuple(
                (row.outcome, str(row.attempts), f"{per_hour * row.node_hours:.4g}", percent(row.share))
                for row in spent
            ),
        ),
    )


def _cost(row: Spent) -> str:
    probes = f"{row.attempts} probe{'s' if row.attempts != 1 else ''}"
    return f"{node_time(SECONDS_PER_HOUR * row.node_hours)}, {probes}"
