"""What the campaigns of chaos search for, by what strategy and under what budget: drawn anew for
each of them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import parse_campaign
from frontrunner.search.spec import CampaignSpec

Table = dict[str, Any]

PROBES = {"simulated": 40, "probe": 8}
"""Outcomes that end a campaign, where no other limit is reached before."""
STRATEGIES = (*("guided", "random", "exhaustive", "optuna-tpe", "optuna-nsga2") * 2, "deephyper")
"""How often each strategy is drawn; `optuna-gp` would have every driver import torch."""
SLOW_DEVICE_TFLOPS = 1e-2
"""A simulated probe of these campaigns takes 0.5 to 3 node-seconds on such a device."""


def spec_of(name: str, evaluator: str, folder: Path, draw: random.Random) -> CampaignSpec:
    """One campaign, with its probes' files in folder/runs."""
    table = simulated(draw) if evaluator == "simulated" else real(draw)
    spec = parse_campaign(table, default_name=name, base=folder).spec
    return CampaignSpec(**{**vars(spec), "run_root": str(folder / "runs")})


def simulated(draw: random.Random) -> Table:
    """About a hundred recipes for probes that take no time; in every other campaign half of them
    lack memory.
    """
    probes = PROBES["simulated"]
    budget = draw.choice(
        (
            {"probes": probes},
            {"probes": probes},
            {"probes": probes, "node_hours": 0.02},
            {"probes": probes, "node_hours": 0.03, "hard": True},
            {"probes": probes, "minutes": 0.35, "hard": True},
        )
    )
    return {
        "evaluator": "simulated",
        "model": {"layers": 16, "hidden": 64, "heads": 16, "vocabulary": 257},
        "cluster": {
            "device": "chaos",
            "backend": "cpu",
            "nodes": draw.choice((1, 1, 2)),
            "devices_per_node": 8,
            "memory_gib_per_device": draw.choice((0.004, 2.0)),
            "peak_tflops": {"fp32": SLOW_DEVICE_TFLOPS},
        },
        "problem": {"sequence_length": 32, "global_batch": 64, "precision": "fp32"},
        "space": {
            "tensor_parallel": [1, 2, 4, 8],
            "pipeline_parallel": [1, 2, 4, 8],
            "micro_batch_seqs": [1, 2, 4],
            "sharding": ["none", "zero-1", "zero-2", "zero-3"],
        },
        "search": search(draw, draw.choice(STRATEGIES), parallel_probes=draw.choice((1, 1, 2, 4))),
        "budget": budget,
        "probe": draw.choice(({"warm_up_steps": 1, "measured_steps": 2}, {})),
    }


def real(draw: random.Random) -> Table:
    """Twelve recipes of a tiny model on two ranks: every other campaign lets its probes decide when
    they end.
    """
    fixed = {"warm_up_steps": 1, "measured_steps": 2}
    budget = draw.choice(({}, {}, {"node_hours": 0.05, "hard": True}))
    return {
        "evaluator": "probe",
        "model": {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 257},
        "cluster": {
            "device": "chaos",
            "backend": "cpu",
            "devices_per_node": 2,
            "memory_gib_per_device": 2.0,
        },
        "problem": {"sequence_length": 32, "global_batch": 8, "precision": "fp32"},
        "space": {
            "tensor_parallel": [1, 2],
            "pipeline_parallel": [1, 2],
            "micro_batch_seqs": [1, 2, 4],
            "sharding": ["none", "zero-1"],
        },
        "search": search(draw, draw.choice(("guided", "random", "optuna-tpe")), parallel_probes=1),
        "budget": {"probes": PROBES["probe"], **budget},
        "probe": {
            "deadline_s": 60,
            "step_deadline_s": 30,
            "foreign_load_limit": 1,
            **draw.choice((fixed, {})),
        },
    }


def search(draw: random.Random, strategy: str, *, parallel_probes: int) -> Table:
    """Failures that are all alike pause no campaign, and small expectations end none."""
    return {
        "strategy": strategy,
        "seed": draw.randrange(1 << 16),
        "parallel_probes": parallel_probes,
        "identical_failures": 1000,
        "stop_below_improvement": 0,
    }
