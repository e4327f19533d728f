"""Ready-made trainers: their log patterns and options, and commands made from a campaign's
[command].

Sample logs of each trainer, with their sources, are in `tests/unit/test_external_logs.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace

from frontrunner.evaluators.export.base import yaml_text
from frontrunner.evaluators.export.reading import yaml_table
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.programs import command as commands
from frontrunner.evaluators.programs.command import Command, CommandRequest, MakeCommand
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.logs import patterns_of
from frontrunner.spaces.errors import bad_value, require_one_of
from frontrunner.spaces.legality import Reason

MEGATRON_STEP = (
    (
        r"iteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\):"
        r" (?P<step_time_ms>[\d.]+)"
    ),
    (
        r"iteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \(s\):"
        r" (?P<step_time_s>[\d.]+)"
    ),
    (
        r"iteration\s+(?P<step>\d+)/.*?tokens per gpu per second \(tgs\):"
        r" (?P<tokens_per_s_per_device>[\d.]+)"
    ),
    r"\| lm[ _]loss: (?P<loss>\S+)",
    r"\| global batch size:\s+(?P<global_batch_seqs>\d+)",
    r"\| number of skipped iterations:\s+(?P<skipped_steps>\d+)",
    r"\| number of nan iterations:\s+(?P<nan_steps>\d+)",
)
"""The line of a step: Megatron-LM's `training_log`, which Megatron-DeepSpeed and Megatron-Bridge
have kept.
"""

MEGATRON_MEMORY = (
    r"\(after \d+ iterations\) memory \(MB\) \|.*?max allocated: (?P<peak_memory_mib>[\d.]+)",
    r"mem-max-allocated-gigabytes: (?P<peak_memory_gb>[\d.]+)",
)
"""`report_memory`, whose MB are 2^20 bytes."""

MEGATRON_ARGUMENTS = (
    r"^\s*(?:\S+:\s*)?micro_batch_size \.{3,} (?P<micro_batch_seqs>\d+)\s*$",
    r"^\s*(?:\S+:\s*)?global_batch_size \.{3,} (?P<global_batch_seqs>\d+)\s*$",
    r"^\s*(?:\S+:\s*)?seq_length \.{3,} (?P<sequence_length>\d+)\s*$",
    r"using world size: (?P<devices>\d+),",
    r"using world size: .*tensor-model-parallel size: (?P<tensor_parallel>\d+)",
    r"using world size: .*pipeline-model-parallel size: (?P<pipeline_parallel>\d+)",
)

DEEPSPEED_CONFIG = (
    r"\bprint\]\s+train_micro_batch_size_per_gpu\s+\.*\s*(?P<micro_batch_seqs>\d+)\s*$",
    r"\bprint\]\s+gradient_accumulation_steps\s+\.*\s*(?P<accumulation>\d+)\s*$",
    r"\bprint\]\s+train_batch_size\s+\.*\s*(?P<global_batch_seqs>\d+)\s*$",
)
"""Configuration that DeepSpeed's engine prints, `runtime/config.py`."""

DEEPSPEED = (
    r"\[Rank 0\] step=(?P<step>\d+), skipped=",
    r"global_step=(?P<step>\d+), .*CurrSamplesPerSec=(?P<samples_per_s>[\d.e+-]+)",
    r"\b\d+/(?P<step>\d+), SamplesPerSec=",
    r"\bsteps: (?P<step>\d+) loss: (?P<loss>\S+) .*iter time \(s\): (?P<step_time_s>[\d.]+)",
    r"MaxMemAllocated=(?P<peak_memory_gib>[\d.]+)GB",
    *DEEPSPEED_CONFIG,
)
"""`log_dist`, `ThroughputTimer` (GB there are 2^30 bytes) and the pipeline engine, with
`steps_per_print` 1. Up to version 0.6 the timer states the mean rate of all steps so far, which is
not read: our clock measures between two lines.
"""

