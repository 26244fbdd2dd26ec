"""acu.reloading: what a reload takes over, what it keeps, and how it says so."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from acu.config import LoadedConfig, load
from acu.errors import ConfigError
from acu.http.auth import Keys
from acu.reloading import LONGEST_LINE, Outcome, changed_fields, reload
from tests.acu.certificates import make_certificate
from tests.acu.config.files import write

FIRST, SECOND = "sk-first-0000000000", "sk-second-000000000"


def key_file(path: Path, key: str) -> Path:
    """A file with one API key."""
    path.write_text(f"- {{name: one, key: {key}}}\n")
    path.chmod(0o600)
    return path


def reader(tmp_path: Path, text: str) -> Callable[[], LoadedConfig]:
    """What reads a configuration file."""
    file = write(tmp_path / "acu.yaml", text)
    return lambda: load({"HOME": str(tmp_path)}, file=file)


def test_keys_are_renewed_and_the_configuration_is_only_compared(tmp_path: Path) -> None:
    keys = Keys(key_file(tmp_path / "keys", FIRST))
    running = reader(tmp_path, "scheduler: {queue_limit: 5}")()
    key_file(tmp_path / "keys", SECOND)
    outcome = reload(keys, running, reader(tmp_path, "scheduler: {queue_limit: 6}\ndaemon: {log_level: debug}"))
    assert outcome == Outcome(("the API keys",), {}, ("scheduler.queue_limit", "daemon.log_level"))
    assert outcome.event == "reloaded"
    assert outcome.line == "reloaded; a restart is needed for scheduler.queue_limit, daemon.log_level"
    assert keys.ring.find(FIRST) is None
    assert keys.ring.find(SECOND) is not None


def test_keys_that_cannot_be_read_stay_and_a_readable_configuration_renews_nothing(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", FIRST)
    keys = Keys(path)
    config = reader(tmp_path, "daemon: {}")
    path.unlink()
    os.mkfifo(path, 0o600)
    outcome = reload(keys, config(), config)
    assert outcome.event == "nothing was reloaded"
    assert list(outcome.kept) == ["the old API keys"]
    assert "is not a regular file" in outcome.kept["the old API keys"]
    assert keys.ring.find(FIRST) is not None


def test_a_configuration_that_cannot_be_read_leaves_the_keys_renewed(tmp_path: Path) -> None:
    keys = Keys(key_file(tmp_path / "keys", FIRST))
    running = reader(tmp_path, "daemon: {}")()
    outcome = reload(keys, running, reader(tmp_path, "daemn: {}"))
    assert (outcome.event, outcome.renewed) == ("reloaded in part", ("the API keys",))
    assert "daemn: unknown key; did you mean daemon?" in outcome.kept["the running settings"]


def test_a_certificate_comes_as_it_was_judged_with_what_clients_will_say_to_it(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    files = f"network: {{tls_cert_file: {certificate}, tls_key_file: {key}}}"
    config = reader(tmp_path, files)
    outcome = reload(None, config(), config)
    assert (outcome.event, outcome.renewed, outcome.doubt) == ("reloaded", ("the TLS certificate",), None)
    assert outcome.certificate is not None
    assert outcome.certificate.key == key.read_bytes()

    make_certificate(tmp_path, until_hours=-1)
    outcome = reload(None, config(), config)
    assert outcome.renewed == ("the TLS certificate",)
    assert f"{certificate} expired on " in str(outcome.doubt)

    make_certificate(tmp_path, password=b"secret")
    outcome = reload(None, config(), config)
    assert (outcome.event, outcome.certificate) == ("nothing was reloaded", None)
    assert "has a passphrase" in outcome.kept["the old TLS certificate and key"]


def test_without_keys_nothing_but_the_configuration_is_looked_at(tmp_path: Path) -> None:
    config = reader(tmp_path, "daemon: {}")
    assert reload(None, config(), config) == Outcome()


def test_whatever_happens_a_reload_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Keys):
        def reload(self) -> None:
            raise MemoryError(FIRST)

    def broken() -> LoadedConfig:
        raise RecursionError

    config = reader(tmp_path, "daemon: {}")
    outcome = reload(Broken(key_file(tmp_path / "keys", FIRST)), config(), broken)
    assert outcome.kept == {
        "the old API keys": "the file could not be read: MemoryError",
        "the running settings": "the configuration could not be read: RecursionError",
    }
    assert FIRST not in caplog.text


def test_the_line_is_one_short_line_that_every_terminal_bears() -> None:
    problems = ["acu.yaml: \ud800\x1b[2J: unknown key", *(f"k{number}: unknown key" for number in range(100))]
    line = Outcome(kept={"the running settings": str(ConfigError(problems))}).line
    assert line.startswith(
        r"nothing was reloaded; the running settings stay: acu.yaml: \ud800\x1b[2J: unknown key k0: "
    )
    assert len(line) == LONGEST_LINE
    assert line.endswith("...")
    line.encode()


def test_the_log_gets_what_there_is_to_tell_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Outcome(("the API keys",)).tell()
    Outcome((), {"the old API keys": "x"}, ("a.b",)).tell()
    good, bad = caplog.records
    assert (good.levelno, good.getMessage(), vars(good)["renewed"]) == (logging.INFO, "reloaded", ("the API keys",))
    assert not {"kept", "needs_restart"} & set(vars(good))
    assert (bad.levelno, vars(bad)["kept"]) == (logging.ERROR, {"the old API keys": "x"})
    assert vars(bad)["needs_restart"] == ("a.b",)


def test_a_model_that_came_or_went_is_a_changed_field(tmp_path: Path) -> None:
    before = reader(tmp_path, "models: {a: {model: m}, b: {model: n}}")()
    after = reader(tmp_path, "models: {a: {model: m, max_running: 2}, c: {model: n}}")()
    assert changed_fields(before, after) == ["models.a", "models.b", "models.c"]
    assert changed_fields(before, before) == []
