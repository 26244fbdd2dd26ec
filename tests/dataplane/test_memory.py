"""Who may take how much memory between two counts."""

import threading

from dataplane.config import DataPlaneConfig
from dataplane.memory import MIB, Memory, collections_share, memory_bytes, rocks_share


def test_what_is_kept_back_for_tables_only_tables_take() -> None:
    memory = Memory(1000)
    memory.counted(600, 100, 0)
    assert memory.free == 300
    assert memory.take(300)
    assert not memory.take(1)
    memory.took(100)
    assert memory.free == -100
    memory.counted(1000, 0, memory.taken)
    assert memory.free == 0


def test_what_is_taken_while_the_sum_is_made_is_not_forgotten() -> None:
    memory = Memory(1000)
    memory.took(100)
    before = memory.taken
    assert memory.take(50)
    memory.counted(300, 0, before)  # the 50 are not in it
    assert memory.free == 650
    memory.counted(350, 0, memory.taken)
    assert memory.free == 650


def test_of_two_who_count_at_once_the_last_one_decides_whichever_that_is() -> None:
    for first, last in (((100, 0), (150, 50)), ((150, 50), (100, 0))):
        memory = Memory(1000)
        memory.took(50)
        for used, taken in (first, last):  # a sum of before the 50, and one of after
            memory.counted(used, 0, taken)
        assert memory.free == 850


def test_a_smaller_cap_counts_at_once() -> None:
    memory = Memory(1000)
    memory.counted(600, 0, 0)
    memory.cap = 500
    assert memory.free == -100
    assert not memory.take(0)


def test_two_threads_never_take_the_same_bytes() -> None:
    memory, taken = Memory(10_000), [0, 0]
    memory.counted(0, 0, 0)

    def take(who: int) -> None:
        while memory.take(1):
            taken[who] += 1

    threads = [threading.Thread(target=take, args=(who,)) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 10_000
    assert memory.free == 0


def test_the_cap_is_what_is_configured_or_follows_the_machine() -> None:
    assert memory_bytes(DataPlaneConfig(hot_layer_mem_mb=200)) == 200 * MIB
    assert 64 * MIB <= memory_bytes(DataPlaneConfig()) <= 12_288 * MIB
    assert [rocks_share(size * MIB) // MIB for size in (64, 200, 12_288)] == [16, 25, 512]
    assert [collections_share(size * MIB) // MIB for size in (64, 200, 12_288)] == [37, 141, 11_712]
