"""Keys that earlier versions took are refused with what to do instead, wherever they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.removed import REMOVED_KEYS
from frontrunner.config.toml_file import set_value
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import tiny


@pytest.mark.parametrize("key", REMOVED_KEYS)
def test_removed_key_is_refused_with_what_to_do_instead(key: str) -> None:
    table = tiny()
    set_value(table, key, "1")
    with pytest.raises(InvalidInput) as refused:
        parse_campaign(table, default_name="tiny", base=Path())
    assert refused.value.message == f"{key} = 1: this version has no such key"
    assert refused.value.hint == REMOVED_KEYS[key]
