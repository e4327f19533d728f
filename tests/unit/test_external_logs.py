"""Logs of real trainers, as they were published, read by the patterns that ship."""

import math
from pathlib import Path

import pytest

from frontrunner.evaluators.nodes.supervisor import LOG, of_node
from frontrunner.evaluators.programs.command_log import Log, LogLimits
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.log_sample import read_sample
from frontrunner.evaluators.programs.logs import (
    LogReader,
    marks_a_step,
    number,
    pattern_of,
    patterns_of,
)
from frontrunner.evaluators.programs.trainers import LOG_PATTERNS
from frontrunner.spaces.errors import InvalidInput

GIB, MIB = 2**30, 2**20

# https://github.com/NVIDIA/Megatron-LM/issues/756
MEGATRON_LM = """\
using world size: 16, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 4, \
pipeline-model-parallel size: 1
  global_batch_size ............................... 128
  micro_batch_size ................................ 1
 [2024-04-06 02:59:36] iteration       43/     100 | consumed samples:         5504 | elapsed time per iteration (ms): \
5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | learning rate: 8.600000E-06 | global batch size:   128 | \
lm loss: 1.825991E+00 | loss scale: 1.0 | grad norm: 1.426 | num zeros: 0.0 | number of skipped iterations:   0 | \
number of nan iterations:   0 |
[Rank 0] (after 43 iterations) memory (MB) | allocated: 11908.05 | max allocated: 12712.43603515625 | \
reserved: 12954.0 | max reserved: 12954.0
 [2024-04-06 02:59:41] iteration       44/     100 | consumed samples:         5632 | elapsed time per iteration (ms): \
5533.8 | throughput per GPU (TFLOP/s/GPU): 236.0 | learning rate: 8.800000E-06 | global batch size:   128 | \
lm loss: 1.875063E+00 | loss scale: 1.0 | grad norm: 1.611 | num zeros: 0.0 | number of skipped iterations:   1 | \
number of nan iterations:   0 |
"""  # noqa: E501

# https://github.com/argonne-lcf/Megatron-DeepSpeed, notes of 2024-03-07, and the configuration that
# DeepSpeed prints
MEGATRON_DEEPSPEED = """\
[2024-03-07 14:20:04,390] [INFO] [config.py:1000:print]   train_batch_size ............. 768
[2024-03-07 14:20:04,390] [INFO] [config.py:1000:print]   train_micro_batch_size_per_gpu  4
[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=199/global_step=199, \
RunningAvgSamplesPerSec=58.730622229657506, CurrSamplesPerSec=61.35304005128382, MemAllocated=6.01GB, \
MaxMemAllocated=19.52GB
 iteration      199/  317892 | consumed samples:       152832 | consumed tokens:    625999872 | \
elapsed time per iteration (ms): 14287.5 | learning rate: 2.407E-04 | global batch size:   768 | \
lm loss: 5.905366E+00 | loss scale: 8192.0 | actual seqlen:  4096 | number of skipped iterations:   0 | \
number of nan iterations:   0 | samples per second: 53.753 | tokens per gpu per second (tgs): 1146.733 | TFLOPs: 69.85 |
"""  # noqa: E501

# DeepSpeed 0.19.8 with steps_per_print 1: the log of examples/command_deepspeed.py
DEEPSPEED = """\
[2026-11-22 03:15:40,422] [INFO] [config.py:678:print]   gradient_accumulation_steps .. 4
[2026-11-22 03:15:40,422] [INFO] [config.py:678:print]   train_batch_size ............. 8
[2026-11-22 03:15:40,422] [INFO] [config.py:678:print]   train_micro_batch_size_per_gpu  1
[2026-11-22 03:15:40,551] [INFO] [logging.py:123:log_dist] [Rank 0] step=3, skipped=0, lr=[0.0003], mom=[(0.9, 0.999)]
[2026-11-22 03:15:40,564] [INFO] [timer.py:264:stop] epoch=0/micro_step=12/global_step=3, \
RunningAvgSamplesPerSec=178.53610156324822, CurrSamplesPerSec=178.53211725972082, MemAllocated=0.34GB, \
MaxMemAllocated=0.34GB
"""  # noqa: E501

