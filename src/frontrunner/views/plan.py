"""Estimates on the terminal: a plan, scaling, one recipe's breakdown, and advice, which programs
get as well.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter

from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

from frontrunner.config.settings import located
from frontrunner.evaluators.analytic.accuracy_bounds import NOT_TRAINED, Trust
from frontrunner.evaluators.analytic.advice import (
    WORTH_ITS_COMPLEXITY,
    Advice,
    ParallelLayout,
    speed,
    traffic_share,
)
from frontrunner.evaluators.analytic.breakdown import Breakdown, Measured
from frontrunner.evaluators.analytic.estimates import AT_HAND, Estimate, Plan, ShownPlan
from frontrunner.evaluators.analytic.memory import MARGIN
from frontrunner.evaluators.analytic.scaling import Scaling, ScalingRow
from frontrunner.evaluators.analytic.timeline import step_timeline
from frontrunner.evaluators.diagnostics.dryrun import why_untraceable
from frontrunner.planning import ClusterPlan, ClusterRanking
from frontrunner.spaces.errors import InvalidInput, shown
from frontrunner.text import (
    count,
    counted,
    fit_verdict,
    gib,
    memory_unit,
    parameters,
    percent,
    plain,
    seconds,
    size,
    thousands,
    wrapped,
)
from frontrunner.views.columns import (
    ESTIMATED,
    ESTIMATES,
    FIGURES,
    LIMIT,
    PARTS,
    RATE_BOUNDS,
    RECIPE,
    RECIPE_ID,
    SCALINGS,
    STEP_P90,
    TRAINING,
    Column,
    limited_by,
    words,
)
from frontrunner.views.terminal import column_table, console, ruled_table
from frontrunner.views.timeline import print_timeline

INDENT = 3
SHOWN = 10
WIDEST_TEXT = 110
ESTIMATED_PEAK = (
    "what a device must hold, context, communicators and the allocator's loss (runtime) included"
)
TIGHT = f"less than {percent(MARGIN, 0)} of the memory stays free"
MAY_NOT_FIT = "may not fit: the 95 % interval of the peak ends above the device's memory"


def print_plan(plan: Plan | ShownPlan, *, file: str | None = None) -> None:
    """Print a plan, its front if that holds more than the first recipe, and the command for a
    closer look.
    """
    out, plan = console(), plan.shown(SHOWN) if isinstance(plan, Plan) else plan
    _print_counts(plan)
    first = (
        "fastest first" if plan.rate == "tokens" else f"most {plan.rate.replace('_', ' ')} first"
    )
    if plan.why_no_times is not None:
        first = "in an order that rests on an assumed peak"
    tables = {f"estimated, {first}, tight ones last": plan.estimates}
    if plan.front_recipes > 1:
        tables["Pareto front of speed and memory"] = plan.front
    for title, estimates in tables.items():
        rows = list(enumerate(estimates, start=1))
        if rows:
            out.print()
            out.print(
                column_table(title, ESTIMATES, rows, width=out.width, bold=lambda row: row[0] == 1)
            )
    if plan.legal > sum(plan.not_modelled.values()):
        out.print()
        if plan.undecided:
            out.say(_not_decided(plan))
        if plan.estimates:
            out.say(f"p90: {STEP_P90.about}", style="dim")
            out.say(f"peak: {ESTIMATED_PEAK}", style="dim")
        if any(found.fit == "may not fit" for found in (*plan.estimates, *plan.front)):
            out.say(f"! {MAY_NOT_FIT}", style="dim")
        print_trust(plan)
    for best in plan.estimates[:1] if file is not None else ():
        closer = f"frontrunner explain --campaign {shlex.quote(str(file))} {best.recipe_id}"
        out.say(
            f"{located(closer)}  # where the first recipe's step time and memory go",
            style="dim",
            whole=True,
        )


def _not_decided(plan: ShownPlan) -> str:
    """Return that the order of the first places is not decided."""
    others = min(AT_HAND, plan.fitting) - 1
    which = "the next recipe" if others == 1 else f"{plan.undecided} of the next {others} recipes"
    return (
        f"the order of the first places is not decided: {which} may be faster than the first, by"
        " the errors that the estimates do not share"
    )


def _print_counts(plan: ShownPlan) -> None:
    out, left_out = console(), sum(plan.not_modelled.values())
    if plan.active_parameters < plan.parameters:
        out.say(
            f"{count(plan.parameters)} parameters, of which {count(plan.active_parameters)} per"
            " token"
        )
    out.say(
        f"{plan.legal:,} legal recipes: {plan.fitting:,} are estimated to fit in"
        f" {gib(plan.memory_limit_bytes)} GiB per device"
        + (f", {plan.tight:,} of them tightly: {TIGHT}" if plan.tight else "")
        + (f", {left_out:,} are not estimated" if left_out else "")
    )
    for reason, many in plan.not_modelled.items():
        out.say(
            f"note: {many:,} recipes are left out: the formulas do not cover {reason}", style="dim"
        )


def print_trust(trust: Trust) -> None:
    """Print how far to trust the figures."""
    out = console()
    is_blind = trust.why_no_times is not None
    out.say(trust.in_words(), style="bold red" if is_blind else "dim")
    if located("FILE") != "FILE" and NOT_TRAINED not in trust.remarks:  # the file is at hand
        out.say(f"{located('frontrunner launch FILE')}  # measures", style="dim", whole=True)
    if trust.assumed:
        out.say(f"not given, assumed: {trust.assumed_in_words()}", style="dim")
    for code in trust.software:
        out.say(f"training code assumed: {code.describe()}", style="dim")
    for remark in trust.remarks:
        out.say(f"note: {remark}", style="dim")


_BEST: dict[str, Column[ScalingRow]] = {
    column.key: column.of(attrgetter("best")) for column in (*RECIPE, *ESTIMATED, *TRAINING, LIMIT)
}
SCALING: tuple[Column[ScalingRow], ...] = (
    Column("nodes", "nodes", attrgetter("nodes"), "{:,}".format),
    Column("devices", "devices", attrgetter("devices"), "{:,}".format, drop=6),
    Column(
        "global_batch",
        "global batch",
        lambda row: row.best.recipe.global_batch_seqs if row.best else None,
        "{:,}".format,
        drop=5,
    ),
    replace(_BEST["recipe_id"], title="best recipe", drop=1),
    replace(_BEST["layout"], whole=""),
    replace(_BEST["batch"], drop=7, whole=""),
    replace(_BEST["sharding"], drop=8, whole=""),
    replace(_BEST["step_time_s_median"], drop=4),
    replace(_BEST["step_time_bounds_s"], drop=4),
    _BEST["tokens_per_s"],
    Column(
        "tokens_per_s_per_device",
        "tok/s/device",
        attrgetter("tokens_per_s_per_device"),
        thousands,
        drop=3,
    ),
    replace(_BEST["mfu"], drop=3),
    Column("efficiency", "efficiency", attrgetter("efficiency"), percent),
    replace(_BEST["peak_memory_bytes_max_rank"], drop=2),
    Column(
        "node_hours",
        "node-h / 1e9 tok",
        attrgetter("node_hours_per_billion_tokens"),
        lambda value: f"{value:#.3g}" if 0.01 <= value < 100 else thousands(value),
    ),
    Column("price", "price / 1e9 tok", attrgetter("price_per_billion_tokens"), thousands, drop=3),
    *(_BEST[column.key] for column in TRAINING),
    replace(_BEST["limit"], drop=9),
)


def print_scaling(found: Scaling) -> None:
    """Print both tables, the reasons of their gaps, and what may bound them."""
    out = console()
    for title, rows in zip(SCALINGS, (found.strong, found.weak), strict=True):
        out.print()
        out.print(column_table(title, SCALING, rows, width=out.width, bold=lambda row: row.is_best))
        for row in rows:
            if row.is_best and len(rows) > 1:
                out.say(f"most {found.rate.replace('_', ' ')}: {counted(row.nodes, 'node')}")
            if row.reason is not None:
                out.say(f"{counted(row.nodes, 'node')}: {row.reason}")
    if found.trust.why_no_times is None:
        out.say(
            "\nefficiency: tokens/s per device relative to the smallest node count that has a"
            " recipe",
            style="dim",
        )
    if any(row.best and row.best.fit == "may not fit" for row in (*found.strong, *found.weak)):
        out.say(f"! {MAY_NOT_FIT}", style="dim")
    for bound in found.bounds:
        *most, last = (f"{nodes:,}" for nodes in bound.nodes)
        nodes = f"{', '.join(most)} and {last}" if most else last
        found_at = (
            f"space.{bound.dimension} goes up to {bound.largest}, which is best on {nodes} nodes"
        )
        out.say(f"note: {found_at}: a longer list may hold something faster", style="dim")
    if found.devices_ignored:
        out.say("note: space.devices is ignored: each count uses all its devices", style="dim")
    print_trust(found.trust)


_OF_CLUSTER: dict[str, Column[ClusterPlan]] = {
    column.key: column.of(attrgetter("best")) for column in (*RECIPE, *ESTIMATED)
}
CLUSTERS: tuple[Column[ClusterPlan], ...] = (
    words("cluster", "cluster", attrgetter("cluster")),
    Column("devices", "devices", attrgetter("devices"), "{:,}".format),
    replace(_OF_CLUSTER["recipe_id"], title="best recipe", drop=1),
    replace(_OF_CLUSTER["layout"], whole=""),
    replace(_OF_CLUSTER["batch"], drop=5, whole=""),
    replace(_OF_CLUSTER["sharding"], drop=6, whole=""),
    _OF_CLUSTER["tokens_per_s"],
    Column(
        "tokens_per_s_per_device",
        "tok/s/device",
        attrgetter("tokens_per_s_per_device"),
        thousands,
    ),
    replace(_OF_CLUSTER["mfu"], drop=4),
    replace(_OF_CLUSTER["peak_memory_bytes_max_rank"], drop=3),
)
PRICE: Column[ClusterPlan] = Column(
    "price", "price / 1e9 tok", attrgetter("price_per_billion_tokens"), thousands
)


def print_clusters(found: ClusterRanking) -> None:
    """Print a row for each cluster, best first, and why some have no recipe or no time.

    Prices are printed where those of all clusters with a recipe are known.
    """
    out, rows = console(), found.clusters
    prices = [row.price_per_billion_tokens for row in rows if row.best is not None]
    columns = CLUSTERS if None in prices else (*CLUSTERS, PRICE)
    title = f"estimated, most {found.rate.replace('_', ' ')} first"
    out.print(column_table(title, columns, rows, width=out.width, bold=lambda row: row is rows[0]))
    for row in rows:
        out.say(f"{row.cluster}: {row.reason or row.trust.in_words()}", style="dim")
    if any(row.best and row.best.fit == "may not fit" for row in rows):
        out.say(f"! {MAY_NOT_FIT}", style="dim")


def print_breakdown(found: Breakdown, *, dryrun: str | None = None) -> None:  # noqa: C901 - one line after the other
    """Print where a recipe's step time and memory go."""
    out = console()
    estimate, measured = found.estimate, found.measured
    out.say((estimate.recipe_id, "bold"), f"  {estimate.recipe.describe()}")
    rows: list[tuple[str, Estimate | Measured]] = [("estimated", estimate)]
    rows += [] if measured is None else [("measured", measured)]
    columns = (
        words("origin", "", itemgetter(0)),
        *(column.of(itemgetter(1)) for column in ESTIMATED),
    )
    out.print(column_table(None, columns, rows, width=out.width))
    with_all, without = found.hardware_tflops_per_device, estimate.model_tflops_per_device
    if with_all is not None and without is not None and with_all > 1.001 * without:
        with_recompute = thousands(with_all)
        out.say(f"{with_recompute} TFLOPS/device with what is computed a second time", style="dim")
    if measured is not None:
        memory = "what tensors hold of the memory" if found.compares_allocated else "peak memory"
        errors = {"step time": found.step_time_error, memory: found.peak_memory_error}
        off = " and ".join(
            f"{100 * error:+.0f} % in {of}" for of, error in errors.items() if error is not None
        )
        by = (
            "measured by campaign"
            if measured.figures == "measured"
            else "measured elsewhere, and imported as"
        )
        line = f"{by} {measured.campaign} of {measured.store}" + (
            f"; the estimate is off by {off}" if off else ""
        )
        if (inside := found.is_inside) is not None:
            line += f"; the measured step is {'inside' if inside else 'outside'} the 95 % interval"
        out.say(line, style="dim")
    elif found.unmatched is not None:
        out.say(found.unmatched, style="dim")
    if (limit := limited_by(estimate)) is not None:
        out.say(f"limited by {limit}")
    mixture = found.problem.model.mixture
    if mixture and (shared := estimate.recipe.experts_in_words(mixture.experts)):
        out.say(shared, style="dim")
    for table in (_step_table(found), _memory_table(found)):
        if table is not None:
            out.print()
            out.print(table)
    if estimate.recipe.pipeline_parallel > 1:
        with suppress(InvalidInput):  # a step of too many passes, or without times
            print_timeline(step_timeline(estimate.recipe, found.problem))
    out.say(
        fit_verdict(estimate.fit, estimate.peak_memory_bytes, found.memory_limit_bytes),
        style="bold",
    )
    out.say(f"peak: {ESTIMATED_PEAK}", style="dim")
    if estimate.host_memory_bytes_per_rank:
        out.say(f"in the host's memory: {gib(estimate.host_memory_bytes_per_rank)} GiB per rank")
    for mark in found.marks:
        out.say(f"note: {mark.text}", style="dim")
    print_trust(found.trust)
    is_traceable = (
        why_untraceable(estimate.recipe, found.problem) is None
        and found.problem.software.code is None
    )
    if dryrun is not None and is_traceable:
        out.say(f"{located(dryrun)}  # traces the memory of the real step", style="dim", whole=True)


