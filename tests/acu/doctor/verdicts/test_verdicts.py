"""Each check of the doctor: what it finds, where it finds nothing, and where there is nothing to look at."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess

import pytest
from msgspec.structs import replace

from acu.config import NumaConfig
from acu.doctor.box import SETTINGS
from acu.doctor.examination import Address, Examination, Firmware, ModelFiles, Versions
from acu.doctor.findings import SEVERITY, Check, OfSetting
from acu.doctor.verdicts import CHECKS
from acu.doctor.verdicts.disk import NETWORK
from acu.doctor.verdicts.versions import numbers
from acu.hardware.report import Report
from tests.acu.doctor.verdicts.boxes import DATA, DISK, MODELS, WELL, but, with_card
from tests.acu.doctor.verdicts.cases import NOT_THERE, SEEN, WELL_ON, Case
from tests.acu.running import ROOT

BY_ID = {check.id: check for check in CHECKS}


def test_each_check_has_an_id_of_its_own_whose_first_word_is_its_file() -> None:
    assert len(BY_ID) == len(CHECKS)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", check.id), check.id
        assert check in importlib.import_module(f"acu.doctor.verdicts.{check.topic}").CHECKS


def test_each_check_is_seen_and_not_seen_by_a_test() -> None:
    assert set(SEEN) == set(BY_ID)
    assert set(WELL_ON) <= set(BY_ID)
    assert set(NOT_THERE) <= set(BY_ID)


def test_the_worst_that_a_check_finds_is_what_it_says() -> None:
    for check in CHECKS:
        assert check.worst == max((case.level for case in SEEN[check.id]), key=SEVERITY.__getitem__), check.id


@pytest.mark.parametrize(
    ("check", "case"),
    [pytest.param(BY_ID[name], case, id=f"{name}-{n}") for name, cases in SEEN.items() for n, case in enumerate(cases)],
)
def test_it_finds_what_is_wrong(check: Check, case: Case) -> None:
    assert check.applies(case.box)
    (sign,) = check.verdict(case.box)
    assert (sign.level, sign.seen) == (case.level, case.seen)
    assert case.do in "\n".join((sign.do, *sign.run))
    assert sign.do.endswith((".", ".)"))
    for command in sign.run:
        assert subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize(
    ("check", "box"),
    [
        pytest.param(check, box, id=f"{check.id}-{n}")
        for check in CHECKS
        for n, box in enumerate(WELL_ON.get(check.id, (WELL,)))
    ],
)
def test_it_finds_nothing_where_all_is_well_and_says_what_is(check: Check, box: Examination) -> None:
    assert check.applies(box)
    assert list(check.verdict(box)) == []
    assert check.well_on(box).strip()


@pytest.mark.parametrize("name", NOT_THERE)
def test_where_there_is_nothing_to_look_at_it_does_not_apply(name: str) -> None:
    assert not BY_ID[name].applies(NOT_THERE[name])
    assert list(BY_ID[name].verdict(NOT_THERE[name])) == []


def test_a_box_of_which_nothing_could_be_read_is_judged_too() -> None:
    nothing = Examination(
        at="",
        machine=Report(cpu_model="", cpus=1, cores=1, cpu_features=(), memory_total=0, memory_available=0),
        versions=Versions(acu="", python=""),
        firmware=Firmware(),
    )
    for check in CHECKS:
        if check.applies(nothing):
            signs = list(check.verdict(nothing))
            assert signs or check.well_on(nothing) is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpu.present", "GPU 0 (NVIDIA A10G), 23028 MiB"),
        ("gpu.driver", "the driver answers: 570.133.20, CUDA up to 12.8"),
        ("numa.gpu-node", "CPUs and memory of the card's node (1) may be used"),
        ("disk.kind", "nvme0n1 is nvme"),
        ("disk.load-time", "the models are read fast: 5580 MiB of weights in 2.2 s, at 2560 MiB/s"),
        ("machine.memory", "60 GiB of 64 GiB memory are available"),
        ("machine.clock", "the clock is kept, to about 0.2 ms"),
        ("network.daemon", "an ACU answers at unix:/run/acu/acu.sock"),
        ("versions.cuda", "the driver (CUDA 12.8) runs torch's CUDA 12.8"),
    ],
)
def test_what_is_well_is_said_with_its_figures(name: str, text: str) -> None:
    assert BY_ID[name].well_on(WELL) == text


def test_each_finding_has_commands_but_where_none_can_help() -> None:
    without = {
        name for name, cases in SEEN.items() for case in cases for sign in BY_ID[name].verdict(case.box) if not sign.run
    }
    assert without == {"machine.cpu", "machine.virtual", "numa.interleaving"}  # of the last, the hypervisor's part


def test_names_of_another_boxs_report_are_no_commands() -> None:
    evil = "/a b; rm -rf ~ $(id) 'x"
    box = but(
        disks=(replace(DISK, name=evil, scheduler="bfq", read_ahead_kb=1),),
        places=(
            replace(DATA, path=evil, read_only=True),
            replace(DATA, path=evil, disk=evil, writable=False, free_mb=1, free_files=1, filesystem="tmpfs"),
            replace(DATA, path=evil, answers=False),
        ),
        refused=evil,
        models=(ModelFiles("m", evil, pulled=True, problem=evil, path=evil),),
        addresses=(
            Address(f"unix:{evil}", held_by="x"),
            Address(f"127.0.0.1:{evil}", held_by="x", answers=True, full=True),
        ),
    )
    commands = [command for check in CHECKS for sign in check.verdict(box) for command in sign.run]
    named = [command for command in commands if "rm -rf" in command]
    assert len(named) == 11
    for command in named:
        assert any(evil in word for word in shlex.split(command)), command


def test_each_setting_that_is_read_is_judged_and_the_other_way_round() -> None:
    judged = {check.verdict.name for check in CHECKS if isinstance(check.verdict, OfSetting)}
    assert judged == set(SETTINGS)


def test_a_version_is_its_leading_numbers() -> None:
    assert numbers("3.11.7") == (3, 11, 7)
    assert numbers("3.13.0rc1") == (3, 13)
    assert numbers("") == ()


def test_file_systems_of_the_network_are_the_same_for_the_doctor_and_for_the_script() -> None:
    script = (ROOT / "scripts" / "disk.sh").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^    (nfs [^)]*)\)$", script, flags=re.MULTILINE)
    assert set(re.split(r"[\s|\\]+", listed)) == NETWORK


def test_a_node_that_the_configuration_names_ends_the_question_for_the_cards() -> None:
    unknown = with_card(numa_node=None)
    named = but(unknown, needs={"numa": NumaConfig(node=1)})
    assert len(list(BY_ID["numa.gpu-unknown"].verdict(unknown))) == 1
    assert list(BY_ID["numa.gpu-unknown"].verdict(named)) == []
    assert BY_ID["numa.gpu-unknown"].well_on(named) == "numa.node names the card's NUMA node: 1"


def test_what_does_not_answer_is_told_once() -> None:
    silent = replace(
        DATA, answers=False, exists=False, writable=False, free_mb=0, size_mb=0, free_files=None, disk=None
    )
    box = but(places=(MODELS, silent))
    assert [check.id for check in CHECKS if check.applies(box) and list(check.verdict(box))] == ["disk.answers"]
