"""Display of values in notebooks."""

from __future__ import annotations


class Displayed:
    """A value that a notebook displays as the terminal prints it."""

    def _repr_html_(self) -> str:
        from frontrunner.views.notebook import to_html  # views import the modules of all values, so not at the top

        return to_html(self)
