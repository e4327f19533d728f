"""The order in which each pipeline rank runs its passes: those of torch's schedules, which the
trainer runs.

They are stated here again because torch takes seconds to import, and is no part of a service; a
test holds them to torch's own (tests/unit/test_analytic_schedules.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from frontrunner.spaces.recipe import SPLIT_BACKWARD_SCHEDULES, Recipe

Kind = Literal["F", "B", "I", "W"]


class Pass(NamedTuple):
    """One pass of a micro-batch through a stage: forward, backward, or backward for inputs or
    weights alone.
    """

    kind: Kind
    stage: int
    micro_batch: int

    def needs(self, stages: int) -> Pass | None:
        """Return the pass of another stage whose result this one takes; None for the first forward
        pass, and others.
        """
        if self.kind == "F":
            return None if self.stage == 0 else self._replace(stage=self.stage - 1)
        return (
            None
            if self.kind == "W" or self.stage == stages - 1
            else Pass("I", self.stage + 1, self.micro_batch)
        )

    @property
    def done(self) -> Pass:
        """What it is awaited as: a whole backward pass also makes the gradients of its inputs."""
        return self._replace(kind="I") if self.kind == "B" else self


def order_of(recipe: Recipe) -> list[list[Pass]]:
    """Return the passes of each pipeline rank in the order in which it runs them."""
    ranks, chunks, batches, name = (
        recipe.pipeline_parallel,
        recipe.virtual_stages,
        recipe.accumulation,
        recipe.schedule,
    )
    if name == "none":
        return [[Pass(kind, 0, number) for number in range(batches) for kind in ("F", "B")]]
    if name in ("gpipe", "looped-bfs"):
        return [
            list(_all_ahead(rank, ranks, chunks, batches, backwards=name == "looped-bfs"))
            for rank in range(ranks)
        ]
    if name in ("zbv", "dualpipev"):
        return [_v_shaped(name, rank, ranks, batches) for rank in range(ranks)]
    hops = 2 if name == "interleaved-1f1b" else 1
    split = name in SPLIT_BACKWARD_SCHEDULES
    return [
        list(_in_turn(rank, ranks, chunks, batches, hops=hops, split=split))
        for rank in range(ranks)
    ]


def _all_ahead(
    rank: int, ranks: int, chunks: int, batches: int, *, backwards: bool
) -> Iterator[Pass]:
    """Yield all forward passes, then all backward ones; `backwards` runs the last micro-batch's
    first.
    """
    stages = range(rank, ranks * chunks, ranks)
    yield from (Pass("F", stage, number) for stage in stages for number in range(batches))
    numbers = range(batches)[::-1] if backwards else range(batches)
    yield from (Pass("B", stage, number) for stage in stages[::-1] for number in numbers)


def _in_turn(
    rank: int, ranks: int, chunks: int, batches: int, *, hops: int, split: bool
) -> Iterator[Pass]:
    """Yield enough forward passes to fill the pipeline, then one backward pass for each forward
    pass, and the rest.

    Micro-batches go through a rank's chunks in rounds. Where the backward pass is `split`, a rank's
    first passes over weights wait for as many more passes over inputs as there are ranks before it.
    """
    in_round = batches // max(1, batches // ranks)
    total, counters = chunks * batches, Counter[tuple[str, int]]()
    ahead = min((chunks - 1) * in_round + hops * (ranks - 1 - rank), total)

    def one(kind: Kind, place: int) -> Pass:
        chunk = place // in_round % chunks
        stage = (chunk if kind == "F" else chunks - 1 - chunk) * ranks + rank
        counters[kind, stage] += 1
        return Pass(kind, stage, counters[kind, stage] - 1)

    for place in range(ahead):
        yield one("F", place)
    for place in range(total):
        if ahead + place < total:
            yield one("F", ahead + place)
        yield one("I" if split else "B", place)
        if split and place >= rank:
            yield one("W", place - rank)
    for place in range(max(total - rank, 0), total if split else 0):
        yield one("W", place)


def _v_shaped(name: str, rank: int, ranks: int, batches: int) -> list[Pass]:
    """Return the passes over a rank's chunk on the way down, `a`, and on the way up, `b`.

    Each phase is a number of repetitions of some passes; `W` is the oldest pass over weights that
    is still to run. Of ZBV (arXiv 2401.10241, section 6) passes beyond the last micro-batch are
    left out.
    """
    before, after = rank + 1, ranks - rank - 1
    phases: tuple[tuple[int, str], ...]
    if name == "zbv":
        whole = max(2 * ranks - 1, batches)
        phases = (
            (2 * after + 1, "Fa"), (rank, "Fb Fa"), (after + 1, "Fb Ib Wb"),
            (whole - 2 * ranks + before, "Fa Ia Wa Fb Ib Wb"), (after, "Ia Wa Fb Ib Wb"),
            (rank, "Ia Ib"), (after + 1, "Ia Wa"), (rank, "Wb"), (rank, "Wa"),
        )  # fmt: skip
    else:
        turn = "Ib Ia" if rank % 2 else "Bb Ia"
        phases = (
            (2 * after, "Fa"), (before, "Fa Fb"), (after, "Ib W Fb"),
            (batches - 2 * ranks + before, "Fa Bb Fb Ba"),
            (after, "Bb Fb Ba"), (before // 2, "Bb Ba"), (1, turn), (rank - before // 2, "Ib Ia"),
            (after, "W Ia"), (before, "W"),
        )  # fmt: skip
    stage_of = {"a": rank, "b": 2 * ranks - 1 - rank}
    counters, pending, found = Counter[tuple[str, int]](), list[Pass](), list[Pass]()
    for word in (word for times, words in phases for _ in range(times) for word in words.split()):
        kind, chunk = word[0], word[1:]
        if kind == "W":
            due = next(one for one in pending if not chunk or one.stage == stage_of[chunk])
            pending.remove(due)
            found.append(due)
            continue
        stage, of = stage_of[chunk], "F" if kind == "F" else "I"
        number = counters[of, stage]
        counters[of, stage] += 1
        found.append(Pass(kind, stage, number))  # type: ignore[arg-type]
        if kind == "I":
            pending.append(Pass("W", stage, number))
    return [one for one in found if one.micro_batch < batches]
