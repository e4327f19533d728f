"""The one schema of tables of measured configurations: their columns, and the reader of CSV files
into rows.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from frontrunner.spaces import hugging_face
from frontrunner.spaces.errors import InvalidInput, read_bytes, shown_key
from frontrunner.spaces.model.feed_forward import ACTIVATIONS, GATED
from frontrunner.spaces.recipe import DIMENSIONS, RECOMPUTES
from frontrunner.spaces.space import DEGREES

NAN = math.nan
NEEDED = ("layers", "hidden", "heads", "seq", "gpus", "tp", "pp", "dp", "mbs", "gas", "vocab")
"""What the formulas cannot do without; some of these follow from others (`complete`)."""
MACHINE_NUMBERS = (
    "gpus_per_node", "peak_tflops", "matmul_share", "memory_gb_per_s", "memory_gib_per_device",
    "compute_units",
    "node_gb_per_s", "nic_gb_per_s", "nics_per_node",
)  # fmt: skip
"""A row's own figures of its machine, which replace those of a preset."""
EXPERT_DEGREES = ("expert_parallel", "expert_tensor_parallel")
OF_RECIPES = {name: DIMENSIONS[name].label.lower() for name in (*DEGREES, *EXPERT_DEGREES)} | {
    "virtual_stages": "vpp", "micro_batch_seqs": "mbs", "accumulation": "gas",
}  # fmt: skip
NOT_READ = ("tflops_per_gpu", "mfu")
"""Columns that follow from others, and that sources count differently; they are accepted and not
read.
"""
UNITS: Mapping[str, Mapping[str, float]] = {
    "step_time_s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0},
    "peak_mem_gb": {
        "GiB": 1.0,
        "GB": 1e9 / 2**30,
        "MiB": 2**-10,
        "MB": 1e6 / 2**30,
        "bytes": 2.0**-30,
    },
}
"""The columns that may be in another unit -> its size in seconds, and in GiB, in which a peak is
read.
"""

SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "precision": {
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "float32": "fp32",
        "mixed": "fp16",
    },
    "recompute": {"no": "none", "off": "none", "false": "none", "true": "full", "yes": "full"},
    "status": dict.fromkeys(
        ("success", "succeeded", "done", "completed", "finished", "measured"), "ok"
    ),
    "seq_parallel": {"true": "1", "false": "0", "yes": "1", "no": "0"},
    "activation": hugging_face.ACTIVATIONS
    | dict.fromkeys(("squared_relu", "squared-relu", "squared relu", "relu^2"), "relu2"),
}
EMPTY = frozenset(
    (
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "<NA>",
        "N/A",
        "n/a",
        "NA",
        "NULL",
        "null",
        "NaN",
        "nan",
        "-NaN",
        "-nan",
        "None",
    )
)
"""Cells that hold nothing: the words for it of pandas, which writes many such tables."""
GPT2_VOCABULARY = 51200
"""GPT-2's 50,257 tokens padded to a multiple of 1,024, for rows of GPT models that omit the
vocabulary.
"""
GPT_NAMES = re.compile("gpt|megatron|turing|mpt|opt-|bloom")
"""Models with GELU and two matrices, by name; others are those four times as wide without grouped
heads.
"""
SQUARED_RELU_NAMES = re.compile(r"nemotron(?![-_ ]?h|.*nano)")
"""Models with squared ReLU and two matrices, rotary positions, and a head of their own (Nemotron-4
340B, arXiv 2406.11704, section 2.1).
"""
HYBRID_NAMES = re.compile(r"nemotron([-_ ]?h|.*nano)")
"""Models of which a part of the layers is no attention."""
SWIGLU_WIDTH = 8 / 3
"""Of a feed-forward part of three matrices whose width is not stated, in hidden sizes (arXiv
2002.05202).
"""
ALIKE = (
    "source", "model", "activation", "layers", "hidden", "seq", "gbs", "hardware", "gpus", "tp",
    "pp", "dp", "cp", "vpp", "zero",
    "recompute", "attention_kernel", "precision", "fp8",
)  # fmt: skip
"""What rows share that differ in micro-batch and sequence parallelism alone."""
SEQUENCE_PARALLEL = re.compile(r"megatron-bridge|\bnemo\b", re.IGNORECASE)
"""Sources and frameworks whose recipes turn sequence parallelism on wherever tensors are split,
unless they say.
"""
NO_TOP_K = "no number of experts that a token goes through"
OTHER_ATTENTION = re.compile(
    r"mla.|.mla|csa|latent|sparse|sliding|window|mamba|delta", re.IGNORECASE
)
"""Attention of which no model here is made, but for a `WINDOW` of stated size."""
WINDOW = re.compile(r"(alternate layers )?sliding window (\d+)", re.IGNORECASE)
SHARED_EXPERTS = re.compile(r"(\d+)(?:\.0)?(?: x (\d+))?")
"""Their number, and their width where it is another than that of the other experts."""
NETWORK = re.compile(
    r"(?:(\d{1,2}) ?x ?)?\b(?:IB|InfiniBand|RoCE|Ethernet) (\d{1,4}) ?Gb(?:/s|ps)(?! ?x| per|\w)",
    re.IGNORECASE,
)
"""What a note says of the network between nodes: its ports, one where it counts none, and the rate
of each.
"""
SUSPECT = re.compile(r"\bsuspect\b", re.IGNORECASE)
MISLABELED = "its time is that of the opposite seq_parallel"
SAME_TIME = 0.05
"""Share of time by which repeats may differ; assumed."""
FP8_WORDS = {
    "fp8": "default", "fp8-tensorwise": "tensorwise", "fp8_cs": "tensorwise",
    "fp8-rowwise": "rowwise",
    "fp8_delayed": "delayed", "fp8_block": "blockwise", "mxfp8": "mxfp8",
}  # fmt: skip
"""Words for a precision in 8 bits -> how factors are scaled, or that the word does not say."""
LIKELY_VOCABULARY = (16_000, 300_000)
BATCH_TOLERANCE = 0.01
MOST_BYTES = 200_000_000


