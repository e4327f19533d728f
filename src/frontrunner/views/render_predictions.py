"""What was predicted from fewer nodes, as a table of its own: it is never among the measurements."""

from __future__ import annotations

from frontrunner.results.predictions import Predicted, SmallScale
from frontrunner.text import percent, plain, thousands
from frontrunner.views.columns import Column, fitted_table
from frontrunner.views.render import ORIGINS, batch, console, layout, options, sharding


def interval(predicted: Predicted) -> str:
    """The ends of the 95 % interval: `50,000-80,000`."""
    return f"{thousands(predicted.low)}-{thousands(predicted.high)}"


def _measured(row: Predicted) -> str:
    if row.confirmed is not None:
        return thousands(row.confirmed.tokens_per_s)
    return "failed" if row.failed else "-"


COLUMNS: tuple[Column[Predicted], ...] = (
    Column("recipe", lambda row: row.recipe_id, is_number=False),
    Column("predicted", lambda row: thousands(row.tokens_per_s)),
    Column("95 %", interval),
    Column("runs", lambda row: percent(row.chance, 0), drop=3),
    Column("measured", _measured),
    Column("off by", lambda row: "-" if row.error is None else f"{100 * row.error:+.1f} %", drop=2),
    Column("tp x pp x dp", lambda row: layout(row.recipe), drop=1, is_number=False),
    Column("batch", lambda row: batch(row.recipe), drop=4, is_number=False),
    Column("sharding", lambda row: sharding(row.recipe), drop=5, is_number=False),
    Column("options", lambda row: options(row.recipe), drop=6, is_number=False),
)


def print_predictions(scale: SmallScale) -> None:
    """The predicted ranking with what was confirmed of it; nothing where nothing is predicted yet."""
    if not scale.predicted:
        return
    out = console()
    title = f"{scale.campaign}: predicted tokens/s on {scale.nodes} nodes"
    title += f" ({ORIGINS[scale.figures]})" if scale.figures in ORIGINS else ""
    out.print(
        fitted_table(title, COLUMNS, scale.predicted, width=out.width, bold=lambda row: row is scale.predicted[0])
    )
    for line in scale_lines(scale):
        out.print(line, markup=False, soft_wrap=True)


def print_prediction(scale: SmallScale) -> None:
    """What a campaign predicts of one recipe, in two lines."""
    (one,) = scale.predicted
    came = f"measured {thousands(one.confirmed.tokens_per_s)} there" if one.confirmed else "not measured there"
    lines = (
        f"predicted  {thousands(one.tokens_per_s)} tokens/s on {scale.nodes} nodes (95 %: {interval(one)}), "
        f"{percent(one.chance, 0)} to run: {'failed there' if one.failed else came}; campaign {scale.campaign}",
        f"           {one.recipe_id}  {one.recipe.describe()}, from campaign {plain(scale.small)}: {scale.scale}",
    )
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def scale_lines(scale: SmallScale) -> tuple[str, ...]:
    """What is measured small, what is predicted large with its error, and what is confirmed: a line each."""
    small = f"measured   {scale.small_measured} recipes on fewer nodes: campaign {plain(scale.small)}, {scale.scale}"
    if not scale.predicted:
        return small, f"predicted  nothing yet for {scale.nodes} nodes"
    best = scale.predicted[0]
    predicted = (
        f"predicted  best on {scale.nodes} nodes: {best.recipe_id}  {thousands(best.tokens_per_s)} tokens/s "
        f"(95 %: {interval(best)})"
    )
    if scale.mean_error is None:
        return small, predicted, f"confirmed  none of {len(scale.predicted)} predictions"
    return (
        small,
        predicted,
        f"confirmed  {len(scale.confirmed)} of {len(scale.predicted)} predictions, off by "
        f"{percent(scale.mean_error)} on average",
    )
