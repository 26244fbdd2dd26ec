"""The data plane's section of the configuration. Frozen; whoever composes the process reads files and the environment."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dataplane.cold_config import ColdConfig


class DataPlaneConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where data lies, and how much memory it may take."""

    path: Annotated[
        str,
        Meta(
            description="Folder of the data plane, best on NVMe; made with mode 0700. One that is there keeps its mode, and has "
            "to be empty or a data plane. One daemon at a time has it. auto: the service's StateDirectory, else "
            "$XDG_STATE_HOME/acu/data, else ~/.local/state/acu/data."
        ),
    ] = "auto"
    hot_layer_mem_mb: Annotated[
        Annotated[int, Meta(ge=64, le=4_194_304)] | None,
        Meta(
            description="Memory in MiB for vectors, graphs, tables and caches. What does not fit is searched on the disk. "
            "Default: a sixteenth of the machine's memory, and 12288 at most.",
        ),
    ] = None
    ring_rows: Annotated[
        int,
        Meta(description="Rows that may wait for the writer; whoever writes more waits.", ge=128, le=1_048_576),
    ] = 4096
    search_threads: Annotated[int, Meta(description="Searches that are computed at a time.", ge=1, le=64)] = 2
    slow_search_ms: Annotated[
        float, Meta(description="A search that takes longer is logged, with the tiers it went through.", gt=0)
    ] = 250.0
    history_after_s: Annotated[
        float,
        Meta(
            description="Seconds after which events of logs leave the database for the history: compressed files beside it, from "
            "which they are read as before.",
            ge=1,
            le=31_536_000,
        ),
    ] = 3600.0
    history_keep_days: Annotated[
        Annotated[float, Meta(ge=1, le=36_525)] | None,
        Meta(description="Days after which events in the history are removed, within the hour. null: never."),
    ] = None
    archive_every_s: Annotated[
        Annotated[float, Meta(ge=1, le=604_800)] | None,
        Meta(
            description="Seconds from the end of one archiving to the next; one without changes costs nothing. null: nothing "
            "is archived but by `acu data archive`.",
        ),
    ] = 300.0
    cold: Annotated[
        ColdConfig,
        Meta(
            description="The archive of everything that the data plane holds: a bucket, or by default a folder, which takes as "
            "much disk as the rows do."
        ),
    ] = ColdConfig()
