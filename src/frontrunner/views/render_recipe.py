"""Everything that is known of one recipe, on the terminal."""

from __future__ import annotations

from rich.console import Console

from frontrunner.results.explain import Appearance, Explanation, Neighbor
from frontrunner.results.outcome import Failure, Measurement, ProbeEnding, RecipeStats
from frontrunner.text import gib, percent, plain, seconds, thousands
from frontrunner.views.render import ORIGINS, console, titled_table


def print_explanation(explanation: Explanation) -> None:
    """Everything about one recipe."""
    out = console()
    recipe = explanation.recipe
    out.print(f"[bold]{explanation.recipe_id}[/bold]  {recipe.describe()}")
    out.print(f"engine {recipe.engine}, {recipe.devices} devices, global batch {recipe.global_batch_seqs} sequences")
    for appearance in explanation.appearances:
        _print_appearance(out, appearance)


def _print_appearance(out: Console, appearance: Appearance) -> None:
    summary = ", ".join(f"{key} {value}" for key, value in appearance.campaign.problem_summary.items())
    out.print(f"\ncampaign [bold]{appearance.campaign.name}[/bold]  ({plain(summary)})")
    if appearance.campaign.figures in ORIGINS:
        out.print(ORIGINS[appearance.campaign.figures], style="yellow")
    if appearance.standing is not None:
        _print_standing(out, appearance, appearance.standing)
    table = titled_table("attempts")
    for title in ("attempt", "outcome", "detail"):
        table.add_column(title, overflow="fold")
    for row in appearance.attempts:
        name = f"{appearance.trial.number}.{row.attempt.number}"
        table.add_row(name, str(row.attempt.state), _detail(row.outcome))
    out.print(table)
    latest = next((row.provenance for row in reversed(appearance.attempts) if row.provenance), None)
    if latest is not None:
        versions = ", ".join(f"{name} {version}" for name, version in latest.versions.items())
        out.print(f"on {latest.host}, {latest.device}; {versions}", style="dim", markup=False)
        out.print(f"command: {' '.join(latest.command_line)}", style="dim", markup=False)


def _print_standing(out: Console, appearance: Appearance, standing: RecipeStats) -> None:
    out.print(f"rank {appearance.rank} of {appearance.ranked_recipes} by tokens/s")
    out.print(
        f"  {thousands(standing.tokens_per_s)} tokens/s, step {seconds(standing.step_time_s_median)} "
        f"± {100 * standing.step_time_spread:.1f} % over {standing.repeats} measurement"
        f"{'s' if standing.repeats > 1 else ''}"
    )
    out.print(
        f"  {thousands(standing.model_tflops_per_device)} model TFLOPS a device "
        f"({thousands(standing.hardware_tflops_per_device)} with recompute), MFU {percent(standing.mfu)}, "
        f"peak {gib(standing.peak_memory_bytes_max_rank)} GiB on the rank that needs most"
    )
    for word, neighbor in (("above", appearance.above), ("below", appearance.below)):
        if neighbor is not None:
            out.print(f"  {_against(word, neighbor)}")


def _against(word: str, neighbor: Neighbor) -> str:
    doubt = ": within the spread, another measurement could turn it round" if neighbor.within_spread else ""
    relation = "faster" if word == "above" else "slower"
    return f"next {word}: {neighbor.recipe_id}, {neighbor.gap_percent:.1f} % {relation}{doubt}"


_ENDINGS = {
    ProbeEnding.KNOWN: "ended: known well enough",
    ProbeEnding.SLOWER: "ended: clearly slower than the best, so its figures are rough",
    ProbeEnding.NOISY: "ended: too noisy to be known better with more steps",
    ProbeEnding.LIMIT: "ended at its limit",
    ProbeEnding.FIXED: "ended after as many steps as were asked for",
}


def _detail(outcome: Measurement | Failure | None) -> str:
    if outcome is None:
        return "running"
    if isinstance(outcome, Failure):
        return plain(f"{outcome.kind}: {outcome.message}")
    steps = " ".join(f"{1000 * time:.0f}" for time in outcome.step_times_s)
    ended = "" if outcome.ended is None else f"; {_ENDINGS[outcome.ended]}"
    losses = f"; loss {outcome.losses[0]:.3f} to {outcome.losses[-1]:.3f}" if outcome.losses else ""
    started = f"; built in {seconds(outcome.build_time_s)}, first step {seconds(outcome.first_step_time_s)}"
    return f"steps {steps} ms{ended}{losses}{started}; {outcome.node_seconds:.3g} node-seconds"
