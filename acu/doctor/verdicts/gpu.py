"""Verdicts on the card: its driver, who may compute on it, its link to the machine, and who is on it already."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Final

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Level, Sign
from acu.hardware.report import Gpu

OLDEST, BFLOAT16 = (7, 5), (8, 0)  # compute capabilities
WORKING = frozenset({0, 1, 2})  # performance states
IDLE = 1  # of NVML's reasons for clocks below the highest


def card_of(examination: Examination) -> Gpu | None:
    """The card that the configuration means, if the box has it."""
    wanted = examination.needs.gpu_id
    return next((gpu for gpu in examination.machine.gpus if gpu.index == wanted), None)


def runs(examination: Examination) -> bool:
    """Whether an ACU answers on one of the configured addresses: what it holds is not somebody else's."""
    return any(address.answers for address in examination.addresses)


def as_far_as_real(examination: Examination, level: Level) -> Level:
    """A level for what the firmware says: in a virtual machine it is the hypervisor's tale, and no more than a note."""
    return "note" if examination.firmware.virtual else level


def _has_card(examination: Examination) -> bool:
    return card_of(examination) is not None


def _has_any(examination: Examination) -> bool:
    return bool(examination.machine.gpus)


def _named(card: Gpu) -> str:
    return f"GPU {card.index} ({card.name})"


def present(examination: Examination) -> Iterator[Sign]:
    """No card at all, nor a device or driver that hints at one."""
    if not (examination.machine.gpus or examination.driver.devices or examination.driver.problem):
        yield Sign(
            "note",
            "there is no NVIDIA GPU: the engine computes on the CPU",
            "If a card is in the box, this must show it (else: power, slot, BIOS); then install its driver.",
            ("lspci -d 10de:",),
        )


def _cards(examination: Examination) -> str:
    return ", ".join(f"{_named(card)}, {card.memory_mb} MiB" for card in examination.machine.gpus) or "a GPU is there"


DRIVER_REMEDIES: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("mismatch", "The driver was updated under its running kernel module: restart the box.", ("systemctl reboot",)),
    (
        "not loaded",
        "Load the kernel module; if that fails, the kernel says why.",
        ("modprobe nvidia", "dmesg | grep -i nvrm"),
    ),
    (
        "not found",
        "Install the driver's libraries (libnvidia-ml.so.1), by the distribution's package or NVIDIA's own.",
        ("apt-get install -y nvidia-driver",),
    ),
    (
        "permission",
        "Let the daemon's user open the device files: its group, or DeviceAllow= of its unit.",
        ("ls -l /dev/nvidia*",),
    ),
    (
        "lost",
        "The card fell off the bus: look at power, heat and slot, then restart the box.",
        ("dmesg | grep -i xid",),
    ),
)
"""Words of NVML's errors, what to do, and by which commands."""
OTHER_REMEDY: Final = ("See what the driver and the kernel say.", ("nvidia-smi", "dmesg | grep -i -e nvrm -e nvidia"))


def driver(examination: Examination) -> Iterator[Sign]:
    """A device or module is there, and NVML does not answer."""
    problem = examination.driver.problem
    if not problem and not examination.driver.devices:
        return
    if problem or not examination.machine.gpus:
        folded = problem.lower()
        do, run = next(((do, run) for word, do, run in DRIVER_REMEDIES if word in folded), OTHER_REMEDY)
        yield Sign(
            "error",
            f"the NVIDIA driver does not answer: {problem or 'it shows no card'}",
            do,
            run,
        )


def _driver_well(examination: Examination) -> str:
    return f"the driver answers: {examination.driver.version or '?'}, CUDA up to {examination.driver.cuda or '?'}"


def device(examination: Examination) -> Iterator[Sign]:
    """The configured index is none of the cards'."""
    if card_of(examination) is None:
        there = ", ".join(str(gpu.index) for gpu in examination.machine.gpus)
        yield Sign(
            "error",
            f"gpu.device_id is {examination.needs.gpu_id}, and the cards here are: {there}",
            "Set gpu.device_id to one of them.",
            ("nvidia-smi -L",),
        )


def capability(examination: Examination) -> Iterator[Sign]:
    """A card that is too old for the engine, or for bfloat16."""
    card = card_of(examination)
    if card is None or card.capability is None:
        return
    found = ".".join(map(str, card.capability))
    if card.capability < OLDEST:
        yield Sign(
            "error",
            f"{_named(card)} has compute capability {found}, and vLLM needs {OLDEST[0]}.{OLDEST[1]}",
            "Use a newer card (gpu.device_id), or the engine for CPUs.",
            ("nvidia-smi --query-gpu=index,name,compute_cap --format=csv", "scripts/setup --cpu"),
        )
    elif card.capability < BFLOAT16:
        yield Sign(
            "warning",
            f"{_named(card)} has compute capability {found}, which computes no bfloat16",
            "Set models.NAME.dtype to float16, and prefer models that were made for it (AWQ, GPTQ).",
            ("nvidia-smi --query-gpu=index,name,compute_cap --format=csv",),
        )


