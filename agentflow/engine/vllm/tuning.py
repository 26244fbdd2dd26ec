"""How to run a model on a machine: a pure function of facts and configuration, whose choices `acu status` shows.

On a CPU: bfloat16 for a large model where the processor multiplies it natively, else float32 (see `dtype_of`); small KV
blocks, so that most of a conversation's prefix is found again; small steps, so that a long prompt does not hold up the
others; a KV pool that takes a part of the free memory. The model runs uncompiled there: compiling makes one stream a third
faster and 16 streams a tenth, but the first start takes a minute more and every later one half as long again, a restart
after a crash included (`engine_args: {enforce_eager: false}` turns it on; it needs a C++ compiler). On a GPU: vLLM's own
choices, within the operator's shares of its memory.

A CPU engine is one process: EngineCore runs the model itself, as it does on a GPU. vLLM's own choice on a CPU, a worker in a
process of its own, has both wait for one another by spinning, which leaves nothing of a small machine to the daemon and to
tools (measured on two cores, a 2-layer model: a token takes a third longer, one call in a hundred begins 0.4 s late, a start
takes ten seconds more, and the second process 700 MiB). Where nothing spins, a small machine needs to reserve no core for
the daemon either: the model gets all of them (SmolLM2-135M on two: prompts twice as fast, answers 1.5 times), at a lower
priority than the daemon has, which so gets its milliseconds at once.

NUMA: an engine's processes inherit CPUs and memory policy from the daemon, which has bound itself before. vLLM's own `numa_bind`
stays off: it starts EngineCore through `numactl --cpunodebind`, which gives it all CPUs of the node, also those that the operator
(`numa.cpus`, taskset) keeps from the daemon, needs that program, and binds memory so that a full node ends the engine
(`engine_args: {numa_bind: true, numa_bind_nodes: [0]}` turns it on). On a CPU vLLM takes the first node that the cpuset has,
wherever its CPUs are, and so is told theirs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from msgspec import Struct

from agentflow.config import ModelConfig
from agentflow.engine.vllm.asked import pool_bytes, refuse, taken_up
from agentflow.engine.vllm.child import NICE
from agentflow.engine.vllm.facts import MachineFacts, ModelFacts
from agentflow.engine.vllm.spawning import MPS_LIMIT, THREADS
from agentflow.errors import EngineStartFailed

MIB = 1 << 20
GIB = 1 << 30
CPU_BLOCK = 32  # tokens; the CPU kernels want a multiple of 32, and a prefix is reused by whole blocks
CPU_KV_LIMIT = 2 * GIB
SHORTEST = 512  # tokens of context to which one is cut that the operator did not ask for
SMALL_MODEL = GIB  # bytes of weights below which precision matters more than speed
RUNTIME_BYTES = 2 * GIB  # interpreter, libraries and activations of EngineCore: 1.2 measured on a small model, and room
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
SMALL_MACHINE = 4  # cores; on more, one is left to the daemon
CPU_NICE = 5  # of the engine's processes, beside the daemon's 0
MAX_LOGPROBS = 20  # what OpenAI's API allows

WITH_SCALES = ("_per_token_head", "_ds_mla")  # 8-bit types of the KV pool, 656 bytes for 576 values with their scales

_SPREAD = ("tensor", "pipeline", "data", "decode_context", "prefill_context")  # ways to have several workers: processes
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class EngineChoices(Struct, frozen=True):
    """What was chosen. `args` are keyword arguments of AsyncEngineArgs, `environment` variables of vLLM's processes.

    All follow from the same `args`, the operator's `engine_args` among them. `shown` is the gist for people.
    """

    args: dict[str, Any]
    environment: dict[str, str]
    shown: dict[str, Any]
    max_running: int


class KvCost(Struct, frozen=True):
    """Bytes of the KV pool: `token` of each token of a sequence, `windowed` of which of its last `window` tokens alone."""

    token: int
    windowed: int = 0
    window: int = 0

    def of(self, tokens: int) -> int:
        """What one sequence takes."""
        return min(tokens * self.token, tokens * (self.token - self.windowed) + self.window * self.windowed)

    def tokens_in(self, pool: int) -> int:
        """How long a sequence a pool holds: whole blocks, less the one that vLLM keeps for itself."""
        held, far = pool // self.token, self.token - self.windowed
        if self.windowed and far:
            held = max(held, (pool - self.window * self.windowed) // far)
        return max(held // CPU_BLOCK - 1, 0) * CPU_BLOCK


def choose(model: ModelFacts, config: ModelConfig, machine: MachineFacts) -> EngineChoices:
    """Decide. Raises EngineStartFailed, naming the figures and what to change, when the model does not fit."""
    refuse(config, gpu=machine.gpu)
    return _choices(_own_args(model, taken_up(config), machine) | config.engine_args, machine)


def choose_pooling(model: ModelFacts, config: ModelConfig, machine: MachineFacts) -> EngineChoices:
    """As `choose`, for an engine that turns texts into vectors: no steps to share out, and no prefix to find again.

    On a CPU the pool keeps its size, although only models with causal attention take it: without one vLLM wants nine
    tenths of the machine's memory to be free.
    """
    generating = ("enable_chunked_prefill", "enable_prefix_caching", "scheduling_policy", "max_logprobs", "block_size",
                  "structured_outputs_config", *(["kv_cache_memory_bytes"] if machine.gpu else []))  # fmt: skip
    refuse(config, gpu=machine.gpu)
    args = {
        name: value for name, value in _own_args(model, taken_up(config), machine).items() if name not in generating
    }
    args |= {"runner": "pooling", "max_num_batched_tokens": max(args["max_num_batched_tokens"], args["max_model_len"])}
    return _choices(args | config.engine_args, machine)


def _own_args(model: ModelFacts, config: ModelConfig, machine: MachineFacts) -> dict[str, Any]:
    """What we choose, before the operator's `engine_args`. Raises EngineStartFailed."""
    if model.weights_bytes == 0 and config.engine_args.get("load_format") != "dummy":
        raise EngineStartFailed(f"{model.path} holds no weights (*.safetensors); pull the model again")
    dtype = dtype_of(model, config, machine)
    max_running, max_batched = step_of(config, gpu=machine.gpu)
    kv_bytes = _kv_cache_bytes(model, config, machine, dtype)
    max_model_len = _max_model_len(model, config, kv_bytes, kv_cost(model, config, dtype, gpu=machine.gpu))
    args: dict[str, Any] = {
        "model": model.path,
        "dtype": "auto" if machine.gpu and config.dtype == "auto" else dtype,
        "max_model_len": max_model_len,
        "max_num_seqs": max_running,
        "max_num_batched_tokens": max_batched,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "max_logprobs": MAX_LOGPROBS,
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        "trust_remote_code": False,
        "disable_log_stats": True,
    }
    if kv_bytes is not None:
        args["kv_cache_memory_bytes"] = kv_bytes
    if machine.gpu:
        args |= _gpu_share(model, kv_bytes, machine)
    else:
        args |= {"block_size": CPU_BLOCK, "enforce_eager": True}
    return args


