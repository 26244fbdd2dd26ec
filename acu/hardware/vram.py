"""The plan of a card's memory before a byte is loaded: what every engine takes of it, whether that fits, and what would. Pure.

A card has `total_mb` (NVML's), of which the driver and other programs hold some. The rest is divided:

    weights    the tensors of every model, in the type in which its engine holds them (acu/models/headers.py)
    KV pools   gpu.kv_cache_size_mb, shared evenly by the models that have no kv_cache_mb of their own
    engines    CONTEXT_MB a process, and GRAPHS_MB unless it runs eagerly
    workers    what else is to compute on the card; nothing by default
    scratch    what remains: what one step of every engine needs at the least (`step_mb`), and room beyond

The plan fits when the weights stay within gpu.weights_mb and the scratch is enough for the steps. All figures are MiB, rounded
against us.

Sources. CONTEXT_MB: a CUDA context with lazily loaded kernels takes about 300 MiB (PyTorch's maintainers), vLLM's own logs call
what is not PyTorch's 0.4 GiB on cards of this size; cuBLAS's and attention's workspaces are in it. GRAPHS_MB: vLLM's graphs of a
7B model, one a batch size. Both are estimates with room, to be compared with what a card shows (`acu status`). One step,
`step_mb`: see there. RESERVE: of a card that is not here, what the driver keeps: an A10G has 23,028 MiB for NVML and 22,510 to
22,590 for CUDA.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from agentflow.engine.vllm.tuning import MIB, SHORTEST, KvCost

CONTEXT_MB = 512
GRAPHS_MB = 512
RESERVE = 40  # one part in so many
LEAST_POOL_MB = 16
MUCH_LESS = 10  # a model of a tenth of the weights is no other form of it, and no substitute
SPARE_TOKENS = 64  # of blocks, beside those of one whole sequence

CARDS = {
    "t4": ("Tesla T4", 15_360),
    "l4": ("NVIDIA L4", 23_034),
    "a10": ("NVIDIA A10", 23_028),
    "a10g": ("NVIDIA A10G", 23_028),
    "rtx3090": ("NVIDIA GeForce RTX 3090", 24_576),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 24_564),
    "l40s": ("NVIDIA L40S", 46_068),
    "a100-40g": ("NVIDIA A100 40GB", 40_960),
    "a100-80g": ("NVIDIA A100 80GB", 81_920),
    "h100": ("NVIDIA H100 80GB", 81_559),
    "h200": ("NVIDIA H200", 143_771),
}
"""Cards that can be planned for where they are not: name, and memory as NVML tells it, MiB."""


class Card(Struct, frozen=True):
    """Memory to divide. `held_mb` is the driver's and that of programs that are not ours, `others`: (pid, MiB)."""

    name: str
    total_mb: int
    held_mb: int = 0
    others: tuple[tuple[int, int], ...] = ()

    @property
    def usable_mb(self) -> int:
        """What is there for us."""
        return self.total_mb - self.held_mb


