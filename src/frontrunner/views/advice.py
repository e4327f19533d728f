"""Advice: on the terminal, and as a document for programs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from rich.padding import Padding

from frontrunner.evaluators.analytic.advice import WORTH_ITS_COMPLEXITY, Advice, ParallelLayout, speed, traffic_s
from frontrunner.evaluators.analytic.estimates import Estimate
from frontrunner.evaluators.diagnostics.dryrun import why_untraceable
from frontrunner.spaces.errors import shown
from frontrunner.text import count, counted, gib, percent, plain, seconds, size, thousands, wrapped
from frontrunner.views.columns import FIGURES, LIMIT, RECIPE_ID, Column
from frontrunner.views.plan import print_trust
from frontrunner.views.terminal import column_table, console

INDENT = 3
WIDEST_TEXT = 110
"""Longer lines of words are hard to read."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, its answer in a word, and the sentences that give reasons; a table shows the `layouts`."""

    question: str
    answer: str
    sentences: tuple[str, ...]
    layouts: tuple[ParallelLayout, ...] = ()


def answers(advice: Advice) -> tuple[Answer, ...]:
    """Return the answers in the order in which a person would ask."""
    cluster = advice.problem.cluster
    questions = {"Does it fit on one device?": advice.one_device}
    if advice.one_node:
        questions[f"On one node of {cluster.devices_per_node} devices?"] = advice.one_node
    if cluster.devices > 1:
        questions[f"On all {cluster.devices:,} devices, {counted(cluster.nodes, 'node')}?"] = advice.whole_cluster
    found: list[Answer] = []
    for question, layouts in questions.items():
        sentences = (*([] if found else _one_copy(advice)), _best(layouts, advice))
        found.append(Answer(question=question, answer=_verdict(layouts), sentences=sentences, layouts=layouts))
    name, question = "more memory", "What then?"
    if advice.chosen is not None:
        name, question = advice.chosen.name, "What then, and why?"
    return (*found, Answer(question=question, answer=name, sentences=tuple(_why(advice))))


def _one_copy(advice: Advice) -> Iterator[str]:
    copy = advice.one_copy
    if copy is not None:
        each = f"{copy.state_bytes / advice.problem.model.parameters:.3g} bytes per parameter"
        yield (
            f"One copy needs {size(copy.state_bytes)} for parameters, gradients and optimizer ({each}), and "
            f"{size(copy.activation_bytes_whole)} for the activations of a sequence, "
            f"{size(copy.activation_bytes_recomputed)} with full recompute; a device has "
            f"{size(advice.problem.cluster.memory_bytes_per_device)}."
        )


def _verdict(layouts: Sequence[ParallelLayout]) -> str:
    on_host = [bool(x.estimate and x.estimate.host_memory_bytes_per_rank) for x in layouts if x.fits]
    return "no" if not on_host else "with the host's memory only" if all(on_host) else "yes"


def _best(layouts: Sequence[ParallelLayout], advice: Advice) -> str:
    """Return the fastest layout that fits, else the smallest recipe, else why there is none."""
    known = [layout.estimate for layout in layouts if layout.estimate is not None]
    best = max(layouts, key=speed)
    if best.fits and best.estimate is not None:
        fitting = sum(layout.fits for layout in layouts)
        return (
            f"{fitting} of {len(layouts)} layouts fit. Fastest: {best.name}, {named(best.estimate)}, "
            f"{seconds(best.estimate.step_time_s)} per step, {_peak(best.estimate, advice)}."
        )
    if known:
        smallest = min(known, key=attrgetter("peak_memory_bytes"))
        return f"The smallest recipe, {named(smallest)}, needs {_peak(smallest, advice)}."
    return f"No recipe can be estimated: {layouts[0].reason}."


def _why(advice: Advice) -> Iterator[str]:
    """Yield what the recommended layout does and costs, and why no faster one is taken; or what is missing."""
    chosen, found = advice.chosen, _estimate(advice)
    if chosen is None or found is None:
        cluster = advice.problem.cluster
        if advice.one_copy is not None:
            needed = math.ceil(advice.one_copy.state_bytes / cluster.memory_bytes_per_device)
            nodes = counted(math.ceil(needed / cluster.devices_per_node), "node")
            yield f"Parameters, gradients and optimizer alone fill {needed:,} such devices, {nodes}."
        return
    yield f"{chosen.name}: {chosen.about}."
    if found.recipe.devices > 1:
        waits = f"{seconds(traffic_s(found))} ({percent(traffic_s(found) / found.step_time_s)})"
        yield (
            f"Of {seconds(found.step_time_s)} per step it computes {seconds(found.step_parts_s['compute'])} and waits "
            f"{waits} for other devices."
        )
    fastest = advice.fastest
    if fastest is not None and fastest is not chosen:
        yield (
            f"{fastest.name} is estimated {percent(speed(fastest) / speed(chosen) - 1)} faster: at most the "
            f"{percent(WORTH_ITS_COMPLEXITY, 0)} for which a plainer layout is kept."
        )
    if advice.tiling is not None:
        tiled, saved = advice.tiling.tiled, size(max(advice.tiling.saved_bytes, 0))
        slower = percent(advice.tiling.slower, 0)
        yield f"With {' '.join(tiled.recipe.levers)} ({tiled.recipe_id}) it frees {saved} and takes {slower} longer."


def named(found: Estimate) -> str:
    """Return a recipe's id and its description."""
    return f"{found.recipe_id} ({found.recipe.describe()})"


def _peak(found: Estimate, advice: Advice) -> str:
    return f"{gib(found.peak_memory_bytes)} of {gib(advice.problem.cluster.memory_bytes_per_device)} GiB"


