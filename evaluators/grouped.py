"""Evaluator of a cluster of several node types: one evaluator per group, each on its own nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from frontrunner.evaluators.protocol import Evaluator, Finished, NodeCheck, ProbeOrder, Progress
from frontrunner.results.outcome import Outcome
from frontrunner.spaces.errors import NodesUnavailable


class Grouped(Evaluator):
    """Passes each order to the evaluator of its recipe's group."""

    def __init__(self, groups: Mapping[str, Evaluator]) -> None:
        self._groups = groups
        self._under_way: dict[str, str] = {}  # token -> group
        self.measures_here = any(one.measures_here for one in groups.values())

    def start(self, order: ProbeOrder) -> None:
        """Begin an order on its group."""
        self._groups[order.recipe.group].start(order)
        self._under_way[order.token] = order.recipe.group

    def finished(self, timeout_s: float) -> list[Finished]:
        """Return what ended on any group; raise `NodesUnavailable` if no group with orders has
        nodes for them.
        """
        found: list[Finished] = []
        unavailable: dict[str, NodesUnavailable] = {}
        for name, one in self._groups.items():
            try:
                found += one.finished(0.0 if found else timeout_s / len(self._groups))
            except NodesUnavailable as error:
                unavailable[name] = error
        for ended in found:
            del self._under_way[ended.token]
        if unavailable and not found and unavailable.keys() >= set(self._under_way.values()):
            name, first = next(iter(unavailable.items()))
            raise NodesUnavailable(f"group {name}: {first.message}", hint=first.hint) from first
        return found

    def progress(self, token: str) -> Progress | None:
        """Return the progress of an order that runs on any group."""
        name = self._under_way.get(token)
        return None if name is None else self._groups[name].progress(token)

    def withdraw(self, token: str) -> bool:
        """Take back an order that waits for nodes of its group."""
        name = self._under_way.get(token)
        if name is None or not self._groups[name].withdraw(token):
            return False
        del self._under_way[token]
        return True

    def avoid_nodes(self, aside: Mapping[str, str], *, due: Collection[str]) -> None:
        """See `Evaluator`."""
        for one in self._groups.values():
            one.avoid_nodes(aside, due=due)

    def checked_nodes(self) -> list[NodeCheck]:
        """Return the checks that have ended on any group."""
        return [check for one in self._groups.values() for check in one.checked_nodes()]

    @property
    def waits_for(self) -> str:
        """See `Evaluator`."""
        return "; ".join(
            f"group {name}: {one.waits_for}" for name, one in self._groups.items() if one.waits_for
        )

    def harvest(self, order: ProbeOrder) -> Outcome | None:
        """Return the outcome that an order of an earlier driver left, as its group's evaluator
        reads it.
        """
        return self._groups[order.recipe.group].harvest(order)

    def close(self) -> None:
        """Close the evaluators of all groups, whichever of them fails at it."""
        with contextlib.ExitStack() as stack:
            for one in self._groups.values():
                stack.callback(one.close)