def _bar(amount: float, longest: float, style: str) -> ProgressBar:
    return ProgressBar(
        total=longest,
        completed=amount,
        style="bar.back",
        complete_style=style,
        finished_style=style,
    )


def _step_table(found: Breakdown) -> Table | None:
    """Return the parts of the step, or None without times."""
    estimate = found.estimate
    if estimate.step_time_s is None:
        return None
    parts = {name: time for name, time in estimate.step_parts_s.items() if time > 0}
    title = "the step, on the slowest rank of the pipeline" if len(found.ranks) > 1 else "the step"
    step = ruled_table(title, "part", ("time", "right"), ("share", "right"))
    step.add_column("", width=40)
    for name, time in parts.items():
        style = "red" if name == estimate.limit and name != "compute" else "cyan"
        bar = _bar(time, max(parts.values()), style)
        step.add_row(PARTS[name], seconds(time), percent(time / estimate.step_time_s), bar)
    step.add_section()
    step.add_row("step", seconds(estimate.step_time_s), "100.0 %", "", style="bold")
    return step


def _memory_table(found: Breakdown) -> Table:
    ranks, sizes = found.ranks, found.estimate.memory_parts_bytes
    is_split = len(ranks) > 1
    unit, name = memory_unit(found.estimate.peak_memory_bytes)
    heads = [
        f"{rank.holds}\n{counted(rank.layers, 'layer')}" if is_split else rank.holds
        for rank in ranks
    ]
    table = ruled_table(f"memory, {name}", "part", *((head, "right") for head in heads))
    table.add_column("fullest rank" if is_split else "", width=None, max_width=40, ratio=1)
    for part, amount in sizes.items():
        held = [rank.memory_parts_bytes[part] for rank in ranks]
        if any(held):
            table.add_row(
                part,
                *(f"{one / unit:.2f}" for one in held),
                _bar(amount, max(sizes.values()), "magenta"),
            )
    table.add_section()
    table.add_row(
        "peak", *(f"{rank.peak_memory_bytes / unit:.2f}" for rank in ranks), "", style="bold"
    )
    if is_split and (step_s := found.estimate.step_time_s) is not None:
        table.add_row("busy", *(percent((rank.busy_s or 0.0) / step_s, 0) for rank in ranks), "")
    return table


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, its answer in a word, and the sentences that give reasons; a table shows the
    `layouts`.
    """

    question: str
    answer: str
    sentences: tuple[str, ...]
    layouts: tuple[ParallelLayout, ...] = ()


def answers(advice: Advice) -> tuple[Answer, ...]:
    """Return the answers in the order in which a person would ask."""
    cluster, copy, chosen = advice.problem.cluster, advice.one_copy, advice.chosen
    questions = {"Does it fit on one device?": advice.one_device}
    if advice.one_node:
        questions[f"On one node of {cluster.devices_per_node} devices?"] = advice.one_node
    if cluster.devices > 1:
        questions[f"On all {cluster.devices:,} devices, {counted(cluster.nodes, 'node')}?"] = (
            advice.whole_cluster
        )
    found, sentences = [], []
    if copy is not None:
        each = f"{copy.state_bytes / advice.problem.model.parameters:.3g} bytes per parameter"
        sentences.append(
            f"One copy needs {size(copy.state_bytes)} for parameters, gradients and optimizer"
            f" ({each}), and {size(copy.activation_bytes_whole)} for the activations of a sequence,"
            f" {size(copy.activation_bytes_recomputed)} with full recompute; a device has"
            f" {size(cluster.memory_bytes_per_device)}."
        )
    for question, layouts in questions.items():
        sentences.append(_best(layouts, advice))
        on_host = [
            bool(x.estimate and x.estimate.host_memory_bytes_per_rank) for x in layouts if x.fits
        ]
        verdict = "no" if not on_host else "with the host's memory only" if all(on_host) else "yes"
        found.append(
            Answer(question=question, answer=verdict, sentences=tuple(sentences), layouts=layouts)
        )
        sentences = []
    if chosen is not None:
        reasons = tuple(_why(advice, chosen))
        return (
            *found,
            Answer(question="What then, and why?", answer=chosen.name, sentences=reasons),
        )
    if copy is not None:
        devices = math.ceil(copy.state_bytes / cluster.memory_bytes_per_device)
        nodes = counted(math.ceil(devices / cluster.devices_per_node), "node")
        sentences = [
            f"Parameters, gradients and optimizer alone fill {devices:,} such devices, {nodes}."
        ]
    return (*found, Answer(question="What then?", answer="more memory", sentences=tuple(sentences)))


def _best(layouts: Sequence[ParallelLayout], advice: Advice) -> str:
    known = [layout.estimate for layout in layouts if layout.estimate is not None]
    best = max(layouts, key=speed)
    if best.fits and best.estimate is not None:
        fitting = f"{sum(layout.fits for layout in layouts)} of {len(layouts)} layouts fit"
        first = "Fastest" if advice.trust.why_no_times is None else "First"
        return (
            f"{fitting}. {first}: {best.name}, {_named(best.estimate)},"
            f" {_peak(best.estimate, advice)}."
        )
    if known:
        smallest = min(known, key=attrgetter("peak_memory_bytes"))
        return f"The smallest recipe, {_named(smallest)}, needs {_peak(smallest, advice)}."
    return f"No recipe can be estimated: {layouts[0].reason}."


def _why(advice: Advice, chosen: ParallelLayout) -> Iterator[str]:
    yield f"{chosen.name}: {chosen.about}."
    fastest = advice.fastest
    if fastest is not None and fastest is not chosen and advice.trust.why_no_times is None:
        faster, kept = percent(speed(fastest) / speed(chosen) - 1), percent(WORTH_ITS_COMPLEXITY, 0)
        yield (
            f"{fastest.name} is estimated {faster} faster: at most the {kept} for which a plainer"
            " layout is kept."
        )
    if advice.tiling is not None:
        tiled, saved = advice.tiling.tiled, size(advice.tiling.saved_bytes)
        longer = (
            ""
            if (slower := advice.tiling.slower) is None
            else f" and takes {percent(slower, 0)} longer"
        )
        levers = " ".join(tiled.recipe.words("lever"))
        yield f"With {levers} ({tiled.recipe_id}) it frees {saved}{longer}."


def _named(found: Estimate) -> str:
    return f"{found.recipe_id} ({found.recipe.describe()})"


def _peak(found: Estimate, advice: Advice) -> str:
    doubt = "" if found.fit in ("fits", "does not fit") else f" ({found.fit})"
    return (
        f"{gib(found.peak_memory_bytes)} of {gib(advice.problem.cluster.memory_bytes_per_device)}"
        f" GiB{doubt}"
    )


def _estimate(advice: Advice) -> Estimate | None:
    return None if advice.chosen is None else advice.chosen.estimate


def heading(advice: Advice) -> str:
    """Return the problem on one line."""
    problem, cluster = advice.problem, advice.problem.cluster
    size = parameters(problem.model.parameters, active=problem.model.active_parameters)
    return (
        f"{problem.model.name}, {size}, {problem.precision}, global batch"
        f" {problem.global_batch} x {problem.sequence_length:,} tokens, on {cluster.name}:"
        f" {cluster.nodes:,} x {cluster.devices_per_node} devices of"
        f" {gib(cluster.memory_bytes_per_device)} GiB"
    )


def begin_with(advice: Advice) -> str | None:
    """Return the recommended recipe with its figures."""
    found = _estimate(advice)
    if found is None:
        return None
    rates = ""
    if found.tokens_per_s is not None:
        rates = (
            f"{thousands(found.tokens_per_s)} tokens/s (95 %: {RATE_BOUNDS.cell(found)}), MFU"
            f" {percent(found.mfu)}, "
        )
    return f"{_named(found)}: {rates}{_peak(found, advice)}"


def commands(advice: Advice, file: str) -> dict[str, str]:
    """Return the commands to run next, each with its purpose."""
    quoted, found = shlex.quote(file), _estimate(advice)
    if found is None:
        more = ",".join(str(advice.problem.cluster.nodes * factor) for factor in (2, 4, 8))
        return {f"frontrunner plan {quoted} --nodes {more}": "what the space gives on more nodes"}
    words = (f"{key}={str(value).lower()}" for key, value in advice.choices.items())
    chosen = " ".join(["--campaign", quoted, *words])
    next_steps = {f"frontrunner explain {chosen}": "what its step and memory go to"}
    if (
        why_untraceable(found.recipe, advice.problem) is None
        and advice.problem.software.code is None
    ):
        next_steps[f"frontrunner dryrun {chosen}"] = "trace its memory"
    around = "the recipes around it" + (", once [space] lists it" if advice.lacking else "")
    return next_steps | {f"frontrunner plan {quoted}": around}


def additions(advice: Advice) -> tuple[str, ...]:
    """Return the lines that the file's [space] lacks of the recipe."""
    return tuple(f"{key} = [..., {shown(value)}]" for key, value in advice.lacking.items())


