"""Where to begin with a model on a cluster: whether it fits, on how much, in which form, and at what price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from frontrunner.evaluators.analytic import forms
from frontrunner.evaluators.analytic.accuracy_bounds import Trust, trust_in
from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many
from frontrunner.evaluators.analytic.forms import Form
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import Space

WORTH_ITS_COMPLEXITY = 0.05
"""A form is taken before a plainer one only if it is faster by more than this share; assumed."""

STATES = ("parameters", "gradients", "optimizer")
ACTIVATIONS = ("activations", "logits", "working")
TRAFFIC = ("tensor_parallel", "context_parallel", "pipeline_transfer", "data_parallel")


@dataclass(frozen=True, kw_only=True)
class OneCopy:
    """A whole copy of the model on one device, with one sequence at a time: what it needs, part by part.

    `whole` keeps all activations, `recomputed` the layers' inputs alone.
    """

    whole: Estimate
    recomputed: Estimate

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer."""
        return _sum(self.whole, STATES)

    @property
    def activation_bytes_whole(self) -> int:
        """Activations, logits and what a layer needs while it runs, of one sequence, all kept."""
        return _sum(self.whole, ACTIVATIONS)

    @property
    def activation_bytes_recomputed(self) -> int:
        """The same where each layer is run again."""
        return _sum(self.recomputed, ACTIVATIONS)


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """The recipe to begin with, and the same with its sequence in pieces through loss and feed-forward parts."""

    base: Estimate
    tiled: Estimate

    @property
    def saved_bytes(self) -> int:
        """What the fullest rank needs less."""
        return self.base.peak_memory_bytes - self.tiled.peak_memory_bytes

    @property
    def slower(self) -> float:
        """By which share a step takes longer."""
        return self.tiled.step_time_s / self.base.step_time_s - 1


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer, with the estimates behind it.

    `one_node` is empty where the cluster is one node. `chosen` is the form to begin with, None where nothing fits;
    `choices` name its recipe within the campaign's space, and `lacking` are those that the space does not list.
    """

    problem: Problem
    one_copy: OneCopy | None
    one_device: tuple[Form, ...]
    one_node: tuple[Form, ...]
    whole_cluster: tuple[Form, ...]
    chosen: Form | None
    choices: Mapping[str, Choice]
    lacking: Mapping[str, Choice]
    tiling: Tiling | None
    trust: Trust

    @property
    def fastest(self) -> Form | None:
        """The fastest form on the whole cluster that fits."""
        fitting = [form for form in self.whole_cluster if form.fits]
        return max(fitting, key=_speed) if fitting else None


def advise(space: Space, problem: Problem) -> Advice:
    """Judge each form on one device, on one node and on the whole cluster, and choose.

    The forms are those of `forms.spaces`, whatever `space` lists: it only says how the recipe is named in its file.
    """
    cluster = problem.cluster
    alone = forms.forms(problem, 1)
    node = forms.forms(problem, cluster.devices_per_node) if cluster.nodes > 1 and cluster.devices_per_node > 1 else ()
    everything = forms.forms(problem, cluster.devices) if cluster.devices > 1 else alone
    chosen = choose(everything)
    choices = {} if chosen is None else named_by(space, problem, chosen)
    return Advice(
        problem=problem,
        one_copy=_one_copy(problem),
        one_device=alone,
        one_node=node,
        whole_cluster=everything,
        chosen=chosen,
        choices=choices,
        lacking=_lacking(space, problem, choices),
        tiling=None if chosen is None else _tiling(chosen, problem),
        trust=_trust(chosen, trust_in(_estimated((*alone, *node, *everything)), problem)),
    )


def _trust(chosen: Form | None, trust: Trust) -> Trust:
    """That of the recipe to begin with, where there is one."""
    if chosen is None or chosen.estimate is None:
        return trust
    return replace(trust, expected_error=chosen.estimate.expected_error)


def _estimated(found: tuple[Form, ...]) -> list[Recipe]:
    return list(dict.fromkeys(form.estimate.recipe for form in found if form.estimate is not None))


def choose(found: tuple[Form, ...]) -> Form | None:
    """The plainest form that fits and that no other outruns by more than `WORTH_ITS_COMPLEXITY`."""
    fitting = [form for form in found if form.fits]
    if not fitting:
        return None
    best = max(_speed(form) for form in fitting)
    return next(form for form in fitting if _speed(form) * (1 + WORTH_ITS_COMPLEXITY) >= best)


def named_by(space: Space, problem: Problem, form: Form) -> dict[str, Choice]:
    """The choices that single the form's recipe out of the space, whose other dimensions have one value each."""
    if form.estimate is None:
        return {}
    recipe, own = form.estimate.recipe, space.dimensions(problem.cluster)
    wanted = dict(form.choices)
    if "accumulation" in own:
        wanted["accumulation"] = recipe.accumulation
    idle = _without_effect(recipe)
    return {key: value for key, value in wanted.items() if own[key] != (value,) and key not in idle}


def _without_effect(recipe: Recipe) -> set[str]:
    """Return the dimensions whose values all give this recipe."""
    return {name for name, one in DIMENSIONS.items() if not one.matters(recipe)}


def _lacking(space: Space, problem: Problem, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    own = space.dimensions(problem.cluster)
    return {key: value for key, value in choices.items() if value not in own[key]}


def _one_copy(problem: Problem) -> OneCopy | None:
    """One sequence at a time on one device; None where no rule lets a device hold a copy."""
    batch = problem.global_batch.maximum
    recipes = [
        Recipe(devices=1, micro_batch_seqs=1, accumulation=batch, recompute=recompute) for recompute in ("none", "full")
    ]
    if any(why_illegal(recipe, problem) for recipe in recipes):
        return None
    whole, recomputed = estimate_many(recipes, problem)
    return OneCopy(whole=whole, recomputed=recomputed)


def _tiling(form: Form, problem: Problem) -> Tiling | None:
    if form.estimate is None or form.estimate.recipe.loss_chunks > 1:
        return None
    recipe = replace(form.estimate.recipe, loss_chunks=forms.LOSS_CHUNKS, feed_forward_tiles=forms.TILES)
    if why_illegal(recipe, problem):
        return None
    return Tiling(base=form.estimate, tiled=estimate_many([recipe], problem)[0])


def traffic_s(found: Estimate) -> float:
    """Seconds of a step that wait for other devices' data: beyond what computation hides."""
    return sum(found.step_parts_s[name] for name in TRAFFIC)


def _speed(form: Form) -> float:
    return 0.0 if form.estimate is None else form.estimate.tokens_per_s


def _sum(found: Estimate, names: tuple[str, ...]) -> int:
    return int(sum(found.memory_parts_bytes[name] for name in names))