TORCHTITAN = (
    (
        r"(?<!validate )step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>\S+)"
        r".*\b(?:tps|wps):\s*(?P<tokens_per_s_per_device>[\d,]+)"
    ),
    r"\bmemory:\s*(?P<peak_memory_gib>[\d.]+)GiB",
)
"""`MetricsProcessor.log`: tokens/s per device (`wps` until 2024), and the peak of reserved
memory.
"""

NANOTRON = (
    (
        r"iteration: (?P<step>\d+) / \d+ \|.*elapsed_time_per_iteration_ms:"
        r" (?P<step_time_ms>[\d.]+[KMGT]?)"
    ),
    r"iteration: (?P<step>\d+) / \d+ \|.*tokens_per_sec: (?P<tokens_per_s>[\d.]+[KMGT]?)",
    r"\| lm_loss: (?P<loss>\S+)",
    r"\| global_batch_size: (?P<global_batch_seqs>\d+) \|",
    r"\| cuda_max_memory_reserved: (?P<peak_memory_bytes>[\d.]+[KMGT]?)",
    r"Peak allocated:? (?P<peak_memory_mib>[\d.]+)MiB",
)
"""`LoggerWriter` writes three digits and a letter for thousands; a batch with a letter is too rough
to compare.
"""

NEMO = (
    r"iteration (?P<step>\d+)/\d+ \|.*train_step_timing in s: (?P<step_time_s>[\d.e+-]+)",
    r"Training epoch \d+, iteration (?P<step>\d+)/\d+ \|",
    (
        r"\bEpoch \d+: .*?\b(?P<step>\d+)(?:/\d+|it) \[.*train_step_timing in s="
        r"(?P<step_time_s>[\d.e+-]+)"
    ),
    r"\| reduced_train_loss: (?P<loss>\S+)",
    r"\breduced_train_loss=(?P<loss>[^,\]\s]+)",
    r"\| global_batch_size: (?P<global_batch_seqs>\d+)",
    r"\| peak_memory_usage: (?P<peak_memory_bytes>[\d.e+]+)",
    *MEGATRON_STEP,
    *MEGATRON_MEMORY,
)
"""The progress line of NeMo 2.0, whose time a callback adds, the progress bar of NeMo 1, or the
line of Megatron-Bridge, which is Megatron-LM's.
"""

TRANSFORMERS = (
    r"^\s*\d+%\|[^|]*\| (?P<step>\d+)/\d+ \[",
    r"'loss': '?(?P<loss>[^',}]+)",
)
"""The Trainer's progress bar and log lines. They state no step time: our clock measures between two
steps.
"""

LOG_PATTERNS: dict[str, tuple[str, ...]] = {
    "megatron-lm": (*MEGATRON_STEP, *MEGATRON_MEMORY, *MEGATRON_ARGUMENTS),
    "megatron-deepspeed": (
        *MEGATRON_STEP,
        *MEGATRON_MEMORY,
        *MEGATRON_ARGUMENTS,
        *DEEPSPEED_CONFIG,
    ),
    "deepspeed": DEEPSPEED,
    "nemo": NEMO,
    "torchtitan": TORCHTITAN,
    "nanotron": NANOTRON,
    "accelerate": TRANSFORMERS,
}

CUSTOM = f"{{{commands.CUSTOM}}}"

_MEGATRON_STEPS = ("--train-iters", "{steps}", "--log-interval", "1")
STEPS: dict[str, tuple[str, ...]] = {
    "megatron-lm": _MEGATRON_STEPS,
    "megatron-deepspeed": _MEGATRON_STEPS,
    "deepspeed": (),
    "nemo": ("train.train_iters={steps}", "logger.log_interval=1"),
    "torchtitan": ("--training.steps", "{steps}", "--metrics.log_freq", "1"),
    "nanotron": (),
    "accelerate": ("--max_steps", "{steps}", "--logging_steps", "1"),
}
PROBE_STEPS: dict[str, tuple[str, ...]] = {
    "megatron-lm": ("--eval-iters", "0"),
    "megatron-deepspeed": ("--eval-iters", "0"),
    "accelerate": ("--save_strategy", "no"),
}
"""Arguments of probes alone: what a replay saves and evaluates is for the campaign's own arguments
to say.
"""


