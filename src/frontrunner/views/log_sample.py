"""Sample logs on the terminal: what a campaign would read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontrunner.text import counted, size, thousands
from frontrunner.text import seconds as time_text
from frontrunner.views.terminal import console, ruled_table

if TYPE_CHECKING:
    from frontrunner.evaluators.programs.log_sample import LogSample, SampleStep

MOST_STEPS = 5
RATES = {
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_device": "tokens/s per device",
    "samples_per_s": "sequences/s",
}


def print_log_sample(sample: LogSample) -> None:
    """Print the first steps, the peak memory and the trainer's statements about itself."""
    out = console()
    numbers = dict.fromkeys((sample.steps[0].number, sample.steps[-1].number))
    found = counted(len(sample.steps), "finished step")
    out.say(f"{found} recognized: {' to '.join(map(str, numbers))}")
    table = ruled_table(
        None, ("step", "right"), ("step time or rate", "fold"), ("loss", "right"), "left out"
    )
    for step in sample.steps[:MOST_STEPS]:
        loss = "-" if step.loss is None else f"{step.loss:.6g}"
        table.add_row(str(step.number), _speed(step), loss, _why_left_out(step))
    out.print(table)
    if len(sample.steps) > MOST_STEPS:
        out.say(f"and {counted(len(sample.steps) - MOST_STEPS, 'more step')}")
    peak = sample.peak_memory_bytes
    out.say(f"peak memory: {'the log does not state it' if peak is None else size(peak)}")
    for statement in sample.statements:
        out.say(f"states {statement.figure} = {statement.value:g}: {statement.source}")
    out.say(
        "Nothing was run or stored. A probe also compares these statements with its recipe, and"
        " times and rates with each other and with its clock."
    )


def _speed(step: SampleStep) -> str:
    parts = [] if step.time_s is None else [time_text(step.time_s)]
    parts += [f"{thousands(rate)} {RATES[name]}" for name, rate in step.rates.items()]
    return ", ".join(parts) or "none: a probe takes the time between two lines"


def _why_left_out(step: SampleStep) -> str:
    if step.nan_steps:
        return "not finite"
    return "gradients overflowed" if step.skipped_steps else ""
