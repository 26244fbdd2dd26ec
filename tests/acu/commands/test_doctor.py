"""acu doctor: this box for real, the recorded ones by their reports, and reports that are none."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from acu.commands.doctor import parsed, written
from acu.commands.doctorview import capital, drawn, reference
from acu.config import load
from acu.doctor.bios import checklist, entries
from acu.doctor.examination import Address, Clock, Examination, Limits, Versions
from acu.doctor.examine import examine
from acu.doctor.findings import Judgement, judge
from acu.doctor.verdicts import CHECKS
from acu.errors import ConfigError
from tests.acu.doctor.verdicts.boxes import WELL, but, with_card
from tests.acu.hardware.recorded import machine_root, recorded_nvml
from tests.acu.running import ROOT, DaemonFactory, acu

GPU_BUILD = Versions(acu="0.1.0", python="3.11.7", vllm="0.32.0", torch="2.13.0", cuda="12.8", glibc="2.36")
CPU_BUILD = replace(GPU_BUILD, torch="2.13.0+cpu", cuda=None)


def recorded(name: str, *, cuda: bool = True) -> Examination:
    """What the doctor sees on a recorded machine; what is this process's own is as on such a box."""
    config = load({"HOME": "/root"}, gpu_present=cuda).config
    seen = examine(config, machine_root(name), recorded_nvml(name))
    return replace(
        seen,
        at="2026-11-30T22:00:00+00:00",
        versions=GPU_BUILD if cuda else CPU_BUILD,
        limits=Limits(nofile=(1024, 524_288), memlock=(None, None)),
        clock=Clock(synchronised=True, error_ms=0.1),
        addresses=(Address("127.0.0.1:8228"),),
        places=tuple(replace(place, free_mb=400_000, writable=True) for place in seen.places),
    )


def judged(examination: Examination) -> Judgement:
    """What acu doctor makes of it."""
    return judge(examination, CHECKS, entries)


def found(examination: Examination) -> list[str]:
    """Ids of what is worse than a note."""
    return [finding.check for finding in judged(examination).findings if finding.level != "note"]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """The report of a box on which the doctor finds an error, a warning and a note."""
    box = but(with_card(pcie=(4, 8)), clock=Clock(synchronised=False), kernel={"huge_pages": "always"})
    path = tmp_path / "box.json"
    path.write_text(written(replace(box, unread=("a disk: no answer",))))
    return path


def test_an_a10g_beside_its_cpus_and_disk_is_well() -> None:
    examination = recorded("a10g")
    assert found(examination) == []
    assert judged(examination).severity == 0


def test_an_a10g_on_the_other_node_is_found_with_what_to_do_on_a_dell() -> None:
    examination = recorded("a10g-far")
    assert found(examination) == ["numa.gpu-node", "numa.disk-node"]
    text = drawn(examination, judged(examination), verbose=False)
    assert "PowerEdge R750xa" in text
    assert "AllowedMemoryNodes=1" in text
    assert "BIOS   Dell: Installation and Service Manual" in text


def test_on_two_gpus_somebody_elses_processes_are_found() -> None:
    assert found(recorded("two-gpus")) == ["gpu.others"]


def test_a_box_without_a_gpu_is_told_in_a_note() -> None:
    judgement = judged(recorded("none", cuda=False))
    assert "gpu.present" in [finding.check for finding in judgement.findings]
    assert "error" not in [finding.level for finding in judgement.findings]


