"""Which series the engines' memory has."""

from __future__ import annotations

from msgspec.structs import replace

from acu.hardware.cardkeeper import CardStatus
from acu.telemetry.metrics import Telemetry
from agentflow.status import HeldStatus, ModelStatus, ServiceStatus
from tests.acu.telemetry.test_metrics import samples

CARD = CardStatus(
    used_mb=20_000,
    planned_mb=19_000,
    baseline_mb=18_000,
    capacity_mb=22_000,
    share=0.5,
    step="limit_prompts",
    taken={"limit_prompts": 3, "drop_caches": 1, "restart_engines": 0},
    mb_per_hour=512.0,
    full_in_s=14_062.0,
    unreadable=2,
    problem="",
)
MODEL = ModelStatus("m", (), "chat", True, 0, (), 100, 0, 0, held=HeldStatus(4, 640, 0.62, True, 1, 2))
SERVICE = ServiceStatus(True, None, False, 0, 0, 0, (MODEL, replace(MODEL, name="e", held=None)), prompt_limit=2048)
MIB = 2**20


def seen(service: ServiceStatus, card: CardStatus | None) -> dict[str, float]:
    telemetry = Telemetry("1", dropped_logs=lambda: 0, dropped_audits=lambda: 0)
    telemetry.watch(lambda: service, lambda: (0, 0, 0), card=lambda: card)
    names = ("acu_gpu", "acu_kv", "acu_prompt")
    return {name: value for name, value in samples(telemetry).items() if name.startswith(names)}


def test_every_figure_of_a_card_and_of_the_pools_has_its_series() -> None:
    assert seen(SERVICE, CARD) == {
        "acu_gpu_memory_used_bytes": 20_000 * MIB,
        "acu_gpu_memory_planned_bytes": 19_000 * MIB,
        "acu_gpu_memory_baseline_bytes": 18_000 * MIB,
        "acu_gpu_memory_capacity_bytes": 22_000 * MIB,
        "acu_gpu_memory_room_used_perc": 0.5,
        "acu_gpu_memory_growth_bytes_per_hour": 512 * MIB,
        "acu_gpu_memory_full_in_seconds": 14_062,
        'acu_gpu_memory_step{step="calm"}': 0,
        'acu_gpu_memory_step{step="limit_prompts"}': 1,
        'acu_gpu_memory_step{step="drop_caches"}': 0,
        'acu_gpu_memory_steps_total{step="limit_prompts"}': 3,
        'acu_gpu_memory_steps_total{step="drop_caches"}': 1,
        'acu_gpu_memory_steps_total{step="restart_engines"}': 0,
        "acu_gpu_memory_unreadable_total": 2,
        "acu_prompt_limit_tokens": 2048,
        'acu_kv_held_runs{model_name="m"}': 4,
        'acu_kv_held_tokens{model_name="m"}': 640,
        'acu_kv_running_and_held_perc{model_name="m"}': 0.62,
        'acu_kv_watermark_passed_total{model_name="m"}': 1,
        'acu_kv_released_runs_total{model_name="m"}': 2,
    }


def test_what_is_not_known_has_none() -> None:
    assert seen(replace(SERVICE, models=(), prompt_limit=None), None) == {}
    card = replace(CARD, used_mb=None, baseline_mb=None, full_in_s=None)
    names = seen(SERVICE, card)
    assert not names.keys() & {f"acu_gpu_memory_{each}" for each in ("used_bytes", "baseline_bytes", "full_in_seconds")}