# deepspeed 0.19, runtime/pipe/engine.py, and https://github.com/deepspeedai/DeepSpeed pipeline
# examples
DEEPSPEED_PIPELINE = "steps: 10 loss: 2.3032 iter time (s): 0.123 samples/sec: 65.041\n"

# https://github.com/pytorch/torchtitan/pull/3393 and pull/2389, whose ranks all print
TORCHTITAN = """\
[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  \
memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
[rank1]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  \
memory:  9.50GiB(64.99%)  tps: 7,281  tflops: 0.52  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:47,000 - root - INFO - validate step: 14  loss:  3.3  \
memory:  9.46GiB(64.99%)  tps: 9,000
[rank0]:\x1b[32m[titan] 2026-05-18 16:04:47,456 - root - INFO - \x1b[31mstep: 15  \x1b[32mloss:  3.10680  \
\x1b[38;2;180;60;0mgrad_norm:  0.8587  \x1b[38;2;54;234;195mmemory:  9.46GiB(64.99%)  \x1b[34mtps: 7,334  \
\x1b[36mtflops: 0.52  \x1b[35mmfu: 0.17%\x1b[39m
"""  # noqa: E501

# https://github.com/huggingface/nanotron/issues/390 and pull/23
NANOTRON = """\
10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 327281 / 378950 | consumed_tokens: 85.8G | \
elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64 | \
lm_loss: 2.38 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | hardware_tflops_per_gpu: 38.3 | grad_norm: 1.25 | \
cuda_memory_allocated: 90.9M | cuda_max_memory_reserved: 570M | hd_total_memory_tb: 312G
"""  # noqa: E501

# https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/740
NEMO = """\
Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | global_step: 120 | \
reduced_train_loss: 1.233 | train_step_timing in s: 0.03146 | val_loss: 4.106
"""  # noqa: E501

# https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/841
MEGATRON_BRIDGE = """\
Step Time : 14.26s GPU utilization: 58.2TFLOP/s/GPU
 [2025-10-02 22:54:30] iteration       20/      50 | consumed samples:        10240 | elapsed time per iteration (ms): \
14260.3 | learning rate: 2.604594E-04 | global batch size:   512 | lm loss: 8.797448E-02 | loss scale: 1.0 | \
grad norm: 0.170 | number of skipped iterations:   0 | number of nan iterations:   0 |
"""  # noqa: E501

# transformers' Trainer: a progress bar that returns to the beginning of its line, and a log line a
# step
TRANSFORMERS = (
    "Map: 100%|##########| 8/8 [00:00<00:00, 99.0 examples/s]\n\r  0%|          | 0/20 [00:00<?,"
    " ?it/s]\r  5%|5         | 1/20 [00:02<00:40,  2.16s/it]\n{'loss': '83.94', 'grad_norm':"
    " '2726', 'learning_rate': '0', 'epoch': '0.5'}\n\r 10%|#         | 2/20 [00:03<00:30, "
    " 1.70s/it]\n{'loss': 2.3, 'grad_norm': 1.0, 'learning_rate': 5e-05}\n{'eval_loss': 2.9,"
    " 'eval_runtime': 1.2}\n"
)


def read(folder: Path, text: str, trainer: str) -> LogReader:
    """The log as it would be read after all of it came at once."""
    log = Log(folder / LOG)
    log.write(text.encode())
    log.close()
    reader = LogReader(folder, patterns_of(LOG_PATTERNS[trainer]))
    assert reader.advance()
    return reader


def stated(reader: LogReader) -> dict[str, float]:
    return {statement.figure: statement.value for statement in reader.statements}