def as_document(advice: Advice, file: str) -> Mapping[str, object]:
    """Return all of it for programs: the words, and the advice with its estimates."""
    return in_words(advice, file) | {"advice": advice}


def in_words(advice: Advice, file: str) -> dict[str, object]:
    """Return the words of the advice for programs."""
    said = [
        {"question": a.question, "answer": a.answer, "sentences": a.sentences}
        for a in answers(advice)
    ]
    document: dict[str, object] = {
        "about": heading(advice),
        "answers": said,
        "begin_with": begin_with(advice),
    }
    model = advice.problem.model
    document |= {"parameters": model.parameters, "active_parameters": model.active_parameters}
    return document | {"commands": list(commands(advice, file))}


_FIGURES: Mapping[str, Column[ParallelLayout]] = {
    column.key: column.of(
        attrgetter("estimate")
        if column.key.startswith("peak")
        else lambda x: x.estimate if x.fits else None
    )
    for column in (*FIGURES, RATE_BOUNDS, LIMIT)
}
LAYOUTS: tuple[Column[ParallelLayout], ...] = (
    words("layout", "layout", attrgetter("name")),
    words("fit", "memory", lambda layout: layout.estimate and layout.estimate.fit),
    _FIGURES["tokens_per_s"],
    _FIGURES["tokens_per_s_bounds"],
    _FIGURES["peak_memory_bytes_max_rank"],
    Column("host", "host GiB",
           lambda x: (x.estimate and x.estimate.host_memory_bytes_per_rank) or None, gib, drop=5,
           about="kept in the host's memory per device"),
    Column[Estimate]("traffic", "traffic", traffic_share, percent, drop=2,
           about="share of a step spent waiting for other devices").of(
        lambda x: x.estimate if x.fits else None),
    replace(_FIGURES["limit"], drop=4),
    replace(RECIPE_ID.of(attrgetter("estimate")), drop=1),
    words("describe", "in short", lambda x: x.estimate and x.estimate.recipe.describe(), drop=3,
        least=22),
)  # fmt: skip


