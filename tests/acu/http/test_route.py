"""The table finds the one route of a path, and none for what only looks like one."""

from __future__ import annotations

from typing import Any

import pytest

from acu.http.route import Route, Table


def route(path: str, method: str = "GET", **more: Any) -> Route:
    async def endpoint(_: Any) -> Any: ...

    return Route(method=method, path=path, endpoint=endpoint, scope="open", name="x", summary="x", answers={}, **more)


TABLE = Table(
    (
        route("/things"),
        route("/things", "POST"),
        route("/things/{thing}"),
        route("/things/{thing}", "DELETE"),
        route("/things/{thing}/parts/{part}"),
        route("/things/{thing}/parts"),
        route("/things/all"),
        route("/models/{model}", takes_rest=True),
    )
)


@pytest.mark.parametrize(
    ("path", "found", "arguments"),
    [
        ("/things", "/things", {}),
        ("/things/1", "/things/{thing}", {"thing": "1"}),
        ("/things/all", "/things/all", {}),
        ("/things/all/parts", "/things/{thing}/parts", {"thing": "all"}),
        ("/things/parts", "/things/{thing}", {"thing": "parts"}),
        ("/things/1/parts", "/things/{thing}/parts", {"thing": "1"}),
        ("/things/1/parts/2", "/things/{thing}/parts/{part}", {"thing": "1", "part": "2"}),
        ("/things/{thing}/parts/{part}", "/things/{thing}/parts/{part}", {"thing": "{thing}", "part": "{part}"}),
        ("/models/a", "/models/{model}", {"model": "a"}),
        ("/models/org/name", "/models/{model}", {"model": "org/name"}),
        ("/models/../../etc", "/models/{model}", {"model": "../../etc"}),
        ("/models/a/", "/models/{model}", {"model": "a/"}),
    ],
)
def test_a_path_has_its_route_and_its_parameters(path: str, found: str, arguments: dict[str, str]) -> None:
    methods, values = TABLE.find(path)
    assert {route.path for route in methods.values()} == {found}
    assert values == arguments


@pytest.mark.parametrize(
    "path", ["", "*", "/", "//", "/" * 30_000, "things", "xthings/1", "/thing", "/things/", "/models", "/models/"]
)
def test_a_path_of_no_route_has_none(path: str) -> None:
    assert TABLE.find(path) == ({}, {})


def test_there_is_no_way_back_from_a_segment_that_is_named() -> None:
    table = Table((route("/things/all/{one}"), route("/things/{thing}/parts/{part}")))
    assert table.find("/things/all/parts")[1] == {"one": "parts"}
    assert table.find("/things/all/parts/1") == ({}, {})


@pytest.mark.parametrize(
    "path",
    ["/things//parts", "/things/1/", "/things/1/part", "/things/1/parts/", "/things/1/parts/2/", "/things/1/parts/2/3"],
)
def test_a_path_that_only_looks_like_one_has_none(path: str) -> None:
    assert TABLE.find(path) == ({}, {})


def test_the_methods_of_a_path_stand_together() -> None:
    assert set(TABLE.find("/things")[0]) == {"GET", "POST"}
    assert set(TABLE.find("/things/1")[0]) == {"GET", "DELETE"}
    assert set(TABLE.find("/things/1/parts/2")[0]) == {"GET"}
