"""Advice on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from frontrunner.advice_next import additions, begin_with, commands
from frontrunner.advice_words import heading, in_words
from frontrunner.evaluators.analytic.advice import Advice, traffic_s
from frontrunner.evaluators.analytic.forms import Form
from frontrunner.text import gib, percent, plain, thousands, wrapped
from frontrunner.views.columns import Column, fitted_table
from frontrunner.views.render import console
from frontrunner.views.render_plan import limited_by, print_trust

INDENT = 3
WIDEST_TEXT = 110
"""Longer lines of words are hard to read."""


def print_advice(advice: Advice, file: str) -> None:
    """Question by question, and where to begin."""
    out = console()
    width = min(out.width, WIDEST_TEXT)
    out.print(Text(wrapped(plain(heading(advice)), width=width, indent=0), style="bold"), soft_wrap=True)
    for number, answer in enumerate(in_words(advice), start=1):
        out.print()
        out.print(f"{number}. {answer.question}  [bold]{answer.answer}[/bold]")
        for sentence in answer.sentences:
            _say(out, sentence)
        judged = [form for form in answer.forms if form.estimate is not None]
        if judged:
            _print_forms(out, judged)
    out.print()
    print_trust(advice.trust)
    _print_beginning(out, advice, file)


def _print_beginning(out: Console, advice: Advice, file: str) -> None:
    out.print()
    begin = begin_with(advice)
    if begin:
        out.print("begin with", style="bold")
        _say(out, begin)
    missing = additions(advice)
    if missing:
        _say(out, "the file's [space] does not hold it; there, add:")
        for line in missing:
            out.print(Text(f"{'':{2 * INDENT}}{line}"), soft_wrap=True)
    out.print("go on with", style="bold")
    for command, what in commands(advice, file).items():
        out.print(Text(f"{'':{INDENT}}{command}"), Text(f"  # {what}", style="dim"), sep="", soft_wrap=True)


def _say(out: Console, sentence: str) -> None:
    out.print(Text(wrapped(plain(sentence), width=min(out.width, WIDEST_TEXT), indent=INDENT)), soft_wrap=True)


def _traffic(form: Form) -> str:
    if form.estimate is None or not form.fits:
        return "-"
    return percent(traffic_s(form.estimate) / form.estimate.step_time_s)


_COLUMNS: tuple[Column[Form], ...] = (
    Column("form", lambda form: form.name, is_number=False),
    Column("fits", lambda form: "yes" if form.fits else "no" if form.estimate else "-", is_number=False),
    Column("tokens/s", lambda form: thousands(form.estimate.tokens_per_s) if form.estimate and form.fits else "-"),
    Column("peak GiB", lambda form: gib(form.estimate.peak_memory_bytes) if form.estimate else "-"),
    Column("traffic", _traffic, drop=2),
    Column("limited by", lambda form: limited_by(form.estimate) if form.estimate and form.fits else "-", drop=4,
           is_number=False),
    Column("recipe", lambda form: form.estimate.recipe_id if form.estimate else "-", is_number=False, drop=1),
    Column("in short", lambda form: form.estimate.recipe.describe() if form.estimate else "-", is_number=False,
           least=22, drop=3),
)  # fmt: skip
"""`traffic` is the share of a step that waits for other devices' data."""


def _print_forms(out: Console, found: Sequence[Form]) -> None:
    fastest = max((f.estimate.tokens_per_s for f in found if f.fits and f.estimate), default=0.0)
    table = fitted_table(
        None,
        _COLUMNS,
        found,
        width=out.width - INDENT,
        bold=lambda form: form.estimate is not None and form.fits and form.estimate.tokens_per_s == fastest,
    )
    out.print(Padding(table, (0, 0, 0, INDENT), expand=False))