class Demand(Struct, frozen=True, kw_only=True):
    """What one model takes.

    `own_pool`: its KV pool is models.KEY.kv_cache_mb (`written`: kv_cache_memory_bytes of its engine_args) and not a share.
    `token_bytes` (None: not known) is what one token leaves in the pool, `windowed_bytes` of which stay for a sequence's last
    `window` tokens alone. `context` is the longest sequence in tokens, which `fixed` says the operator asked for (another is cut
    to the pool). `process_mb` and `step_mb` are what its engine takes beside weights and pool. `read`: the weights were read
    off its files.
    """

    key: str
    model: str
    weights_mb: int
    kv_mb: int = 0
    own_pool: bool = False
    written: bool = False
    token_bytes: int | None = None
    windowed_bytes: int = 0
    window: int = 0
    context: int | None = None
    fixed: bool = False
    process_mb: int = 0
    step_mb: int = 0
    speaks: bool = True
    read: bool = True

    @property
    def taken_mb(self) -> int:
        """All that its engine takes, at its largest step."""
        return self.weights_mb + self.kv_mb + self.process_mb + self.step_mb

    @property
    def _cost(self) -> KvCost | None:
        return KvCost(self.token_bytes, self.windowed_bytes, self.window) if self.token_bytes else None

    @property
    def kv_tokens(self) -> int | None:
        """How many tokens of one sequence the pool holds."""
        return self._cost.tokens_in(self.kv_mb * MIB) if self._cost else None

    @property
    def served_context(self) -> int | None:
        """The longest sequence that is served."""
        if self.context is None or self.fixed or self.kv_tokens is None or self.kv_tokens < SHORTEST:
            return self.context
        return min(self.context, self.kv_tokens)

    @property
    def sequences(self) -> float | None:
        """How many sequences of full length the pool holds."""
        context = self.served_context
        if self._cost is None or self.kv_tokens is None or not context:
            return None
        return self.kv_tokens / context if not self.windowed_bytes else self.kv_mb * MIB / self._cost.of(context)

    def least_kv_mb(self, *, shortened: bool = False) -> int:
        """The smallest pool with which it can be served; `shortened`: with a context that may be shorter than asked."""
        if not self.kv_mb or self._cost is None:
            return self.kv_mb and LEAST_POOL_MB
        wanted = self.context or SHORTEST
        tokens = wanted if self.fixed and not shortened else min(wanted, SHORTEST)
        return max(whole_mib(self._cost.of(tokens + SPARE_TOKENS)), LEAST_POOL_MB)


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """How a card's memory is divided. `weights_limit_mb` is gpu.weights_mb (None: there is no limit)."""

    card: Card
    demands: tuple[Demand, ...]
    weights_limit_mb: int | None = None
    workers_mb: int = 0

    @property
    def weights_mb(self) -> int:
        """All weights."""
        return sum(demand.weights_mb for demand in self.demands)

    @property
    def kv_mb(self) -> int:
        """All KV pools."""
        return sum(demand.kv_mb for demand in self.demands)

    @property
    def processes_mb(self) -> int:
        """What the engines' processes take for being there."""
        return sum(demand.process_mb for demand in self.demands)

    @property
    def step_mb(self) -> int:
        """What one step of every engine takes at the same time."""
        return sum(demand.step_mb for demand in self.demands)

    @property
    def scratch_mb(self) -> int:
        """What remains, below 0: what is lacking even for standing still."""
        return self.card.usable_mb - self.weights_mb - self.kv_mb - self.processes_mb - self.workers_mb

    @property
    def spare_mb(self) -> int:
        """What nobody takes even while every engine does its largest step, below 0: what is lacking."""
        return self.scratch_mb - self.step_mb

    @property
    def kv_room_mb(self) -> int:
        """What all KV pools together may take."""
        return self.spare_mb + self.kv_mb

    @property
    def within_limit(self) -> bool:
        """Whether the weights are within what they are allowed."""
        return self.weights_limit_mb is None or self.weights_mb <= self.weights_limit_mb

    @property
    def fits(self) -> bool:
        """Whether the engines can be started."""
        return self.within_limit and self.spare_mb >= 0

    def limit_mb(self, demand: Demand) -> int:
        """The most that one engine may take so that each of the others, and the workers, can still have all of theirs."""
        return demand.taken_mb + max(self.spare_mb, 0) // max(self.engines_on_gpu, 1)

    @property
    def engines_on_gpu(self) -> int:
        """Processes that compute on the card."""
        return sum(1 for demand in self.demands if demand.process_mb)


class Alternative(Struct, frozen=True):
    """A model that could be served instead, by its name in the catalogue."""

    name: str
    weights_mb: int


