"""A campaign as a table, for pandas, CSV and Parquet. pandas is imported only when a table is
made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from frontrunner.results.outcome import Measurement, RecipeStats
from frontrunner.results.records import Campaign, Probed
from frontrunner.results.rows import finished_attempts
from frontrunner.results.schema import AttemptRow
from frontrunner.results.states import AttemptState
from frontrunner.results.store import Store
from frontrunner.results.transfer import written_whole
from frontrunner.spaces.errors import InvalidInput, bad_value, installing
from frontrunner.spaces.recipe import DIMENSIONS, Recipe

if TYPE_CHECKING:
    import pandas as pd

SHARDED = ("parameters", "gradients", "optimizer")
DERIVED = dict.fromkeys(
    sorted({"data_parallel", "global_batch_seqs", *(f"sharding_{s}" for s in SHARDED)}), "int64"
)
POOLED = {
    one.name: "Int64" if str(one.type) == "int" else "float64" for one in fields(RecipeStats)[1:]
}
COLUMN_TYPES: dict[str, str] = {
    "campaign": "string",
    "figures": "string",
    "trial_number": "int64",
    "attempt_number": "int64",
    "recipe_id": "string",
    **{one.field: one.column for one in DIMENSIONS.values()},
    **DERIVED,
    "state": "string",
    "measured_steps": "Int64",
    "ended": "string",
    "tokens_per_step": "Int64",
    **POOLED,
    "loss_first": "float64",
    "loss_last": "float64",
    "build_time_s": "float64",
    "first_step_time_s": "float64",
    "node_seconds": "float64",
    "failure_kind": "string",
    "failure_message": "string",
    "run_folder": "string",
    "started_at": "datetime64[us, UTC]",
    "finished_at": "datetime64[us, UTC]",
}
"""The table's columns and their pandas types; cells that an outcome has no value for are
missing.
"""
CUSTOM = "custom_"
"""Begins the columns of the user's own knobs, which come last; a recipe at a knob's default has
none.
"""


def frame(store: Store, campaign: Campaign | str | None) -> pd.DataFrame:
    """Return one row for each finished attempt of the campaign (None: the newest), in the order of
    their start.
    """
    import pandas as pd

    with store.read(campaign) as (connection, found):
        attempts = finished_attempts(connection, AttemptRow.campaign_id == found.id)
    rows = [_cells(found, one) for one in sorted(attempts, key=lambda one: one.attempt.id)]
    own = sorted({name for row in rows for name in row if name.startswith(CUSTOM)})
    return _typed(pd.DataFrame(rows, columns=[*COLUMN_TYPES, *own]))


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    own = table.columns[len(COLUMN_TYPES) :]
    table[own] = table[own].convert_dtypes()
    return table.astype(COLUMN_TYPES)


def row_count(store: Store, campaign: Campaign | str | None) -> int:
    """Return how many rows `frame` would have."""
    with store.read(campaign) as (connection, found):
        finished = (AttemptRow.campaign_id == found.id, AttemptRow.state != AttemptState.RUNNING)
        return int(connection.execute(select(func.count()).where(*finished)).scalar_one())


def plain_columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the table's cells by column, as JSON can hold them: None where one is missing, times
    in ISO 8601.
    """
    import pandas as pd

    def plain(value: Any) -> Any:
        if pd.isna(value):
            return None
        return value.isoformat() if isinstance(value, pd.Timestamp) else value

    return {name: [plain(value) for value in table[name].astype(object)] for name in table.columns}


def from_columns(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return the table that `plain_columns` took apart; raises `ValueError` for columns of another
    table.
    """
    import pandas as pd

    known, own = list(columns)[: len(COLUMN_TYPES)], list(columns)[len(COLUMN_TYPES) :]
    if known != list(COLUMN_TYPES) or not all(name.startswith(CUSTOM) for name in own):
        raise ValueError(f"columns {', '.join(columns)[:200]}")
    table = pd.DataFrame({name: list(values) for name, values in columns.items()})
    for name in ("started_at", "finished_at"):
        table[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
    return _typed(table)


def write_frame(table: pd.DataFrame, path: Path) -> None:
    """Write the table as .csv or .parquet, whole or not at all."""
    if path.suffix not in (".csv", ".parquet"):
        raise bad_value("dataframe.out", str(path), "a name that ends with .csv or .parquet")
    with written_whole(path) as unfinished:
        if path.suffix == ".csv":
            table.to_csv(unfinished, index=False)
            return
        try:
            table.to_parquet(unfinished, index=False, engine="pyarrow")
        except ImportError as error:
            raise InvalidInput(
                "writing .parquet needs pyarrow, which is not installed",
                hint=f"run: {installing('frontrunner[parquet]')}, or write .csv",
            ) from error


def _cells(campaign: Campaign, one: Probed) -> dict[str, Any]:
    recipe, outcome = one.trial.recipe, one.outcome
    named = {"layers_per_stage": recipe.layers_name, "sharding": recipe.sharding_name}
    named |= {f"sharding_{kind}": getattr(recipe.sharding, kind) for kind in SHARDED}
    cells = {
        "campaign": campaign.name,
        "figures": campaign.figures,
        "trial_number": one.trial.number,
        "attempt_number": one.attempt.number,
        "recipe_id": one.trial.recipe_id,
        **{
            name: getattr(recipe, name)
            for name in COLUMN_TYPES
            if hasattr(Recipe, name) or name in DIMENSIONS
        },
        **named,
        **{f"{CUSTOM}{own.name}": own.value for own in recipe.custom},
        "state": one.attempt.state.value,
        "node_seconds": outcome.node_seconds,
        "run_folder": one.attempt.run_folder,
        "started_at": one.attempt.started_at,
        "finished_at": one.attempt.finished_at,
    }
    if not isinstance(outcome, Measurement):
        return cells | {"failure_kind": outcome.kind.value, "failure_message": outcome.message}
    ends = (
        {"loss_first": outcome.losses[0], "loss_last": outcome.losses[-1]} if outcome.losses else {}
    )
    figures = {name: getattr(outcome, name) for name in COLUMN_TYPES if hasattr(outcome, name)}
    return cells | figures | ends | {"measured_steps": len(outcome.step_times_s)}
