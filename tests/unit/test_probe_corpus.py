"""Token files: what is taken as it is, what is made, and what is refused before a probe reads
it.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frontrunner.evaluators.programs.corpus import (
    MIN_SEQUENCES,
    check_data,
    corpus,
    data_of,
    require_same_data,
    training_data,
)
from frontrunner.evaluators.runs.settings import DataFile, DataSettings
from frontrunner.evaluators.text.prepare import PrepareSettings, prepare
from frontrunner.evaluators.trainer.job import Data
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem

MODEL = Model.from_keys(
    name="toy", layers=2, hidden=16, heads=2, kv_heads=2, ffn_hidden=64, vocabulary=300
)
PROBLEM = Problem(
    model=MODEL,
    cluster=Cluster(
        name="c", device="d", backend="cpu", nodes=1, devices_per_node=1, memory_gib_per_device=1.0
    ),
    sequence_length=9,
    global_batch=GlobalBatch(minimum=1, maximum=1),
)
FEWEST = MIN_SEQUENCES * 10


def written(path: Path, tokens: list[int], dtype: str = "<u2") -> DataSettings:
    path.write_bytes(np.array(tokens, dtype=dtype).tobytes())
    return DataSettings(path=str(path))


def test_text_becomes_a_token_a_byte(tmp_path: Path) -> None:
    text = ("grün " * 200).encode()
    (tmp_path / "a.txt").write_bytes(text)
    (found,) = corpus(DataSettings(path=str(tmp_path / "a.txt")), tmp_path, PROBLEM)
    tokens = np.fromfile(found.path, dtype=found.dtype)
    assert tokens[:-1].astype(np.uint8).tobytes() == text
    assert found.dtype == "uint16"


def test_other_text_gets_another_file_and_the_same_text_the_same(tmp_path: Path) -> None:
    paths = []
    for content in ("a" * 1000, "b" * 1000, "a" * 1000):
        (tmp_path / "t.txt").write_text(content)
        paths.append(corpus(DataSettings(path=str(tmp_path / "t.txt")), tmp_path, PROBLEM)[0].path)
    assert paths[0] == paths[2] != paths[1]


def test_the_built_in_text_fits_a_byte_vocabulary(tmp_path: Path) -> None:
    unfinished = (
        tmp_path / f".builtin-{platform.python_version()}.bin.4711"
    )  # of a driver that was killed meanwhile
    unfinished.touch()
    (found,) = corpus(
        DataSettings(), tmp_path, replace(PROBLEM, model=MODEL.with_keys(vocabulary=257))
    )
    assert not unfinished.exists()
    tokens = np.fromfile(found.path, dtype=found.dtype)
    assert len(tokens) > 1_000_000
    assert tokens.max() == 256


def test_a_token_file_is_taken_as_it_is(tmp_path: Path) -> None:
    data = written(tmp_path / "t.bin", [299] * FEWEST)
    assert corpus(data, tmp_path / "unused", PROBLEM)[0].path == str(tmp_path / "t.bin")


def test_wide_vocabularies_are_read_as_32_bits(tmp_path: Path) -> None:
    problem = replace(PROBLEM, model=MODEL.with_keys(vocabulary=128_256))
    data = written(tmp_path / "t.bin", [128_255] * FEWEST, "<u4")
    assert corpus(data, tmp_path, problem)[0].dtype == "uint32"


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "t.bin", [0] * FEWEST + [300])
    with pytest.raises(InvalidInput, match=r"tokens below model\.vocabulary = 300; it has 300$"):
        corpus(data, tmp_path, PROBLEM)


@pytest.mark.parametrize("count", [0, FEWEST - 1])
def test_too_few_tokens_are_refused(tmp_path: Path, count: int) -> None:
    data = written(tmp_path / "t.bin", [1] * count)
    with pytest.raises(
        InvalidInput, match=rf"at least {FEWEST} tokens, 40 sequences of 9; it has {count}$"
    ):
        corpus(data, tmp_path, PROBLEM)


def test_half_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"\0" * (2 * FEWEST + 1))
    with pytest.raises(InvalidInput, match="tokens of 2 bytes each; the file has 801 bytes"):
        corpus(DataSettings(path=str(tmp_path / "t.bin")), tmp_path, PROBLEM)


def test_an_empty_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").touch()
    with pytest.raises(InvalidInput, match=r"it has 1$"):
        corpus(DataSettings(path=str(tmp_path / "t.txt")), tmp_path, PROBLEM)


def test_a_file_that_has_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^data\.path = .*a file that can be read"):
        corpus(DataSettings(path=str(tmp_path / "gone.txt")), tmp_path, PROBLEM)


def test_text_needs_a_vocabulary_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^model\.vocabulary = 256: expected at least 257"):
        corpus(DataSettings(), tmp_path, replace(PROBLEM, model=MODEL.with_keys(vocabulary=256)))


def test_the_built_in_text_may_be_too_short(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"^data\.path is missing: expected a text of .*the built-in one has"
    ):
        corpus(DataSettings(), tmp_path, replace(PROBLEM, sequence_length=1_000_000))


def unusable(case: str, folder: Path) -> tuple[DataSettings, Problem]:
    """Data that no campaign can train on, with a problem that shows it."""
    paths = {
        "gone": "gone.txt",
        "gone tokens": "gone.bin",
        "folder": ".",
        "short text": "short.txt",
        "half": "half.bin",
    }
    (folder / "short.txt").write_bytes(
        b"x" * (FEWEST - 2)
    )  # the end of the document is one more token
    (folder / "half.bin").write_bytes(b"\0" * (2 * FEWEST + 1))
    written(folder / "outside.bin", [300] * FEWEST)
    if case == "short built-in text":
        return DataSettings(), replace(PROBLEM, sequence_length=1_000_000)
    if case == "small vocabulary":
        return DataSettings(), replace(PROBLEM, model=MODEL.with_keys(vocabulary=256))
    return DataSettings(path=str(folder / paths.get(case, "outside.bin"))), PROBLEM


@pytest.mark.parametrize(
    "case",
    [
        "gone",
        "gone tokens",
        "folder",
        "short text",
        "half",
        "outside",
        "short built-in text",
        "small vocabulary",
    ],
)
def test_a_check_refuses_what_training_would_and_writes_nothing(case: str, tmp_path: Path) -> None:
    data, problem = unusable(case, tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInput) as checked:
        check_data(data, problem)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InvalidInput) as met:
        corpus(data, tmp_path, problem)
    assert checked.value.message == met.value.message


def test_a_check_passes_what_training_takes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * (FEWEST - 1))
    usable = (
        DataSettings(),
        DataSettings(path=str(tmp_path / "a.txt")),
        written(tmp_path / "t.bin", [299] * FEWEST),
    )
    for data in usable:
        check_data(data, PROBLEM)
        corpus(data, tmp_path, PROBLEM)


def test_a_prepared_file_is_read_by_its_description(tmp_path: Path) -> None:
    path, large = tmp_path / "a.bin", replace(PROBLEM, model=MODEL.with_keys(vocabulary=100_000))
    (tmp_path / "a.txt").write_text("a\n" * 500)
    about = prepare(
        (tmp_path / "a.txt",), PrepareSettings(out=path, train_vocabulary=300, validation=0.1)
    ).description
    data = DataSettings(path=str(path))

    check_data(data, large)
    (tokens,) = corpus(data, tmp_path, large)
    assert (tokens.dtype, tokens.held_out_tokens) == (
        "uint16",
        about.held_out_tokens,
    )  # not as the model's size has it
    with pytest.raises(
        InvalidInput,
        match=rf"model.vocabulary = 200: expected at least {about.vocabulary}, the voc",
    ):
        check_data(data, replace(PROBLEM, model=MODEL.with_keys(vocabulary=200)))
    with pytest.raises(InvalidInput, match="held out for evaluation, a sequence; it has"):
        check_data(data, replace(large, sequence_length=about.held_out_tokens))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(InvalidInput, match=r"a.json describes [\d,]+ tokens of 2 bytes, but"):
        check_data(data, large)
    (tmp_path / "a.json").write_text('{"version": 1}')
    with pytest.raises(
        InvalidInput, match=r"a.json does not describe a.bin: description.d.* is missing"
    ):
        check_data(data, large)


def test_prepared_data_are_the_same_with_their_tokenizer_and_held_out_part_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.bin"
    (tmp_path / "a.txt").write_text("a\n" * 500)
    made = prepare(
        (tmp_path / "a.txt",), PrepareSettings(out=path, train_vocabulary=300, validation=0.1)
    )
    stated = training_data(DataSettings(path=str(path)))
    require_same_data(stated)
    assert (stated[0].tokenizer, stated[0].held_out_tokens) == (
        made.tokenizer.name,
        made.description.held_out_tokens,
    )
    made.tokenizer.write_bytes(made.tokenizer.read_bytes() + b" ")
    with pytest.raises(
        InvalidInput, match=r"a\.bin is not what .* another tokenizer or held-out part"
    ):
        require_same_data(stated)


def of_files(*weighted: tuple[Path, float]) -> DataSettings:
    return DataSettings(
        files=tuple(DataFile(path=str(path), weight=weight) for path, weight in weighted)
    )


def test_several_files_are_checked_stated_and_trained_on_one_by_one(tmp_path: Path) -> None:
    first, second = tmp_path / "a.bin", tmp_path / "b.txt"
    written(first, [1] * FEWEST)
    second.write_bytes(b"x" * FEWEST)
    data = of_files((first, 3.0), (second, 1.0))
    files = corpus(data, tmp_path, PROBLEM)
    assert files[0] == Data(path=str(first), dtype="uint16", weight=3.0)
    assert [file.weight for file in files[1:]] == [1.0]

    stated = training_data(data)
    assert data_of(stated) == data
    require_same_data(stated)
    second.write_bytes(b"y" * FEWEST)
    with pytest.raises(
        InvalidInput, match=r"b\.txt is not what the recipe was trained on: it has another content"
    ):
        require_same_data(stated)
    second.write_bytes(b"y" * 10)
    with pytest.raises(
        InvalidInput, match=r"^data\.files\.path = .*b\.txt\": expected at least 400 tokens"
    ):
        check_data(data, PROBLEM)


def test_files_of_different_tokenizers_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n" * 500)
    (tmp_path / "b.txt").write_text("b c\n" * 500)
    for name in "ab":
        settings = PrepareSettings(
            out=tmp_path / f"{name}.bin", train_vocabulary=258, validation=0.1
        )
        prepare((tmp_path / f"{name}.txt",), settings)
    same = PrepareSettings(
        out=tmp_path / "c.bin", tokenizer=tmp_path / "a.tokenizer.json", validation=0.1
    )
    prepare((tmp_path / "b.txt",), same)
    check_data(of_files((tmp_path / "a.bin", 1.0), (tmp_path / "c.bin", 1.0)), PROBLEM)
    for other in ("b.bin", "b.txt"):
        with pytest.raises(
            InvalidInput, match=rf"{other}\": expected tokens of the tokenizer of .*a\.bin"
        ):
            check_data(of_files((tmp_path / "a.bin", 1.0), (tmp_path / other, 1.0)), PROBLEM)