def step_mb(*, tokens: int, rows: int, widths: tuple[int, int, int], value_bytes: int = 2) -> int:
    """What one step takes for its intermediate values, MiB. `widths`: hidden, intermediate, vocabulary (0: no logits).

    Of every token: the residual and the layer's input (2 hidden), the gate and up projections' output and their product
    (3 intermediate), which are the widest a layer has at a time. Of every sequence that is sampled, over the vocabulary: the
    logits (the engine's type), as float32, and sorted for top-p: values, positions (8 bytes) and probabilities. That is what
    vLLM's profile run does with all its sequences (gpu_model_runner.py `_dummy_sampler_run`, sample/ops/topk_topp_sampler.py).
    """
    hidden, intermediate, vocabulary = widths
    layers = tokens * (2 * hidden + 3 * intermediate) * value_bytes
    sampler = rows * vocabulary * (value_bytes + 4 + 4 + 8 + 4)
    return whole_mib(layers + sampler)


def known_card(named: str) -> Card | None:
    """The card of a name (`a10g`) or a size in MiB (`23028`), with the driver's part held; None if it is neither."""
    name, total = CARDS.get(named.lower(), ("", 0))
    if not total and named.isascii() and named.isdigit() and int(named) > 0:
        name, total = f"a card of {int(named)} MiB", int(named)
    return Card(name, total, -(-total // RESERVE)) if total else None


def problem(plan: MemoryPlan, alternatives: tuple[Alternative, ...] = ()) -> str | None:
    """Why the plan does not fit, and what would, in one line; None when it fits."""
    if plan.fits:
        return None
    why = []
    who, need = _names(plan), "needs" if len(plan.demands) == 1 else "need"
    if not plan.within_limit:
        why.append(
            f"the weights of {who} need {plan.weights_mb} MiB on the GPU, and gpu.weights_mb is {plan.weights_limit_mb}"
        )
        who = "it" if len(plan.demands) == 1 else "they"
    if plan.spare_mb < 0:
        whole = plan.card.usable_mb - plan.spare_mb
        workers = f" + {plan.workers_mb} for workers" if plan.workers_mb else ""
        why.append(
            f"{who} {need} {whole} MiB on {plan.card.name}: {plan.weights_mb} for weights + {plan.kv_mb} for KV + "
            f"{plan.processes_mb} for CUDA and graphs{workers} + {plan.step_mb} for one step; {plan.card.usable_mb} of its "
            f"{plan.card.total_mb} are free{_others(plan.card)}, {whole - plan.card.usable_mb} too few"
        )
    would = "; or ".join(advise(plan, alternatives))
    end = f"What would fit: {would}" if would else "No KV is small enough: choose smaller models, or fewer"
    return f"models: {'. And '.join(why)}. {end}"


def advise(plan: MemoryPlan, alternatives: tuple[Alternative, ...]) -> tuple[str, ...]:
    """What would fit, nearest to what was asked first."""
    return tuple(text for text in (_smaller_pools(plan), _other_weights(plan, alternatives)) if text)


def _smaller_pools(plan: MemoryPlan) -> str | None:
    """The same models, with the weights that they have and pools that fit beside them."""
    limit = "" if plan.within_limit else f"gpu.weights_mb: {plan.weights_mb}"
    if plan.spare_mb >= 0:
        return f"{limit} (beside this KV, {plan.spare_mb} MiB remain)"
    for shortened in (False, True):
        pools = _pools(plan, shortened=shortened)
        if pools is not None:
            break
    else:
        return None
    smaller = [_cut(replace(demand, kv_mb=pool)) for demand, pool in zip(plan.demands, pools, strict=True)]
    fields = [limit] if limit else []
    fields += _pool_fields(plan, smaller)
    cut = [new for old, new in zip(plan.demands, smaller, strict=True) if old.fixed and new.context != old.context]
    fields += [f"models.{demand.key}.max_model_len: {demand.context}" for demand in cut]
    kind = "a smaller KV and a shorter context" if cut else "a smaller KV"
    held = ", ".join(map(_held, filter(_has_pool, smaller)))
    return f"{kind}, {' and '.join(fields)}" + (f" ({held})" if held else "")


def _pools(plan: MemoryPlan, *, shortened: bool) -> list[int] | None:
    """The pools that fit, in the demands' order: equal where they are shared out and that is enough for each, else by need."""
    least = [demand.least_kv_mb(shortened=shortened) for demand in plan.demands]
    room, own = plan.kv_room_mb, sum(demand.kv_mb for demand in plan.demands if demand.own_pool)
    sharing = [index for index, demand in enumerate(plan.demands) if demand.kv_mb and not demand.own_pool]
    if sum(least) > room or not any(least):
        return None
    if sharing and (part := (room - own) // len(sharing)) >= max(least[index] for index in sharing):
        return [part if index in sharing else demand.kv_mb for index, demand in enumerate(plan.demands)]
    wishes = [max(demand.kv_mb - need, 0) for demand, need in zip(plan.demands, least, strict=True)]
    spare, wished = room - sum(least), max(sum(wishes), 1)
    return [need + min(wish, spare * wish // wished) for need, wish in zip(least, wishes, strict=True)]


def _pool_fields(plan: MemoryPlan, smaller: list[Demand]) -> list[str]:
    """The fields to set for these pools."""
    changed = [(old, new) for old, new in zip(plan.demands, smaller, strict=True) if old.kv_mb != new.kv_mb]
    shared = [new.kv_mb for old, new in zip(plan.demands, smaller, strict=True) if old.kv_mb and not old.own_pool]
    if len(set(shared)) == 1 and not any(old.own_pool for old, _ in changed):
        return [f"gpu.kv_cache_size_mb: {sum(shared)}"]
    return [
        f"models.{new.key}.engine_args.kv_cache_memory_bytes: {new.kv_mb * MIB}"
        if new.written
        else f"models.{new.key}.kv_cache_mb: {new.kv_mb}"
        for _, new in changed
    ]


def _other_weights(plan: MemoryPlan, alternatives: tuple[Alternative, ...]) -> str | None:
    """The heaviest model as another of the catalogue: the same one with quantised weights, else the largest that fits."""
    heaviest = max((demand for demand in plan.demands if demand.speaks), key=lambda d: d.weights_mb, default=None)
    if heaviest is None:
        return None
    family = heaviest.model.rstrip("/").rpartition("/")[2].lower()
    related = [each for each in alternatives if each.name.startswith(family)]
    ordered = related + sorted(
        (each for each in alternatives if each not in related), key=lambda each: -each.weights_mb
    )
    for each in ordered:
        if not heaviest.weights_mb > each.weights_mb >= heaviest.weights_mb // MUCH_LESS:
            continue
        lighter = replace(heaviest, weights_mb=each.weights_mb)
        demands = tuple(lighter if demand is heaviest else demand for demand in plan.demands)
        if replace(plan, demands=demands).fits:
            what = "quantised weights" if each in related else "another model"
            return f"{what}, models.{heaviest.key}.model: {each.name} ({each.weights_mb} MiB, beside this KV)"
    return None


def _cut(demand: Demand) -> Demand:
    """With a context that its pool holds."""
    tokens = demand.kv_tokens
    return demand if tokens is None or demand.context is None else replace(demand, context=min(demand.context, tokens))


def _has_pool(demand: Demand) -> bool:
    return demand.kv_tokens is not None and demand.kv_mb > 0


def _held(demand: Demand) -> str:
    text = f"models.{demand.key} then holds {demand.kv_tokens} tokens"
    if demand.sequences is None:
        return text
    return f"{text}, {demand.sequences:.1f} sequences of {demand.served_context}"


def _others(card: Card) -> str:
    told = ", ".join(f"process {pid} holds {size}" for pid, size in card.others)
    return f" ({told})" if told else ""


def _names(plan: MemoryPlan) -> str:
    return ", ".join(f"models.{demand.key} ({demand.model})" for demand in plan.demands)


def whole_mib(size: int) -> int:
    """Bytes in whole MiB, rounded up."""
    return -(-size // MIB)
