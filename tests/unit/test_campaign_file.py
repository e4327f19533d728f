"""The campaign file: what it may say, what it leaves to defaults, and that no content ends in a
traceback.
"""

from __future__ import annotations

import json
import string
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from frontrunner.config.campaign import SECTIONS, keys_of, parse_campaign, read_campaign_file
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from frontrunner.spaces.validation import dump_json, load_json
from support.campaign_files import VALID, campaign_toml, surveyed, written


def test_a_small_file_is_filled_in(tmp_path: Path) -> None:
    file = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml({"model.kv_heads": None}))
    )
    model, cluster = file.spec.problem.model, file.spec.problem.cluster
    assert (model.attention.kv_heads, model.feed_forward.ffn_hidden, model.name) == (
        8,
        512,
        "custom",
    )
    assert (cluster.nodes, cluster.name) == (1, "custom")
    assert (file.spec.name, file.named) == ("campaign", False)
    assert file.spec.budget.probes == 8
    assert file.spec.budget.minutes is None
    assert file.store.url is None


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = written(
        tmp_path / "campaign.toml", b"\xef\xbb\xbf" + campaign_toml({"name": '"mine"'}).encode()
    )
    assert (read_campaign_file(path).spec.name, read_campaign_file(path).named) == ("mine", True)


def test_whole_numbers_serve_where_any_number_does(tmp_path: Path) -> None:
    file = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml({"cluster.memory_gib_per_device": "2"}))
    )
    assert file.spec.problem.cluster.memory_bytes_per_device == 2**31


def test_single_values_of_the_space_need_no_list(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {"space.tensor_parallel": "2", "space.sharding": '"zero-1"'}
    space = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml(changes))
    ).spec.space
    assert (space.tensor_parallel, space.sharding) == ((2,), ("zero-1",))


def test_space_key_of_an_earlier_version_is_read_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes: dict[str, str | None] = {"space.synchronise": '["last", "each"]'}
    space = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml(changes))
    ).spec.space
    assert space.gradient_sync == ("last", "each")
    assert "space.synchronise is now called space.gradient_sync" in caplog.text


LLAMA = {
    "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "vocab_size": 257,
    "intermediate_size": 352, "num_key_value_heads": 4, "_name_or_path": "tiny",
}  # fmt: skip


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 257,
}  # fmt: skip


def test_layers_that_predict_further_tokens_are_left_out_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = []
    for further in (0, 1):
        assert "num_nextn_predict_layers" not in caplog.text
        (folder := tmp_path / str(further)).mkdir()
        file = of_config(folder, DEEPSEEK_V3 | {"num_nextn_predict_layers": further})
        models.append(read_campaign_file(file).spec.problem.model)
    assert models[0] == models[1]
    assert (
        "config.json: num_nextn_predict_layers = 1: these layers, which predict further tokens"
        in caplog.text
    )
    caplog.clear()
    (folder := tmp_path / "counted").mkdir()
    file = of_config(
        folder, DEEPSEEK_V3 | {"num_nextn_predict_layers": 1}, {"model.mtp_layers": "1"}
    )
    assert read_campaign_file(file).spec.problem.model == models[0].with_keys(mtp_layers=1)
    assert not caplog.text


