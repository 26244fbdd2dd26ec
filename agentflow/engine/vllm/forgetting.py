"""Forgetting: what vLLM's EngineCore lacks, and is given by this plugin: to drop the cached blocks of one sequence, or of all.

vLLM finds a prompt's blocks in its prefix cache by hashes, each of a block's tokens and of the hash before it; the first has
the salt in it. So the hashes of a sequence, made by EngineCore's own hasher, name all of its blocks and no others. Those that
no request holds lose their names: no prompt finds them again. They also become the first to be given to somebody else, so that
what is still known lasts longer. Their bytes stay in the KV memory until then, as those of all free blocks do.

`add_to_engine_core` is loaded by EngineCore as it starts (`vllm.general_plugins`), in its own process, and there `forget` is
called between two of its steps. It takes as long as vLLM takes to hash a new prompt of that length.

`free_memory` drops the blocks of everybody that no request holds (vLLM's own reset drops none while any is held), and has the
workers' allocator give the device what it keeps for later: that, and not the KV pool, is what grows on a card.
"""

from __future__ import annotations

import sys
from typing import Any

METHOD = "acu_forget"
FREE_METHOD = "acu_free_memory"


def add_to_engine_core() -> None:
    """Give EngineCore the methods METHOD and FREE_METHOD, in a process that has it."""
    core = sys.modules.get("vllm.v1.engine.core")  # others, such as its workers, need not import it
    if core is not None:
        setattr(core.EngineCore, METHOD, forget)
        setattr(core.EngineCore, FREE_METHOD, free_memory)


def forget(core: Any, token_ids: list[int], keep: int, cache_salt: str | None) -> int:
    """Drop the cached blocks of a sequence that reach beyond its first `keep` tokens, and that no request holds.

    `core`: an EngineCore. Returns how many tokens are not found any more.
    """
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    hasher = core.request_block_hasher
    if hasher is None:  # nothing is cached
        return 0
    sequence = Request(
        METHOD, token_ids, SamplingParams(max_tokens=1), None, cache_salt=cache_salt, block_hasher=hasher
    )
    size = core.scheduler.kv_cache_manager.block_pool.hash_block_size
    names = sequence.block_hashes[keep // size :]
    managers = core.scheduler.kv_cache_manager.coordinator.single_type_managers
    dropped = 0
    for name in names:  # each covers all that is before it: so it names a larger block too, where a group's are larger
        dropped += max(_drop(manager, name) for manager in managers)
    return int(size * dropped)


def free_memory(core: Any) -> int:
    """Drop all cached blocks that no request holds, and give the device what the allocator keeps aside.

    `core`: an EngineCore. Returns how many tokens the blocks had.
    """
    pool = core.scheduler.kv_cache_manager.block_pool
    cached = [
        block for block in pool.blocks if block.ref_cnt == 0 and not block.is_null and block.block_hash is not None
    ]
    pool.evict_blocks({block.block_id for block in cached})
    core.model_executor.collective_rpc(_empty_allocator)
    return int(pool.hash_block_size * len(cached))


def _empty_allocator(_: Any) -> None:
    """In a worker."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _drop(manager: Any, name: Any) -> bool:
    """Drop the blocks of that name in one group of layers; whether there was one that nobody holds."""
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    pool = manager.block_pool
    found = pool.cached_block_hash_to_block._cache.get(make_block_hash_with_group_id(name, manager.kv_cache_group_id))
    blocks = [] if found is None else list(found.values()) if isinstance(found, dict) else [found]
    free = [block for block in blocks if block.ref_cnt == 0]
    pool.evict_blocks({block.block_id for block in free})
    for block in free:
        pool.free_block_queue.remove(block)
    pool.free_block_queue.prepend_n(free)
    return bool(free)