NUMBERS = (
    *NEEDED, "cp", "vpp", "kv_heads", "gbs", "n_params_b", "ffn_hidden", "zero", "seq_parallel",
    *UNITS,
    *MACHINE_NUMBERS, "experts", "top_k", "expert_ffn_hidden", "dense_layers", "mtp_layers", "ep",
    "etp",
    "memory_gib",
)  # fmt: skip
WORDS = (
    "status",
    "activation",
    "attention",
    "shared_experts",
    "mem_kind",
    "framework",
    "dispatcher",
    "ep_overlap",
    "cuda_graph",
    "routing",
    "attention_kernel",
    "training_code",
    "recompute",
    "recompute_modules",
    "source",
    "table",
    "hardware",
    "model",
    "precision",
    "note",
)
COLUMNS = (*NUMBERS, *WORDS, *NOT_READ)


class Row(SimpleNamespace):
    """One row, with an attribute for each of `NUMBERS` and `WORDS`; `number` is its place, from 1.

    A number that the table does not state is NaN, a word empty; without a word for recompute there
    is none.
    """

    def __init__(self, number: int) -> None:
        unknown = dict.fromkeys(NUMBERS, NAN) | dict.fromkeys(WORDS, "") | {"recompute": "none"}
        super().__init__(
            number=number, fp8="none", dense_ffn_hidden=NAN, has_recompute=False, **unknown
        )

    @property
    def problem(self) -> str:
        """The name of a row's problem: its model, sequence length, global batch, hardware and
        devices.
        """
        return f"{self.model} {self.seq:.0f} {self.gbs:.0f} {self.hardware} {self.gpus:.0f}"

    @property
    def states_recompute(self) -> bool:
        """Whether the row says what it recomputed, be it nothing."""
        return self.has_recompute and "recompute not stated" not in self.note

    @property
    def shared(self) -> float:
        """The shared experts, counted by the width of the others; NaN where that cannot be read."""
        found = SHARED_EXPERTS.fullmatch(self.shared_experts or "0")
        return (
            float(found[1]) * (over(float(found[2]), self.ffn_hidden) if found[2] else 1.0)
            if found
            else NAN
        )

    @property
    def two_matrices(self) -> bool:
        """Whether the feed-forward part has two matrices, as GPT's, and not three as Llama's."""
        return self._read_as[0]

    @property
    def squared_relu(self) -> bool:
        """Whether two matrices have a squared ReLU between them: as the row says, else if the model
        is named Nemotron.
        """
        if self.activation:
            return bool(self.activation == "relu2")
        return self._is_nemotron and self.experts == 0

    @property
    def is_gpt(self) -> bool:
        """Whether the model is of GPT's form: learned positions, two matrices, no squared ReLU."""
        return self.two_matrices and not self.squared_relu

    @property
    def tied(self) -> bool:
        """Whether the head is the token table."""
        return self._read_as[1]

    @property
    def _is_nemotron(self) -> bool:
        return SQUARED_RELU_NAMES.match(self.model.lower()) is not None

    @property
    def _read_as(self) -> tuple[bool, bool]:
        """Return whether two matrices and tied tables: matrices as the activation says, else both
        as the name and the shape say, unless `n_params_b` decides.

        Another reading must explain the stated parameters twice as well, which no rounding of their
        number does.
        """
        has_two = self.activation not in GATED if self.activation else None
        if self.experts > 0:
            return has_two is True, False
        if self._is_nemotron:
            return has_two is not False, False
        is_gpt = GPT_NAMES.match(self.model.lower()) is not None
        is_plain = self.ffn_hidden == 4 * self.hidden and self.kv_heads == self.heads
        usual = is_gpt or (is_plain and not self.model.lower().startswith("llama"))
        default = (usual, usual) if has_two is None else (has_two, has_two and usual)
        stated = self.n_params_b * 1e9
        readings = [default, (True, True), (False, False)]
        if not math.isnan(self.vocab):
            readings += [(True, False), (False, True)]
        if has_two is None:
            possible = [one for one in readings if one[0] or not is_gpt]
        else:
            possible = [one for one in readings if one[0] == has_two]
        off = {
            (two, tied): abs(
                self._parameters(matrices=2 if two else 3, tables=1 if tied else 2) - stated
            )
            for two, tied in possible
        }
        nearest = min(off, key=lambda one: (off[one], one != default))
        rounding = 0.5e9 * 10.0 ** -len(f"{self.n_params_b:g}".partition(".")[2])
        return nearest if max(2 * off[nearest], rounding) < off[default] else default

    def _parameters(self, *, matrices: int, tables: int) -> float:
        """Return the parameters of one reading; GPT models have learned positions."""
        vocabulary = GPT2_VOCABULARY if math.isnan(self.vocab) else self.vocab
        layer = 2 * self.hidden * (1 + over(self.kv_heads, self.heads)) + matrices * self.ffn_hidden
        rows: float = self.layers * layer + tables * vocabulary + (self.seq if matrices == 2 else 0)
        return rows * float(self.hidden)

    def fill(self, **values: float) -> None:
        """Set the numbers that are not stated."""
        for name, value in values.items():
            if math.isnan(getattr(self, name)):
                setattr(self, name, value)