def compute_mode(examination: Examination) -> Iterator[Sign]:
    """Who may compute on the card, against how many engines are to."""
    card = card_of(examination)
    if card is None:
        return
    mode, engines = card.compute_mode, examination.needs.engines_on_gpu
    if mode == "Prohibited":
        yield Sign(
            "error",
            f"{_named(card)} is in compute mode Prohibited",
            "Let one process compute on it.",
            (f"nvidia-smi -i {card.index} -c EXCLUSIVE_PROCESS",),
        )
    elif mode.startswith("Exclusive") and engines > 1 and not examination.driver.mps:
        yield Sign(
            "error",
            f"{_named(card)} takes one process ({mode}), {engines} engines are to compute on it, and MPS does not run",
            "Start the server of MPS, or set the mode to DEFAULT; `scripts/gpu.sh up N` does what fits.",
            ("nvidia-cuda-mps-control -d",),
        )
    elif mode == "Default" and engines <= 1:
        yield Sign(
            "note",
            f"{_named(card)} is open to every process (compute mode Default)",
            "Let one process compute on it; `scripts/gpu.sh up N` does that, and puts it back.",
            (f"nvidia-smi -i {card.index} -c EXCLUSIVE_PROCESS",),
        )


def mps(examination: Examination) -> Iterator[Sign]:
    """Several engines on one card without MPS."""
    engines = examination.needs.engines_on_gpu
    if engines > 1 and not examination.driver.mps:
        yield Sign(
            "warning",
            f"{engines} engines are to compute on one card, and MPS does not run",
            "Start the server of MPS; `scripts/gpu.sh up N` does where it is installed, and ends it again.",
            ("nvidia-cuda-mps-control -d",),
        )


def persistence(examination: Examination) -> Iterator[Sign]:
    """A driver that lets go of a card that nobody uses."""
    card = card_of(examination)
    if card is not None and card.persistent is False:
        yield Sign(
            "note",
            f"persistence mode of {_named(card)} is off",
            "Switch it on, until the next boot (`scripts/gpu.sh up N` does too) by the first command; where NVIDIA's daemon is "
            "installed, the second keeps it on.",
            (f"nvidia-smi -i {card.index} -pm 1", "systemctl enable --now nvidia-persistenced"),
        )


def pcie_width(examination: Examination) -> Iterator[Sign]:
    """Fewer lanes than card and slot have, or a slot with fewer than the card: at rest they are as at work."""
    card = card_of(examination)
    if card is None or card.pcie is None or card.pcie_most is None:
        return
    now, most = card.pcie[1], card.pcie_most[1]
    slot = most if card.pcie_slot is None else card.pcie_slot[1]
    if now < min(most, slot):
        yield Sign(
            as_far_as_real(examination, "error"),
            f"{_named(card)} is linked by {now} PCIe lanes, of {min(most, slot)} that card and slot have",
            "Seat the card again, in a slot with all lanes, without a riser or a BIOS setting (bifurcation) that splits them.",
            (f"lspci -vv -s {quote(card.bdf or 'BDF')} | grep -e LnkCap: -e LnkSta:",),
        )
    elif slot < most:
        yield Sign(
            as_far_as_real(examination, "warning"),
            f"{_named(card)} is linked by all {slot} PCIe lanes that its slot has; the card has {most}",
            "The link is as it should be: put the card into a slot with more lanes, if there is one, or see in the BIOS whether "
            "the slot's are split (bifurcation).",
            ("lspci -vt", "dmidecode -t slot | grep -e Designation -e Type: -e Usage"),
        )


def pcie_generation(examination: Examination) -> Iterator[Sign]:
    """An older generation: a card at rest saves power that way, so that it is a note there, and a warning at work."""
    card = card_of(examination)
    if card is None or card.pcie is None or card.pcie_most is None:
        return
    now, most = card.pcie[0], card.pcie_most[0]
    slot = most if card.pcie_slot is None else card.pcie_slot[0]
    watch = (f"nvidia-smi -i {card.index} --query-gpu=pstate,pcie.link.gen.current --format=csv -l 1",)
    if now < min(most, slot):
        which = f"{_named(card)} links at PCIe generation {now} of {min(most, slot)}"
        if _works(card):
            yield Sign(
                as_far_as_real(examination, "warning"),
                f"{which}, and is at work (P{card.performance})",
                "See the speed of the slot and ASPM in the BIOS, and the card's seat and riser: a link that makes errors trains "
                "slower.",
                (*watch, f"lspci -vv -s {quote(card.bdf or 'BDF')} | grep -e LnkCap: -e LnkSta: -e CESta:"),
            )
        else:
            yield Sign(
                "note",
                f"{which} now; at rest that is usual",
                "Look again under load; if it stays, see the speed of the slot and ASPM in the BIOS.",
                watch,
            )
    elif slot < most:
        yield Sign(
            "note",
            f"{_named(card)} links at PCIe generation {slot}, the highest of its slot; the card has {most}",
            "Put the card into a newer slot, if there is one, or see its speed in the BIOS.",
            ("lspci -vt",),
        )