def _without_recipe(layouts: Sequence[ParallelLayout]) -> dict[str, list[str]]:
    """Return the names of layouts without a recipe, by the reason."""
    found: dict[str, list[str]] = {}
    for layout in layouts:
        if layout.reason is not None:
            found.setdefault(layout.reason, []).append(layout.name)
    return found


def _say(text: str, indent: int = INDENT, style: str = "") -> None:
    out = console()
    out.say(wrapped(plain(text), width=min(out.width, WIDEST_TEXT), indent=indent), style=style)


def _print_beginning(advice: Advice) -> None:
    if (beginning := begin_with(advice)) is not None:
        console().say("\nbegin with", style="bold")
        _say(beginning)


def print_advice(advice: Advice, file: str | None = None) -> None:
    """Print the answers, the recommended recipe and the commands to go on with."""
    out = console()
    _say(heading(advice), indent=0, style="bold")
    for number, answer in enumerate(answers(advice), start=1):
        out.say(f"\n{number}. {answer.question}  ", (answer.answer, "bold"))
        for sentence in answer.sentences:
            _say(sentence)
        if answer.layouts:
            best = max(map(speed, answer.layouts))
            is_best = partial(lambda best, layout: 0 < speed(layout) == best, best)
            table = column_table(
                None, LAYOUTS, answer.layouts, width=out.width - INDENT, bold=is_best
            )
            out.print(Padding(table, (0, 0, 0, INDENT), expand=False))
            for reason, names in _without_recipe(answer.layouts).items():
                _say(f"{'; '.join(names)}: {reason}")
    out.print()
    print_trust(advice.trust)
    _print_beginning(advice)
    if missing := additions(advice):
        _say("the file's [space] does not hold it; there, add:")
        for line in missing:
            out.say(f"{'':{2 * INDENT}}{line}", whole=True)
    if file is None:
        return
    out.say("go on with", style="bold")
    for command, purpose in commands(advice, file).items():
        out.say(f"{'':{INDENT}}{located(command)}", (f"  # {purpose}", "dim"), whole=True)
