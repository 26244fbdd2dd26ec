"""What the scripted engine's prefix cache knows, holds and forgets."""

from __future__ import annotations

import random

import pytest

from agentflow.engine import script_cache
from agentflow.engine.script_cache import BLOCK, PrefixCache

PROMPT = bytes(range(100))


def test_whole_blocks_are_found_again_but_for_the_last_token() -> None:
    cache = PrefixCache()
    assert cache.match(PROMPT[:64], "a")[0] == 0
    assert cache.match(PROMPT[:64], "a")[0] == 48
    assert cache.match(PROMPT[:65], "a")[0] == 48
    assert cache.match(PROMPT[:65], "a")[0] == 64
    assert cache.match(PROMPT[:65], "b")[0] == 0
    assert cache.match(PROMPT[:65], None)[0] == 0
    assert (cache.queries, cache.hits) == (64 + 64 + 4 * 65, 48 + 48 + 64)


def test_what_reaches_into_the_part_to_keep_is_kept() -> None:
    cache = PrefixCache()
    _, blocks = cache.match(PROMPT, "a")
    cache.release(blocks)
    assert cache.forget(PROMPT, 31, "a") == 80
    assert cache.match(PROMPT[:33], "a")[0] == 16


def test_a_block_is_held_as_long_as_anybody_holds_it() -> None:
    cache = PrefixCache()
    held = [cache.match(PROMPT, "a")[1] for _ in range(2)]
    for blocks in held:
        assert cache.forget(PROMPT, 0, "a") == 0
        cache.release(blocks)
    assert cache.forget(PROMPT, 0, "a") == 96
    assert cache.forget(PROMPT, 0, "a") == 0
    assert cache.forget(b"", 0, "a") == 0


def test_the_oldest_blocks_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_cache, "CAPACITY", 6)
    cache = PrefixCache()
    cache.match(PROMPT, "a")
    cache.match(PROMPT, "b")
    assert cache.match(PROMPT, "b")[0] == 6 * BLOCK
    assert cache.match(PROMPT, "a")[0] == 0


def test_after_all_has_been_forgotten_nothing_is_known_of_anything() -> None:
    chance = random.Random(3)
    cache = PrefixCache()
    prompts = [bytes(chance.choices(range(2), k=chance.randrange(80))) for _ in range(100)]
    for prompt in prompts:
        cache.release(cache.match(prompt, None)[1])
    for prompt in prompts:
        cache.forget(prompt, 0, None)
    for prompt in prompts:
        known, blocks = cache.match(prompt, None)
        assert known == 0
        cache.release(blocks)
        cache.forget(prompt, 0, None)


def test_all_that_nobody_holds_is_forgotten_at_once() -> None:
    cache = PrefixCache()
    _, held = cache.match(PROMPT[:50], "a")
    _, free = cache.match(PROMPT, "a")
    cache.match(PROMPT, "b")
    cache.release(free)
    assert cache.forget_all() == 96 - 48
    assert cache.match(PROMPT, "a")[0] == 48
    cache.release(held)
