"""What describes a prepared token file, in a JSON document beside it: `corpus.json` beside
`corpus.bin`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from frontrunner.spaces.document import read_plain
from frontrunner.spaces.errors import InvalidInput, read_bytes

VERSION = 1
DTYPES: dict[int, Literal["uint16", "uint32"]] = {65_536: "uint16", 2**32: "uint32"}
"""The dtype of token ids, by the largest vocabulary whose ids it holds."""
_MOST_BYTES = 2**20


def dtype_for(vocabulary: int) -> Literal["uint16", "uint32"]:
    """Return the smallest dtype that holds the ids of a vocabulary."""
    return next(dtype for most, dtype in DTYPES.items() if vocabulary <= most)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `frontrunner prepare` writes beside a token file.

    The last `held_out_tokens` are documents for evaluation alone. `vocabulary` is one more than the
    tokenizer's highest id, `tokenizer` the name of its file in the same folder, `sha256` that of
    the token file.
    """

    version: int
    dtype: Literal["uint16", "uint32"]
    tokens: int
    held_out_tokens: int
    documents: int
    vocabulary: int
    end_of_document: int
    tokenizer: str
    sha256: str

    def to_json(self) -> bytes:
        """Return the document."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()


def description_path(token_file: Path) -> Path:
    """Return where the description of a token file is, if it has one."""
    return token_file.with_suffix(".json")


def tokenizer_path(token_file: Path) -> Path:
    """Return where `prepare` puts the tokenizer of a token file."""
    return token_file.with_suffix(".tokenizer.json")


def described(token_file: Path) -> Description | None:
    """Return the description beside a token file, or None; raise `InvalidInput` for one that is not
    this file's.
    """
    path = description_path(token_file)
    if not path.is_file():
        return None
    hint = "prepare the text again, or move that file away to have its tokens read without it"
    try:
        found: Description = read_plain(
            Description,
            json.loads(read_bytes(path, "description of a token file", most=_MOST_BYTES)),
            "description",
        )
    except ValueError as error:
        raise InvalidInput(
            f"{path} does not describe {token_file.name}: {error}", hint=hint
        ) from None
    if found.version != VERSION:
        raise InvalidInput(
            f"{path} has version {found.version}; this frontrunner reads version {VERSION}",
            hint=hint,
        )
    size_bytes, width = token_file.stat().st_size, {"uint16": 2, "uint32": 4}[found.dtype]
    if size_bytes != found.tokens * width:
        raise InvalidInput(
            f"{path} describes {found.tokens:,} tokens of {width} bytes, but {token_file} has"
            f" {size_bytes:,} bytes",
            hint=hint,
        )
    return found
