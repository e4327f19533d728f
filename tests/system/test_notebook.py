"""The worked notebook runs as it stands, and shows what is kept in it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
NOTEBOOK = Path(__file__).parents[2] / "examples" / "campaign.ipynb"


TABLES = 11
"""The conclusion, the status, the ranking, a recipe, what is known of it, its estimate, the front
of speed and memory and that of three objectives, failures, campaigns, the data frame.
"""


def tables(notebook: Any) -> list[str]:
    """The HTML of its cells' values; the panel of a running campaign is none."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    values = [output for output in outputs if output.output_type == "execute_result"]
    return [output["data"]["text/html"] for output in values if "text/html" in output["data"]]


def headings(html: str) -> list[str]:
    """The heads of a data frame, or of the tables that the terminal would print."""
    if "<tbody>" in html:
        return re.findall("<th>(.*?)</th>", html.partition("<tbody>")[0])
    lines = re.sub("<.*?>", "", html).splitlines()
    return [" ".join(above.split()) for above, line in pairwise(lines) if line.startswith("──")]


def test_example_notebook_is_kept_with_its_output() -> None:
    kept = nbformat.read(NOTEBOOK, as_version=4)
    assert len(tables(kept)) == TABLES
    assert "Simulated" in tables(kept)[2]
    cells = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert "/tmp" not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.kept
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning"
)  # of jupyter's own event loops
def test_example_notebook_runs(tmp_path: Path) -> None:
    kept = tables(nbformat.read(NOTEBOOK, as_version=4))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert [headings(shown) for shown in tables(notebook)] == [headings(shown) for shown in kept]