def _choices(args: dict[str, Any], machine: MachineFacts) -> EngineChoices:
    """All that follows from the final arguments. Raises EngineStartFailed."""
    if not machine.gpu and not any(args.get(f"{way}_parallel_size", 1) != 1 for way in _SPREAD):
        args = {"distributed_executor_backend": ONE_PROCESS} | args
    running, batched = args["max_num_seqs"], args["max_num_batched_tokens"]
    if args.get("enable_chunked_prefill"):  # a long prompt takes no whole step, or who comes after it waits for its end
        args = {"long_prefill_token_threshold": _long_prefill(batched, args.get("max_model_len"))} | args
    return EngineChoices(
        args=args,
        environment=_environment(machine, args),
        shown=_shown(args, machine),
        max_running=running,
    )


def _long_prefill(batched: int, max_model_len: object) -> int:
    """Tokens of one prompt in a step, where others want some of it too; vLLM lets a prompt that is alone have all."""
    most = batched * 3 // 4
    return min(most, max_model_len) if isinstance(max_model_len, int) else most


def _shown(args: dict[str, Any], machine: MachineFacts) -> dict[str, Any]:
    kv_bytes = args.get("kv_cache_memory_bytes")
    return {
        "device": "cuda" if machine.gpu else "cpu",
        "dtype": args["dtype"],
        "kv_cache_mib": kv_bytes // MIB if kv_bytes is not None else None,
        "block_size": args.get("block_size"),
        "max_batched_tokens": args["max_num_batched_tokens"],
        "compiled": not args.get("enforce_eager", False),
        "cores": len(machine.cpus),
        "preloads": [path.rpartition("/")[2] for path in machine.preloads],
    }


