"""The recipe: one complete configuration, and the declaration of each of its dimensions.

A dimension is declared once, as a field of `Recipe`; spaces, checks, data frame columns, labels,
HTTP filters, the strategies' features, JSON schemas and the table in the docs derive from
`DIMENSIONS`. Ranks of a probe import this module: it needs nothing but the standard library.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from frontrunner.spaces.custom import (
    Choice as Choice,  # noqa: PLC0414
)
from frontrunner.spaces.custom import Custom, CustomKnob
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value, require_at_least, require_one_of
from frontrunner.spaces.sharding import UNSHARDED, Sharding

Kind = Literal["count", "flag", "choice", "sharding", "layers", "custom"]
Group = Literal["degrees", "pipeline", "batch", "sharding", "option", "lever"]

ENGINES = ("torch", "deepspeed")
SPLIT_BACKWARD_SCHEDULES = ("interleaved-zero-bubble", "zbv", "dualpipev")
LOOPED_SCHEDULES = ("interleaved-1f1b", "looped-bfs", *SPLIT_BACKWARD_SCHEDULES)
INTERLEAVED_SCHEDULES = ("interleaved-1f1b", "interleaved-zero-bubble")
V_SHAPED_SCHEDULES = ("zbv", "dualpipev")
SCHEDULES = ("none", "gpipe", "1f1b", *LOOPED_SCHEDULES)
RECOMPUTES = ("none", "selective", "full")
OFFLOADS = ("none", "optimizer", "optimizer+parameters", "nvme")
RANK_ORDERS = ("tp-dp-pp", "tp-pp-dp", "dp-tp-pp", "dp-pp-tp", "pp-tp-dp", "pp-dp-tp")
"""Which ranks are neighbors, innermost first; context ranks are next to one another within dp."""


class Degrees(NamedTuple):
    """What decides whether a dimension matters; a `Recipe` has the same attributes."""

    tensor_parallel: int
    pipeline_parallel: int
    copies: int
    accumulation: int


def _in_a_pipeline(degrees: Degrees | Recipe) -> bool:
    return degrees.pipeline_parallel > 1


def _over_copies(degrees: Degrees | Recipe) -> bool:
    return degrees.copies > 1


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One dimension of a recipe: everything about it that is not legality, cost or implementation.

    `neutral` is the recipe's default, which a choice takes unless it `matters` (None where it
    always does); `default` are a space's values. `label` heads axes and columns; `word` is how
    views name a value that is not neutral. `stored` is the key in stored recipes and in the hash of
    their ids. A one-hot dimension has no order among its values.
    """

    name: str = ""
    field: str = ""
    kind: Kind
    group: Group
    description: str
    values: tuple[str, ...] = ()
    neutral: Any = None
    default: tuple[Choice, ...] = ()
    label: str = ""
    word: str | Callable[[Recipe], str] = "{name}={value}"
    matters: Callable[[Degrees | Recipe], bool] = lambda _: True
    stored: str = ""
    is_one_hot: bool = False

    @property
    def type(self) -> type:
        """The Python type of one value."""
        return {"count": int, "flag": bool}.get(self.kind, str)

    @property
    def column(self) -> str:
        """The pandas type of a column of values."""
        return {"count": "int64", "flag": "bool"}.get(self.kind, "string")

    def of(self, recipe: Recipe) -> Choice:
        """Return the recipe's value as a space names it."""
        if self.kind == "sharding":
            return recipe.sharding_name
        if self.kind == "layers":
            return "balanced" if recipe.layers_per_stage else "even"
        if self.kind == "custom":
            return next((one.value for one in recipe.custom if one.name == self.name), self.neutral)
        value: Choice = getattr(recipe, self.field)
        return value

    def words(self, recipe: Recipe) -> str:
        """Return the value in words, empty where it is neutral."""
        if getattr(recipe, self.field) == self.neutral:
            return ""
        if callable(self.word):
            return self.word(recipe)
        return self.word.format(name=self.name, value=self.of(recipe))

    def check(self, owner: str, value: Choice) -> None:
        """Raise `InvalidInput` unless `value` is one that a space can name."""
        if self.kind == "sharding":
            Sharding.named(str(value), 2)
        elif self.values:
            require_one_of(owner, self.name, str(value), self.values)
        elif self.kind == "count" and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise bad_value(f"{owner}.{self.name}", value, "whole numbers of at least 1")


def _declare(
    kind: Kind, description: str, neutral: Any, group: Group = "lever", **more: Any
) -> Any:
    stated = Dimension(kind=kind, description=description, group=group, **more)
    return field(default=MISSING if neutral is None else neutral, metadata={"dimension": stated})