def test_megatron_lm(tmp_path: Path) -> None:
    reader = read(tmp_path, MEGATRON_LM, "megatron-lm")
    first, second = reader.steps
    assert (first.number, first.time_s, first.loss, first.skipped_steps) == (
        43,
        5.4449,
        1.825991,
        0,
    )
    assert (second.number, second.time_s, second.skipped_steps) == (44, 5.5338, 1)
    assert reader.peak_memory_bytes == int(12712.43603515625 * MIB)
    assert stated(reader) == {
        "devices": 16,
        "tensor_parallel": 4,
        "pipeline_parallel": 1,
        "global_batch_seqs": 128,
        "micro_batch_seqs": 1,
    }


def test_megatron_deepspeed(tmp_path: Path) -> None:
    reader = read(tmp_path, MEGATRON_DEEPSPEED, "megatron-deepspeed")
    (step,) = reader.steps
    assert (step.number, step.time_s, step.loss) == (199, 14.2875, 5.905366)
    assert step.rates == {"tokens_per_s_per_device": 1146.733}
    assert stated(reader) == {"micro_batch_seqs": 4, "global_batch_seqs": 768}


def test_deepspeed(tmp_path: Path) -> None:
    reader = read(tmp_path, DEEPSPEED, "deepspeed")
    (step,) = reader.steps
    assert (step.number, step.time_s) == (3, None)
    assert step.rates == {"samples_per_s": 178.53211725972082}
    assert reader.peak_memory_bytes == int(0.34 * GIB)
    assert stated(reader) == {"accumulation": 4, "micro_batch_seqs": 1, "global_batch_seqs": 8}
    (piped,) = read(tmp_path, DEEPSPEED_PIPELINE, "deepspeed").steps
    assert (piped.number, piped.time_s, piped.loss) == (10, 0.123, 2.3032)


def test_torchtitan_with_every_rank_s_lines_in_colours(tmp_path: Path) -> None:
    reader = read(tmp_path, TORCHTITAN, "torchtitan")
    first, second = reader.steps
    assert (first.number, first.rates, first.loss) == (
        14,
        {"tokens_per_s_per_device": 7282.0},
        3.24405,
    )
    assert (second.number, second.rates) == (15, {"tokens_per_s_per_device": 7334.0})
    assert reader.peak_memory_bytes == int(9.5 * GIB)


def test_nanotron(tmp_path: Path) -> None:
    reader = read(tmp_path, NANOTRON, "nanotron")
    (step,) = reader.steps
    assert (step.number, step.time_s, step.loss, step.rates) == (
        327281,
        11.5,
        2.38,
        {"tokens_per_s": 22800.0},
    )
    assert reader.peak_memory_bytes == 570_000_000
    assert stated(reader) == {"global_batch_seqs": 64}


def test_nemo_and_megatron_bridge(tmp_path: Path) -> None:
    (step,) = read(tmp_path, NEMO, "nemo").steps
    assert (step.number, step.time_s, step.loss) == (120, 0.03146, 1.233)
    (step,) = read(tmp_path, MEGATRON_BRIDGE, "nemo").steps
    assert (step.number, step.loss) == (20, 0.08797448)
    assert step.time_s == pytest.approx(14.2603)


def test_the_transformers_trainer(tmp_path: Path) -> None:
    reader = read(tmp_path, TRANSFORMERS, "accelerate")
    assert [(step.number, step.loss) for step in reader.steps if step.number] == [
        (1, 83.94),
        (2, 2.3),
    ]


def test_every_ready_made_log_marks_steps() -> None:
    for patterns in LOG_PATTERNS.values():
        assert any(map(marks_a_step, patterns_of(patterns)))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234", 1234.0), ("11.5K", 11500.0), ("85.8G", 85.8e9), ("7.03E+03", 7030.0),
        ("'83.94'", 83.94), ("5.", 5.0),
     ("-inf", float("-inf")), ("?", None), ("1e", None), ("", None)],
)  # fmt: skip
def test_numbers_as_trainers_print_them(text: str, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step (", "a regular expression"),
        ("step [0-9]+", "a named group"),
        ("(?P<step_time>.)", "no figure is called step_time"),
    ],
)
def test_patterns_that_find_nothing_known_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        pattern_of(text)


