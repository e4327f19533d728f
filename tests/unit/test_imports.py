"""Imports between modules: their circles. The layers are contracts of import-linter."""

from __future__ import annotations

import grimp

LARGEST_CIRCLE = 3
"""Modules that may import one another. Imports inside functions and for annotations count too."""


def test_imports_form_no_large_circle() -> None:
    graph = grimp.build_graph("frontrunner", cache_dir=None)
    circles = {
        frozenset({*above, name})
        for name in graph.modules
        if (above := graph.find_upstream_modules(name) & graph.find_downstream_modules(name))
    }
    large = [sorted(circle) for circle in circles if len(circle) > LARGEST_CIRCLE]
    assert not large, "these modules import one another: move what they share into one of them"