def of_config(folder: Path, config: object, more: Mapping[str, str | None] | None = None) -> Path:
    """A campaign file whose model is that of a configuration beside it."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(
        config if isinstance(config, str) else json.dumps(config)
    )
    none = dict.fromkeys(f"model.{key}" for key in VALID["model"])
    changes = {**none, "model.config": '"model/config.json"', **(more or {})}
    return written(folder / "campaign.toml", campaign_toml(changes))


def test_a_model_is_read_from_the_configuration_of_a_published_one(tmp_path: Path) -> None:
    path = of_config(tmp_path, LLAMA, {"model.layers": "3"})
    model = read_campaign_file(path).spec.problem.model
    assert (
        model.name,
        len(model.layers),
        model.feed_forward.ffn_hidden,
        model.attention.kv_heads,
    ) == ("tiny", 3, 352, 4)
    assert (model.feed_forward.activation, model.norm.kind, model.norm.epsilon) == (
        "swiglu",
        "rmsnorm",
        1e-6,
    )


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        (
            LLAMA | {"model_type": "falcon"},
            {},
            'model_type = "falcon": expected an architecture that is modeled',
        ),
        (
            LLAMA | {"model_type": "qwen3_moe", "mlp_only_layers": [0]},
            {},
            "mlp_only_layers = [0]: expected []: no other is modeled",
        ),
        (
            LLAMA | {"hidden_act": "relu"},
            {},
            'hidden_act = "relu": expected "silu": no other is modeled',
        ),
        (
            LLAMA | {"attention_bias": True},
            {},
            "attention_bias = true: expected false: no other is modeled",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "longrope", "factor": 4.0}},
            {},
            'rope_scaling.rope_type = "longrope": expected one of default, linear, llama3, yarn',
        ),
        (
            LLAMA | {"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 4.0}},
            {},
            'rope_scaling.rope_type = "yarn": expected one of default',
        ),
        (
            {key: value for key, value in LLAMA.items() if key != "hidden_size"},
            {},
            "no hidden_size",
        ),
        ("[1]", {}, "config.json: not usable JSON: expected a table"),
        ("{", {}, "config.json: not valid JSON"),
        (
            LLAMA,
            {"model.preset": '"llama-3-8b"'},
            'model.preset = "llama-3-8b": expected no preset beside model.config',
        ),
        (LLAMA, {"model.config": '"other.json"'}, "other.json"),
        (
            LLAMA,
            {"model.config": "3"},
            "model.config = 3: expected the path of a model's config.json",
        ),
        (
            LLAMA
            | {
                "model_type": "qwen2",
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            {},
            "max_window_layers = 1: expected the window in all layers but each n-th one",
        ),
        (
            LLAMA | {"model_type": "gpt_oss", "swiglu_limit": 5.0, "hidden_act": "silu"},
            {},
            "swiglu_limit = 5.0: expected 7.0: no other is modeled",
        ),
        (
            {
                "model_type": "gpt2",
                "n_embd": 64,
                "n_layer": 2,
                "n_head": 4,
                "vocab_size": 99,
                "activation_function": None,
            },
            {},
            "activation_function is missing: expected one of",
        ),
        (
            LLAMA | {"num_hidden_layers": "two"},
            {},
            'num_hidden_layers = "two": expected a whole number',
        ),
    ],
)
def test_a_configuration_that_is_not_modeled_is_refused_by_name(
    tmp_path: Path, config: object, more: dict[str, str | None], message: str
) -> None:
    with pytest.raises(FrontrunnerError) as refused:
        read_campaign_file(of_config(tmp_path, config, more))
    assert message in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    ("batch", "ends"),
    [("16", (16, 16)), ("[4, 64]", (4, 64)), ("[8, 8]", (8, 8))],
    ids=["number", "range", "point"],
)
def test_a_global_batch_is_a_number_or_a_range(
    batch: str, ends: tuple[int, int], tmp_path: Path
) -> None:
    changes: dict[str, str | None] = {"problem.global_batch": batch, "space.accumulation": "[1, 2]"}
    found = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml(changes))
    ).spec.problem.global_batch
    assert (found.minimum, found.maximum) == ends


def test_accumulation_chosen_at_a_fixed_batch_keeps_what_fits(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {"space.accumulation": "[1, 4]"}
    spec = read_campaign_file(written(tmp_path / "campaign.toml", campaign_toml(changes))).spec
    survey = spec.space.survey(spec.problem)
    assert survey.recipes
    assert {recipe.global_batch_seqs for recipe in survey.recipes} == {16}
    assert "global-batch" in survey.refusals


def test_data_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("text")
    file = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml({"data.path": '"corpus.txt"'}))
    )
    assert file.spec.data.path == str((tmp_path / "corpus.txt").resolve())


def test_a_stored_specification_is_read_back(tmp_path: Path) -> None:
    spec = read_campaign_file(
        written(tmp_path / "campaign.toml", campaign_toml({"problem.precision": '"bf16"'}))
    ).spec
    assert load_json(CampaignSpec, dump_json(spec), what="campaign") == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"^campaign\.name is missing"),
        ("not json", "^campaign"),
        ('{"name": 3}', r"^campaign\.name = 3"),
    ],
)
def test_a_stored_specification_that_does_not_fit_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_json(CampaignSpec, text, what="campaign")


SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.times(),
    st.datetimes(),
)
WORDS = st.sampled_from(
    [*SECTIONS, "layers", "heads", "preset", "links", "fp32", "devices", "path", "url", "x", "a.b"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "laptop.toml"
LAPTOP = EXAMPLE.read_text(encoding="utf-8").replace(
    'preset = "this-machine"', 'device = "test-device"'
)
"""The example on a made-up machine: detecting this one at every reading would take time."""
QUICK = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ends_well(look: Callable[[], object]) -> bool:
    """Whether a campaign is read, or refused in one printable line; any other exception goes
    through.
    """
    try:
        look()
    except FrontrunnerError as error:
        return error.message.isprintable()
    return True


def survey_of(table: dict[str, Any], base: Path) -> object:
    spec = parse_campaign(table, default_name="x", base=base).spec
    return spec.space.survey(spec.problem)


@given(table=st.dictionaries(WORDS | st.text(max_size=5), VALUES, max_size=8))
@QUICK
def test_no_table_ends_in_anything_but_a_message(table: dict[str, Any], tmp_path: Path) -> None:
    assert ends_well(lambda: survey_of(table, tmp_path))


@given(
    entry=st.sampled_from([(section, key) for section in SECTIONS for key in keys_of(section)]),
    value=VALUES,
)
@example(entry=("search", "baseline"), value="\x1f")  # a path
@QUICK
def test_no_value_of_a_known_key_ends_in_anything_but_a_message(
    entry: tuple[str, str], value: object, tmp_path: Path
) -> None:
    section, key = entry
    table = tomllib.loads(campaign_toml())
    table.setdefault(section, {})[key] = value
    assert ends_well(lambda: survey_of(table, tmp_path))


@given(
    place=st.integers(min_value=0, max_value=len(LAPTOP)),
    length=st.integers(min_value=0, max_value=12),
    text=st.text(alphabet=string.printable + "\u00e9\x00\x1b", max_size=6),
)
@QUICK
def test_no_slip_of_the_hand_ends_in_anything_but_a_message(
    place: int, length: int, text: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "campaign.toml", LAPTOP[:place] + text + LAPTOP[place + length :])
    assert ends_well(lambda: surveyed(path))


def test_the_file_without_a_slip_is_read(tmp_path: Path) -> None:
    surveyed(written(tmp_path / "campaign.toml", LAPTOP))


def test_a_launch_can_change_keys_of_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "campaign.toml", campaign_toml({}))
    changes = {
        "evaluator": "simulated",
        "budget.probes": "3",
        "space.recompute": '["none", "full"]',
        "name": "mine",
    }
    file = read_campaign_file(path, changes)
    assert (file.spec.evaluator, file.spec.budget.probes, file.spec.name) == (
        "simulated",
        3,
        "mine",
    )
    assert file.spec.space.recompute == ("none", "full")
    assert file.changes["budget.probes"] == (8, "3"), "for `resume`, which compares the file"
    assert not read_campaign_file(path, {"store.url": '"postgresql://a:secret@b/c"'}).changes, (
        "the spec has no store"
    )
    with pytest.raises(InvalidInput, match=r"unknown key budget\.prob = 3"):
        read_campaign_file(path, {"budget.prob": "3"})
    with pytest.raises(
        InvalidInput, match=r"--set evaluator\.x: evaluator is a value, not a section"
    ):
        read_campaign_file(path, {"evaluator": "simulated", "evaluator.x": "1"})
