"""Text to token files: what is written, that it does not depend on threads, and that mistakes leave
nothing.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontrunner.evaluators.text import documents
from frontrunner.evaluators.text.documents import read_pieces
from frontrunner.evaluators.text.prepare import (
    PrepareSettings,
    held_out_documents,
    load_tokenizer,
    prepare,
)
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput

TEXTS = [
    f"document {number}: " + "one two three naïve \n" * (number % 7 + 1) for number in range(300)
]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def settings(out: Path, **changes: Any) -> PrepareSettings:
    return PrepareSettings(**{"out": out, "train_vocabulary": 300, "validation": 0.1, **changes})


def written(out: Path) -> list[list[int]]:
    """The documents of a token file, without their ends."""
    about = json.loads(out.with_suffix(".json").read_text())
    tokens = np.fromfile(out, dtype=about["dtype"])
    assert len(tokens) == about["tokens"]
    return [
        part[:-1].tolist()
        for part in np.split(tokens, np.flatnonzero(tokens == about["end_of_document"]) + 1)[:-1]
    ]


def test_every_document_is_written_once_and_a_share_of_whole_ones_is_last(
    lines: Path, tmp_path: Path
) -> None:
    found = prepare((lines,), settings(tmp_path / "a.bin"))

    texts = load_tokenizer(found.tokenizer).decode_batch(written(found.path))
    assert sorted(texts) == sorted(TEXTS)
    lengths = [len(part) + 1 for part in written(found.path)]
    ends = np.cumsum(lengths[::-1])
    assert found.description.held_out_tokens in ends
    assert 0.1 <= found.description.held_out_tokens / sum(lengths) < 0.11
    order = [TEXTS.index(text) for text in texts]
    count = int(np.flatnonzero(ends == found.description.held_out_tokens)[0]) + 1
    assert order[:-count] == sorted(order[:-count])
    assert order[-count:] == sorted(order[-count:])
    assert set(order[-count:]) != set(range(300 - count, 300))  # drawn, not the last ones


def test_the_same_text_is_the_same_file_whatever_its_form(lines: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    first = prepare((lines,), settings(tmp_path / "a.bin"))
    write_table(pa.table({"text": TEXTS}), tmp_path / "b.parquet")
    (tmp_path / "c.txt").write_text("\0".join(TEXTS))
    with gzip.open(tmp_path / "d.jsonl.gz", "wb") as packed:
        packed.write(lines.read_bytes())
    for name in ("b.parquet", "c.txt", "d.jsonl.gz"):
        chosen = settings(
            tmp_path / f"{name[0]}.bin", train_vocabulary=None, tokenizer=first.tokenizer
        )
        again = prepare((tmp_path / name,), chosen)
        assert again.path.read_bytes() == first.path.read_bytes(), name
        assert again.tokenizer.read_bytes() == first.tokenizer.read_bytes()
    assert again.description.sha256 == first.description.sha256
    other = prepare((lines,), settings(tmp_path / "e.bin", seed=1))
    assert other.description.sha256 != first.description.sha256


def test_rows_of_parquet_are_read_in_equal_shares_of_their_file(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    path = tmp_path / "a.parquet"
    write_table(pa.table({"text": TEXTS[:4]}), path)
    size = path.stat().st_size
    read = [piece.read_bytes for piece in read_pieces(path, text_key="text")]
    assert read == [size // 4, size // 2, size * 3 // 4, size]


def test_tokens_do_not_depend_on_how_text_is_batched(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frontrunner.evaluators.text import prepare as module

    first = prepare((lines,), settings(tmp_path / "a.bin"))
    monkeypatch.setattr(module, "_BATCH_PIECES", 7)
    again = prepare((lines,), settings(tmp_path / "b.bin"))
    assert again.path.read_bytes() == first.path.read_bytes()
    assert again.tokenizer.read_bytes() == first.tokenizer.read_bytes()


def test_a_long_document_is_cut_at_lines_and_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.txt").write_text("".join(TEXTS))
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": "".join(TEXTS)}))
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 100)
    for name in ("long.txt", "long.jsonl"):
        pieces = list(documents.read_pieces(tmp_path / name, text_key="text"))
        assert len(pieces) > 100
        assert all(piece.text.endswith("\n") for piece in pieces[:-1])
        assert "".join(piece.text for piece in pieces) == "".join(TEXTS)
    found = prepare((tmp_path / "long.txt",), settings(tmp_path / "long.bin"))
    assert found.description.documents == 1
    assert found.description.held_out_tokens == -(-found.description.tokens // 10)  # its own end


def test_documents_too_long_for_the_share_are_not_held_out() -> None:
    assert not held_out_documents(np.array([100, 100, 100]), share=0.01, seed=0).any()
    assert held_out_documents(np.array([10] * 1000), share=0.01, seed=0).sum() == 10


def test_special_tokens_that_a_text_quotes_end_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<|endoftext|> is a token\0" + "".join(TEXTS))
    found = prepare((tmp_path / "a.txt",), settings(tmp_path / "a.bin"))
    assert len(written(found.path)) == found.description.documents == 2


MISTAKES: dict[str, tuple[bytes, str]] = {
    "no key": (b'{"text": "a"}\n{"txt": "b"}\n', "bad.jsonl:2 has no key 'text'"),
    "no JSON": (b'{"text": "a"}\n\n{"text"\n', "bad.jsonl:3 is not JSON"),
    "no object": (b'["a"]\n', 'bad.jsonl:1 is ["a"]: expected an object'),
    "no text": (b'{"text": 3}\n', "bad.jsonl:1: text = 3: expected text"),
    "no UTF-8": (
        b'{"text": "a"}\n{"text": "\xff"}\n',
        "bad.jsonl:2 is not UTF-8: byte 11 of the line",
    ),
    "half a pair": (b'{"text": "\\ud800"}\n', "bad.jsonl:1: text holds half a surrogate pair"),
    "nothing": (b'{"text": ""}\n\n', "no document has any text"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_file_and_line_and_leave_nothing(
    mistake: str, lines: Path, tmp_path: Path
) -> None:
    content, message = MISTAKES[mistake]
    tokenizer = prepare((lines,), settings(tmp_path / "a.bin")).tokenizer
    (tmp_path / "bad.jsonl").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInput) as caught:
        prepare(
            (tmp_path / "bad.jsonl",),
            settings(tmp_path / "b.bin", train_vocabulary=None, tokenizer=tokenizer),
        )
    assert message in caught.value.message
    assert sorted(tmp_path.iterdir()) == before


def test_what_cannot_be_prepared_is_refused(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*paths: Path, **changes: Any) -> str:
        with pytest.raises(FrontrunnerError) as caught:
            prepare(paths, settings(changes.pop("out", tmp_path / "a.bin"), **changes))
        return f"{caught.value.message} {caught.value.hint}"

    assert "no text at" in refusal(tmp_path / "nowhere.txt")
    assert "it is a folder" in refusal(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    assert "name it .jsonl" in refusal(tmp_path / "a.json")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert "cannot be read as Parquet" in refusal(tmp_path / "a.parquet")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text " * 100)[:-9])
    assert "a.txt.gz cannot be read" in refusal(tmp_path / "a.txt.gz")
    assert "--validation = 0.5" in refusal(lines, validation=0.5)
    assert "--out" in refusal(lines, out=tmp_path / "a.tokens")
    assert "one of --tokenizer and --train-vocabulary" in refusal(lines, train_vocabulary=None)
    assert "not a tokenizer.json" in refusal(
        lines, train_vocabulary=None, tokenizer=tmp_path / "a.json"
    )
    prepare((lines,), settings(tmp_path / "done.bin"))
    assert "done.bin is there already" in refusal(lines, out=tmp_path / "done.bin")
    table = json.loads((tmp_path / "done.tokenizer.json").read_text())
    table["added_tokens"] = []
    del table["model"]["vocab"]["<|endoftext|>"]
    (tmp_path / "endless.json").write_text(json.dumps(table))
    text = refusal(lines, train_vocabulary=None, tokenizer=tmp_path / "endless.json")
    assert "--end-of-document TOKEN names one" in text
    monkeypatch.setattr("frontrunner.spaces.errors.find_spec", lambda name: None)
    assert "'frontrunner[data]'" in refusal(lines)
