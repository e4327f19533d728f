"""The metrics of a full training run, one row a step, as CSV or for TensorBoard."""

import csv
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

COLUMNS = ("step", "loss", "learning_rate", "gradient_norm", "step_time_s", "tokens_per_s", "evaluation_loss")

Row = dict[str, float | None]


class Metrics(Protocol):
    """Where rows go. A row has the keys of COLUMNS; None is a value that this step does not have."""

    def write(self, row: Row) -> None:
        """Store one step's row; it is on its way to disk when this returns."""
        ...

    def close(self) -> None:
        """Finish the files."""
        ...


def open_metrics(kind: Literal["csv", "tensorboard"], folder: Path, *, resumed_step: int) -> Metrics:
    """Metrics in `folder`; rows of steps after `resumed_step`, left by a run that was killed, are dropped.

    Raises:
        ValueError: TensorBoard is asked for and not installed.
    """
    if kind == "csv":
        return CsvMetrics(folder / "metrics.csv", resumed_step=resumed_step)
    return TensorBoardMetrics(folder / "tensorboard", resumed_step=resumed_step)


class CsvMetrics:
    """`metrics.csv`, with a header."""

    def __init__(self, path: Path, *, resumed_step: int) -> None:
        kept = _rows_until(path, resumed_step)
        temporary = path.with_name(f".{path.name}")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        temporary.replace(path)
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)

    def write(self, row: Row) -> None:
        """See Metrics."""
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """See Metrics."""
        self._file.close()


class TensorBoardMetrics:
    """Event files; each column is a scalar of its own."""

    def __init__(self, folder: Path, *, resumed_step: int) -> None:
        try:
            module: Any = import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ValueError("metrics for TensorBoard need it installed: pip install tensorboard") from error
        self._writer = module.SummaryWriter(str(folder), purge_step=resumed_step + 1)

    def write(self, row: Row) -> None:
        """See Metrics."""
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """See Metrics."""
        self._writer.close()


def _rows_until(path: Path, last_step: int) -> list[dict[str, str]]:
    """The whole rows of an earlier run up to `last_step`; a half-written last line is no row."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [row for row in rows if row["step"].isdigit() and int(row["step"]) <= last_step]
