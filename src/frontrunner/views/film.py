"""Film of a search: how its probes filled a map of two dimensions, with what the strategy expected
of each.

What was expected is what the strategy stored when it chose a recipe, never computed afterwards: of
that recipe, and of the fastest one at each place of one map.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.results.predictions import Belief, Expected, proposed_of
from frontrunner.results.snapshot import attempts_of
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NothingLegal,
    bad_value,
    did_you_mean,
    writing,
)
from frontrunner.spaces.recipe import Choice
from frontrunner.spaces.space import map_axes
from frontrunner.text import counted, percent, thousands
from frontrunner.views.charts.campaign import pooled_rates
from frontrunner.views.charts.marks import MEASURED, OUTCOMES, shown
from frontrunner.views.terminal import console

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SHOTS = 5000
"""Outcomes of a film: its first ones."""
MOST_FRAMES = 240
"""Pictures of a file; of a longer film each shows several more outcomes."""
FRAMES_PER_S, LAST_FRAMES, DPI = 4, 8, 100
SUFFIXES = (".gif", ".mp4")
QUIET = "#8a939c"


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One outcome: a recipe's place on the map, how it ended, and, of a recipe's first one, what
    was expected of it.

    `pooled_tokens_per_s` is its recipe's rate after it, repeats pooled as in the ranking, and
    `best_tokens_per_s` that of the recipe that led. `belief` has a row for each of the film's y
    values and a column for each of its x values: the tokens/s of the fastest recipe there that was
    expected to run, None where there was none.
    """

    recipe_id: str
    describe: str
    x: Choice
    y: Choice
    outcome: str
    tokens_per_s: float | None
    pooled_tokens_per_s: float | None
    best_tokens_per_s: float | None
    expected: Expected | None
    belief: tuple[tuple[float | None, ...], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Film(Displayed):
    """The outcomes of a campaign in their order, over two of its `dimensions`; `outcomes` counts
    those left out too.

    `believed` are the dimensions of the map that the strategy stored its beliefs over, None where
    it stored none.
    """

    campaign: str
    x: str
    y: str
    x_values: tuple[Choice, ...]
    y_values: tuple[Choice, ...]
    dimensions: tuple[str, ...]
    shots: tuple[Shot, ...]
    outcomes: int
    believed: tuple[str, str] | None = None

    @property
    def has_beliefs(self) -> bool:
        """Whether what was expected is stored of any outcome."""
        return any(shot.expected is not None for shot in self.shots)

    @property
    def map_has_beliefs(self) -> bool:
        """Whether the map has what was expected at its places."""
        return any(shot.belief is not None for shot in self.shots)


def film(store: Store, campaign: str | None, x: str | None = None, y: str | None = None) -> Film:
    """Return the film of a campaign over two dimensions, by default tensor and pipeline parallelism
    where they vary.
    """
    found = store.campaign(campaign)
    ended = attempts_of(store, found)
    first = ended[:MOST_SHOTS]
    recipes = {one.recipe_id: one.recipe for one in first}
    spec = stored_spec(found)
    listed = {
        name: tuple(
            dict.fromkeys(
                (*values, *(spec.space.dimension(name).of(recipe) for recipe in recipes.values()))
            )
        )
        for name, values in spec.space.dimensions(spec.problem.cluster).items()
    }
    varied = tuple(name for name, values in listed.items() if len(values) > 1)
    numbers = {one.recipe_id: one.row + 1 for one in first}
    proposed = proposed_of(store, found.id, numbers.values())
    believed = next(
        ((one.belief.x, one.belief.y) for one in proposed.values() if one.belief is not None), None
    )
    if believed is not None and x is None and y is None:
        x, y = believed
    x, y = _axes(varied, {"x": x, "y": y})
    x_values, y_values = _ordered(listed[x]), _ordered(listed[y])
    across, upward = spec.space.dimension(x), spec.space.dimension(y)
    own, led = pooled_rates(ended, ended.tokens_per_s)
    shots = []
    for place, one in enumerate(first):
        # What was expected is told with a recipe's first outcome; a repeat is no news.
        chosen = proposed.pop(numbers[one.recipe_id], None)
        recipe = recipes[one.recipe_id]
        shot = Shot(
            recipe_id=one.recipe_id,
            describe=recipe.describe(),
            x=across.of(recipe),
            y=upward.of(recipe),
            outcome=one.outcome,
            tokens_per_s=one.tokens_per_s,
            pooled_tokens_per_s=_known(own[place]),
            best_tokens_per_s=_known(led[place]),
            expected=None if chosen is None else chosen.alone,
            belief=None if chosen is None else _on_map(chosen.belief, (x, x_values), (y, y_values)),
        )
        shots.append(shot)
    return Film(
        campaign=found.name,
        x=x,
        y=y,
        x_values=x_values,
        y_values=y_values,
        dimensions=varied,
        shots=tuple(shots),
        outcomes=len(ended),
        believed=believed,
    )


def _on_map(
    belief: Belief | None,
    across: tuple[str, Sequence[Choice]],
    upward: tuple[str, Sequence[Choice]],
) -> tuple[tuple[float | None, ...], ...] | None:
    """Return a belief by row and column of a map; None of one over other dimensions."""
    if belief is None or {belief.x, belief.y} != {across[0], upward[0]}:
        return None
    rates = {(x, y) if belief.x == across[0] else (y, x): rate for x, y, rate in belief.cells}
    return tuple(tuple(rates.get((x, y)) for x in across[1]) for y in upward[1])


def print_film(found: Film) -> None:
    """Print what a film is of, and the rate of the recipe that led at its end."""
    out = console()
    out.say(
        (found.campaign, "bold"),
        f": {counted(found.outcomes, 'outcome')} over {found.x} and {found.y}",
    )
    if found.shots and (best := found.shots[-1].best_tokens_per_s) is not None:
        out.say(f"best      {thousands(best)} tokens/s")


def _axes(varied: Sequence[str], named: Mapping[str, str | None]) -> tuple[str, str]:
    """Return both dimensions; raise `InvalidInput` for one that the campaign does not vary."""
    if len(varied) < 2:
        raise NothingLegal(
            "a film needs two dimensions that vary: this campaign varies"
            f" {', '.join(varied) or 'none'}"
        )
    for axis, name in named.items():
        if name is not None and name not in varied:
            expected = f"a dimension that the campaign varies: {', '.join(varied)}"
            raise bad_value(axis, name, expected, hint=did_you_mean(name, varied))
    if named["x"] is not None and named["x"] == named["y"]:
        raise bad_value("y", named["y"], "another dimension than x")
    return map_axes(varied, named["x"], named["y"])


def _ordered(values: Sequence[Choice]) -> tuple[Choice, ...]:
    return (
        tuple(values) if any(isinstance(value, str) for value in values) else tuple(sorted(values))
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def check_film_file(file: Path) -> None:
    """Raise `InvalidInput` for a file that no film can be written to, and for MP4 without
    ffmpeg.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise bad_value("--out", str(file), "a file whose name ends with .gif or .mp4")
    if file.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        hint = f"install ffmpeg (apt install ffmpeg), or write {file.with_suffix('.gif')}"
        raise InvalidInput(f"{file} needs ffmpeg, which is not on PATH", hint=hint)


def write_film(found: Film, file: Path) -> int:
    """Write a film as a GIF or, by ffmpeg, as MP4, and return how many pictures it has."""
    import matplotlib as mpl
    from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter
    from matplotlib.figure import Figure

    check_film_file(file)
    if not found.shots:
        raise NothingLegal(
            f"campaign {found.campaign} has no outcome to film",
            hint=f"frontrunner status {found.campaign}",
        )
    steps = -(-len(found.shots) // MOST_FRAMES)
    frames = [min(end, len(found.shots)) for end in range(steps, len(found.shots) + steps, steps)]
    figure = Figure(figsize=(11, 4.8), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, 2)
    kind = PillowWriter if file.suffix.lower() == ".gif" else FFMpegWriter
    # The last picture stays for a while.
    shown_frames = [*frames, *([frames[-1]] * LAST_FRAMES)]
    made = FuncAnimation(
        figure, lambda end: _draw(found, end, *axes), frames=shown_frames, init_func=lambda: None
    )
    part = file.with_name(f".{file.stem}.part{file.suffix}")
    try:
        with writing(file), mpl.rc_context({"font.size": 9, "animation.embed_limit": 64}):
            made.save(str(part), writer=kind(fps=FRAMES_PER_S))
            part.replace(file)
    except RuntimeError as error:  # ffmpeg's own
        raise FrontrunnerError(f"{file} could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return len(frames)


def believed_at(found: Film, end: int) -> dict[tuple[Choice, Choice], float]:
    """Return what was expected at the places of the map when the last recipe of the first `end`
    outcomes was chosen.
    """
    belief = next(
        (shot.belief for shot in reversed(found.shots[:end]) if shot.belief is not None), ()
    )
    return {
        (x, y): rate
        for y, row in zip(found.y_values, belief, strict=False)
        for x, rate in zip(found.x_values, row, strict=True)
        if rate is not None
    }


def _draw(found: Film, end: int, grid: Axes, course: Axes) -> None:
    """Draw the film up to an outcome: the map, and each outcome beside what was expected."""
    from matplotlib.patches import Rectangle

    shots, last = found.shots[:end], found.shots[end - 1]
    fastest = max((shot.tokens_per_s or 0.0 for shot in found.shots), default=0.0) or 1.0
    slowest = min((shot.tokens_per_s for shot in found.shots if shot.tokens_per_s), default=0.0)
    grid.clear()
    best: dict[tuple[Choice, Choice], float] = {}
    tried: dict[tuple[Choice, Choice], list[Shot]] = {}
    for shot in shots:
        tried.setdefault((shot.x, shot.y), []).append(shot)
    for place, those in tried.items():
        best[place] = max(
            {shot.recipe_id: shot.pooled_tokens_per_s or 0.0 for shot in those}.values()
        )
    rows = [
        [best.get((x, y), float("nan")) or float("nan") for x in found.x_values]
        for y in found.y_values
    ]
    grid.imshow(
        rows,
        origin="lower",
        aspect="auto",
        cmap="Blues",
        vmin=slowest - 0.2 * (fastest - slowest),
        vmax=fastest,
    )
    believed = believed_at(found, end)
    for (x, y), those in tried.items():
        failures = sum(shot.outcome != MEASURED for shot in those)
        words = f"{thousands(best[x, y]) if best[x, y] else '-'}\n{counted(len(those), 'probe')}"
        words += f", {failures} failed" if failures else ""
        words += f"\nexpected {thousands(believed.pop((x, y)))}" if (x, y) in believed else ""
        color = "white" if best[x, y] > (slowest + fastest) / 2 else "black"
        at = found.x_values.index(x), found.y_values.index(y)
        grid.text(*at, words, ha="center", va="center", color=color, fontsize=7)
    for (x, y), rate in believed.items():
        at = found.x_values.index(x), found.y_values.index(y)
        words = f"expected\n{thousands(rate)}"
        grid.text(*at, words, ha="center", va="center", color=QUIET, fontsize=7, style="italic")
    corner = found.x_values.index(last.x) - 0.48, found.y_values.index(last.y) - 0.48
    grid.add_patch(Rectangle(corner, 0.96, 0.96, fill=False, edgecolor="#d9534f", linewidth=2))
    grid.set_xticks(range(len(found.x_values)), [shown(value) for value in found.x_values])
    grid.set_yticks(range(len(found.y_values)), [shown(value) for value in found.y_values])
    title = "best tokens/s so far" + (", and what was expected" if found.map_has_beliefs else "")
    grid.set(xlabel=found.x, ylabel=found.y, title=title)
    _draw_course(found, shots, course, fastest)
    grid.figure.suptitle(
        f"{found.campaign}, {end} of {found.outcomes}: {last.describe}, {in_words(last)}",
        fontsize=10,
    )


def _draw_course(found: Film, shots: Sequence[Shot], course: Axes, fastest: float) -> None:
    course.clear()
    for outcome, (color, _) in OUTCOMES.items():
        points = [
            (number, shot) for number, shot in enumerate(shots, start=1) if shot.outcome == outcome
        ]
        if points:
            heights = [shot.tokens_per_s or 0.0 for _, shot in points]
            marker = "o" if outcome == MEASURED else "x"
            course.plot(
                [number for number, _ in points], heights, marker, color=color, label=outcome
            )
    known = [
        (number, shot.expected.tokens_per_s)
        for number, shot in enumerate(shots, start=1)
        if shot.expected
    ]
    if known:
        course.plot(
            *zip(*known, strict=True), "o", markerfacecolor="none", color=QUIET, label="expected"
        )
    so_far = [shot.best_tokens_per_s or float("nan") for shot in shots]
    course.plot(
        range(1, len(shots) + 1),
        so_far,
        drawstyle="steps-post",
        color="#59a14f",
        label="best so far",
    )
    expected = [shot.expected.tokens_per_s for shot in found.shots if shot.expected]
    course.set(
        xlim=(0, len(found.shots) + 1), ylim=(-0.04 * fastest, 1.1 * max(fastest, *expected, 0.0))
    )
    course.set(
        xlabel="outcome",
        ylabel="tokens/s",
        title="outcomes" + (" and what was expected" if known else ""),
    )
    course.legend(loc="lower right", fontsize=7)


def in_words(shot: Shot) -> str:
    """Return how a probe ended, and what was expected of it."""
    ended = (
        shot.outcome if shot.tokens_per_s is None else f"{thousands(shot.tokens_per_s)} tokens/s"
    )
    if shot.expected is None:
        return ended
    chance = percent(shot.expected.chance, 0)
    return f"{ended} (expected {thousands(shot.expected.tokens_per_s)}, chance to run {chance})"
