"""Where published layouts of mixtures of experts stand among all that `plan` estimates on DGX H100.

    python benchmarks/published_layouts.py

* Mixtral 8x7B on 32 H100: the example of Megatron-LM's README of its MoE
  (megatron/core/transformer/moe/README.md).
* Mixtral 8x22B on 128 H100: the best layouts that arXiv 2504.14960 found (table 3), with experts
  folded apart from attention, and with one tensor-parallel degree for both. It states degrees, but
  neither schedule nor recompute. Tokens are dealt evenly, as in that paper's layers, which drop
  those beyond a capacity of 1.
* DeepSeek-V3 on 128 nodes: the degrees of its training on 2,048 H800 (arXiv 2412.19437, section 3:
  DualPipe, ZeRO-1), by a plain all-to-all and by DeepSeek's own communication.

Places are in `plan`'s order, which has recipes that fit tightly last.
"""

from __future__ import annotations

from typing import Any

import frontrunner
from frontrunner.evaluators.analytic.estimates import Estimate

MIXTRAL = {
    "tensor_parallel": [1, 2, 4, 8],
    "pipeline_parallel": [1, 2, 4, 8],
    "virtual_stages": [1, 2, 4, 7],
    "schedule": ["1f1b", "interleaved-1f1b"],
    "micro_batch_seqs": [1, 2],
    "sharding": ["zero-1", "zero-3"],
    "sequence_parallel": [True, False],
    "recompute": ["none", "selective", "full"],
    "expert_parallel": [1, 2, 4, 8],
    "expert_tensor_parallel": [1, 2, 4],
}
DEEPSEEK = MIXTRAL | {
    "pipeline_parallel": [1, 2, 4, 8, 16],
    "virtual_stages": [1, 2],
    "schedule": ["1f1b", "interleaved-1f1b", "zbv", "dualpipev"],
    "expert_parallel": [8, 16, 32, 64],
    "expert_tensor_parallel": [1],
}
README = {"tensor_parallel": 1, "pipeline_parallel": 4, "expert_parallel": 8, "micro_batch_seqs": 1}
FOLDED = {
    "tensor_parallel": 2,
    "pipeline_parallel": 8,
    "expert_parallel": 8,
    "expert_tensor_parallel": 1,
}
V3 = {"tensor_parallel": 1, "pipeline_parallel": 16, "schedule": "dualpipev", "micro_batch_seqs": 1,
      "recompute": "full", "sharding_name": "zero-1", "expert_parallel": 64}  # fmt: skip
PLAIN_CODES: dict[str, dict[str, Any]] = {"megatron-lm": {"code": "megatron-lm"}, "frontrunner": {}}
DEEPEP = {"dispatcher": "deepep", "dispatch_overlap": True}
PROBLEMS: list[dict[str, Any]] = [
    {"model": {"preset": "mixtral-8x7b", "routing": "uniform"}, "nodes": 4, "batch": 128,
        "space": MIXTRAL,
     "codes": PLAIN_CODES,
     "layouts": {"README": README | {"sharding_name": "zero-1", "schedule": "1f1b",
         "recompute": "none"},
                 "README's degrees": README}},
    {"model": {"preset": "mixtral-8x22b", "routing": "uniform"}, "nodes": 16, "batch": 256,
        "space": MIXTRAL,
     "codes": PLAIN_CODES,
     "layouts": {"folded": FOLDED, "one degree": FOLDED | {"expert_parallel": 4,
         "expert_tensor_parallel": 2}}},
    {"model": {"preset": "deepseek-v3"}, "nodes": 128, "batch": 15_360, "space": DEEPSEEK,
     "codes": {"plain all-to-all": {}, "DeepEP beside computation": DEEPEP},
     "layouts": {"published": V3, "ep8": V3 | {"expert_parallel": 8}}},
]  # fmt: skip


def line(name: str, place: int, found: Estimate, first: Estimate) -> str:
    """One recipe, its place and how much slower it is than the first."""
    slower = found.step_time_s / first.step_time_s - 1
    return (
        f"  {name:18} {place:5,}  {found.recipe.describe()}  {found.step_time_s:.2f} s"
        f" (+{slower:.1%}), MFU {found.mfu:.1%}"
    )


def main() -> None:
    """Print the first recipe of each problem, and the fastest that has each published layout's
    choices.
    """
    for problem in PROBLEMS:
        batch = {"sequence_length": 4096, "global_batch": problem["batch"], "precision": "bf16"}
        sections = {
            "model": problem["model"],
            "cluster": {"preset": "dgx-h100", "nodes": problem["nodes"]},
        }
        for code, software in problem["codes"].items():
            plan = frontrunner.plan(
                sections | {"problem": batch, "software": software, "space": problem["space"]}
            )
            shown = plan.shown(plan.legal)
            rows = shown.estimates
            told = (
                f"{problem['batch']:,} sequences, {code}: {shown.fitting:,} of {plan.legal:,} fit"
            )
            print(f"{problem['model']['preset']}, {problem['nodes']} nodes, {told}")
            print(line("first", 1, rows[0], rows[0]))
            for name, chosen in problem["layouts"].items():
                places = [
                    n
                    for n, row in enumerate(rows)
                    if all(getattr(row.recipe, key) == chosen[key] for key in chosen)
                ]
                print(line(name, places[0] + 1, rows[places[0]], rows[0]))


if __name__ == "__main__":
    main()
