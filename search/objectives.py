"""What a campaign searches for: the most tokens/s alone, or a front of tokens/s against memory and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frontrunner.spaces.errors import bad_value, did_you_mean

OBJECTIVES = ("tokens", "memory", "nodes")
"""The words, as in `frontrunner pareto --objectives`: the most tokens/s, the most headroom, the fewest nodes."""
TOKENS_ALONE = ("tokens",)
SEEK_MORE: Mapping[str, tuple[str, ...]] = {"guided": OBJECTIVES, "optuna-nsga2": ("tokens", "memory")}
"""The strategies that can search for several objectives, and for which."""


def check_objectives(objectives: Sequence[str], strategy: str) -> None:
    """Raise `InvalidInput` unless these are tokens, alone or with others, each once, that the strategy seeks."""
    given, expected = list(objectives), '"tokens", alone or with "memory" and "nodes", each once'
    for name in objectives:
        if name not in OBJECTIVES:
            raise bad_value("search.objectives", given, expected, hint=did_you_mean(name, OBJECTIVES))
    if "tokens" not in objectives or len(set(objectives)) < len(objectives):
        raise bad_value("search.objectives", given, expected, hint='the default is ["tokens"]')
    sought = SEEK_MORE.get(strategy, TOKENS_ALONE)
    if not set(objectives) <= set(sought):
        able = " or ".join(name for name, words in SEEK_MORE.items() if set(objectives) <= set(words))
        raise bad_value(
            "search.objectives",
            given,
            f"what search.strategy = {strategy!r} searches for: {' and '.join(sought)}".replace("'", '"'),
            hint=f"search.strategy = {able} searches for these",
        )