NEVER_RAN = ("megatron-lm", "megatron-deepspeed", "nemo", "nanotron")
"""Trainers that need a GPU and that no probe of the project has run: their patterns are tried on
published logs.
"""
ENVIRONMENT: dict[str, dict[str, str]] = {"accelerate": {"TQDM_MININTERVAL": "0"}}
"""Variables of a trainer's command: without this one tqdm shows steps of less than 0.1 s in
groups.
"""


def log_patterns(settings: CommandSettings) -> tuple[str, ...]:
    """Return the regular expressions that read a command's log: its own, then the ready-made ones.

    Raises `InvalidInput` for unknown trainers, and for patterns that find no finished step.
    """
    for key, name in (("trainer", settings.trainer), ("log", settings.log)):
        if name is not None:
            require_one_of("command", key, name, LOG_PATTERNS)
    known = settings.log or settings.trainer
    patterns = (*settings.log_patterns, *(LOG_PATTERNS[known] if known else ()))
    patterns_of(patterns)
    return patterns


def configured(settings: CommandSettings) -> MakeCommand:
    """Return the function of a campaign's [command]; raise `InvalidInput` for settings that cannot
    make commands.
    """
    arguments, trainer = settings.arguments, settings.trainer
    patterns = log_patterns(settings)
    if not arguments:
        raise bad_value("command.arguments", None, 'a list of arguments, for evaluator = "command"')
    if (trainer is not None) != (f"{{{commands.SPLICED}}}" in arguments):
        expected = "the argument {trainer_arguments} where command.trainer is set, and nowhere else"
        raise bad_value("command.arguments", list(arguments), expected)
    placed = (
        arguments if CUSTOM in arguments else (*arguments, CUSTOM)
    )  # of a command without a ready-made trainer

    def make(request: CommandRequest) -> Command | Reason:
        fields = commands.field_values(request)
        own = request.recipe.custom_arguments()
        if trainer is None:
            return Command(
                arguments=commands.filled(placed, fields, {CUSTOM: own}), log_patterns=patterns
            )
        reason = TOOLS[trainer].why_not(request.problem, request.recipe)
        if reason is not None:
            return reason
        found = TOOLS[trainer].export(request.problem, replace(request.recipe, custom=()))
        # Files that the arguments of `frontrunner export` name are in the run folder.
        made = (
            str(request.run_folder / one) if one in found.files else one for one in found.arguments
        )
        steps = (*STEPS[trainer], *(() if request.is_replay else PROBE_STEPS.get(trainer, ())))
        # First the steps: torchtitan's own arguments end with a subcommand, to which all that
        # follows would belong.
        steps_filled = (commands.filled_text(text, fields) for text in steps)
        spliced = (*steps_filled, *(() if CUSTOM in arguments else own), *made)
        files = {
            name: _for_a_probe(trainer, text, request.probe.most_steps)
            for name, text in found.files.items()
        }
        return Command(
            arguments=commands.filled(
                arguments, fields, {f"{{{commands.SPLICED}}}": spliced, CUSTOM: own}
            ),
            log_patterns=patterns,
            files=files,
            environment=ENVIRONMENT.get(trainer, {}),
        )

    return make


def _for_a_probe(trainer: str, text: str, steps: int) -> str:
    """Return a configuration file with one log line per step, and the number of steps if it holds
    that.
    """
    if trainer == "deepspeed":
        return json.dumps(json.loads(text) | {"steps_per_print": 1}, indent=2)
    if trainer == "nanotron":
        table = yaml_table(text).values
        logged = {
            "log_level": "info",
            "log_level_replica": "info",
            "iteration_step_info_interval": 1,
        }
        return yaml_text(
            {**table, "tokens": {**table["tokens"], "train_steps": steps}, "logging": logged}
        )
    return text
