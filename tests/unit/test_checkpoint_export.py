"""Exported checkpoints: what transformers loads of them, how they are cut into files, and what is
refused.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_saver import save

from frontrunner.evaluators.checkpoint.export import export
from frontrunner.evaluators.checkpoint.generate import GenerateSettings, generate
from frontrunner.evaluators.checkpoint.reading import open_checkpoint
from frontrunner.evaluators.text import prepare as text
from frontrunner.evaluators.trainer.model import Gpt, initialize
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.spaces.model.model import Model
from support.trainer_runs import (
    DEEPSEEK,
    EXPERTS,
    GEMMA,
    GPT2,
    SEQUENCE_LENGTH,
    prepare,
    small_job,
    small_model,
    training_job,
)  # fmt: skip

LIMIT = 1e-4
"""The largest difference of two logits, in fp32."""
FORMS: dict[str, dict[str, Any]] = {
    "GPT-2": GPT2 | {"tied_embeddings": True},
    "Llama": {"kv_heads": 2, "vocabulary_multiple": 128, "vocabulary": 300},
    "Mixtral": EXPERTS | {"kv_heads": 2},
    "Qwen3-MoE": EXPERTS | {"kv_heads": 2, "qk_norm": True, "head_width": 32},
    "GPT-NeoX without biases": {"activation": "gelu", "norm": "layernorm"},
}


def replayed(folder: Path, model: Model) -> Gpt:
    """Leave what a replay leaves after step 5, and return its model."""
    job = training_job(small_job(folder, model=model))
    prepare(job)
    built = Gpt(model, sequence_length=SEQUENCE_LENGTH, layers=range(len(model.layers)))
    initialize(built.named_parameters(), seed=3, layers=len(model.layers))
    state = {f"model.{name}": parameter.detach() for name, parameter in built.named_parameters()}
    for name, mixture in built.mixtures.items():
        if mixture.balance is not None:
            mixture.balance.bias = torch.linspace(1, -1, model.mixture.experts)
            state[f"balance.{name}"] = mixture.balance.bias
    state["optimizer.norm.weight.step"] = torch.zeros(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        save(state, checkpoint_id=folder / "checkpoints" / "step-00000005", no_dist=True)
    return built.eval()


def apart(mine: Gpt, folder: Path) -> float:
    """The largest difference of the model's logits from those of the exported one."""
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (
        info
    )
    vocabulary = theirs.config.vocab_size
    tokens = torch.randint(
        0, vocabulary, (2, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2)
    )
    with torch.no_grad():
        return float((mine(tokens)[..., :vocabulary] - theirs.eval()(tokens).logits).abs().max())


@pytest.mark.parametrize("form", FORMS)
def test_transformers_computes_the_same_logits(form: str, tmp_path: Path) -> None:
    mine = replayed(tmp_path / "replay", small_model(**FORMS[form]))
    found = export(
        open_checkpoint(tmp_path / "replay"), tmp_path / "model", most_file_bytes=200_000
    )
    assert found.files > 1
    assert apart(mine, tmp_path / "model") < LIMIT
    with torch.no_grad():
        (
            mine.blocks["3"].feed_forward.down.weight.mul_(1.01)
            if "experts" not in FORMS[form]
            else mine.norm.weight.add_(1)
        )
    assert apart(mine, tmp_path / "model") > LIMIT


def test_files_are_bounded_and_indexed(tmp_path: Path) -> None:
    replayed(tmp_path / "replay", small_model())
    checkpoint = open_checkpoint(tmp_path / "replay")
    most = 300_000
    told: list[tuple[int, int]] = []
    found = export(
        checkpoint,
        tmp_path / "cut",
        most_file_bytes=most,
        on_file=lambda number, count: told.append((number, count)),
    )
    whole = export(checkpoint, tmp_path / "whole")
    files = sorted((tmp_path / "cut").glob("*.safetensors"))
    modes = {file.stat().st_mode for file in (tmp_path / "cut").iterdir()}
    assert len(modes) == 1, "weights can be read by whom the other files can"
    index = json.loads((tmp_path / "cut" / "model.safetensors.index.json").read_text())

    assert len(files) == found.files > 2
    assert told == [(number, found.files) for number in range(1, found.files + 1)]
    assert [file.name for file in files] == sorted(set(index["weight_map"].values()))
    held = {name: (file.name, tensor) for file in files for name, tensor in load_file(file).items()}
    assert {name: place for name, (place, _) in held.items()} == index["weight_map"]
    assert (
        index["metadata"]["total_size"]
        == found.size_bytes
        == whole.size_bytes
        == 4 * found.parameters
    )
    assert all(sum(tensor.nbytes for tensor in load_file(file).values()) <= most for file in files)
    assert whole.files == 1
    again = load_file(tmp_path / "whole" / "model.safetensors")
    assert all(torch.equal(again.pop(name), tensor) for name, (_, tensor) in held.items())
    assert not again
    halved = export(checkpoint, tmp_path / "halved", dtype="bf16")
    assert halved.size_bytes * 2 == whole.size_bytes
    assert (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "halved").dtype
        == torch.bfloat16
    )