def test_patterns_without_a_step_are_refused() -> None:
    with pytest.raises(InvalidInput, match="finds a finished step"):
        patterns_of(["loss (?P<loss>.*)"])


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    reader = LogReader(tmp_path, patterns_of([r"^step (?P<step>\d+) took (?P<step_time_s>\S+) s"]))
    assert not reader.advance()
    log = Log(tmp_path / LOG)
    log.write(b"step 1 took 0.5 s\nstep 2 took 0.")
    assert reader.advance()
    assert [step.time_s for step in reader.steps] == [0.5]
    assert not reader.advance()
    log.write(b"25 s\rstep 3 took 0.75 s")
    log.close()
    assert reader.advance()
    assert [(step.number, step.time_s) for step in reader.steps] == [(1, 0.5), (2, 0.25), (3, 0.75)]
    arrivals = [step.arrival_s for step in reader.steps]
    assert arrivals == sorted(arrivals)


def test_log_reader_knows_steps_after_lines_that_were_left_out(tmp_path: Path) -> None:
    """A number in the log says how many steps were left out; without one nobody knows."""
    reader = LogReader(
        tmp_path, patterns_of([r"(?:^step (?P<step>\d+) )?took (?P<step_time_s>\S+) s"])
    )
    left_out = "[frontrunner left out 2 lines (9 bytes) of stdout here: rate limit 1 bytes/s]"
    texts = (
        "took 0.5 s",
        left_out,
        "noise",
        "took 0.6 s",
        "took 0.7 s",
        left_out,
        "step 9 took 1 s",
    )
    (tmp_path / LOG).write_text("".join(f"{at}.0 {text}\n" for at, text in enumerate(texts)))
    assert reader.advance()
    assert [(step.number, step.is_after_gap) for step in reader.steps] == [
        (1, False),
        (2, True),
        (3, False),
        (9, False),
    ]


def test_log_reader_knows_steps_after_the_middle_of_a_file(tmp_path: Path) -> None:
    log = Log(tmp_path / LOG, LogLimits(file_bytes=2**26, burst_bytes=math.inf, bytes_per_s=0.0))
    reader = LogReader(tmp_path, patterns_of([r"took (?P<step_time_s>\S+) s"]))
    log.write(b"took 1 s\n")
    assert reader.advance()
    for _ in range(1400):
        log.write(b"x" * 2**15 + b"\n")
    log.write(b"took 2 s\ntook 3 s\n")
    assert reader.read_all()
    assert [(step.number, step.is_after_gap) for step in reader.steps] == [
        (1, False),
        (2, True),
        (3, False),
    ]


def test_steps_are_of_the_node_that_logs_most_completed_by_the_others(tmp_path: Path) -> None:
    """Some trainers print on the first rank, some on the last, and losses and times on different
    ones.
    """
    patterns = patterns_of(
        [r"^step (?P<step>\d+)(?: took (?P<step_time_s>\S+) s)?(?: loss (?P<loss>\S+))?"]
    )
    reader = LogReader(tmp_path, patterns, nodes=3)
    assert reader.steps == []
    for node, lines in enumerate(
        ("step 1 loss 5.0\nstep 2 loss 4.0\n", "step 1 took 0.5 s\nstep 2 took 0.25 s\nstep 3\n")
    ):
        Log(tmp_path / of_node(LOG, node)).write(lines.encode())
    assert reader.advance()
    assert not reader.advance()
    found = [(step.number, step.time_s, step.loss) for step in reader.steps]
    assert found == [(1, 0.5, 5.0), (2, 0.25, 4.0), (3, None, None)]


def test_a_line_with_two_ranks_peaks_gives_the_larger(tmp_path: Path) -> None:
    memory = "[Rank {}] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: {}"
    reader = read(tmp_path, memory.format(2, 30.0) + memory.format(6, 40.0) + "\n", "megatron-lm")
    assert reader.peak_memory_bytes == 40 * MIB


