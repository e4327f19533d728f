"""Tables of measured configurations, and what a campaign says about the one in which its probes are looked up."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.errors import bad_value


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The CSV file of `evaluator = "table"`, and one of its problems by name where several fit the campaign's."""

    path: str | None = None
    """The CSV file, relative to the campaign file."""
    problem: str | None = None
    """The table's problem by name (`model seq gbs hardware gpus`), needed where several match the campaign."""

    def __post_init__(self) -> None:
        for key, value in (("path", self.path), ("problem", self.problem)):
            if value is not None and (not value.strip() or "\0" in value):
                expected = "the path of a CSV file" if key == "path" else "a problem's name, as messages print it"
                raise bad_value(f"table.{key}", value, expected)
