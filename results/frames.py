"""A campaign as a table, for pandas, CSV and Parquet. pandas is imported only when a table is made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from frontrunner.results.outcome import Measurement, Outcome, RecipeStats
from frontrunner.results.ranking import resolve
from frontrunner.results.records import Campaign
from frontrunner.results.schema import AttemptRow
from frontrunner.results.states import AttemptState
from frontrunner.results.store import Store
from frontrunner.results.trial_history import Probed, finished_attempts
from frontrunner.spaces.errors import InvalidInput, NotFound, bad_value, writing
from frontrunner.spaces.recipe import DIMENSIONS, Recipe

if TYPE_CHECKING:
    import pandas as pd


def _recipe_columns() -> dict[str, str]:
    """Return the columns of a recipe: one per dimension, with what follows from degrees and sharding."""
    columns = {one.field: one.column for one in DIMENSIONS.values()}
    degrees = ("parameters", "gradients", "optimizer")
    derived = {"data_parallel", "global_batch_seqs", *(f"sharding_{kind}" for kind in degrees)}
    return columns | dict.fromkeys(sorted(derived), "int64")


def _figure_columns() -> dict[str, str]:
    """Return the columns of a measurement's figures: those that a recipe's measurements are pooled to."""
    types = {one.name: str(one.type) for one in fields(RecipeStats) if one.name != "repeats"}
    return {name: "Int64" if kind == "int" else "float64" for name, kind in types.items()}


COLUMN_TYPES: dict[str, str] = {
    "campaign": "string",
    "figures": "string",
    "trial_number": "int64",
    "attempt_number": "int64",
    "recipe_id": "string",
    **_recipe_columns(),
    "state": "string",
    "measured_steps": "Int64",
    "ended": "string",
    "tokens_per_step": "Int64",
    **_figure_columns(),
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
"""The table's columns and their pandas types; cells that an outcome has no value for are missing."""


def frame(store: Store, campaign: Campaign | str | None) -> pd.DataFrame:
    """One row for each finished attempt of the campaign (None: the newest), in the order of their start."""
    import pandas as pd

    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        rows = [_cells(found, one) for one in finished_attempts(connection, found)]
    return pd.DataFrame(rows, columns=list(COLUMN_TYPES)).astype(COLUMN_TYPES)


def row_count(store: Store, campaign: Campaign | str | None) -> int:
    """How many rows `frame` would have."""
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        finished = (AttemptRow.campaign_id == found.id, AttemptRow.state != AttemptState.RUNNING)
        return int(connection.execute(select(func.count()).where(*finished)).scalar_one())


def plain_columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """The table's cells by column, as JSON can hold them: None where a cell is missing, times in ISO 8601."""
    return {name: [_plain_cell(value) for value in table[name].astype(object)] for name in table.columns}


def _plain_cell(value: Any) -> Any:
    import pandas as pd

    if pd.isna(value):
        return None
    return value.isoformat() if isinstance(value, pd.Timestamp) else value


def from_columns(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """The table that `plain_columns` took apart; raises `ValueError` for columns of another kind of table."""
    import pandas as pd

    if list(columns) != list(COLUMN_TYPES):
        raise ValueError(f"columns {', '.join(columns)[:200]}")
    times = [name for name, kind in COLUMN_TYPES.items() if kind.startswith("datetime")]
    table = pd.DataFrame({name: list(values) for name, values in columns.items()})
    for name in times:
        table[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
    return table.astype(COLUMN_TYPES)


def write_frame(table: pd.DataFrame, path: Path) -> None:
    """Write the table as .csv or .parquet, whole or not at all: to another name first, then renamed.

    Raises `InvalidInput` for another suffix, for a place that cannot be written to, or for .parquet where pyarrow is
    not installed, and `NotFound` where the folder is missing.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise bad_value("dataframe.out", str(path), "a name that ends with .csv or .parquet")
    if not path.absolute().parent.is_dir():
        raise NotFound(f"there is no folder {path.absolute().parent} to write {path.name} to")
    with writing(path):
        _write(table, path)


def _write(table: pd.DataFrame, path: Path) -> None:
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    unfinished = Path(name)
    try:
        if path.suffix == ".csv":
            table.to_csv(unfinished, index=False)
        else:
            _write_parquet(table, unfinished)
        unfinished.chmod(0o666 & ~_umask())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    try:
        table.to_parquet(path, index=False, engine="pyarrow")
    except ImportError as error:
        raise InvalidInput(
            "writing .parquet needs pyarrow, which is not installed",
            hint="run: pip install 'frontrunner[parquet]', or write .csv",
        ) from error


def _cells(campaign: Campaign, one: Probed) -> dict[str, Any]:
    return {
        "campaign": campaign.name,
        "figures": campaign.figures,
        "trial_number": one.trial.number,
        "attempt_number": one.attempt.number,
        "recipe_id": one.trial.recipe_id,
        **_recipe_cells(one.trial.recipe),
        "state": one.attempt.state.value,
        **_outcome_cells(one.outcome),
        "run_folder": one.attempt.run_folder,
        "started_at": one.attempt.started_at,
        "finished_at": one.attempt.finished_at,
    }


def _recipe_cells(recipe: Recipe) -> dict[str, Any]:
    derived = {
        "layers_per_stage": recipe.layers_name,
        "sharding": recipe.sharding_name,
        "sharding_parameters": recipe.sharding.parameters,
        "sharding_gradients": recipe.sharding.gradients,
        "sharding_optimizer": recipe.sharding.optimizer,
    }
    names = [name for name in _recipe_columns() if name not in derived]
    return {name: getattr(recipe, name) for name in names} | derived


def _outcome_cells(outcome: Outcome) -> dict[str, Any]:
    if not isinstance(outcome, Measurement):
        return {
            "failure_kind": outcome.kind.value,
            "failure_message": outcome.message,
            "node_seconds": outcome.node_seconds,
        }
    names = [name for name in COLUMN_TYPES if hasattr(outcome, name)]
    ends = {"loss_first": outcome.losses[0], "loss_last": outcome.losses[-1]} if outcome.losses else {}
    return {name: getattr(outcome, name) for name in names} | ends | {"measured_steps": len(outcome.step_times_s)}


def _umask() -> int:
    """The process's file creation mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
