"""The keys of [model] become parts, and parts become keys."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from frontrunner.spaces.document import as_table, read_plain
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.keys import keys_of
from frontrunner.spaces.model.model import KEYS, PARTS, Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.validation import dump_json, load_json

MOST_FIELDS = 15
SMALL = Model.from_keys(
    name="small", layers=6, hidden=32, heads=4, kv_heads=2, ffn_hidden=64, vocabulary=100
)
WINDOWS = {"attention_window": 8, "full_attention_every": 3, "window_rotary_theta": 5e3}
MIXTURE = {"experts": 8, "experts_per_token": 2}
LATENT = {"key_value_rank": 16, "kv_heads": 4, "rotary_width": 4, "value_width": 12}
MODELS = {
    "grouped": {"qk_norm": True, "biases": "qkv", "rotary_width": 4},
    "windows": WINDOWS | {"rotary_scaling": RotaryScaling(factor=8.0)},
    "latent": LATENT | {"query_rank": 24},
    "mixture": MIXTURE | {"dense_layers": 2, "dense_ffn_hidden": 96, "shared_experts": 1},
    "learned": {"positions": "learned", "max_positions": 64, "tied_embeddings": True},
    "gemma": WINDOWS | {"post_norms": True, "logits_softcap": 30.0, "scaled_embedding": True},
    "mtp": LATENT | MIXTURE | {"mtp_layers": 1},
}


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
def test_keys_are_given_back(keys: dict[str, Any]) -> None:
    model = SMALL.with_keys(**keys)
    assert {name: value for name, value in model.keys().items() if name in keys} == keys
    assert model.unshown_keys == ()
    assert Model.from_keys(**model.keys()) == model
    assert Model.from_keys(**model.stated_keys()) == model


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
def test_json_of_a_model_is_its_keys(keys: dict[str, Any]) -> None:
    model = SMALL.with_keys(**keys)
    assert load_json(Model, dump_json(model), what="model") == model
    assert read_plain(Model, as_table(model), "model") == model
    assert as_table({"of": [model]}) == {"of": [model.plain_keys()]}


@pytest.mark.parametrize(
    ("keys", "unshown"),
    [
        ({"attention_window": 8, "full_attention_every": 9}, {"full_attention_every": 9}),
        (
            {"attention_window": 8, "full_attention_every": 1},
            {"attention_window": 8, "full_attention_every": 1},
        ),
        (
            {"attention_window": 8, "window_rotary_theta": 5e3},
            {"rotary_theta": 1e4, "window_rotary_theta": 5e3},
        ),
        ({"positions": "learned", "rotary_theta": 5e5}, {"rotary_theta": 5e5}),
        ({"renormalized_experts": False}, {"renormalized_experts": False}),
    ],
)
def test_a_key_that_no_part_shows_is_kept_for_ids(
    keys: dict[str, Any], unshown: dict[str, Any]
) -> None:
    model = SMALL.with_keys(**keys)
    assert dict(model.unshown_keys) == unshown
    assert model.stated_keys() == SMALL.stated_keys() | keys
    assert model.with_keys() == model


def test_layers_differ_by_their_place_in_the_sequence() -> None:
    model = SMALL.with_keys(**WINDOWS, **MIXTURE, dense_layers=2, dense_ffn_hidden=96)
    assert [layer.attention.window for layer in model.layers] == [8, 8, None, 8, 8, None]
    assert [layer.feed_forward.ffn_hidden for layer in model.layers] == [96, 96, 64, 64, 64, 64]
    assert [layer.mixture is None for layer in model.layers] == [True] * 2 + [False] * 4
    assert model.layers[3] is model.layers[4]
    assert (model.dense_layers, model.dense) == (2, model.layers[0].feed_forward)
    windowed, full = model.layers[0].attention.rotary, model.layers[2].attention.rotary
    assert windowed is not None
    assert windowed.theta == 5e3
    assert model.rotary == full


def test_a_model_may_be_made_of_layers() -> None:
    """Its keys are read off its layers."""
    wide = SMALL.with_keys(attention_window=8).layers[0]
    layers = (wide, wide, SMALL.layers[0])
    model = replace(SMALL, layers=layers)
    assert model.keys()["attention_window"] == 8
    assert model.keys()["full_attention_every"] == 3
    assert model.parameters == SMALL.with_keys(layers=3).parameters


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shared_experts": 2}, "model.shared_experts needs model.experts > 0 (it is 0)"),
        ({"dense_layers": 2, "dense_ffn_hidden": 8}, "model.dense_layers needs model.experts > 0"),
        ({"query_rank": 8}, "model.query_rank needs a model.key_value_rank"),
        (LATENT | {"attention_sinks": True}, "model.attention_sinks needs grouped attention"),
        ({"full_attention_every": 2}, "model.full_attention_every needs a model.attention_window"),
        (WINDOWS | {"positions": "learned"}, 'needs model.positions = "rotary" (it is "learned")'),
        ({"colour": 1}, "unknown key model.colour"),
    ],
)
def test_a_key_of_a_part_that_is_not_there_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        SMALL.with_keys(**keys)
    assert message in refused.value.message


def test_a_model_without_a_required_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"model\.hidden is missing"):
        Model.from_keys(name="a", layers=1)


def test_every_part_is_small() -> None:
    assert all(len(fields(part)) <= MOST_FIELDS for part in PARTS)


def test_parts_that_share_a_key_declare_it_alike() -> None:
    for part in PARTS:
        for one in keys_of(part):
            assert replace(one, part=KEYS[one.name].part) == KEYS[one.name]
