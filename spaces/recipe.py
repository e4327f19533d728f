"""The recipe: one complete answer to a problem, and its identity."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from frontrunner.notebook import Displayed
from frontrunner.spaces.errors import bad_value, require_at_least, require_one_of
from frontrunner.spaces.sharding import UNSHARDED, Sharding

ENGINES = ("torch", "deepspeed")
COUNTS = (
    "devices",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_stages",
    "context_parallel",
    "micro_batch_seqs",
    "accumulation",
    "loss_chunks",
    "feed_forward_tiles",
    "secondary_partition",
)
"""The fields that are whole numbers of at least 1."""
SPLIT_BACKWARD_SCHEDULES = ("interleaved-zero-bubble", "zbv", "dualpipev")
LOOPED_SCHEDULES = ("interleaved-1f1b", "looped-bfs", *SPLIT_BACKWARD_SCHEDULES)
V_SHAPED_SCHEDULES = ("zbv", "dualpipev")
SCHEDULES = ("none", "gpipe", "1f1b", *LOOPED_SCHEDULES)
RECOMPUTES = ("none", "selective", "full")
REPLICATIONS = ("replicate", "ddp")
OPTIMIZER_STATES = ("fp32", "bf16")
OFFLOADS = ("none", "optimizer", "optimizer+parameters", "nvme")
SYNCHRONISATIONS = ("last", "each")
LAYER_SPLITS = ("even", "balanced")
RANK_ORDERS = ("tp-dp-pp", "tp-pp-dp", "dp-tp-pp", "dp-pp-tp", "pp-tp-dp", "pp-dp-tp")
"""Which ranks are neighbours, innermost first; context ranks stand within dp, next to one another."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Displayed):
    """How one model is cut over the devices and how one optimizer step is run.

    `context_parallel` is the number of ranks that share each sequence of a replica, a slice of positions each.
    `accumulation` is the number of micro-batches each replica runs in a step; under pipelining they are the
    pipeline's micro-batches. `virtual_stages` is the number of model chunks a pipeline rank holds.
    `replication` says which of torch's data-parallel wrappers keeps unsharded replicas equal. `compile` runs each
    layer through torch.compile. `loss_chunks` and `feed_forward_tiles` put the sequence through head and loss, and
    through the feed-forward part of each layer, in so many pieces, which are computed again in the backward pass.
    `optimizer_state` is the type in which the optimizer's states are kept. `activation_offload` keeps what layers
    need for the backward pass in the host's memory, `offload` what it names; "nvme" is optimizer and parameters, in
    files on the node's disk. `synchronise` says after which micro-batches unsharded gradients are reduced over the
    replicas. `secondary_partition` is the size of the groups of neighbouring replicas that hold a second copy of
    ZeRO-3's parameters for the backward pass (ZeRO++ hpZ, arXiv 2306.10209); 1 is none. `layers_per_stage` counts the
    layers of each stage along the model; empty is as even as possible, the first stages taking the remainder.
    `rank_order` says how ranks are numbered, and so which groups lie within a node: in tp-dp-pp tensor-parallel ranks
    are neighbours and stages are furthest apart; in tp-pp-dp replicas are (Megatron-LM's --use-tp-pp-dp-mapping).
    """

    engine: str = "torch"
    devices: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    virtual_stages: int = 1
    schedule: str = "none"
    micro_batch_seqs: int
    accumulation: int
    sharding: Sharding = UNSHARDED
    recompute: str = "none"
    sequence_parallel: bool = False
    replication: str = "replicate"
    compile: bool = False
    loss_chunks: int = 1
    feed_forward_tiles: int = 1
    optimizer_state: str = "fp32"
    activation_offload: bool = False
    offload: str = "none"
    synchronise: str = "last"
    secondary_partition: int = 1
    layers_per_stage: tuple[int, ...] = ()
    rank_order: str = "tp-dp-pp"

    def __post_init__(self) -> None:
        self._require_counts()
        require_one_of("recipe", "engine", self.engine, ENGINES)
        require_one_of("recipe", "schedule", self.schedule, SCHEDULES)
        require_one_of("recipe", "recompute", self.recompute, RECOMPUTES)
        require_one_of("recipe", "replication", self.replication, REPLICATIONS)
        require_one_of("recipe", "optimizer_state", self.optimizer_state, OPTIMIZER_STATES)
        require_one_of("recipe", "offload", self.offload, OFFLOADS)
        require_one_of("recipe", "synchronise", self.synchronise, SYNCHRONISATIONS)
        require_one_of("recipe", "rank_order", self.rank_order, RANK_ORDERS)
        if self.layers_per_stage and (len(self.layers_per_stage) != self.stages or min(self.layers_per_stage) < 1):
            expected = f"nothing, or at least one layer for each of {self.stages} stages"
            raise bad_value("recipe.layers_per_stage", list(self.layers_per_stage), expected)
        if self.devices % self._devices_per_replica:
            degrees = f"{self.tensor_parallel} x {self.pipeline_parallel} x {self.context_parallel}"
            expected = f"a multiple of tensor_parallel x pipeline_parallel x context_parallel = {degrees}"
            raise bad_value("recipe.devices", self.devices, expected)

    def _require_counts(self) -> None:
        """Every count is at least 1; made in one comparison, since a space makes a million recipes."""
        counts = {name: getattr(self, name) for name in COUNTS}
        if min(counts.values()) < 1:
            require_at_least("recipe", 1, **counts)

    @property
    def data_parallel(self) -> int:
        """Devices / (tensor_parallel * pipeline_parallel * context_parallel): the replicas that are left over."""
        return self.devices // self._devices_per_replica

    @property
    def copies(self) -> int:
        """data_parallel * context_parallel: the ranks that hold the same part of the model.

        Each of a replica's context ranks holds a copy. Gradients are averaged over all copies, and sharding spreads
        parameters, gradients and optimizer states over them.
        """
        return self.data_parallel * self.context_parallel

    def copies_in_words(self) -> str:
        """The number of copies in words: `4 replicas`, or `8 copies (4 replicas x 2 context ranks)`."""
        replicas = f"{self.data_parallel} replicas"
        if self.context_parallel == 1:
            return replicas
        return f"{self.copies} copies ({replicas} x {self.context_parallel} context ranks)"

    @property
    def _devices_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def rank_strides(self) -> dict[str, int]:
        """How far apart the ranks of a group are: the product of the sizes that `rank_order` names before it."""
        sizes = {"tp": self.tensor_parallel, "dp": self.copies, "pp": self.pipeline_parallel}
        order = self.rank_order.split("-")
        return {name: math.prod(sizes[inner] for inner in order[:place]) for place, name in enumerate(order)}

    def pipeline_rank(self, rank: int) -> int:
        """A rank's number among the ranks of its pipeline."""
        return rank // self.rank_strides["pp"] % self.pipeline_parallel

    @property
    def stages(self) -> int:
        """pipeline_parallel * virtual_stages: the pieces that the layers are cut into."""
        return self.pipeline_parallel * self.virtual_stages

    @property
    def global_batch_seqs(self) -> int:
        """micro_batch_seqs * accumulation * data_parallel: sequences of one optimizer step."""
        return self.micro_batch_seqs * self.accumulation * self.data_parallel

    @property
    def sharding_name(self) -> str:
        """The sharding's common name over this recipe's copies."""
        return self.sharding.name(self.copies)

    @property
    def layers_name(self) -> str:
        """The layers of the stages along the model, as `5+6x14+4`: 5, then 14 stages of 6, then 4; or `even`."""
        runs = [(count, len(list(group))) for count, group in itertools.groupby(self.layers_per_stage)]
        return "+".join(str(count) if length == 1 else f"{count}x{length}" for count, length in runs) or "even"

    def describe(self) -> str:
        """The recipe on one line, for logs: `tp2 pp2 dp1 1f1b mb2 x8 none recompute=full`."""
        parts = [f"tp{self.tensor_parallel} pp{self.pipeline_parallel} dp{self.data_parallel}"]
        if self.context_parallel > 1:
            parts.append(f"cp{self.context_parallel}")
        if self.pipeline_parallel > 1:
            parts.append(self.schedule + (f" v{self.virtual_stages}" if self.virtual_stages > 1 else ""))
        if self.layers_per_stage:
            parts.append(f"layers={self.layers_name}")
        parts.append(f"mb{self.micro_batch_seqs} x{self.accumulation}")
        if self.copies > 1:
            parts.append(self.sharding_name if self.replication == "replicate" else "ddp")
        if self.recompute != "none":
            parts.append(f"recompute={self.recompute}")
        if self.sequence_parallel:
            parts.append("sp")
        parts.extend(self.levers)
        if self.secondary_partition > 1:
            parts.append(f"secondary={self.secondary_partition}")
        if self.rank_order != "tp-dp-pp":
            parts.append(f"order={self.rank_order}")
        if self.engine != "torch":
            parts.append(self.engine)
        return " ".join(parts)

    @property
    def levers(self) -> tuple[str, ...]:
        """The levers of compilation and memory that are not at their neutral position, a word each."""
        words = {
            "compile": self.compile,
            f"loss_chunks={self.loss_chunks}": self.loss_chunks > 1,
            f"ffn_tiles={self.feed_forward_tiles}": self.feed_forward_tiles > 1,
            f"states={self.optimizer_state}": self.optimizer_state != "fp32",
            "host-activations": self.activation_offload,
            f"offload={self.offload}": self.offload != "none",
            f"synchronise={self.synchronise}": self.synchronise != "last",
        }
        return tuple(word for word, moved in words.items() if moved)
