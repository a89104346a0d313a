"""The origins of a text and of initial weights in config.json."""

import hashlib
from typing import Any

import msgspec
import pytest

from ptb_lm.common.json_fields import convert
from ptb_lm.training.run_config import InitFrom, Source

HASH = hashlib.sha256(b"a text").hexdigest()
SOURCE = Source(path="/text", sha256=HASH)
START = InitFrom(run="/run", weights_sha256=HASH, test_perplexity=None, new_words=2)


@pytest.mark.parametrize("record", [SOURCE, START])
def test_a_record_is_read_as_it_was_written(record: Source | InitFrom) -> None:
    assert convert(msgspec.to_builtins(record), type(record)) == record


@pytest.mark.parametrize("wrong", ["", "basic", HASH[:-1], HASH + "0", HASH.upper(), "g" + HASH[1:], 1])
@pytest.mark.parametrize(("record", "name"), [(SOURCE, "sha256"), (START, "weights_sha256")])
def test_a_digest_that_is_no_sha256_is_refused(record: Source | InitFrom, name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} cannot be {wrong!r}: "):
        convert({**msgspec.to_builtins(record), name: wrong}, type(record))