def _count(description: str, neutral: int | None = 1, **more: Any) -> Any:
    return _declare("count", description, neutral, **more)


def _flag(description: str, **more: Any) -> Any:
    return _declare("flag", description, neutral=False, **more)


def _choice(values: tuple[str, ...], description: str, **more: Any) -> Any:
    return _declare("choice", description, values[0], values=values, **more)


class ReadsEarlierNames:
    """Dataclass of dimensions that pydantic reads from keys of earlier versions as well."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        schema = handler(source)
        arguments = handler.resolve_ref_schema(schema)["schema"]
        while "fields" not in arguments:  # wrapped by the check of __post_init__
            arguments = arguments["schema"]
        for one in arguments["fields"]:
            if one["name"] in STORED_NAMES:
                one["validation_alias"] = [[one["name"]], [STORED_NAMES[one["name"]]]]
        return schema


ZERO_PLUS_PLUS = {
    "secondary_partition": "zero_hpz_partition_size",
    "quantized_weights": "zero_quantized_weights",
    "quantized_gradients": "zero_quantized_gradients",
}
"""The dimensions of ZeRO++, and their keys in DeepSpeed's `zero_optimization`."""


@dataclass(frozen=True, kw_only=True)
class Recipe(ReadsEarlierNames, Displayed):
    """How one model is cut over the devices and how one optimizer step is run; the fields say what
    each is.

    `layers_per_stage` holds the layers of each stage along the model; empty is as even as possible,
    the first stages taking the remainder. `custom` are knobs of the user's own, sorted by name,
    that are not at their default. Spaces enumerate and judge the first eight fields in this order.
    """

    tensor_parallel: int = _count(
        "tensor-parallel degree; data parallelism is what is left of the devices",
        group="degrees",
        label="TP",
    )
    pipeline_parallel: int = _count("pipeline-parallel degree", group="degrees", label="PP")
    context_parallel: int = _count(
        "ranks that share each sequence of a replica, a slice of its positions each; `torch` "
        "engine only",
        group="degrees", label="CP",
    )  # fmt: skip
    micro_batch_seqs: int = _count(
        "sequences per micro-batch on one replica",
        None,
        group="batch",
        label="micro-batch",
        default=(1,),
    )
    accumulation: int = _count(
        "micro-batches per step and replica; where the global batch is fixed they follow from it",
        None,
        group="batch",
    )
    devices: int = _count("devices to use; by default all of the cluster's", None, group="degrees")
    virtual_stages: int = _count(
        "model chunks that a pipeline rank holds, for the looped schedules",
        group="pipeline", word="", matters=_in_a_pipeline,
    )  # fmt: skip
    schedule: str = _choice(
        SCHEDULES, "pipeline schedule",
        group="pipeline",
        word=lambda one: one.schedule + (f" v{one.virtual_stages}" if one.virtual_stages > 1 else ""),  # noqa: E501
        default=("1f1b",), matters=_in_a_pipeline, is_one_hot=True,
    )  # fmt: skip
    sharding: Sharding = _declare(  # noqa: RUF009 - it declares a field
        "sharding",
        "`none`, `zero-1`, `zero-2`, `zero-3`, `hybrid-K` (parameters, gradients and states "
        "over groups of K "
        "replicas) or `3-level-P/G` (parameters over P replicas, gradients over G, states over "
        "all)",
        UNSHARDED, "sharding", default=("none",), word="{value}", matters=_over_copies,
    )  # fmt: skip
    recompute: str = _choice(
        RECOMPUTES,
        "what the backward pass computes again: nothing (`none`), all but matrix products and"
        " attention (`selective`), or all (`full`)",
        group="option",
    )
    sequence_parallel: bool = _flag(
        "spread norms and residuals over the tensor-parallel group",
        group="option", label="seq. parallel", word="sp",
        matters=lambda degrees: degrees.tensor_parallel > 1,
    )  # fmt: skip
    replication: str = _choice(
        ("replicate", "ddp"),
        "what reduces the gradients of unsharded replicas: buckets of the engine's own "
        "(`replicate`), or torch's "
        "DistributedDataParallel (`ddp`)",
        group="option", word="{value}", matters=_over_copies,
    )  # fmt: skip
    compile: bool = _flag(
        "run each layer, and the loss where it is whole and not tensor-parallel, through"
        " `torch.compile`",
        word="compile",
    )
    loss_chunks: int = _count(
        "pieces in which a sequence goes through head and loss, each computed again in the backward"
        " pass: the logits of one piece live at a time"
    )
    feed_forward_tiles: int = _count(
        "pieces in which a sequence goes through each feed-forward part, each computed again in "
        "the backward pass",
        label="FFN tiles", word="ffn_tiles={value}",
    )  # fmt: skip
    optimizer_state: str = _choice(
        ("fp32", "bf16"),
        "type in which the optimizer's states are kept; a step computes in fp32",
        word="states={value}",
    )
    activation_offload: bool = _flag(
        "keep what layers need for the backward pass in the host's memory; not on `cpu` devices",
        label="act. offload", word="host-activations",
    )  # fmt: skip
    gradient_sync: str = _choice(
        ("last", "each"),
        "micro-batches after which replicas, or groups of hybrid ones, reduce gradients: the "
        "`last` of a step, or "
        "`each` (zero-2 is zero-1 with `each`)",
        stored="synchronise",
        matters=lambda degrees: degrees.copies > 1 and degrees.accumulation > 1,
    )  # fmt: skip
    engine: str = _choice(ENGINES, "what trains", group="option", word="{value}")
    offload: str = _choice(
        OFFLOADS,
        "what the host's memory keeps: nothing (`none`), optimizer states and master weights"
        " (`optimizer`), or parameters as well (`optimizer+parameters`); `nvme` keeps all in files"
        " under `cluster.nvme_path`",
    )
    expert_parallel: int = _count(
        "ranks that share the experts of a mixture, whole ones each: neighbors within a "
        "pipeline stage; `torch` engine "
        "only",
        group="option", label="EP", word="ep{value}",
    )  # fmt: skip
    expert_tensor_parallel: int = _count(
        "ranks that share each expert's matrices: neighbors, of which `expert_parallel` groups "
        "share the experts; "
        "whatever `tensor_parallel` is for the rest; `torch` engine only",
        group="option", label="ETP", word="etp{value}",
    )  # fmt: skip
    secondary_partition: int = _count(
        "neighboring replicas that hold a second copy of ZeRO-3's parameters (ZeRO++ hpZ, arXiv "
        "2306.10209); 1 is none",
        group="option", label="secondary", word="secondary={value}", matters=_over_copies,
    )  # fmt: skip
    quantized_weights: bool = _flag(
        "gather ZeRO-3's parameters in int8 (ZeRO++ qwZ, arXiv 2306.10209); needs "
        "`problem.tolerance = \"quantized\"`",
        group="option", label="int8 weights", word="int8-weights", matters=_over_copies,
    )  # fmt: skip
    quantized_gradients: bool = _flag(
        "reduce ZeRO-3's gradients in int4, within nodes and then between them (ZeRO++ qgZ); needs "
        "`problem.tolerance = \"quantized\"`",
        group="option", label="int4 gradients", word="int4-gradients", matters=_over_copies,
    )  # fmt: skip
    layers_per_stage: tuple[int, ...] = _declare(
        "layers",
        "layers of each pipeline stage: `even`, or `balanced` so that the busiest rank, the "
        "head counted, has the "
        "fewest FLOPs",
        (), "pipeline", name="layer_split", values=("even", "balanced"), default=("even",),
        word=lambda recipe: f"layers={recipe.layers_name}", matters=_in_a_pipeline,
    )  # fmt: skip
    rank_order: str = _choice(
        RANK_ORDERS,
        "how ranks are numbered, innermost first, and so which groups lie within a node; "
        "`torch` engine only",
        group="option", word="order={value}", is_one_hot=True,
    )  # fmt: skip
    async_tensor_parallel: bool = _flag(
        "overlap tensor-parallel gathers and sums with the matrix products beside them, by "
        "torch's symmetric memory; "
        "for compiled layers with sequence parallelism on `cuda` devices",
        label="async TP", word="async_tp", matters=lambda degrees: degrees.tensor_parallel > 1,
    )  # fmt: skip
    fp8: str = _choice(
        ("none", "tensorwise", "rowwise", "mxfp8"),
        "the layers' matrix products in 8 bits, by torchao: their factors scaled as a whole "
        "(`tensorwise`), by row "
        "(`rowwise`) or by blocks of 32 values (`mxfp8`, on Blackwell); needs "
        "`problem.precision = \"bf16\"` and "
        "`problem.tolerance = \"quantized\"`",
        group="option", label="FP8", word="fp8-{value}",
    )  # fmt: skip
    custom: tuple[Custom, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if min(_counts_of(self)) < 1:
            require_at_least("recipe", 1, **{name: getattr(self, name) for name in COUNTS})
        for (name, values), value in zip(CHOICES.items(), _choices_of(self), strict=True):
            if value not in values:
                require_one_of("recipe", name, value, values)
        if self.layers_per_stage and (
            len(self.layers_per_stage) != self.stages or min(self.layers_per_stage) < 1
        ):
            expected = f"nothing, or at least one layer for each of {self.stages} stages"
            raise bad_value("recipe.layers_per_stage", list(self.layers_per_stage), expected)
        if self.custom:
            names = [one.name for one in self.custom]
            if sorted(set(names)) != names:
                raise bad_value("recipe.custom", names, "each knob once, sorted by name")
        if self.devices % self._devices_per_replica:
            degrees = f"{self.tensor_parallel} x {self.pipeline_parallel} x {self.context_parallel}"
            expected = (
                f"a multiple of tensor_parallel x pipeline_parallel x context_parallel = {degrees}"
            )
            raise bad_value("recipe.devices", self.devices, expected)

    @property
    def _devices_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Devices / (tensor_parallel * pipeline_parallel * context_parallel): the replicas that are
        left over.
        """
        return self.devices // self._devices_per_replica

    @property
    def copies(self) -> int:
        """data_parallel * context_parallel: the ranks that hold the same part of the model, and
        that sharding uses.
        """
        return self.data_parallel * self.context_parallel

    def copies_in_words(self) -> str:
        """Return the number of copies: `4 replicas`, or `8 copies (4 replicas x 2 context
        ranks)`.
        """
        replicas = f"{self.data_parallel} replicas"
        if self.context_parallel == 1:
            return replicas
        return f"{self.copies} copies ({replicas} x {self.context_parallel} context ranks)"

    @property
    def expert_ranks(self) -> int:
        """expert_parallel * expert_tensor_parallel: the neighboring ranks of a stage that hold each
        expert once.
        """
        return self.expert_parallel * self.expert_tensor_parallel

    def experts_in_words(self, experts: int) -> str:
        """Return how ranks share a layer's experts; empty where each holds all of them."""
        if self.expert_ranks == 1:
            return ""
        split = self.expert_tensor_parallel
        form = "whole" if split == 1 else f"each split over {split} ranks"
        held = f"{experts // self.expert_parallel} per rank, {form}"
        return f"{self.expert_ranks} neighboring ranks share each layer's {experts} experts: {held}"

    @property
    def rank_strides(self) -> dict[str, int]:
        """Distance between the ranks of a group: the product of the sizes that `rank_order` names
        before it.
        """
        sizes = {"tp": self.tensor_parallel, "dp": self.copies, "pp": self.pipeline_parallel}
        order = self.rank_order.split("-")
        return {
            name: math.prod(sizes[inner] for inner in order[:place])
            for place, name in enumerate(order)
        }

    def pipeline_rank(self, rank: int) -> int:
        """Return a rank's number among the ranks of its pipeline."""
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
    def zero_plus_plus(self) -> dict[str, Any]:
        """What of ZeRO++ the recipe uses, in DeepSpeed's keys."""
        values = {
            key: (getattr(self, name), getattr(Recipe, name))
            for name, key in ZERO_PLUS_PLUS.items()
        }
        return {key: value for key, (value, neutral) in values.items() if value != neutral}

    @property
    def sharding_name(self) -> str:
        """The sharding's common name over this recipe's copies."""
        return self.sharding.name(self.copies)

    @property
    def layers_name(self) -> str:
        """The layers of the stages along the model, as `5+6x14+4`: 5, then 14 stages of 6, then 4;
        or `even`.
        """
        runs = [
            (count, len(list(group))) for count, group in itertools.groupby(self.layers_per_stage)
        ]
        return (
            "+".join(str(count) if length == 1 else f"{count}x{length}" for count, length in runs)
            or "even"
        )

    def custom_environment(self) -> dict[str, str]:
        """Return the environment variables of the user's own knobs."""
        return {name: value for one in self.custom for name, value in one.as_variable().items()}

    def custom_arguments(self) -> tuple[str, ...]:
        """Return the arguments of the user's own knobs."""
        return tuple(argument for one in self.custom for argument in one.as_arguments())

    def words(self, *groups: Group) -> tuple[str, ...]:
        """Return the choices of these groups that are not neutral, in words; the user's own knobs
        are levers.
        """
        found = (one.words(self) for one in DIMENSIONS.values() if one.group in groups)
        own = (one.words() for one in self.custom if "lever" in groups)
        return (*(word for word in found if word), *own)

    def arithmetic(self, precision: str) -> str:
        """Return what most FLOPs are done in, for a problem of this precision: `fp8` where the
        recipe chooses it.
        """
        return precision if self.fp8 == "none" else "fp8"

    def layout(self) -> str:
        """Return the degrees: `tp2 pp2 dp4`, with `cp2` where ranks share sequences."""
        context = f" cp{self.context_parallel}" if self.context_parallel > 1 else ""
        return (
            f"tp{self.tensor_parallel} pp{self.pipeline_parallel} dp{self.data_parallel}{context}"
        )

    def title(self) -> str:
        """Return the degrees above 1 in words: `2-way tensor, 4-way pipeline parallel`."""
        degrees = {
            "tensor": self.tensor_parallel,
            "pipeline": self.pipeline_parallel,
            "data": self.data_parallel,
            "context": self.context_parallel,
        }
        words = ", ".join(f"{degree}-way {name}" for name, degree in degrees.items() if degree > 1)
        return f"{words} parallel" if words else "One device"

    def options(self) -> tuple[str, ...]:
        """Return what the recipe chooses besides degrees, batch and sharding, in words."""
        return self.words("pipeline", "option", "lever")

    def describe(self) -> str:
        """Return the recipe on one line: `tp2 pp2 dp1 1f1b mb2 x8 none recompute=full`."""
        batch = f"mb{self.micro_batch_seqs} x{self.accumulation}"
        copies = (
            (self.sharding_name,) if self.copies > 1 and self.replication == "replicate" else ()
        )
        return " ".join(
            (self.layout(), *self.words("pipeline"), batch, *copies, *self.words("option", "lever"))
        )


def _declared() -> dict[str, Dimension]:
    found: dict[str, Dimension] = {}
    for one in fields(Recipe):
        if "dimension" not in one.metadata:
            continue
        stated: Dimension = one.metadata["dimension"]
        name, is_required = stated.name or one.name, one.default is MISSING
        neutral: Any = None if is_required else one.default
        default = stated.default or (() if is_required else (neutral,))
        label, stored = stated.label or name.replace("_", " "), stated.stored or one.name
        found[name] = replace(
            stated,
            name=name,
            field=one.name,
            neutral=neutral,
            default=default,
            label=label,
            stored=stored,
        )
    return found


DIMENSIONS: Mapping[str, Dimension] = _declared()
"""The dimensions by the name that spaces, files and commands have for them."""


COUNTS = tuple(one.field for one in DIMENSIONS.values() if one.kind == "count")
CHOICES = {one.field: one.values for one in DIMENSIONS.values() if one.kind == "choice"}
_counts_of, _choices_of = (
    attrgetter(*COUNTS),
    attrgetter(*CHOICES),
)  # quick, since a survey makes a million recipes
EARLIER_NAMES = {one.stored: one.field for one in DIMENSIONS.values() if one.stored != one.field}
"""Keys of earlier versions' files, and of stored recipes, with their names today."""

NODE_TYPE = "group"
"""Key of stored recipes for one of several node types of a cluster, which earlier versions had."""
STORED_NAMES = {name: stored for stored, name in EARLIER_NAMES.items()}


def current_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of values with today's names for keys of earlier versions."""
    return {
        key if (now := EARLIER_NAMES.get(key, key)) in table else now: value
        for key, value in table.items()
    }


def current_fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored recipe with the fields that recipes have today.

    The node type of a recipe for one of several (`NODE_TYPE`) becomes a knob of the user's own, so
    that recipes of different node types stay different, and views show it.
    """
    found = current_names(table)
    if node_type := found.pop(NODE_TYPE, ""):
        knob = {"name": NODE_TYPE, "value": node_type, "env": NODE_TYPE.upper()}
        found["custom"] = sorted([*found.get("custom", ()), knob], key=itemgetter("name"))
    return found


def plain_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return every field of a recipe as JSON holds it; `custom` only where there are any."""
    table = asdict(recipe) | {"layers_per_stage": list(recipe.layers_per_stage)}
    own = [
        {key: value for key, value in one.items() if value is not None}
        for one in table.pop("custom")
    ]
    return table | ({"custom": own} if own else {})


def stored_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return every field of a recipe under the keys of stores, recipe files and ids."""
    return {STORED_NAMES.get(name, name): value for name, value in plain_recipe(recipe).items()}


def custom_dimension(name: str, knob: CustomKnob) -> Dimension:
    """Return a knob of the user's own as a dimension; a recipe that says nothing of it has its
    default.
    """
    how = f"the argument {knob.flag}" if knob.env is None else f"the variable {knob.env}"
    neutral = "unset" if knob.default is None else knob.default
    return Dimension(
        name=name,
        kind="custom",
        group="lever",
        description=how,
        neutral=neutral,
        default=knob.values,
        label=name,
    )
