"""Lists of values that notebooks show as tables and that convert to data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from frontrunner.spaces.display import Displayed
from frontrunner.text import as_plain

if TYPE_CHECKING:
    import pandas as pd


class DisplayedRows(Displayed):
    """A list of values that is displayed as a table."""

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a data frame.

        A value within a value becomes a column such as `recipe.tensor_parallel`.
        """
        return frame_of(list(self))  # type: ignore[call-overload]


def frame_of(rows: Iterable[Any]) -> pd.DataFrame:
    """Return the rows of `DisplayedRows.to_frame`."""
    import pandas as pd

    return pd.json_normalize(as_plain(list(rows)))
