"""Advice in words: questions with their answers, each backed by the estimate of a recipe that it names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from frontrunner.evaluators.analytic import forms
from frontrunner.evaluators.analytic.advice import WORTH_ITS_COMPLEXITY, Advice, OneCopy, Tiling, traffic_s
from frontrunner.evaluators.analytic.estimates import Estimate
from frontrunner.evaluators.analytic.forms import Form
from frontrunner.text import count, gib, percent, seconds, size

WHY = {
    forms.ALONE: "a single device needs no parallelism",
    forms.PLAIN: "each device trains a whole copy, and gradients, once a step, are all that travels",
    "ZeRO-1": "each device computes with whole parameters and gradients, and keeps a share of the optimizer's states",
    "ZeRO-2": "each device computes with whole parameters, and keeps a share of gradients and optimizer states",
    "ZeRO-3 (FSDP)": "each device keeps a share of everything, and gathers a layer's parameters when it computes it",
    forms.HYBRID: "as ZeRO-3, but a node's devices hold a whole copy, so that parameters never leave the node",
    forms.TENSOR: "the devices of a node share each layer's matrices, which divides activations as well as states",
    forms.CONTEXT: "the devices of a node share each sequence, which divides activations and no states",
    forms.PIPELINE: "each device holds some layers and passes activations on, which is little traffic",
    forms.THREE_D: "layers are shared within nodes and passed on between them, where links are slow",
    forms.TILED_ALONE: "a single device needs no parallelism, and sequences in pieces leave few activations alive",
    forms.TILED: "as ZeRO-3, with sequences in pieces through loss and feed-forward part, to keep few activations",
    forms.OFFLOAD: "as ZeRO-3, with the shares in the host's memory",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, the answer in a word, and the sentences that give its reasons; `forms` stand beneath as a table."""

    question: str
    answer: str
    sentences: tuple[str, ...]
    forms: tuple[Form, ...] = ()


def in_words(advice: Advice) -> tuple[Answer, ...]:
    """The answers in the order in which a person would ask."""
    cluster = advice.problem.cluster
    answers = [_on_one_device(advice)]
    if advice.one_node:
        question = f"On one node of {cluster.devices_per_node} devices?"
        answers.append(_on_several(question, advice.one_node, cluster.devices_per_node))
    if cluster.devices > 1:
        where = _nodes(cluster.nodes)
        question = f"On all {cluster.devices:,} devices, {where}?"
        answers.append(_on_several(question, advice.whole_cluster, cluster.devices_per_node))
    answers.append(_what_then(advice))
    return tuple(answers)


def heading(advice: Advice) -> str:
    """What is asked about."""
    problem, cluster = advice.problem, advice.problem.cluster
    batch = problem.global_batch
    return (
        f"{problem.model.name}, {count(problem.model.parameters)} parameters, {problem.precision}, "
        f"global batch {batch} x {problem.sequence_length:,} tokens, on {cluster.name}: {cluster.nodes:,} x "
        f"{cluster.devices_per_node} devices of {gib(cluster.memory_bytes_per_device)} GiB"
    )


def _on_one_device(advice: Advice) -> Answer:
    limit = advice.problem.cluster.memory_bytes_per_device
    sentences = [] if advice.one_copy is None else list(_needs(advice.one_copy, advice))
    best = next((form for form in advice.one_device if form.fits), advice.one_device[0])
    if best.estimate is None:
        sentences.append(f"No recipe can be estimated: {best.reason}.")
    elif best.fits:
        pieces = " in pieces only" if best.name == forms.TILED_ALONE else ""
        sentences.append(
            f"It fits{pieces}: {named(best.estimate)} needs {gib(_peak(best.estimate))} GiB of {gib(limit)} GiB, and "
            f"{seconds(best.estimate.step_time_s)} a step."
        )
    else:
        smallest = min((form.estimate for form in advice.one_device if form.estimate), key=_peak)
        sentences.append(
            f"The smallest recipe, {named(smallest)}, needs {gib(_peak(smallest))} GiB of {gib(limit)} GiB."
        )
    return Answer(question="Does it fit on one device?", answer=_yes(fits=best.fits), sentences=tuple(sentences))


