"""The tools that recipes are exported to and imported from."""

from __future__ import annotations

from frontrunner.evaluators.export.accelerate import Accelerate
from frontrunner.evaluators.export.base import Tool
from frontrunner.evaluators.export.deepspeed import DeepSpeed
from frontrunner.evaluators.export.megatron import MegatronBridge, MegatronDeepSpeed, MegatronLM
from frontrunner.evaluators.export.nanotron import Nanotron
from frontrunner.evaluators.export.torchtitan import Torchtitan
from frontrunner.spaces.errors import bad_value, did_you_mean

KINDS = (MegatronLM, MegatronDeepSpeed, DeepSpeed, MegatronBridge, Torchtitan, Nanotron, Accelerate)
TOOLS: dict[str, Tool] = {kind.name: kind() for kind in KINDS}


def tool_named(name: str) -> Tool:
    """Return the named tool; raise `InvalidInput` for an unknown name."""
    if name not in TOOLS:
        raise bad_value("format", name, "a known tool", hint=did_you_mean(name, TOOLS))
    return TOOLS[name]