class CsvTable(NamedTuple):
    """A CSV file's cells, as text; `sha256` is of its bytes."""

    sha256: str
    columns: tuple[str, ...]
    cells: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Rows that were left out for one reason; `first_row` counts the file's data rows from 1."""

    reason: str
    rows: int
    first_row: int | None = None


class Refusals(dict[str, list[int]]):
    """The numbers of the rows that were left out, by reason."""

    def add(self, reason: str, number: int) -> None:
        """Leave out a row."""
        self.setdefault(reason, []).append(number)

    @property
    def summary(self) -> tuple[LeftOut, ...]:
        """The reasons with their rows, most first."""
        found = (
            LeftOut(reason=why, rows=len(rows), first_row=min(rows)) for why, rows in self.items()
        )
        return tuple(sorted(found, key=lambda left: (-left.rows, left.reason)))

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows that were left out, by reason, most first."""
        return {left.reason: left.rows for left in self.summary}


def read_csv(path: Path) -> CsvTable:
    """Read a CSV file; raises `NotFound` where there is none, and `InvalidInput` for one that is
    not a table.
    """
    content = read_bytes(path, "table", most=MOST_BYTES)
    try:
        lines = csv.reader(
            StringIO(content.decode("utf-8-sig"), newline=""), strict=True, skipinitialspace=True
        )
        header, *cells = list(filter(None, lines)) or [[]]
    except (ValueError, csv.Error) as error:
        raise InvalidInput(f"{path} is not a CSV table: {error}"[:300]) from None
    if not header:
        raise InvalidInput(f"{path} is not a CSV table: it is empty")
    longer = next(
        (number for number, row in enumerate(cells, start=1) if len(row) > len(header)), None
    )
    if longer:
        raise InvalidInput(
            f"{path} is not a CSV table: row {longer} has more cells than its header"
        )
    columns = tuple(
        name.strip() or f"Unnamed: {place}" for place, name in enumerate(header)
    )  # as pandas names them
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice:
        raise InvalidInput(
            f"{path} has two columns {shown_key(twice)}", hint="give each column its own name"
        )
    padded = [row + [""] * (len(header) - len(row)) for row in cells]
    return CsvTable(hashlib.sha256(content).hexdigest(), columns, padded)


def row_of(place: int, cells: Mapping[str, str]) -> Row:
    """Return the row of cells by column, from its place counted from 0; cells that are not numbers
    become NaN.
    """
    found = Row(place + 1)
    for name, cell in cells.items():
        text = cell.strip()
        if text in EMPTY:
            continue
        if name in SPELLINGS:
            word = text.lower().removeprefix("amp_")
            text = SPELLINGS[name].get(word, word)
        if name not in NUMBERS:
            setattr(found, name, text)
            found.has_recompute |= name == "recompute"
            if name == "precision" and text in FP8_WORDS:
                found.precision, found.fp8 = "bf16", FP8_WORDS[text]
            continue
        with suppress(ValueError):
            setattr(found, name, float(text))
    return found


def rows_of(table: CsvTable) -> list[Row]:
    """Return the rows of a table whose columns have the schema's names; other columns are not
    read.
    """
    known = [
        (place, name)
        for place, name in enumerate(table.columns)
        if name in NUMBERS or name in WORDS
    ]
    return [
        row_of(place, {name: row[at] for at, name in known})
        for place, row in enumerate(table.cells)
    ]


def complete(row: Row) -> Row:
    """Fill in what follows from other cells."""
    if row.model.lower().startswith("gpt"):
        row.fill(vocab=GPT2_VOCABULARY)
    if row.experts > 0:
        row.fill(ep=1.0, etp=1.0, dense_layers=0.0)
        row.dense_ffn_hidden = row.ffn_hidden
        row.ffn_hidden = row.expert_ffn_hidden if row.expert_ffn_hidden > 0 else row.ffn_hidden
    else:
        row.experts, row.top_k, row.ep, row.etp = 0.0, 0.0, 1.0, 1.0
        row.dense_layers, row.shared_experts = 0.0, "0"
    row.fill(mtp_layers=0.0)
    stated = re.search(r"\bCP=(\d+)", row.note)
    row.fill(cp=float(stated[1]) if stated else 1.0)
    if network := NETWORK.search(row.note):
        row.fill(nic_gb_per_s=float(network[2]) / 8, nics_per_node=float(network[1] or 1))
    if (
        row.pp > 1 and "local batch" in row.note and math.isnan(row.gas)
    ):  # torchtitan cuts it in micro-batches of one
        row.gas, row.mbs = row.mbs, 1.0
    if row.pp > 1 and row.zero == 3 and "torchtitan" in row.source.lower():
        # In pipelines it keeps parameters whole, and gradients up to the last micro-batch
        # (`fsdp.py`)
        row.zero = 1.0
    replicas = over(row.gpus, row.tp * row.pp * row.cp)
    row.fill(dp=replicas if replicas % 1 == 0 else NAN)
    row.fill(gas=over(row.gbs, row.mbs * row.dp))
    row.fill(gbs=row.mbs * row.gas * row.dp, kv_heads=row.heads)
    row.fill(ffn_hidden=_rounded(row.hidden * (4.0 if row.two_matrices else SWIGLU_WIDTH)))
    row.fill(peak_mem_gb=row.memory_gib)
    if row.pp > 1 and "of the logging rank" in row.note:  # the last one, which is not the fullest
        row.peak_mem_gb = NAN
    if SEQUENCE_PARALLEL.search(row.source + row.framework):
        row.fill(seq_parallel=float(row.tp > 1))
    row.fill(vocab=NAN if row.experts else _counted_vocabulary(row), seq_parallel=0.0)
    if not row.status and row.step_time_s > 0:
        row.status = "ok"
    return row


def over(numerator: float, denominator: float) -> float:
    """Return the quotient; infinite, or NaN for 0 / 0, where the denominator is 0."""
    return numerator / denominator if denominator else numerator * math.inf


def _rounded(value: float) -> float:
    return float(round(value)) if math.isfinite(value) else value


def _counted_vocabulary(row: Row) -> float:
    """Return the vocabulary that parameters stated to the million leave for embedding and head, if
    it is likely.
    """
    kv_hidden = over(row.hidden * row.kv_heads, row.heads)
    matrices = 2 * row.hidden + 2 * kv_hidden + (2 if row.two_matrices else 3) * row.ffn_hidden
    tables = row.n_params_b * 1e9 - row.layers * row.hidden * (matrices + 2)
    counted = _rounded(over(over(tables, row.hidden), 1 if row.tied else 2))
    is_exact = row.n_params_b * 100 % 1 > 0
    return counted if is_exact and LIKELY_VOCABULARY[0] <= counted <= LIKELY_VOCABULARY[1] else NAN


def mislabeled(rows: Iterable[Row]) -> set[int]:
    """Return the numbers of completed rows whose `seq_parallel` is the opposite of what their time
    says.

    With micro-batches of b a step takes N (c + f / b), so that doubling b gains half of what the
    doubling before did. A row that gains more than all of that, comes closer to the rows of the
    other label and has no twin there is one of them; differences below `SAME_TIME` say nothing.
    """
    kept: dict[tuple[bool, tuple[str, ...]], dict[float, Row]] = {}
    for row in rows:
        if row.status == "ok" and row.step_time_s > 0 and row.tp > 1:
            alike = tuple(str(getattr(row, name)) for name in ALIKE)
            kept.setdefault((row.seq_parallel == 1, alike), {})[row.mbs] = row
    found = set[int]()
    for (label, alike), own in kept.items():
        other = kept.get((not label, alike), {})
        for size, row in own.items():
            if size in other or size / 2 not in other or not own.keys() >= {size / 2, size / 4}:
                continue
            half, time_s = own[size / 2].step_time_s, row.step_time_s
            gain, before = half - time_s, own[size / 4].step_time_s - half
            if gain > max(
                abs(before), abs(other[size / 2].step_time_s - time_s), SAME_TIME * time_s
            ):
                found.add(row.number)
    return found


def why_impossible(row: Row, layers: float) -> str | None:
    """Return why no model of `layers` layers trained as a completed row says: as it cannot, or as
    its note doubts.
    """
    wrong = {
        "tp x pp x cp x dp is not the number of devices": (
            row.tp * row.pp * row.cp * row.dp != row.gpus
        ),
        "micro-batch x accumulation x dp is not the global batch": (
            abs(row.mbs * row.gas * row.dp - row.gbs) > BATCH_TOLERANCE * row.gbs
        ),
        "more pipeline stages than layers": (
            row.pp * (1 if math.isnan(row.vpp) else row.vpp) > layers
        ),
        f"recompute {row.recompute} is unknown": row.recompute not in RECOMPUTES,
        "layers without experts are not the first ones": row.dense_layers * 2 >= layers,
        f"attention {row.attention} is not modeled": (
            OTHER_ATTENTION.search(WINDOW.sub("", row.attention)) is not None
        ),
        "ep does not divide the experts, or ep x etp the ranks of a stage": (
            row.experts > 0
            and bool(row.experts % row.ep or row.tp * row.cp * row.dp % (row.ep * row.etp))
        ),
        "its note calls it suspect": SUSPECT.search(row.note) is not None,
        f"ZeRO stage {row.zero:g} does not exist": (
            row.zero not in (0, 1, 2, 3) and not math.isnan(row.zero)
        ),
    }
    return why_no_mixture(row) or next((reason for reason, holds in wrong.items() if holds), None)


def why_no_mixture(row: Row) -> str | None:
    """Return what a completed row does not say of its experts, or which model it has that is not
    modeled, or None.
    """
    wrong = {
        f"model {row.model} has layers without attention, which are not modeled": (
            HYBRID_NAMES.match(row.model.lower()) is not None
        ),
        f"activation {row.activation} is none of {', '.join(ACTIVATIONS)}": (
            row.activation not in ("", *ACTIVATIONS)
        ),
        NO_TOP_K: row.experts > 0 and not 1 <= row.top_k <= row.experts,
        f"shared experts {row.shared_experts} are neither a number nor `1 x width`": math.isnan(
            row.shared
        ),
        "no width of layers without experts": (
            row.dense_layers > 0 and math.isnan(row.dense_ffn_hidden)
        ),
    }
    return next((reason for reason, holds in wrong.items() if holds), None)