def _needs(copy: OneCopy, advice: Advice) -> Iterator[str]:
    """What one copy of the model takes, and how that compares with a device."""
    problem, limit = advice.problem, advice.problem.cluster.memory_bytes_per_device
    each = copy.state_bytes / problem.model.parameters
    times = copy.state_bytes / limit
    share = f"{times:.3g} times" if times > 1 else f"{percent(times)} of"
    against = f"{share} a device's {size(limit)}"
    yield f"Parameters, gradients and optimizer take {size(copy.state_bytes)}, {each:.3g} bytes a parameter: {against}."
    yield (
        f"A micro-batch of one sequence needs {size(copy.activation_bytes_whole)} more for activations and logits "
        f"({copy.whole.recipe_id}), {size(copy.activation_bytes_recomputed)} where each layer is run again "
        f"({copy.recomputed.recipe_id})."
    )


def _on_several(question: str, found: tuple[Form, ...], devices_per_node: int) -> Answer:
    fitting = [form for form in found if form.fits]
    known = [form.estimate for form in found if form.estimate]
    if fitting:
        best = max(fitting, key=lambda form: form.estimate.tokens_per_s if form.estimate else 0.0)
        recipe = "" if best.estimate is None else f" ({best.estimate.recipe_id})"
        sentences = [f"{len(fitting)} of {len(found)} forms fit; the fastest is {best.name}{recipe}."]
        if best.estimate is not None and best.estimate.host_memory_bytes_per_rank:
            sentences.append(f"It keeps {_on_hosts(best.estimate, devices_per_node)}: see that a node has as much.")
    elif known:
        smallest = min(known, key=_peak)
        sentences = [f"The smallest recipe, {named(smallest)}, needs {gib(_peak(smallest))} GiB."]
    else:
        sentences = [f"No recipe can be estimated: {found[0].reason}."]
    sentences += _not_there(found) if known else []
    with_host = all(form.estimate is not None and form.estimate.host_memory_bytes_per_rank for form in fitting)
    answer = "with the host's memory only" if fitting and with_host else _yes(fits=bool(fitting))
    return Answer(question=question, answer=answer, sentences=tuple(sentences), forms=found)


def _not_there(found: tuple[Form, ...]) -> Iterator[str]:
    """The forms without a recipe, by their reason."""
    reasons: dict[str, list[str]] = {}
    for form in found:
        if form.reason is not None:
            reasons.setdefault(form.reason, []).append(form.name)
    for reason, names in reasons.items():
        yield f"{_capital(_listed(names))}: {reason}."


def _what_then(advice: Advice) -> Answer:
    chosen = advice.chosen
    if chosen is None or chosen.estimate is None:
        return Answer(question="What then?", answer="more memory", sentences=tuple(_nothing_fits(advice)))
    found = chosen.estimate
    sentences = [f"{_capital(WHY[chosen.name])}."]
    if found.recipe.devices > 1:
        sentences.append(
            f"Of a step of {seconds(found.step_time_s)} it computes {seconds(found.step_parts_s['compute'])} and waits "
            f"{seconds(traffic_s(found))} ({percent(traffic_s(found) / found.step_time_s)}) for other devices' data, "
            f"beyond what computing hides."
        )
    sentences += _against_plainer(advice, chosen, found)
    sentences += [] if advice.tiling is None else [_tiling(advice.tiling)]
    sentences += _offload(advice, found)
    return Answer(question="What then, and why?", answer=_in_full(chosen), sentences=tuple(sentences))


def _in_full(form: Form) -> str:
    """A form's name, with what its replicas share where the name does not say it."""
    if form.estimate is None or form.name not in (forms.TENSOR, forms.CONTEXT, forms.PIPELINE, forms.THREE_D):
        return form.name
    recipe = form.estimate.recipe
    shared = f"{recipe.sharding_name} over" if max(recipe.sharding.degrees) > 1 else "plain"
    return form.name if recipe.copies == 1 else f"{form.name}, {shared} {recipe.copies_in_words()}"