def _estimate(advice: Advice) -> Estimate | None:
    return None if advice.chosen is None else advice.chosen.estimate


def heading(advice: Advice) -> str:
    """Return the problem on one line."""
    problem, cluster = advice.problem, advice.problem.cluster
    return (
        f"{problem.model.name}, {count(problem.model.parameters)} parameters, {problem.precision}, "
        f"global batch {problem.global_batch} x {problem.sequence_length:,} tokens, on {cluster.name}: "
        f"{cluster.nodes:,} x {cluster.devices_per_node} devices of {gib(cluster.memory_bytes_per_device)} GiB"
    )


def begin_with(advice: Advice) -> str | None:
    """Return the recommended recipe with its figures."""
    found = _estimate(advice)
    if found is None:
        return None
    return f"{named(found)}: {thousands(found.tokens_per_s)} tokens/s, MFU {percent(found.mfu)}, {_peak(found, advice)}"


def commands(advice: Advice, file: str) -> dict[str, str]:
    """Return the commands to run next, each with its purpose."""
    quoted, found = shlex.quote(file), _estimate(advice)
    if found is None:
        more = ",".join(str(advice.problem.cluster.nodes * factor) for factor in (2, 4, 8))
        return {f"frontrunner plan {quoted} --nodes {more}": "what the space gives on more nodes"}
    choices = {key: str(value).lower() if isinstance(value, bool) else value for key, value in advice.choices.items()}
    chosen = " ".join(["--campaign", quoted, *(f"{key}={value}" for key, value in choices.items())])
    dryrun = {} if why_untraceable(found.recipe) else {f"frontrunner dryrun {chosen}": "trace its memory"}
    around = "the recipes around it" + (", once [space] lists it" if advice.lacking else "")
    return {
        f"frontrunner explain {chosen}": "what its step and memory go to",
        **dryrun,
        f"frontrunner plan {quoted}": around,
    }


def additions(advice: Advice) -> tuple[str, ...]:
    """Return the lines that the file's [space] lacks of the recipe."""
    return tuple(f"{key} = [..., {shown(value)}]" for key, value in advice.lacking.items())


def as_document(advice: Advice, file: str) -> Mapping[str, object]:
    """Return all of it for programs: the words, and the advice with its estimates."""
    words = [{"question": a.question, "answer": a.answer, "sentences": a.sentences} for a in answers(advice)]
    document = {"about": heading(advice), "answers": words, "begin_with": begin_with(advice)}
    return document | {"commands": list(commands(advice, file)), "advice": advice}


def _fitting(value: Callable[[Estimate], float]) -> Callable[[ParallelLayout], float | None]:
    return lambda layout: value(layout.estimate) if layout.fits and layout.estimate else None


_FIGURES: Mapping[str, Column[ParallelLayout]] = {
    column.key: column.of(
        attrgetter("estimate") if column.key.startswith("peak") else lambda x: x.estimate if x.fits else None
    )
    for column in (*FIGURES, LIMIT)
}
LAYOUTS: tuple[Column[ParallelLayout], ...] = (
    Column("layout", "layout", attrgetter("name"), is_number=False),
    Column("fits", "fits", lambda layout: "yes" if layout.fits else "no", is_number=False),
    _FIGURES["tokens_per_s"],
    _FIGURES["peak_memory_bytes_max_rank"],
    Column("host", "host GiB", lambda x: (x.estimate and x.estimate.host_memory_bytes_per_rank) or None, gib, drop=5,
           about="kept in the host's memory per device"),
    Column("traffic", "traffic", _fitting(lambda x: traffic_s(x) / x.step_time_s), percent, drop=2,
           about="share of a step spent waiting for other devices"),
    replace(_FIGURES["limit"], drop=4),
    replace(RECIPE_ID.of(attrgetter("estimate")), drop=1),
    Column("describe", "in short", lambda x: x.estimate.recipe.describe() if x.estimate else x.reason, drop=3,
           is_number=False, least=22),
)  # fmt: skip
"""Parallel layouts compared."""


def _is_as_fast_as(best: ParallelLayout) -> Callable[[ParallelLayout], bool]:
    return lambda layout: 0 < speed(layout) == speed(best)


def print_advice(advice: Advice, file: str) -> None:
    """Print the answers, the recommended recipe and the commands to go on with."""
    out = console()

    def say(text: str, indent: int = INDENT, style: str = "") -> None:
        out.say(wrapped(plain(text), width=min(out.width, WIDEST_TEXT), indent=indent), style=style)

    say(heading(advice), indent=0, style="bold")
    for number, answer in enumerate(answers(advice), start=1):
        out.say(f"\n{number}. {answer.question}  ", (answer.answer, "bold"))
        for sentence in answer.sentences:
            say(sentence)
        if answer.layouts:
            best = max(answer.layouts, key=speed)
            table = column_table(None, LAYOUTS, answer.layouts, width=out.width - INDENT, bold=_is_as_fast_as(best))
            out.print(Padding(table, (0, 0, 0, INDENT), expand=False))
    out.print()
    print_trust(advice.trust)
    if begin := begin_with(advice):
        out.say("\nbegin with", style="bold")
        say(begin)
    if missing := additions(advice):
        say("the file's [space] does not hold it; there, add:")
        for line in missing:
            out.say(f"{'':{2 * INDENT}}{line}", whole=True)
    out.say("go on with", style="bold")
    for command, purpose in commands(advice, file).items():
        out.say(f"{'':{INDENT}}{command}", (f"  # {purpose}", "dim"), whole=True)