VERSIONS = {
    "Megatron-LM of 2022, a line per ten steps, before the first loss scale holds": (
        # https://github.com/NVIDIA/nccl/issues/743
        "megatron-lm",
        (
            " iteration       10/ 1000000 | consumed samples:           40 | elapsed time per"
            " iteration (ms): 356.2 | learning rate: 0.000E+00 | global batch size:     4 | loss"
            " scale: 8388608.0 | number of skipped iterations:  10 | number of nan iterations:  "
            " 0 |\n"
        ),
        (10, 0.3562, None, 10),
        0,
    ),
    "Megatron-LM of 2023": (
        # https://github.com/epfLLM/Megatron-LLM/issues/11
        "megatron-lm",
        (
            " iteration      122/  250000 | consumed samples:       124928 | elapsed time per"
            " iteration (ms): 86545.2 | learning rate: 9.150E-06 | global batch size:  1024 | lm"
            " loss: 2.504220E+00 | loss scale: 1.0 | grad norm: 0.231 | number of skipped"
            " iterations:   0 | number of nan iterations:   0 |\n"
        ),
        (122, 86.5452, 2.50422, 0),
        0,
    ),
    "Megatron-LM of 2025, two ranks in one line": (
        # core 0.10 on eight RTX 4090, as a cloud's documentation of August 2025 quotes it
        "megatron-lm",
        (
            "[Rank 2] (after 1 iterations) memory (MB) | allocated: 9334.3779296875 | max"
            " allocated: 12680.6357421875 | reserved: 13236.0 | max reserved: 13236.0[Rank 6]"
            " (after 1 iterations) memory (MB) | allocated: 10850.67578125 | max allocated:"
            " 10850.70751953125 | reserved: 11000.0 | max reserved: 11000.0\n [2025-08-01 07:19:37]"
            " iteration        1/    5000 | consumed samples:          128 | elapsed time per"
            " iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | learning rate:"
            " 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 | loss scale: 1.0 |"
            " grad norm: 26.203 | number of skipped iterations:   0 | number of nan iterations:  "
            " 0 |\n"
        ),
        (1, 19.1388, 10.43863, 0),
        int(12680.6357421875 * MIB),
    ),
    "Megatron-DeepSpeed of 2023, without a loss": (
        # https://github.com/bigscience-workshop/Megatron-DeepSpeed/issues/396
        "megatron-deepspeed",
        (
            " iteration     5426/  250000 | consumed samples:        43408 | consumed tokens:    "
            " 88899584 | elapsed time per iteration (ms): 4247.9 | learning rate: 2.999E-04 |"
            " global batch size:     8 | loss scale: 1.0 | grad norm: nan | actual seqlen:  2048 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 | samples per"
            " second: 1.883 | TFLOPs: 78.36 |\n"
        ),
        (5426, 4.2479, None, 0),
        0,
    ),
    "DeepSpeed 0.6, which states a mean rate alone": (
        # https://github.com/deepspeedai/DeepSpeed/issues/1825
        "deepspeed",
        (
            "[2022-03-11 02:06:58,985] [INFO] [logging.py:69:log_dist] [Rank 0] step=40, skipped=2,"
            " lr=[5e-05], mom=[[0.9, 0.999]]\n[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop]"
            " 0/40, SamplesPerSec=83.48609168106144, MemAllocated=0.26GB, MaxMemAllocated=9.02GB\n"
        ),
        (40, None, None, 0),
        int(9.02 * GIB),
    ),
    "DeepSpeed 0.2, which prints no step of its engine": (
        # https://github.com/deepspeedai/DeepSpeed/issues/255
        "deepspeed",
        "[INFO 2020-06-08 05:26:19] 0/2600, SamplesPerSec=83.480\n",
        (2600, None, None, 0),
        0,
    ),
    "NeMo 1, a progress bar that rounds the global step": (
        # NeMo-Megatron-Launcher's Llama 2 7B, as a user's notes of June 2024 quote it
        "nemo",
        (
            "\rEpoch 0: :  60%|██████    | 6024/10000 [4:26:54<2:56:09, v_num=0,"
            " reduced_train_loss=0.0252, global_step=6.02e+3, consumed_samples=96384.0,"
            " train_step_timing in s=2.590, val_loss=0.0917]\n"
        ),
        (6024, 2.59, 0.0252, 0),
        0,
    ),
    "NeMo of August 2024, without times": (
        # https://github.com/NVIDIA-NeMo/Speech/pull/10128
        "nemo",
        (
            "Training epoch 0, iteration 3/9 | lr: 0.0006 | consumed_samples: 128 |"
            " global_batch_size: 32 | global_step: 3 | reduced_train_loss: 8.595\n"
        ),
        (3, None, 8.595, 0),
        0,
    ),
    "torchtitan of August 2024, whose rate has another name": (
        # the name is of https://github.com/pytorch/torchtitan/issues/3
        "torchtitan",
        (
            "[rank0]:2024-08-13 18:03:44,021 - root - INFO - step:  3  loss:  8.6183  memory:"
            " 53.23GiB(67.27%)  wps: 1,234  mfu: 8.35%\n"
        ),
        (3, None, 8.6183, 0),
        int(53.23 * GIB),
    ),
    "torchtitan of March 2025": (
        # https://github.com/pytorch/torchtitan/pull/950
        "torchtitan",
        (
            "[rank0]:[titan] 2025-03-12 11:10:21,511 - root - INFO - step: 22  loss:  6.2250 "
            " memory:  1.41GiB(1.79%)  tps: 193,831  tflops: 18.36  mfu: 1.86%\n"
        ),
        (22, None, 6.225, 0),
        int(1.41 * GIB),
    ),
    "nanotron of January 2024": (
        # https://github.com/huggingface/nanotron/pull/23
        "nanotron",
        (
            "01/17/2024 14:02:16 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 992 / 1000 |"
            " consumed_tokens: 635K | elapsed_time_per_iteration_ms: 268 | tokens_per_sec: 2.39K |"
            " tokens_per_sec_per_gpu: 298 | global_batch_size: 20 | lm_loss: 9.69 | lr: 1e-05 |"
            " model_tflops_per_gpu: 0.00755 | hardware_tflops_per_gpu: 0.00761 | grad_norm: 1.1\n"
        ),
        (992, 0.268, 9.69, 0),
        0,
    ),
    "transformers 5.23, in a terminal without colors": (
        # the log of examples/command_trainer.py
        "accelerate",
        (
            "\r 20%|##        | 6/30 [00:00<00:01, 20.97it/s]\n{'loss': '5.964', 'grad_norm':"
            " '0.6373', 'learning_rate': '4e-05', 'epoch': '5.6e-05'}\n"
        ),
        (6, None, 5.964, 0),
        0,
    ),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_logs_of_other_versions_are_read(tmp_path: Path, name: str) -> None:
    trainer, text, expected, peak = VERSIONS[name]
    reader = read(tmp_path, text, trainer)
    (step,) = reader.steps
    assert (step.number, step.time_s, step.loss, step.skipped_steps) == pytest.approx(expected)
    assert reader.peak_memory_bytes == peak


def test_read_sample_shows_what_a_probe_would_read(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(MEGATRON_LM)
    sample = read_sample(CommandSettings(log="megatron-lm"), log)
    assert [(step.number, step.time_s, step.skipped_steps) for step in sample.steps] == [
        (43, 5.4449, 0),
        (44, 5.5338, 1),
    ]
    assert sample.peak_memory_bytes == int(12712.43603515625 * MIB)
    assert {one.figure: one.value for one in sample.statements}["global_batch_seqs"] == 128


def test_read_sample_refuses_a_log_without_steps_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("loading\nhello world\n")
    with pytest.raises(InvalidInput, match=r"last lines:\nloading\nhello world") as refused:
        read_sample(CommandSettings(log="deepspeed"), log)
    assert "command.log_patterns" in (refused.value.hint or "")