def step_of(config: ModelConfig, *, gpu: bool) -> tuple[int, int]:
    """(sequences, tokens) of one engine step at most."""
    running = config.max_running or (128 if gpu else 64)
    return running, max(config.max_batched_tokens or (2048 if gpu else 512), running)


def dtype_of(model: ModelFacts, config: ModelConfig, machine: MachineFacts) -> str:
    """The type of weights and activations.

    A CPU without instructions for it widens bfloat16 value by value. And a small model's scores lie so close together that
    bfloat16 makes ties of them (SmolLM2's first token of an answer, measured: two candidates equal to the last digit):
    it gets float32, which costs it little.
    """
    if config.dtype != "auto":
        return config.dtype
    if machine.gpu:
        return model.weights_dtype if model.weights_dtype in ("bfloat16", "float16") else "bfloat16"
    native = machine.cpu_flags & {"avx512_bf16", "amx_bf16"}
    return "bfloat16" if native and model.weights_bytes >= SMALL_MODEL else "float32"


def _kv_cache_bytes(model: ModelFacts, config: ModelConfig, machine: MachineFacts, dtype: str) -> int | None:
    """The size of the KV pool, once it is sure that the weights fit."""
    weights = _weights(model, machine, dtype)
    asked = pool_bytes(config)
    if machine.gpu:
        if machine.gpu_weights is not None and weights > machine.gpu_weights:
            raise EngineStartFailed(
                f"the weights of {model.name} take {_mib(weights)}, but gpu.weights_mb allows {_mib(machine.gpu_weights)}; "
                "raise gpu.weights_mb or choose a smaller or quantized model"
            )
        return asked or machine.gpu_kv_cache
    free = machine.memory_available - weights - RUNTIME_BYTES
    if free <= 0:
        raise EngineStartFailed(
            f"{model.name} does not fit: its weights take {_mib(weights)} as {dtype} and the engine {_mib(RUNTIME_BYTES)} "
            f"more, but {_mib(machine.memory_available)} of memory are available; free some or choose a smaller model"
        )
    if asked is not None and asked > free:
        raise EngineStartFailed(
            f"kv_cache_mb asks for {_mib(asked)}, but beside the weights ({_mib(weights)}) and the engine "
            f"({_mib(RUNTIME_BYTES)}) only {_mib(free)} of memory are available; lower kv_cache_mb to {free // MIB} or less"
        )
    return asked or min(CPU_KV_LIMIT, max(free // 4, 64 * MIB), free)


def kv_cost(model: ModelFacts, config: ModelConfig, dtype: str, *, gpu: bool) -> KvCost:
    """What tokens take of the KV pool: values of the engine's type, unless `engine_args` have them in another."""
    kind = str(config.engine_args.get("kv_cache_dtype", "auto"))
    value = Fraction(_DTYPE_BYTES[dtype] if kind == "auto" else _DTYPE_BYTES.get(kind, 1))
    if kind.endswith(WITH_SCALES):
        value = Fraction(8, 7)
    if config.engine_args.get("disable_hybrid_kv_cache_manager"):
        return KvCost(math.ceil(model.kv_width * value))
    _, batched = step_of(config, gpu=gpu)
    kept = (
        model.kv_window + 2 * batched + CPU_BLOCK if model.kv_windowed else 0
    )  # of two steps that are under way, and a block
    return KvCost(math.ceil(model.kv_width * value), math.ceil(model.kv_windowed * value), kept)


def _weights(model: ModelFacts, machine: MachineFacts, dtype: str) -> int:
    """Bytes of the weights as the engine holds them: as they were planned, else by the size of the files."""
    if machine.weights is not None:
        return machine.weights
    stored = _DTYPE_BYTES.get(model.weights_dtype, 2)
    return model.weights_bytes if machine.gpu else model.weights_bytes * _DTYPE_BYTES[dtype] // stored


def _max_model_len(model: ModelFacts, config: ModelConfig, kv_bytes: int | None, cost: KvCost) -> int:
    """The context: what the operator wants, else the model's own cut to what the KV pool holds."""
    wanted = config.max_model_len or model.max_model_len
    if wanted > model.max_model_len and "hf_overrides" not in config.engine_args:  # they can stretch it
        raise EngineStartFailed(
            f"max_model_len is {wanted}, but {model.name} was made for {model.max_model_len} tokens; lower it or leave it out"
        )
    if kv_bytes is None or not cost.token:
        return wanted
    held = cost.tokens_in(kv_bytes)
    if config.max_model_len is None and held >= SHORTEST:
        return min(wanted, held)
    if held < wanted:
        raise EngineStartFailed(
            f"a KV pool of {_mib(kv_bytes)} holds {held} tokens of {model.name}, fewer than one sequence of {wanted}; "
            f"raise kv_cache_mb to {-(-cost.of(wanted + 2 * CPU_BLOCK) // MIB)} or lower max_model_len"
        )
    return wanted


def _gpu_share(model: ModelFacts, kv_bytes: int | None, machine: MachineFacts) -> dict[str, Any]:
    """The part of the GPU's memory that vLLM may count on for this model, so that several engines can share the card.

    vLLM does not start where less than that is free; with a KV pool whose size is given it means nothing else. So it is
    what the plan of memory gave this engine, and never more: two that fit by the plan find one another's part taken, not more.
    """
    if machine.gpu_memory is None or kv_bytes is None:
        return {}
    beside = machine.gpu_scratch if machine.gpu_scratch is not None else RUNTIME_BYTES
    taken = _weights(model, machine, "auto") + kv_bytes + beside
    return {"gpu_memory_utilization": min(math.floor(taken / machine.gpu_memory * 1000) / 1000, 0.95)}


def _environment(machine: MachineFacts, args: dict[str, Any]) -> dict[str, str]:
    environment = {
        "VLLM_CONFIGURE_LOGGING": "0",  # the child's logs go where child.py sends them
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_HOST_IP": "127.0.0.1",  # nothing of the engine listens beyond loopback
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_USE_AOT_COMPILE": "0",  # its cache of whole models cannot be read back; the compiler's own cache can
    }
    if not machine.gpu:
        environment[NICE] = str(CPU_NICE)
        if args.get("enforce_eager", False):
            environment["TORCHDYNAMO_DISABLE"] = "1"  # vLLM would still compile parts, when they are first asked for
        one_process = args.get("distributed_executor_backend") == ONE_PROCESS
        if one_process and len(machine.cpus) <= SMALL_MACHINE:
            environment[THREADS] = ",".join(map(str, machine.cpus))
        if machine.node is not None:
            environment["CPU_VISIBLE_MEMORY_NODES"] = str(machine.node)
    if (
        machine.gpu_limit is not None
    ):  # device 0 is the first that CUDA_VISIBLE_DEVICES shows to the process: the configured one
        environment[MPS_LIMIT] = f"0={machine.gpu_limit // MIB}M"
    if machine.cache is not None:
        environment["VLLM_CACHE_ROOT"] = f"{machine.cache}/vllm"
        environment["TORCHINDUCTOR_CACHE_DIR"] = f"{machine.cache}/inductor"
    if machine.preloads:
        environment["LD_PRELOAD"] = ":".join(machine.preloads)
    return environment


def _mib(size: int) -> str:
    return f"{size // MIB} MiB"
