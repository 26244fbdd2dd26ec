"""The attributes of a collection's rows as numpy columns, so that a filter becomes a mask over all rows.

Rows have slots 0, 1, 2, ... in the order in which they are appended. Each key has one column, made when the key is first
seen, of two parts, each made when first needed:

    codes     int32     strings and booleans, by the key's own dictionary; 0: the row has none
    numbers   float64   numbers; NaN: the row has none

so a key may hold a string in one row and a number in the next, and neither is ever equal to the other. Integers beyond
2**53 are the nearest double, as `dataplane.filters.matches` defines it.

A part is dense (an array by slot) while it fills at least a sixteenth of its slots, and sparse (rising slots, and their
values) before it fills a quarter of them. So memory follows the attributes that there are: a tenant who gives every row keys
of its own pays for those values, not for keys times rows.

Threads: one writer appends while any number of readers take masks for their own n, the count of rows that was published to
them. A reader takes a part's arrays in one attribute read. The writer only fills slots at or beyond every published n; to
grow, or to change between dense and sparse, it makes new arrays and swaps them in. So nothing below a reader's n changes
under it. In memory only: after a crash the columns are made again from the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataplane.filters import Attribute, Comparison, Compound, Filter

SPARSE_BELOW = 16  # a dense part that would fill less than 1 in 16 of its slots becomes sparse
DENSE_FROM = 4  # a sparse part that fills 1 in 4 becomes dense
DENSE_MINIMUM = 256  # values; below it sparse costs little
COLUMN_BYTES = 800  # about what a column's Python objects take, beside its arrays
ENTRY_BYTES = 120  # about what an entry of a dictionary takes, beside its string

Mask: TypeAlias = NDArray[np.bool_]
Values: TypeAlias = NDArray[Any]  # int32 or float64
Test: TypeAlias = Callable[[Values], Mask]


class AttributeColumns:
    """The attributes of rows 0 .. len - 1."""

    __slots__ = ("_columns", "_rows")

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory: the arrays with their spare room, and an estimate for dictionaries and objects."""
        return sum(sys.getsizeof(key) + column.nbytes for key, column in list(self._columns.items()))

    def append(self, attributes_of_rows: Sequence[Mapping[str, Attribute]]) -> None:
        """Add rows at the end. What `check_attributes` let pass is expected. The writer's alone."""
        cells: dict[str, _NewCells] = {}
        for slot, attributes in enumerate(attributes_of_rows, self._rows):
            for key, value in attributes.items():
                if (new := cells.get(key)) is None:
                    new = cells[key] = _NewCells()
                new.add(slot, value)
        for key, new in cells.items():
            if (column := self._columns.get(key)) is None:
                column = _Column()
                column.extend(new)
                self._columns[key] = column
            else:
                column.extend(new)
        self._rows += len(attributes_of_rows)

    def mask(self, filter: Filter, n: int) -> Mask:  # noqa: A002 - the field's word
        """Which of the rows 0 .. n - 1 pass: bool (n,), the caller's own. n is at most the rows there are."""
        if isinstance(filter, Compound):
            into = np.logical_and if filter.type == "and" else np.logical_or
            first, *others = filter.filters
            return reduce(
                lambda so_far, part: into(so_far, self.mask(part, n), out=so_far), others, self.mask(first, n)
            )
        column = self._columns.get(filter.key)
        if column is None:
            return np.full(n, filter.type in ("ne", "nin"))
        return column.mask(filter, n)

    def keep(self, slots: NDArray[np.integer[Any]]) -> AttributeColumns:
        """The columns of these rows alone, which become rows 0, 1, 2, ... `slots` rise strictly.

        A reader: the writer may append meanwhile. Strings that no kept row has leave the dictionaries.
        """
        kept = AttributeColumns()
        kept._rows = len(slots)
        wanted = np.asarray(slots, dtype=np.int64)
        for key, column in list(self._columns.items()):
            if (smaller := column.keep(wanted)) is not None:
                kept._columns[key] = smaller
        return kept