def test_this_box_is_looked_at_and_judged(clean_environ: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "here.json"
    done = acu("doctor", "--json", "--save", str(saved), environ=clean_environ)
    answer = json.loads(done.stdout)
    assert done.returncode == answer["severity"]
    assert done.stderr == ""
    named = {finding["check"] for finding in answer["findings"]} | {well["check"] for well in answer["well"]}
    assert named | set(answer["skipped"]) == {check.id for check in CHECKS}
    assert {"machine.memory", "disk.space", "versions.python", "network.address"} <= named
    again = json.loads(acu("doctor", "--report", str(saved), "--json", environ=clean_environ).stdout)
    assert again == answer


def test_a_daemon_that_runs_is_seen(daemon: DaemonFactory) -> None:
    running = daemon()
    done = acu("doctor", "-c", str(running.config), "--json", environ=running.environ)
    assert "network.daemon" in [well["check"] for well in json.loads(done.stdout)["well"]]


def test_a_daemon_on_another_socket_is_seen_where_it_is_named(daemon: DaemonFactory, tmp_path: Path) -> None:
    running = daemon()
    words = ("doctor", "--socket", str(running.socket), "--json")
    done = acu(*words, environ=running.environ | {"ACU_NETWORK__UNIX_SOCKET": str(tmp_path / "other.sock")})
    (well,) = [well["text"] for well in json.loads(done.stdout)["well"] if well["check"] == "network.daemon"]
    assert well == f"an ACU answers at unix:{running.socket}"


def test_a_data_folder_that_a_start_would_refuse_is_found(clean_environ: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "acu.yaml"
    for path, why in (
        ("/", "data_plane.path: / is the root of all files; name a folder of its own, such as /var/lib/acu/data"),
        (
            "/proc/none",
            "data_plane.path: /proc/none lies in /proc (proc), where nothing can be kept; choose another path",
        ),
    ):
        config.write_text(f"data_plane: {{path: {path}}}\n")
        done = acu("doctor", "-c", str(config), "--json", environ=clean_environ)
        findings = {finding["check"]: finding["seen"] for finding in json.loads(done.stdout)["findings"]}
        assert (done.returncode, findings["disk.data"]) == (2, why)
    config.write_text("data_plane: {path: data}\n")  # beside the configuration, wherever the doctor is called
    saved = json.loads(acu("doctor", "-c", str(config), "--save", "-", environ=clean_environ).stdout)
    assert [place["path"] for place in saved["places"][1:]] == [f"{tmp_path}/data", f"{tmp_path}/data-cold"]


def test_a_configuration_that_is_broken_is_refused_with_its_line(clean_environ: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "acu.yaml"
    config.write_text("network:\n  max_connections: -4\n")
    done = acu("doctor", "-c", str(config), environ=clean_environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"acu: network.max_connections: -4: expected integer 1..1000000 ({config}:2)\n"


def test_an_output_that_cannot_be_written_is_said(clean_environ: dict[str, str], report: Path) -> None:
    command = [sys.executable, "-m", "acu", "doctor", "--report", str(report)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=clean_environ, cwd=ROOT
        )
    assert (done.returncode, done.stderr) == (1, "acu: the output cannot be written: No space left on device\n")
    read, write = os.pipe()
    os.close(read)  # its reader has gone
    done = subprocess.run(
        command, check=False, stdout=write, stderr=subprocess.PIPE, text=True, env=clean_environ, cwd=ROOT
    )
    os.close(write)
    assert done.stderr == ""


NEW: dict[str, set[str]] = {
    "": {"models", "own", "xids", "refused"},
    "places": {"source", "read_only", "answers"},
    "reads": {"disk"},
    "addresses": {"full", "pids"},
    "limits": {"address_space", "user_tasks", "pids"},
    "needs": {"engines"},
}
CARDS_NEW = ("pcie_slot", "clocks_held", "ecc_errors", "remapping")


def test_a_report_of_an_older_doctor_is_judged_by_what_it_has() -> None:
    document = json.loads(written(with_card(processes=((7, 20_000),))))
    for part, names in NEW.items():
        holder = document[part] if part else document
        for one in holder if isinstance(holder, list) else [holder]:
            for name in names:
                del one[name]
    for name in CARDS_NEW:
        del document["machine"]["gpus"][0][name]
    judgement = judged(parsed(json.dumps(document).encode(), "it"))
    assert judgement.findings == ()
    assert {"models.files", "health.memory", "health.clocks", "health.xid"} <= set(judgement.skipped)


def test_a_report_of_a_later_doctor_with_more_in_it_is_read() -> None:
    document = json.loads(written(WELL))
    document["later"] = document["places"][0]["later"] = 1
    assert judged(parsed(json.dumps(document).encode(), "it")).findings == ()


def test_the_table_has_the_worst_first_and_a_sum_at_the_end(report: Path, clean_environ: dict[str, str]) -> None:
    done = acu("doctor", "--report", str(report), environ=clean_environ)
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Dell Inc. PowerEdge R750xa, Intel(R) Xeon(R) Gold 6326, 4 CPUs, 2 NUMA nodes")
    heads = [line.split() for line in lines if line.startswith(("error", "warning", "note"))]
    assert heads == [["error", "gpu.pcie-width"], ["warning", "machine.clock"], ["note", "kernel.huge-pages"]]
    assert "GPU 0 (NVIDIA A10G) is linked by 8 PCIe lanes, of 16 that card and slot" in done.stdout
    assert lines[-1].startswith("1 error, 1 warning, 1 note, ")
    assert "\nwell" not in done.stdout
    assert all(line == line.rstrip() for line in lines)


def test_verbose_also_tells_what_is_well_and_what_was_not_looked_at(
    report: Path, clean_environ: dict[str, str]
) -> None:
    done = acu("doctor", "--report", str(report), "--verbose", environ=clean_environ)
    assert "well     gpu.driver  the driver answers: 570.133.20, CUDA up to 12.8" in done.stdout
    assert "not read: a disk: no answer" in done.stdout
    assert "nothing to look at here: kernel.tasks, machine.cpu" in done.stdout


def test_warnings_are_exit_code_1_and_notes_0(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    for box, code in ((but(clock=Clock(synchronised=False)), 1), (but(kernel={"huge_pages": "always"}), 0), (WELL, 0)):
        (tmp_path / "box.json").write_text(written(box))
        assert acu("doctor", "--report", str(tmp_path / "box.json"), environ=clean_environ).returncode == code


def test_a_check_that_is_known_of_can_be_left_out(report: Path, clean_environ: dict[str, str]) -> None:
    words = ("--ignore", "gpu.pcie-width", "--ignore", "machine.clock")
    done = acu("doctor", "--report", str(report), "--json", *words, environ=clean_environ)
    assert done.returncode == 0
    assert [finding["check"] for finding in json.loads(done.stdout)["findings"]] == ["kernel.huge-pages"]
    done = acu("doctor", "--report", str(report), "--ignore", "machine.clocks", environ=clean_environ)
    assert done.returncode == 2
    assert done.stderr == "acu: --ignore: there is no check 'machine.clocks': did you mean machine.clock?\n"


def test_a_report_goes_through_a_pipe_from_one_box_to_another(clean_environ: dict[str, str], report: Path) -> None:
    done = acu("doctor", "--report", str(report), "--save", "-", environ=clean_environ)
    assert done.returncode == 0
    assert done.stdout == report.read_text()
    again = acu("doctor", "--report", "-", environ=clean_environ, stdin=done.stdout)
    assert again.returncode == 2


@pytest.mark.parametrize("name", ["a10g", "a10g-far", "two-gpus", "none"])
def test_a_report_holds_the_whole_examination(name: str) -> None:
    examination = recorded(name)
    assert parsed(written(examination).encode(), "it") == examination


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no report of acu doctor: save one with acu doctor --save FILE"),
        (b'{"at": "now"}', "no report of acu doctor"),
        (b'{"form": 2}', "a report of form 2, this acu reads 1: save it by this version"),
        (b'{"form": "\\u001b[2J"}', 'of form "\\u001b[2J", this acu'),
        (b'{"form": 1}', "damaged: Object missing required field `at`"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(content: bytes, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(content, "x.json")
    assert why in str(caught.value)
    assert str(caught.value).startswith("--report: x.json is ")
    assert "\n" not in str(caught.value)


def test_a_report_with_a_field_of_another_type_is_refused_with_its_place() -> None:
    document: dict[str, Any] = msgspec.to_builtins(WELL)
    document["nodes"][1]["memory_mb"] = "much"
    with pytest.raises(ConfigError, match=r"damaged: Expected `int`, got `str` - at `\$.nodes\[1\].memory_mb`"):
        parsed(json.dumps(document).encode(), "x.json")


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from((0, -1, 1, 2**31)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.builds(list),
    st.builds(dict),
)


def places_in(value: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in a document, but the document itself."""
    if so_far:
        yield so_far
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places_in(value[key], (*so_far, key))


PLACES = sorted(places_in(json.loads(written(WELL))), key=len)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(PLACES), LEAVES), max_size=4))
def test_whatever_a_report_says_is_judged_and_shown_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = json.loads(written(WELL))
    for (*way, last), value in changes:
        holder = document
        with contextlib.suppress(KeyError, IndexError, TypeError):  # what was there has been replaced already
            for key in way:
                holder = holder[key]
            holder[last] = value
    try:
        box = parsed(msgspec.json.encode(document), "it")
    except ConfigError:
        return
    assert drawn(box, judged(box), verbose=True).endswith(" well\n")


def test_files_that_cannot_be_read_or_written_are_usage_errors(clean_environ: dict[str, str], report: Path) -> None:
    done = acu("doctor", "--report", str(report.parent), environ=clean_environ)
    assert (done.returncode, done.stderr) == (2, f"acu: --report: {report.parent} cannot be read: Is a directory\n")
    done = acu("doctor", "--report", str(report), "--save", "/proc/none", environ=clean_environ)
    assert (done.returncode, done.stderr) == (
        2,
        "acu: --save: /proc/none cannot be written: No such file or directory\n",
    )
    done = acu("doctor", "--report", "/dev/zero", environ=clean_environ)
    assert done.returncode == 2
    assert "larger than 1 MiB" in done.stderr


def everything_says(text: str) -> Examination:
    """A box on which each word is that."""
    document = json.loads(written(but(with_card(pcie=(4, 8)), refused="x", unread=("x",), driver={"problem": "x"})))
    for *way, last in list(places_in(document)):
        holder = document
        for key in way:
            holder = holder[key]
        if isinstance(holder[last], str) and last not in {"kind", "version", "filesystem", "node"}:
            holder[last] = text
    return parsed(json.dumps(document).encode(), "it")


def test_what_another_boxs_report_says_cannot_drive_the_terminal() -> None:
    box = but(firmware={"product": "\x1b[2Jbox", "vendor": "[red]"}, unread=("\x1b]0;title\x07",))
    for part in (box, everything_says("\x1b[2J\x07\x9b31m\u202e\r\n")):
        shown = drawn(part, judged(part), verbose=True)
        assert not any(char in shown for char in "\x1b\x07\x9b\u202e\r")
    text = drawn(box, judged(box), verbose=True)
    assert "\x1b" not in text
    assert "[red] \\x1b[2Jbox" in text


def test_the_pages_are_what_the_checks_and_settings_say(clean_environ: dict[str, str]) -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert reference(CHECKS) == page, "acu doctor --reference checks > docs/doctor.md"
    for check in CHECKS:
        assert page.count(f"| `{check.id}` | {check.worst} |") == 1
    assert acu("doctor", "--reference", "checks", environ=clean_environ).stdout == page
    assert acu("doctor", "--reference", "bios", environ=clean_environ).stdout == checklist()


def test_a_sentence_begins_with_a_capital_but_not_a_name() -> None:
    assert capital("the disk") == "The disk"
    assert capital("vm.swappiness is 60") == "vm.swappiness is 60"
    assert capital("62 GiB") == "62 GiB"
