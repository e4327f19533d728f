"""What the logs of well-known trainers look like, as the patterns that find their figures.

Samples of each, with their sources, are in `tests/unit/test_command_logs.py`.
"""

from __future__ import annotations

MEGATRON_STEP = (
    r"iteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): (?P<step_time_ms>[\d.]+)",
    r"iteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \(s\): (?P<step_time_s>[\d.]+)",
    r"iteration\s+(?P<step>\d+)/.*?tokens per gpu per second \(tgs\): (?P<tokens_per_s_per_device>[\d.]+)",
    r"\| lm[ _]loss: (?P<loss>\S+)",
    r"\| global batch size:\s+(?P<global_batch_seqs>\d+)",
    r"\| number of skipped iterations:\s+(?P<skipped_steps>\d+)",
    r"\| number of nan iterations:\s+(?P<nan_steps>\d+)",
)
"""The line of a step: Megatron-LM's `training_log`, which Megatron-DeepSpeed and Megatron-Bridge have kept."""

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
"""What Megatron-LM prints of its arguments before it trains."""

DEEPSPEED_CONFIG = (
    r"\bprint\]\s+train_micro_batch_size_per_gpu\s+\.*\s*(?P<micro_batch_seqs>\d+)\s*$",
    r"\bprint\]\s+gradient_accumulation_steps\s+\.*\s*(?P<accumulation>\d+)\s*$",
    r"\bprint\]\s+train_batch_size\s+\.*\s*(?P<global_batch_seqs>\d+)\s*$",
)
"""What DeepSpeed's engine prints of its configuration, `runtime/config.py`."""

DEEPSPEED = (
    r"\[Rank 0\] step=(?P<step>\d+), skipped=",
    r"global_step=(?P<step>\d+), .*CurrSamplesPerSec=(?P<samples_per_s>[\d.e+-]+)",
    r"\bsteps: (?P<step>\d+) loss: (?P<loss>\S+) .*iter time \(s\): (?P<step_time_s>[\d.]+)",
    r"MaxMemAllocated=(?P<peak_memory_gib>[\d.]+)GB",
    *DEEPSPEED_CONFIG,
)
"""`log_dist`, `ThroughputTimer` (GB there are 2^30 bytes) and the pipeline engine, with `steps_per_print` 1."""

TORCHTITAN = (
    r"(?<!validate )step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>\S+).*\btps:\s*(?P<tokens_per_s_per_device>[\d,]+)",
    r"\bmemory:\s*(?P<peak_memory_gib>[\d.]+)GiB",
)
"""`MetricsProcessor.log`: tokens/s by device, and the peak of reserved memory."""

NANOTRON = (
    r"iteration: (?P<step>\d+) / \d+ \|.*elapsed_time_per_iteration_ms: (?P<step_time_ms>[\d.]+[KMGT]?)",
    r"iteration: (?P<step>\d+) / \d+ \|.*tokens_per_sec: (?P<tokens_per_s>[\d.]+[KMGT]?)",
    r"\| lm_loss: (?P<loss>\S+)",
    r"\| global_batch_size: (?P<global_batch_seqs>\d+) \|",
    r"\| cuda_max_memory_reserved: (?P<peak_memory_bytes>[\d.]+[KMGT]?)",
    r"Peak allocated:? (?P<peak_memory_mib>[\d.]+)MiB",
)
"""`LoggerWriter` writes three digits and a letter for thousands; a batch with a letter is too rough to compare."""

NEMO = (
    r"iteration (?P<step>\d+)/\d+ \|.*train_step_timing in s: (?P<step_time_s>[\d.e+-]+)",
    r"\| reduced_train_loss: (?P<loss>\S+)",
    r"\| global_batch_size: (?P<global_batch_seqs>\d+)",
    r"\| peak_memory_usage: (?P<peak_memory_bytes>[\d.e+]+)",
    *MEGATRON_STEP,
    *MEGATRON_MEMORY,
)
"""The progress line of NeMo 2.0, or that of Megatron-Bridge, which is Megatron-LM's."""

TRANSFORMERS = (
    r"^\s*\d+%\|[^|]*\| (?P<step>\d+)/\d+ \[",
    r"'loss': '?(?P<loss>[^',}]+)",
)
"""The Trainer's progress bar and log lines. It states no step time: our clock measures between two steps."""

LOG_PATTERNS: dict[str, tuple[str, ...]] = {
    "megatron-lm": (*MEGATRON_STEP, *MEGATRON_MEMORY, *MEGATRON_ARGUMENTS),
    "megatron-deepspeed": (*MEGATRON_STEP, *MEGATRON_MEMORY, *MEGATRON_ARGUMENTS, *DEEPSPEED_CONFIG),
    "deepspeed": DEEPSPEED,
    "nemo": NEMO,
    "torchtitan": TORCHTITAN,
    "nanotron": NANOTRON,
    "accelerate": TRANSFORMERS,
}
"""The patterns of each trainer's log, by the name of its format."""
