"""Who comes in: keys, scopes, the socket's owner, and no web pages."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp.http import HttpVersion10, HttpVersion11
from multidict import CIMultiDict

from acu.http.auth import Gate, Keys, Scope, load_key_ring
from acu.http.errors import HttpError, KeyFileError
from acu.http.exchange import Peer
from agentflow.messages import Caller

Headers = dict[str, str]
SECRET, OPS, ADMIN_ONLY = "sk-team-0123456789", "sk-ops-0123456789", "sk-admin-0123456789"
FILE = f"""
- {{name: team, key: {SECRET}, tenant: blue}}
- {{name: ops, key_sha256: {hashlib.sha256(OPS.encode()).hexdigest()}, scopes: [inference, admin]}}
- {{name: root, key: {ADMIN_ONLY}, scopes: [admin]}}
"""
LOCAL = Peer("tcp", loopback=True, address="127.0.0.1")
REMOTE = Peer("tcp", loopback=False, address="10.0.0.9")
OWNER = Peer("unix", loopback=True, uid=1000, address="unix")
OTHER = Peer("unix", loopback=True, uid=1001, address="unix")


class Asked:
    """The part of a request that the gate looks at."""

    def __init__(self, version: Any = HttpVersion11, **headers: str) -> None:
        self.headers = CIMultiDict({"Host": "localhost:8228", **headers})
        self.version = version


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(write(tmp_path, FILE))


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def admit(keys: Keys | None, peer: Peer, scope: Scope = "inference", headers: Headers | None = None) -> Caller:
    gate = Gate(keys, ("box.lan",), own_uid=1000)
    return gate.admit(Asked(**headers or {}), peer, scope)  # type: ignore[arg-type]


def refused(keys: Keys | None, peer: Peer, scope: Scope = "inference", headers: Headers | None = None) -> HttpError:
    with pytest.raises(HttpError) as caught:
        admit(keys, peer, scope, headers)
    return caught.value


# Without keys


def test_without_keys_programs_on_loopback_come_in_but_do_not_administrate() -> None:
    assert admit(None, LOCAL) == Caller(name="local")
    assert refused(None, LOCAL, "admin").status == 403


def test_without_keys_any_key_is_taken_as_none() -> None:
    assert admit(None, LOCAL, headers=bearer("whatever")) == Caller(name="local")


def test_the_sockets_owner_and_root_administrate() -> None:
    assert admit(None, OWNER, "admin") == Caller(name="uid:1000", admin=True)
    assert admit(None, Peer("unix", loopback=True, uid=0), "admin").admin
    assert admit(None, OTHER) == Caller(name="uid:1001")
    assert refused(None, OTHER, "admin").code == "missing_scope"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8228", "[::1]", "[::1]:8228", "box.lan:8228"])
def test_names_of_this_machine_are_served(host: str) -> None:
    assert admit(None, LOCAL, headers={"Host": host}).name == "local"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:80:80", "0.0.0.0", "[::2]"]
)
def test_other_names_are_not_served(host: str) -> None:
    assert refused(None, LOCAL, headers={"Host": host}).code == "host_not_allowed"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:9999", "file://", ""])
@pytest.mark.parametrize("peer", [LOCAL, OWNER])
def test_pages_of_other_origins_are_refused(origin: str, peer: Peer) -> None:
    assert refused(None, peer, headers={"Origin": origin}).code == "origin_not_allowed"


def test_a_page_of_the_same_origin_is_served() -> None:
    assert admit(None, LOCAL, headers={"Origin": "http://localhost:8228"}).name == "local"


def test_http_11_needs_a_host_and_http_10_does_not() -> None:
    asked = Asked()
    del asked.headers["Host"]
    gate = Gate(None, ())
    with pytest.raises(HttpError) as caught:
        gate.admit(asked, LOCAL, "inference")  # type: ignore[arg-type]
    assert (caught.value.status, caught.value.code) == (400, "invalid_header")
    asked.version = HttpVersion10
    assert gate.admit(asked, LOCAL, "inference").name == "local"  # type: ignore[arg-type]


def test_open_routes_ask_nothing() -> None:
    assert admit(None, REMOTE, "open", {"Host": "probe.example", "Origin": "https://x"}).name == "-"


# With keys


def test_a_key_brings_its_tenant(keys: Keys) -> None:
    assert admit(keys, REMOTE, headers={"Host": "acu.example", **bearer(SECRET)}) == Caller(tenant="blue", name="team")


def test_a_key_is_known_by_its_digest(keys: Keys) -> None:
    assert admit(keys, REMOTE, "admin", bearer(OPS)) == Caller(tenant="default", name="ops", admin=True)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"Authorization": SECRET}, "invalid_api_key"),
        ({"Authorization": f"Basic {SECRET}"}, "invalid_api_key"),
        ({"Authorization": "Bearer "}, "invalid_api_key"),
        (bearer(SECRET[:-1]), "invalid_api_key"),
        (bearer(SECRET + "x"), "invalid_api_key"),
        (bearer("\udcff" * 20), "invalid_api_key"),
    ],
)
@pytest.mark.parametrize("peer", [LOCAL, REMOTE, OTHER])
def test_no_key_and_wrong_keys_get_401_and_are_told_the_scheme(
    keys: Keys, peer: Peer, headers: dict[str, str], code: str
) -> None:
    error = refused(keys, peer, headers=headers)
    assert (error.status, error.code) == (401, code)
    assert error.headers == {"WWW-Authenticate": "Bearer"}
    assert SECRET not in str(error)


def test_a_missing_scope_is_named(keys: Keys) -> None:
    assert "'admin'" in str(refused(keys, REMOTE, "admin", bearer(SECRET)))
    assert "'inference'" in str(refused(keys, REMOTE, "inference", bearer(ADMIN_ONLY)))


def test_the_sockets_owner_needs_no_key(keys: Keys) -> None:
    assert admit(keys, OWNER, "admin").admin
    assert refused(keys, OTHER).status == 401


def test_metrics_are_open_to_loopback_and_to_keys(keys: Keys) -> None:
    assert admit(keys, LOCAL, "loopback").admin is False
    assert admit(keys, REMOTE, "loopback", bearer(OPS)).admin
    assert refused(keys, REMOTE, "loopback").status == 401


def test_metrics_without_a_key_are_not_for_a_page_behind_a_rebound_name(keys: Keys) -> None:
    rebound = {"Host": "evil.example:8228"}
    assert refused(keys, LOCAL, "loopback", rebound).code == "host_not_allowed"
    assert admit(keys, LOCAL, "loopback", {**rebound, **bearer(OPS)}).admin


def test_foreign_origins_are_refused_with_keys_too(keys: Keys) -> None:
    assert refused(keys, LOCAL, headers={"Origin": "https://evil.example", **bearer(SECRET)}).status == 403


# The file


def test_json_is_read_as_well(tmp_path: Path) -> None:
    ring = load_key_ring(write(tmp_path, '[{"name": "a", "key": "sk-0123456789abcdef"}]'))
    found = ring.find("sk-0123456789abcdef")
    assert found is not None
    assert (found.name, found.tenant, found.scopes) == ("a", "default", frozenset({"inference"}))


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o620, 0o660])
def test_a_file_that_others_can_read_or_write_is_refused_with_the_command_to_run(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, FILE, mode)
    with pytest.raises(KeyFileError, match=f"chmod g-w,o-rw {path}"):
        load_key_ring(path)


def test_a_group_may_read_the_file(tmp_path: Path) -> None:
    assert load_key_ring(write(tmp_path, FILE, 0o640)).keys


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "list"),
        ("[]", "no key"),
        ("name: a", "list"),
        ("- {name: a}", "either"),
        ("- {name: a, key: short}", "length"),
        ('- {name: "a\\n", key: sk-0123456789abcdef}', "regex"),
        ('- {name: a, tenant: "a\\n", key: sk-0123456789abcdef}', "regex"),
        (f'- {{name: a, key_sha256: "{"0" * 64}\\n"}}', "regex"),
        ("- {name: a b, key: sk-0123456789abcdef}", "regex"),
        ("- {name: a, key: sk-0123456789abcdef, scopes: [root]}", "enum"),
        ("- {name: a, key: sk-0123456789abcdef, scope: admin}", "unknown field"),
        ("- {name: a, key: sk-0123456789abcdef}\n- {name: b, key: sk-0123456789abcdef}", "twice"),
        ("- {name: a, key: sk-0123456789abcdef}\n- {name: a, key: sk-0123456789abcdeg}", "twice"),
        ("- {name: a, key: 'sk-0123456789abcdef", "line"),
        ("- {name: a, key: \x01}", "neither"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_shows_no_key(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(KeyFileError, match=why) as caught:
        load_key_ring(write(tmp_path, text))
    assert "sk-0123" not in str(caught.value)


BROKEN = {
    "a tag": '- !!int "zz"',
    "deep": "[" * 3000,
    "a date that is none": "- {name: x, key: 2026-99-99}",
    "half of a surrogate pair": '- {name: x, key: "\\ud800sk-0123456789abcdef"}',
    "a long number": "- {name: x, key: " + "7" * 6000 + "}",
    "a zone that is none": "- 2001-01-01 00:00:00 +99:99",
    "no code point": '- {name: x, key: "\\UFFFFFFFF"}',
    "a long version": "%YAML " + "1" * 5000 + ".1\n---\n- a",
    "an anchor": "- &a {name: x, key: sk-0123456789abcdef}\n- *a",
    "a field twice": "- {name: x, name: x, key: sk-0123456789abcdef}",
    "a key in a name's place": "- {sk-0123456789abcdef: x}",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_whatever_is_wrong_with_the_file_is_one_kind_of_error_that_does_not_quote_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        load_key_ring(write(tmp_path, text))
    assert str(tmp_path) in str(caught.value)
    assert "sk-0123" not in str(caught.value)
    assert "777" not in str(caught.value)


def test_a_fifo_a_folder_and_a_device_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/null")):
        with pytest.raises(KeyFileError, match="is not a regular file"):
            load_key_ring(path)


def test_no_file_says_where_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="api_keys_file"):
        load_key_ring(tmp_path / "none.yaml")


def test_a_reload_takes_the_new_keys_and_forgets_the_old(tmp_path: Path, keys: Keys) -> None:
    write(tmp_path, "- {name: new, key: sk-new-0123456789}")
    keys.reload()
    assert refused(keys, LOCAL, headers=bearer(SECRET)).status == 401
    assert admit(keys, LOCAL, headers=bearer("sk-new-0123456789")).name == "new"


def test_a_reload_of_a_broken_file_keeps_the_old_keys_and_says_so(
    tmp_path: Path, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, f"- {{name: new, key: {SECRET}")
    with caplog.at_level(logging.DEBUG), pytest.raises(KeyFileError) as refusal:
        keys.reload()
    assert admit(keys, LOCAL, headers=bearer(SECRET)).name == "team"
    assert str(tmp_path) in str(refusal.value)
    assert SECRET not in str(refusal.value)
    assert caplog.records == []
