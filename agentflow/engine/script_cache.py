"""PrefixCache: which beginnings of prompts a scripted engine has seen lately, as a real one's KV cache would know them. Pure.

It knows blocks of BLOCK prompt tokens, each by a hash of it and of what is before it, which begins with the salt. Beyond CAPACITY
blocks those go that were seen the longest ago. A running stream holds the blocks of its prompt, which are not forgotten
meanwhile.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

BLOCK = 16
CAPACITY = 65_536  # blocks


class PrefixCache:
    """Of one engine. `queries` and `hits` count prompt tokens."""

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._held: Counter[int] = Counter()

    def match(self, prompt: bytes, salt: str | None) -> tuple[int, list[int]]:
        """Count the leading tokens of `prompt` that are cached, and cache all its whole blocks.

        Returns the count, and the blocks, which are held until `release`.
        """
        # The last token is always computed: something has to give the first output.
        blocks = list(_chain(prompt[:-1], salt))
        known = 0
        while known < len(blocks) and blocks[known] in self._blocks:
            known += 1
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > CAPACITY:
            self._blocks.popitem(last=False)
        self._held.update(blocks)
        self.queries += len(prompt)
        self.hits += known * BLOCK
        return known * BLOCK, blocks

    def release(self, blocks: Iterable[int]) -> None:
        """A stream that held these has ended."""
        for block in blocks:
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]

    def forget(self, sequence: bytes, keep: int, salt: str | None) -> int:
        """Drop the blocks of `sequence` that reach beyond its first `keep` tokens, and that nobody holds.

        Returns how many tokens these had.
        """
        blocks = list(_chain(sequence, salt))[keep // BLOCK :]
        dropped = [block for block in blocks if block in self._blocks and block not in self._held]
        for block in dropped:
            del self._blocks[block]
        return BLOCK * len(dropped)

    def forget_all(self) -> int:
        """Drop all blocks that nobody holds. Returns how many tokens these had."""
        dropped = [block for block in self._blocks if block not in self._held]
        for block in dropped:
            del self._blocks[block]
        return BLOCK * len(dropped)


def _chain(tokens: bytes, salt: str | None) -> Iterator[int]:
    """The whole blocks of `tokens`, each by its name."""
    name = hash(salt)
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        name = hash((name, tokens[start : start + BLOCK]))
        yield name
