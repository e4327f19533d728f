"""What a rule is: a name, what it says, and a query whose rows are what breaks it."""

from __future__ import annotations

from dataclasses import dataclass

CLOCK = "as after a clock was set back"
LATER_VERSION = "as of a later version"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that must hold. Where it is not `is_fault`, something honest breaks it as well: `odd_as` says what.

    `later_table` is one that it asks and that stores of earlier versions do not have. `may_grow` says that a later
    version may allow more, so that it is no fault in a store of a later revision. Rules without `sql` are looked after
    by a function of their own.
    """

    name: str
    says: str
    sql: str = ""
    is_fault: bool = True
    odd_as: str = CLOCK
    later_table: str | None = None
    may_grow: bool = False