def _works(card: Gpu) -> bool:
    """Whether it does not save power now: a driver that keeps an idle card in P0 says by its clocks that nobody uses it."""
    return card.performance in WORKING and not (card.clocks_held or 0) & IDLE


def _link_known(examination: Examination) -> bool:
    card = card_of(examination)
    return card is not None and card.pcie is not None and card.pcie_most is not None


def others(examination: Examination) -> Iterator[Sign]:
    """Processes on the card that are no ACU's; where one answers that does not tell which its own are, they may be its."""
    card = card_of(examination)
    if card is None or any(one.answers and not one.pids for one in examination.addresses):
        return
    own = frozenset(examination.own)
    foreign = [(pid, mb) for pid, mb in card.processes if pid not in own]
    if not foreign:
        return
    held = sum(mb for _, mb in foreign)
    pids = ", ".join(str(pid) for pid, _ in foreign)
    yield Sign(
        "warning",
        f"{len(foreign)} other process(es) hold {held} MiB of {_named(card)}: {pids}",
        "End what is not wanted, or give ACU another card (gpu.device_id).",
        (f"ps -fp {pids.replace(' ', '')}",),
    )


CHECKS = (
    Check(
        id="gpu.present",
        worst="note",
        looks_at="NVIDIA cards and their device files",
        verdict=present,
        well=_cards,
        why="A CPU serves small models only, tens of times slower.",
    ),
    Check(
        id="gpu.driver",
        worst="error",
        looks_at="whether NVML answers",
        verdict=driver,
        well=_driver_well,
        applies=lambda e: bool(e.machine.gpus or e.driver.devices or e.driver.problem),
        why="Without its driver the card cannot be used, and the engine does not start. A BIOS that keeps big memory windows "
        "below 4 GiB can be the reason.",
    ),
    Check(
        id="gpu.device",
        worst="error",
        looks_at="gpu.device_id",
        verdict=device,
        well=lambda e: f"gpu.device_id {e.needs.gpu_id} is there",
        applies=_has_any,
        why="The engine would not start.",
    ),
    Check(
        id="gpu.capability",
        worst="error",
        looks_at="the card's compute capability, against what vLLM is built for",
        verdict=capability,
        well=lambda e: (
            f"compute capability {found[0]}.{found[1]} has all that vLLM uses"
            if (card := card_of(e)) and (found := card.capability)
            else "vLLM can use the card"
        ),
        applies=lambda e: (card := card_of(e)) is not None and card.capability is not None,
        why="vLLM has no kernels for cards before Turing (7.5); before Ampere (8.0) there is no bfloat16 and no FlashAttention: "
        "it is slower, and some models overflow in float16.",
    ),
    Check(
        id="gpu.compute-mode",
        worst="error",
        looks_at="the card's compute mode, against the engines of the configuration",
        verdict=compute_mode,
        well="the card's compute mode fits the number of engines",
        applies=lambda e: (card := card_of(e)) is not None and bool(card.compute_mode),
        why="In exclusive mode a second process is refused by CUDA; in default mode any process can take memory that the "
        "plan gave to the engine.",
    ),
    Check(
        id="gpu.mps",
        worst="warning",
        looks_at="whether the server of MPS runs where several engines share a card",
        verdict=mps,
        well="MPS runs for the engines that share the card",
        applies=lambda e: _has_card(e) and e.needs.engines_on_gpu > 1,
        why="Without MPS the engines take turns on the card, and nothing bounds the memory of each.",
    ),
    Check(
        id="gpu.persistence",
        worst="note",
        looks_at="persistence mode",
        verdict=persistence,
        well="the driver keeps the card ready while nobody uses it",
        applies=lambda e: (card := card_of(e)) is not None and card.persistent is not None,
        why="With the last program on the card the driver lets go of it: the next start waits seconds for it, and settings (the "
        "compute mode, limits of power and clocks) are lost.",
    ),
    Check(
        id="gpu.pcie-width",
        worst="error",
        looks_at="PCIe lanes of the card's link, against what card and slot have",
        verdict=pcie_width,
        well="the card's link has all its lanes",
        applies=_link_known,
        why="Loading weights and copying inputs take as many times longer as lanes are missing. The card is badly seated, or "
        "its slot or riser is the wrong one.",
    ),
    Check(
        id="gpu.pcie-generation",
        worst="warning",
        looks_at="PCIe generation of the card's link now, at rest and at work",
        verdict=pcie_generation,
        well="the card's link runs at its highest generation",
        applies=_link_known,
        why="Each generation halves or doubles what the link carries.",
    ),
    Check(
        id="gpu.others",
        worst="warning",
        looks_at="processes on the card that are neither an ACU's nor MPS's",
        verdict=others,
        well="nobody else is on the card",
        applies=_has_card,
        why="Their memory is lacking for weights and KV, and their work delays every token.",
    ),
)
