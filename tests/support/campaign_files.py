"""Campaign files as text: a small valid one on a made-up cluster, with single entries changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from frontrunner.config.campaign import read_campaign_file
from frontrunner.spaces.space import Survey

VALID: dict[str, dict[str, str]] = {
    "": {"evaluator": '"simulated"'},
    "model": {"layers": "4", "hidden": "128", "heads": "8", "kv_heads": "4", "vocabulary": "257"},
    "cluster": {
        "device": '"test-device"',
        "backend": '"cpu"',
        "devices_per_node": "4",
        "memory_gib_per_device": "1.0",
        "peak_tflops": "{ fp32 = 0.1 }",
    },
    "problem": {"sequence_length": "128", "global_batch": "16", "precision": '"fp32"'},
    "space": {
        "tensor_parallel": "[1, 2, 4]",
        "pipeline_parallel": "[1, 2]",
        "micro_batch_seqs": "[1, 2]",
    },
    "search": {"strategy": '"random"', "seed": "1"},
    "budget": {"probes": "8"},
}
"""Section -> key -> the value as TOML writes it; the section "" is the top of the file."""


def campaign_toml(changes: Mapping[str, str | None] | None = None) -> str:
    """The valid file with entries changed: `section.key` -> TOML, or None to leave the entry
    out.
    """
    tables = {section: dict(entries) for section, entries in VALID.items()}
    for path, value in (changes or {}).items():
        section, _, key = path.rpartition(".")
        if value is None:
            del tables[section][key]
        else:
            tables.setdefault(section, {})[key] = value
    lines = []
    for section, entries in tables.items():
        lines += [f"[{section}]"] if section else []
        lines += [f"{key} = {value}" for key, value in entries.items()]
    return "\n".join(lines) + "\n"


def written(path: Path, content: str | bytes) -> Path:
    """The path, with this content in its file."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def surveyed(path: Path) -> Survey:
    """The survey of a campaign file's space."""
    spec = read_campaign_file(path).spec
    return spec.space.survey(spec.problem)