def _against_plainer(advice: Advice, chosen: Form, found: Estimate) -> Iterator[str]:
    """Why no plainer form is taken, and why no faster one."""
    plainer = advice.whole_cluster[: advice.whole_cluster.index(chosen)]
    large = [form.name for form in plainer if form.estimate is not None and not form.fits]
    if large:
        yield f"{_capital(_listed(large))} {'does' if len(large) == 1 else 'do'} not fit."
    slower = {
        form.name: 1 - form.estimate.tokens_per_s / found.tokens_per_s
        for form in plainer
        if form.estimate is not None and form.fits
    }
    if slower:
        yield f"Slower: {_listed([f'{name} by {percent(share, 0)}' for name, share in slower.items()])}."
    fastest = advice.fastest
    if fastest is not None and fastest.estimate is not None and fastest is not chosen:
        gain = fastest.estimate.tokens_per_s / found.tokens_per_s - 1
        yield (
            f"{_capital(fastest.name)} ({fastest.estimate.recipe_id}) is estimated {percent(gain)} faster: no more "
            f"than the {percent(WORTH_ITS_COMPLEXITY, 0)} for which a plainer form is worth keeping."
        )


def _tiling(tiling: Tiling) -> str:
    pieces = f"{forms.LOSS_CHUNKS} pieces of the loss and {forms.TILES} tiles of the feed-forward part"
    change = f"free {size(tiling.saved_bytes)}" if tiling.saved_bytes > 0 else "free nothing"
    return f"With {pieces} it would {change} and take {percent(tiling.slower, 0)} longer ({tiling.tiled.recipe_id})."


def _offload(advice: Advice, chosen: Estimate) -> Iterator[str]:
    """What offload keeps in the host's memory, and what it costs against the recipe that is advised."""
    cluster = advice.problem.cluster
    for form in advice.whole_cluster:
        if form.name == forms.OFFLOAD and form.estimate is not None:
            if form.estimate is chosen:
                yield f"It keeps {_on_hosts(form.estimate, cluster.devices_per_node)}."
                continue
            share = form.estimate.tokens_per_s / chosen.tokens_per_s - 1
            against = f"{percent(abs(share), 0)} {'faster' if share > 0 else 'slower'} than the advised recipe"
            yield (
                f"Offload under ZeRO-3 ({form.estimate.recipe_id}) keeps "
                f"{_on_hosts(form.estimate, cluster.devices_per_node)} and {size(_peak(form.estimate))} on the device; "
                f"it is estimated to be {against}."
            )


def _on_hosts(found: Estimate, devices_per_node: int) -> str:
    """What a recipe keeps in the memory of hosts."""
    each = found.host_memory_bytes_per_rank
    return f"{size(each)} a device, {size(each * devices_per_node)} a node, in the host's memory"


def _nothing_fits(advice: Advice) -> Iterator[str]:
    """What would have to change."""
    cluster, known = advice.problem.cluster, [form.estimate for form in advice.whole_cluster if form.estimate]
    if known:
        smallest = min(known, key=_peak)
        yield f"No form fits: the smallest, {named(smallest)}, needs {gib(_peak(smallest))} GiB a device."
    else:
        yield f"No form has a legal recipe here: {advice.whole_cluster[0].reason}."
    if advice.one_copy is not None:
        needed = math.ceil(advice.one_copy.state_bytes / cluster.memory_bytes_per_device)
        nodes = math.ceil(needed / cluster.devices_per_node)
        yield (
            f"Parameters, gradients and optimizer alone would fill {needed:,} such devices, {_nodes(nodes)}, spread "
            "evenly; activations come on top."
        )


def named(found: Estimate) -> str:
    """A recipe by its id, and in short."""
    return f"{found.recipe_id} ({found.recipe.describe()})"


def _peak(found: Estimate) -> int:
    return found.peak_memory_bytes


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count:,} nodes"


def _yes(*, fits: bool) -> str:
    return "yes" if fits else "no"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
