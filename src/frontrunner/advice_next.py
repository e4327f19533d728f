"""What follows from advice: the recipe to begin with, the commands to go on with, and all of it for programs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from frontrunner.advice_words import heading, in_words, named
from frontrunner.evaluators.analytic.advice import Advice
from frontrunner.evaluators.diagnostics.dryrun import why_untraceable
from frontrunner.spaces.errors import shown
from frontrunner.spaces.recipe import Choice
from frontrunner.text import gib, percent, thousands


def begin_with(advice: Advice) -> str:
    """The recipe to begin with, with its figures."""
    if advice.chosen is None or advice.chosen.estimate is None:
        return ""
    found = advice.chosen.estimate
    return (
        f"{named(found)}: {thousands(found.tokens_per_s)} tokens/s, MFU {percent(found.mfu)}, "
        f"{gib(found.peak_memory_bytes)} of {gib(advice.problem.cluster.memory_bytes_per_device)} GiB"
    )


def commands(advice: Advice, file: str) -> dict[str, str]:
    """What to run next, command to reason."""
    quoted = shlex.quote(file)
    if advice.chosen is None:
        more = ",".join(str(advice.problem.cluster.nodes * factor) for factor in (2, 4, 8))
        return {f"frontrunner plan {quoted} --nodes {more}": "what the space gives on more nodes"}
    words = " ".join(f"{key}={_flag(value)}" for key, value in advice.choices.items())
    chosen = f"--campaign {quoted} {words}".rstrip()
    estimate = advice.chosen.estimate
    traceable = estimate is not None and why_untraceable(estimate.recipe) is None
    return {
        f"frontrunner explain {chosen}": "what its step and memory go to",
        **({f"frontrunner dryrun {chosen}": "trace its memory"} if traceable else {}),
        f"frontrunner plan {quoted}": "the recipes around it" + (", once [space] lists it" if advice.lacking else ""),
    }


def additions(advice: Advice) -> tuple[str, ...]:
    """The lines of [space] that hold what the file's space lacks of the recipe."""
    return tuple(f"{key} = [..., {shown(value)}]" for key, value in advice.lacking.items())


def _flag(value: Choice) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_table(advice: Advice, file: str) -> Mapping[str, object]:
    """All of it for programs: the words, and the advice with its estimates."""
    return {
        "about": heading(advice),
        "answers": [{"question": a.question, "answer": a.answer, "sentences": a.sentences} for a in in_words(advice)],
        "begin_with": begin_with(advice) or None,
        "commands": list(commands(advice, file)),
        "advice": advice,
    }