class _NewCells:
    """The cells of one key that one append brings."""

    __slots__ = ("number_slots", "numbers", "word_slots", "words")

    def __init__(self) -> None:
        self.word_slots: list[int] = []
        self.words: list[str | bool] = []
        self.number_slots: list[int] = []
        self.numbers: list[float] = []

    def add(self, slot: int, value: Attribute) -> None:
        if isinstance(value, str | bool):
            self.word_slots.append(slot)
            self.words.append(value)
        else:
            self.number_slots.append(slot)
            self.numbers.append(float(value))


class _Column:
    """One key. `words[code]` is what a code stands for, `codes` is its inverse. Both only grow."""

    __slots__ = ("_coded", "_codes", "_numbers", "_words", "_words_bytes")

    def __init__(self) -> None:
        self._codes: dict[str | bool, int] = {}
        self._words: list[str | bool | None] = [None]
        self._words_bytes = 0
        self._coded = _Part(np.dtype(np.int32), 0)
        self._numbers = _Part(np.dtype(np.float64), np.nan)

    @property
    def nbytes(self) -> int:
        return COLUMN_BYTES + self._words_bytes + self._coded.nbytes + self._numbers.nbytes

    def extend(self, new: _NewCells) -> None:
        if new.words:
            self._coded.extend(new.word_slots, [self._code(word) for word in new.words])
        if new.numbers:
            self._numbers.extend(new.number_slots, new.numbers)

    def mask(self, comparison: Comparison, n: int) -> Mask:
        kind = comparison.type
        if kind in ("gt", "gte", "lt", "lte"):
            bound, order = comparison.bound, ORDERS[kind]
            return self._numbers.mask(lambda values: order(values, bound), n)
        found = self._equal(comparison.values, n)
        return np.logical_not(found, out=found) if kind in ("ne", "nin") else found

    def keep(self, slots: NDArray[np.int64]) -> _Column | None:
        """None: none of the rows has the key."""
        kept = _Column()
        at, codes = self._coded.pick(slots)
        used, renamed = np.unique(codes, return_inverse=True)
        for code in used.tolist():
            word = self._words[code]
            assert word is not None, "no cell that is set has the code 0"
            kept._code(word)
        kept._coded.extend(at, renamed + 1)
        kept._numbers.extend(*self._numbers.pick(slots))
        return kept if kept._coded.count or kept._numbers.count else None

    def _equal(self, values: tuple[Attribute, ...], n: int) -> Mask:
        codes = [self._codes.get(value, 0) for value in values if isinstance(value, str | bool)]
        codes = [code for code in codes if code]
        numbers = [value for value in values if not isinstance(value, str | bool)]
        if codes and numbers:
            found = self._coded.mask(_one_of(codes, np.int32), n)
            return np.logical_or(found, self._numbers.mask(_one_of(numbers, np.float64), n), out=found)
        if codes:
            return self._coded.mask(_one_of(codes, np.int32), n)
        if numbers:
            return self._numbers.mask(_one_of(numbers, np.float64), n)
        return np.zeros(n, dtype=np.bool_)

    def _code(self, word: str | bool) -> int:
        if (code := self._codes.get(word)) is None:
            code = len(self._words)
            self._words.append(word)  # first, so that a reader who finds the code finds the word
            self._codes[word] = code
            self._words_bytes += ENTRY_BYTES + sys.getsizeof(word)
        return code


ORDERS: Mapping[str, Callable[[Values, float], Mask]] = MappingProxyType(
    {
        "gt": np.greater,
        "gte": np.greater_equal,
        "lt": np.less,
        "lte": np.less_equal,
    }
)


def _one_of(wanted: Sequence[int] | Sequence[float], dtype: type[np.generic]) -> Test:
    """Looked up in sorted order: ten steps a value for the longest list, and no copy of the column as isin makes."""
    if len(wanted) == 1:
        single = wanted[0]
        return lambda values: values == single
    rising = np.unique(np.asarray(wanted, dtype=dtype))
    last = len(rising) - 1
    return lambda values: rising[np.minimum(np.searchsorted(rising, values), last)] == values


@dataclass(slots=True, frozen=True)
class _Arrays:
    """What a reader takes at once. Dense: `slots` is None, and `values` has a place for each slot. Sparse: the first
    `count` of `slots` and `values`."""

    values: Values
    slots: NDArray[np.int64] | None
    count: int


