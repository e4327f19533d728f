"""A commented campaign file to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import THIS_MACHINE, parse_campaign
from frontrunner.config.toml_file import toml_value
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import bad_value, did_you_mean, holds
from frontrunner.spaces.presets import preset_names
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.space import usual_space
from frontrunner.text import parameters

TOKENS_PER_STEP = 2**20
"""About as many as the default global batch has, where the machine computes them within
`LONGEST_STEP_S`.
"""
LONGEST_STEP_S = ProbeSettings().deadline_s / ProbeSettings().least_steps / 4
"""Of matrix products alone, at the rate of the formulas: the whole step may take a few times as
long.
"""
LONGEST_BY_DEFAULT = 4096
PROBES = 40
COMMENTS_AT = 40

Table = dict[str, Any]


def starter(*, model: str, cluster: str, folder: Path, **given: Any) -> str:
    """Return the text of a campaign file in a folder, for a model and a cluster, each a preset or a
    file's path.

    `given` are `nodes`, `sequence_length`, `global_batch` and `precision`; what is None gets a
    common value.
    """
    chosen = {key: value for key, value in given.items() if value is not None}
    models, clusters = preset_names("models"), (*preset_names("clusters"), THIS_MACHINE)
    of_model = _named("--model", model, models, ("config", ".json"), folder)
    of_cluster = _named("--cluster", cluster, clusters, ("file", ".toml"), folder)
    of_cluster |= {key: chosen.pop(key) for key in ("nodes",) if key in chosen}
    problem = _problem(
        of_model, of_cluster, {"sequence_length": 2, "global_batch": 1, "precision": "fp32"}, folder
    )
    longest = min(problem.model.embedding.max_positions or LONGEST_BY_DEFAULT, LONGEST_BY_DEFAULT)
    length = chosen.get("sequence_length", longest)
    devices = problem.cluster.devices
    common = {"sequence_length": length, "precision": _precision(problem.cluster)} | chosen
    problem = _problem(of_model, of_cluster, {"global_batch": 1} | common, folder)
    common = {
        "global_batch": devices * max(1, round(_tokens_per_step(problem) / length / devices))
    } | common
    problem = _problem(of_model, of_cluster, common, folder)
    return _text(of_model, of_cluster, problem)


def _precision(cluster: Cluster) -> str:
    """Return fp32 on CPUs; elsewhere bf16, or fp16 where a device states a rate of that alone."""
    if cluster.backend == "cpu":
        return "fp32"
    has_no_bf16 = cluster.peak_tflops.fp16 and not cluster.peak_tflops.bf16
    return "fp16" if has_no_bf16 else "bf16"


def _tokens_per_step(problem: Problem) -> float:
    """Return `TOKENS_PER_STEP`, or as many as the cluster multiplies through in
    `LONGEST_STEP_S`.
    """
    flops, cluster = problem.model.model_flops_per_token(problem.sequence_length), problem.cluster
    rate = cluster.devices * Machine.of(cluster, problem.precision, FRONTRUNNER).matmul_flops
    return min(TOKENS_PER_STEP, LONGEST_STEP_S * rate / flops)


def _named(
    option: str, name: str, known: tuple[str, ...], file: tuple[str, str], folder: Path
) -> Table:
    """Return the entry of a preset, or of a file by its path from the folder of the campaign
    file.
    """
    key, ending = file
    if name in known:
        return {"preset": name}
    if not name.endswith(ending) and "/" not in name:
        raise bad_value(
            option,
            name,
            f"a preset, or the path of a {ending} file",
            hint=did_you_mean(name, known),
        )
    path = Path(name)
    if not holds(path.is_file):
        raise bad_value(option, name, "a preset, or the path of a file that is there")
    absolute = path.resolve()
    home = folder.resolve()
    return {key: str(absolute.relative_to(home) if absolute.is_relative_to(home) else absolute)}


def _problem(model: Table, cluster: Table, problem: Table, folder: Path) -> Problem:
    table = {"model": model, "cluster": cluster, "problem": problem}
    return parse_campaign(table, default_name="campaign", base=folder).spec.problem


def _text(model: Table, cluster: Table, problem: Problem) -> str:
    machine, tokens = problem.cluster, problem.global_batch.maximum * problem.sequence_length
    nodes = "" if machine.nodes == 1 else f" on each of {machine.nodes} nodes"
    size = parameters(problem.model.parameters, active=problem.model.active_parameters)
    space = usual_space(problem)
    searched = [
        name for name in (one.name for one in fields(space)) if len(getattr(space, name)) > 1
    ]
    lines = [
        (
            "# The fastest way to train a model on a cluster: `frontrunner plan` estimates this"
            " file's recipes, without"
        ),
        (
            "# a device; `frontrunner launch` measures the promising ones. docs/campaign-file.md"
            " lists all keys."
        ),
        *_section("model", model, {next(iter(model)): size}),
        *_section(
            "cluster", cluster, {next(iter(cluster)): f"{machine.devices_per_node} devices{nodes}"}
        ),
        *_section(
            "problem",
            {
                "sequence_length": problem.sequence_length,
                "global_batch": problem.global_batch.maximum,
                "precision": problem.precision,
            },
            {"global_batch": f"sequences of an optimizer step: {tokens:,} tokens"},
        ),
        *_section("space", {name: list(getattr(space, name)) for name in searched}, {}),
        *_section("search", {"strategy": "guided"}, {}),
        *_section(
            "budget",
            {"probes": PROBES},
            {"probes": "at most, failed ones included; or: minutes, node_hours"},
        ),
    ]
    return "\n".join([*lines, ""])


def written(
    name: str, sections: Mapping[str, Table], comments: Mapping[str, dict[str, str]]
) -> str:
    """Return the text of a campaign file with these sections, and comments on some of their
    keys.
    """
    lines = [
        line
        for key, entries in sections.items()
        for line in _section(key, entries, comments.get(key, {}))
    ]
    return "\n".join([name, *lines, ""])


def _section(name: str, entries: Table, comments: dict[str, str]) -> list[str]:
    lines = ["", f"[{name}]"]
    for key, value in entries.items():
        entry = f"{key} = {toml_value(value)}"
        lines.append(f"{entry:<{COMMENTS_AT}}# {comments[key]}" if key in comments else entry)
    return lines
