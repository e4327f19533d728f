"""A recipe's estimate as one SVG file: the step and the memory as stacked bars, in light and in dark surroundings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from frontrunner.evaluators.analytic.breakdown import Breakdown
from frontrunner.evaluators.probe.files import write_text
from frontrunner.spaces.errors import writing
from frontrunner.text import gib, percent, plain, seconds, thousands
from frontrunner.views.columns import PARTS

WIDTH, MARGIN, BAR, LINE = 800, 28, 30, 21
LABELS = 144
"""What the names of bars take at the left."""
LEGEND_COLUMNS = 3
TITLE_CHARACTERS = 64
COLOURS = ("#4c78a8", "#86b5dd", "#f58518", "#e9b44c", "#d9534f", "#59a14f", "#a47bb9", "#5fb3ad", "#9c755f")
"""Of the parts, in their order; each stands out from white and from near-black."""

STYLE = """
.paper { fill: #ffffff } .gap { stroke: #ffffff }
text { fill: #1f2328; font: 14px system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif }
.quiet { fill: #59636e } .small { font-size: 12.5px } .strong { font-weight: 600 } .large { font-size: 19px }
.limit { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 4 3 } .whole { fill: #eaeef2 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #0d1117 } .gap { stroke: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #9198a1 }
  .limit { stroke: #e6edf3 } .whole { fill: #21262d }
}
"""


@dataclass(kw_only=True)
class _Sheet:
    """The picture as it grows downwards; `y` is the next line's top."""

    root: ET.Element = field(default_factory=lambda: ET.Element("svg"))
    y: float = MARGIN

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        """One line of text with its baseline at `y`."""
        given = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": style, "text-anchor": anchor}
        ET.SubElement(self.root, "text", given).text = plain(words)

    def box(self, x: float, y: float, width: float, height: float, **more: str) -> ET.Element:
        """A rectangle."""
        place = {"x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{max(width, 0):.2f}", "height": f"{height:.2f}"}
        return ET.SubElement(self.root, "rect", place | more)


def write_picture(found: Breakdown, path: Path) -> None:
    """Write the picture; raises `InvalidInput` where the file cannot be written."""
    with writing(path):
        write_text(path, picture(found))


def picture(found: Breakdown) -> str:
    """The picture as the text of an SVG file that needs nothing else."""
    sheet = _Sheet()
    ET.SubElement(sheet.root, "title").text = f"recipe {found.estimate.recipe_id}"
    ET.SubElement(sheet.root, "style").text = STYLE
    paper = sheet.box(0, 0, WIDTH, 0, **{"class": "paper"})
    _head(sheet, found)
    _step(sheet, found)
    _memory(sheet, found)
    _trust(sheet, found)
    height = f"{sheet.y + MARGIN / 2:.0f}"
    paper.set("height", height)
    for key, value in {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "width": str(WIDTH)}.items():
        sheet.root.set(key, value)
    sheet.root.set("height", height)
    sheet.root.set("viewBox", f"0 0 {WIDTH} {height}")
    ET.indent(sheet.root)
    return ET.tostring(sheet.root, encoding="unicode") + "\n"


def _head(sheet: _Sheet, found: Breakdown) -> None:
    estimate, problem = found.estimate, found.problem
    for line in textwrap.wrap(estimate.recipe.describe(), TITLE_CHARACTERS):
        sheet.text(MARGIN, sheet.y + 14, line, "large strong")
        sheet.y += 26
    sheet.y -= 26
    about = (
        f"{problem.model.name} on {estimate.recipe.devices:,} devices of {problem.cluster.name}, {problem.precision}, "
        f"global batch {estimate.recipe.global_batch_seqs:,} x {problem.sequence_length:,} tokens; "
        f"recipe {estimate.recipe_id}"
    )
    sheet.text(MARGIN, sheet.y + 38, about, "quiet small")
    figures = {
        "a step": seconds(estimate.step_time_s),
        "tokens/s": thousands(estimate.tokens_per_s),
        "TFLOPS a device": thousands(estimate.model_tflops_per_device),
        "MFU": percent(estimate.mfu),
        "GiB at the peak": gib(estimate.peak_memory_bytes),
    }
    for place, (what, figure) in enumerate(figures.items()):
        x = MARGIN + place * (WIDTH - 2 * MARGIN) / len(figures)
        sheet.text(x, sheet.y + 78, figure, "large")
        sheet.text(x, sheet.y + 97, what, "quiet small")
    sheet.y += 128


def _step(sheet: _Sheet, found: Breakdown) -> None:
    measured, time_s = found.measured, found.estimate.step_time_s
    parts = found.estimate.step_parts_s
    scale = (WIDTH - 2 * MARGIN - LABELS) / max(time_s, measured.step_time_s if measured else 0.0)
    _title(sheet, "Step")
    _bar(sheet, "estimated", parts, scale)
    if measured is not None:
        sheet.box(MARGIN + LABELS, sheet.y, measured.step_time_s * scale, BAR, **{"class": "whole"})
        sheet.text(MARGIN, sheet.y + BAR / 2 + 5, "measured")
        sheet.text(MARGIN + LABELS + 10, sheet.y + BAR / 2 + 5, seconds(measured.step_time_s))
        sheet.y += BAR + 8
    words = {name: f"{seconds(part)}, {percent(part / time_s)}" for name, part in parts.items() if part > 0}
    _legend(sheet, {name: (PARTS[name], text) for name, text in words.items()}, list(parts))


def _memory(sheet: _Sheet, found: Breakdown) -> None:
    """A bar a rank against the device's memory; the legend's figures are the fullest rank's."""
    limit, measured = found.memory_limit_bytes, found.measured
    peaks = [rank.peak_memory_bytes for rank in found.ranks]
    room = WIDTH - 2 * MARGIN - LABELS
    scale = room / max(limit, *peaks, measured.peak_memory_bytes if measured else 0)
    _title(sheet, "Memory")
    top = sheet.y
    for rank in found.ranks:
        sheet.box(MARGIN + LABELS, sheet.y, limit * scale, BAR, **{"class": "whole"})
        _bar(sheet, rank.holds, rank.memory_parts_bytes, scale)
    if measured is not None:
        sheet.box(MARGIN + LABELS, sheet.y, measured.peak_memory_bytes * scale, BAR, **{"class": "whole"})
        sheet.text(MARGIN, sheet.y + BAR / 2 + 5, "measured")
        sheet.text(MARGIN + LABELS + 10, sheet.y + BAR / 2 + 5, f"{gib(measured.peak_memory_bytes)} GiB")
        sheet.y += BAR + 8
    edge = MARGIN + LABELS + limit * scale
    line = {"x1": f"{edge:.1f}", "x2": f"{edge:.1f}", "y1": f"{top - 6:.1f}", "y2": f"{sheet.y - 2:.1f}"}
    ET.SubElement(sheet.root, "line", line | {"class": "limit"})
    is_far_left = edge < MARGIN + 2 * LABELS  # where the title stands
    sheet.text(edge, top - 11, f"a device's {gib(limit)} GiB", "quiet small", "start" if is_far_left else "end")
    sizes = found.estimate.memory_parts_bytes
    words = {name: (name, words) for name in sizes if (words := _size(found, name))}
    _legend(sheet, words, list(sizes))


def _size(found: Breakdown, name: str) -> str:
    """A part on the fullest rank, or on another where that has none of it; nothing where no rank has."""
    size = found.estimate.memory_parts_bytes[name]
    most = max(found.ranks, key=lambda rank: rank.memory_parts_bytes[name])
    if size > 0 or most.memory_parts_bytes[name] == 0:
        return f"{gib(size)} GiB" if size > 0 else ""
    return f"{gib(most.memory_parts_bytes[name])} GiB on {most.holds}"


def _title(sheet: _Sheet, words: str) -> None:
    sheet.text(MARGIN, sheet.y + 14, words, "strong")
    sheet.y += 28


def _bar(sheet: _Sheet, name: str, parts: Mapping[str, float], scale: float) -> None:
    """The parts after one another, with a label before them."""
    sheet.text(MARGIN, sheet.y + BAR / 2 + 5, name)
    x = float(MARGIN + LABELS)
    for place, size in enumerate(parts.values()):
        if size * scale > 0:
            style = {"fill": COLOURS[place % len(COLOURS)], "class": "gap", "stroke-width": "0.6"}
            sheet.box(x, sheet.y, size * scale, BAR, **style)
            x += size * scale
    sheet.y += BAR + 8


def _legend(sheet: _Sheet, words: Mapping[str, tuple[str, str]], order: list[str]) -> None:
    wide = (WIDTH - 2 * MARGIN) / LEGEND_COLUMNS
    sheet.y += 4
    for place, (name, (word, figure)) in enumerate(words.items()):
        x = MARGIN + place % LEGEND_COLUMNS * wide
        y = sheet.y + place // LEGEND_COLUMNS * LINE
        sheet.box(x, y, 11, 11, rx="2", fill=COLOURS[order.index(name) % len(COLOURS)])
        sheet.text(x + 18, y + 10, word, "small")
        sheet.text(x + 104, y + 10, figure, "quiet small")
    sheet.y += -(-len(words) // LEGEND_COLUMNS) * LINE + 26


def _trust(sheet: _Sheet, found: Breakdown) -> None:
    sheet.y -= 8
    said = f"Estimated by formulas: expect step times to be off by {percent(found.trust.expected_error, 0)} on average."
    if found.measured is not None:
        said += f" Measured by campaign {found.measured.campaign}."
    sheet.text(MARGIN, sheet.y + 12, said, "quiet small")
    sheet.y += 16