def test_the_tokenizer_of_prepared_data_goes_along(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n" * 5000)
    settings = text.PrepareSettings(out=tmp_path / "a.bin", train_vocabulary=300, validation=0.1)
    about = text.prepare((tmp_path / "a.txt",), settings).description
    folder = tmp_path / "replay"
    replayed(folder, small_model())
    job = json.loads((folder / "job.json").read_text())
    job["data"]["path"] = str(tmp_path / "a.bin")
    (folder / "job.json").write_text(json.dumps(job))

    assert export(open_checkpoint(folder), tmp_path / "model").tokenizer
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokens = text.load_tokenizer(tmp_path / "a.tokenizer.json").encode("three two").ids
    assert found("three two")["input_ids"] == tokens
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["eos_token_id"] == about.end_of_document


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "another gate": ({"activation": "geglu"},
        'llama comes nearest, without model.activation = "geglu"'),
    "sinks alone": ({"attention_sinks": True},
        "llama comes nearest, without model.attention_sinks = true"),
    "both of Gemma's": (
        GEMMA, "gemma2 comes nearest, without model.window_rotary_theta = 500.0, "
               "model.attention_sinks = true",
    ),
    "shared experts of another attention": (
        EXPERTS | {"shared_experts": 1}, "mixtral comes nearest, without model.shared_experts = 1",
    ),
    "DeepSeek's with another epsilon": (
        DEEPSEEK, "deepseek_v3 comes nearest, without model.norm_epsilon = 1e-05",
    ),
    "GPT-2's with a gate": (
        GPT2 | {"activation": "geglu"}, 'gpt2 comes nearest, without model.activation = "geglu"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_model_that_transformers_lacks_is_refused_by_name(case: str, tmp_path: Path) -> None:
    changes, message = UNKNOWN[case]
    replayed(tmp_path / "replay", small_model(**changes))
    with pytest.raises(FrontrunnerError) as caught:
        export(open_checkpoint(tmp_path / "replay"), tmp_path / "model")
    found = caught.value.message
    assert found.startswith(f"transformers has no architecture of this model; {message}")
    if case.startswith("DeepSeek"):
        assert (
            caught.value.hint == "a model that deepseek_v3 can hold has model.norm_epsilon = 1e-06"
        )
    assert not (tmp_path / "model").exists()


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "replay", tmp_path / "model"

    def refusal(**options: Any) -> str:
        with pytest.raises(FrontrunnerError) as caught:
            export(open_checkpoint(folder, options.pop("step", None)), out, **options)
        assert [path.name for path in tmp_path.iterdir()] in ([], ["replay"])
        return f"{caught.value.message}; {caught.value.hint}"

    assert "no job of a replay at" in refusal()
    model = small_model()
    replayed(folder, model)
    assert "no complete checkpoint of step 4; it has those of steps 5" in refusal(step=4)
    assert "dtype" in refusal(dtype="fp8")
    assert "expected a tokenizer.json" in refusal(tokenizer=tmp_path / "nowhere.json")
    job = training_job(small_job(folder, model=model.with_keys(ffn_hidden=64)))
    prepare(job)
    assert "feed_forward.gate.weight has the shape [128, 64], expected [64, 64]" in refusal()
    prepare(training_job(small_job(folder, model=model.with_keys(layers=5))))
    assert "model.blocks.4.attention_norm.weight is missing" in refusal()
    prepare(training_job(small_job(folder, model=model)))
    part = next((folder / "checkpoints" / "step-00000005").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:2000])
    assert "step-00000005 cannot be read" in refusal()
    (folder / "job.json").write_text("{}")
    assert "is not a job of this version" in refusal()
    monkeypatch.setattr("frontrunner.spaces.errors.find_spec", lambda name: None)
    prepare(training_job(small_job(folder, model=model)))
    assert "'frontrunner[safetensors]'" in refusal()


@pytest.mark.parametrize("form", [{"kv_heads": 2}, DEEPSEEK], ids=["dense", "biased experts"])
def test_generated_text_is_the_model_s_and_of_the_seed(
    form: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "replay"
    model = small_model(vocabulary=257, **form)
    mine = replayed(folder, model)
    job = json.loads((folder / "job.json").read_text())
    (folder / "tokens.bin").rename(folder / "text-0.bin")
    job["data"]["path"] = "text-0.bin"
    (folder / "job.json").write_text(json.dumps(job))
    checkpoint = open_checkpoint(folder)

    [found] = generate(
        checkpoint, GenerateSettings(prompt="ab", samples=1, tokens=40, temperature=0)
    )
    row = list(b"ab")
    with torch.no_grad():
        for _ in range(40):
            row.append(int(mine(torch.tensor([row[-SEQUENCE_LENGTH:]]))[0, -1, :257].argmax()))
    wanted = row[: row.index(256)] if 256 in row else row
    assert found == "ab" + bytes(wanted[2:]).decode(errors="replace")
    best = GenerateSettings(prompt="ab", samples=1, tokens=40, temperature=9.0, top_k=1)
    assert generate(checkpoint, best) == [found]
    drawn = [generate(checkpoint, GenerateSettings(tokens=20, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 3
    (folder / "text-0.bin").rename(folder / "tokens.bin")
    job["data"]["path"] = "tokens.bin"
    (folder / "job.json").write_text(json.dumps(job))
    with pytest.raises(FrontrunnerError, match=r"the tokenizer of .*tokens.bin is not known"):
        generate(open_checkpoint(folder), GenerateSettings())
    with pytest.raises(
        FrontrunnerError, match=r"--device = \"cuda:99\": expected a device of this machine"
    ):
        generate(checkpoint, GenerateSettings(prompt="a", device="cuda:99"))