class _Part:
    """The cells of one key that have one dtype. `missing` marks, when dense, the slots that have none."""

    __slots__ = ("_arrays", "_missing")

    def __init__(self, dtype: np.dtype[Any], missing: float) -> None:
        self._missing = missing
        self._arrays = _Arrays(np.empty(0, dtype), np.empty(0, np.int64), 0)

    @property
    def count(self) -> int:
        return self._arrays.count

    @property
    def nbytes(self) -> int:
        arrays = self._arrays
        return arrays.values.nbytes + (0 if arrays.slots is None else arrays.slots.nbytes)

    def extend(self, slots: Sequence[int] | NDArray[np.int64], values: Sequence[float] | Values) -> None:
        """Cells at slots that rise, all of them beyond those that have cells."""
        if len(slots) == 0:
            return
        arrays, rows = self._arrays, int(slots[-1]) + 1
        count = arrays.count + len(slots)
        if arrays.slots is None and rows > len(arrays.values):
            arrays = self._grown(arrays, rows) if count * SPARSE_BELOW >= rows else self._sparse(arrays)
        if arrays.slots is None:
            arrays.values[slots] = values
            self._arrays = _Arrays(arrays.values, None, count)
            return
        arrays = _with_room(arrays, count)
        assert arrays.slots is not None
        arrays.slots[arrays.count : count] = slots
        arrays.values[arrays.count : count] = values
        arrays = _Arrays(arrays.values, arrays.slots, count)
        self._arrays = self._dense(arrays, rows) if count >= max(DENSE_MINIMUM, rows // DENSE_FROM) else arrays

    def mask(self, test: Test, n: int) -> Mask:
        """Which of the slots below n have a value that passes. No test passes a missing value."""
        arrays = self._arrays
        found = np.zeros(n, dtype=np.bool_)
        if arrays.slots is None:
            values = arrays.values[:n]
            found[: len(values)] = test(values)
        else:
            count = int(np.searchsorted(arrays.slots[: arrays.count], n))
            found[arrays.slots[:count][test(arrays.values[:count])]] = True
        return found

    def pick(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], Values]:
        """The places in `slots` of those that have a cell, and their values."""
        arrays = self._arrays
        if arrays.slots is None:
            values = arrays.values[slots[: np.searchsorted(slots, len(arrays.values))]]
            at = self._held(values)
            return at, values[at]
        if len(slots) == 0:
            return slots[:0], arrays.values[:0]
        held = arrays.slots[: arrays.count]
        at = np.searchsorted(slots, held)
        kept = slots[np.minimum(at, len(slots) - 1)] == held
        return at[kept], arrays.values[: arrays.count][kept]

    def _grown(self, arrays: _Arrays, rows: int) -> _Arrays:
        values = np.full(rows + rows // 4, self._missing, dtype=arrays.values.dtype)
        values[: len(arrays.values)] = arrays.values
        return _Arrays(values, None, arrays.count)

    def _dense(self, arrays: _Arrays, rows: int) -> _Arrays:
        values = np.full(rows + rows // 4, self._missing, dtype=arrays.values.dtype)
        assert arrays.slots is not None
        values[arrays.slots[: arrays.count]] = arrays.values[: arrays.count]
        return _Arrays(values, None, arrays.count)

    def _sparse(self, arrays: _Arrays) -> _Arrays:
        slots = self._held(arrays.values)
        return _Arrays(arrays.values[slots], slots, len(slots))

    def _held(self, values: Values) -> NDArray[np.int64]:
        """The places of dense `values` that are not missing."""
        return np.flatnonzero(~np.isnan(values) if np.isnan(self._missing) else values)


def _with_room(arrays: _Arrays, count: int) -> _Arrays:
    """Sparse arrays that hold `count` cells."""
    assert arrays.slots is not None
    if count <= len(arrays.values):
        return arrays
    room = count + count // 4 + 4
    values, slots = np.empty(room, arrays.values.dtype), np.empty(room, np.int64)
    values[: arrays.count], slots[: arrays.count] = arrays.values[: arrays.count], arrays.slots[: arrays.count]
    return _Arrays(values, slots, arrays.count)
