"""The tables of the docs that are generated from the code; run as a program it writes them."""

from pathlib import Path

from frontrunner.spaces.recipe import DIMENSIONS, Dimension

CAMPAIGN_FILE = Path(__file__).parents[2] / "docs" / "campaign-file.md"
BEGIN, END = "<!-- generated: space -->\n", "<!-- end -->\n"


def space_table() -> str:
    """Return the table of the section [space]: one row per dimension."""
    rows = "".join(f"| `{one.name}` | {_default(one)} | {_meaning(one)} |\n" for one in DIMENSIONS.values())
    return f"| key | default | meaning |\n|---|---|---|\n{rows}"


def _default(dimension: Dimension) -> str:
    if not dimension.default:
        return {"devices": "all"}.get(dimension.name, "follows")
    (value,) = dimension.default
    return f'`["{value}"]`' if isinstance(value, str) else f"`[{str(value).lower()}]`"


def _meaning(dimension: Dimension) -> str:
    unnamed = [value for value in dimension.values if f"`{value}`" not in dimension.description]
    return dimension.description + (f": {', '.join(f'`{value}`' for value in unnamed)}" if unnamed else "")


def with_table(text: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{space_table()}{END}{after}"


if __name__ == "__main__":
    CAMPAIGN_FILE.write_text(with_table(CAMPAIGN_FILE.read_text(encoding="utf-8")), encoding="utf-8")
