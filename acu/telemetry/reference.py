"""The page of every metric, docs/metrics.md, read off a registry that was given one of everything there is to tell.

What the registry knows of a metric (its name, type, labels and help) is not written a second time; meanings.py adds what
to make of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from msgspec import Struct, inspect
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from acu.hardware.cardkeeper import CardStatus
from acu.telemetry.meanings import ROOMS
from acu.telemetry.metrics import Telemetry
from agentflow.status import ServiceStatus

HEAD = """\
# Metrics

`GET /metrics` has them in Prometheus' text format, under vLLM's and OpenTelemetry's names where those have one. A scrape costs
requests nothing. This page is the output of `acu status --reference`, which reads it off the daemon's own registry.

Who may see what: the basic family (marked *) is for everybody on the machine, and with any key from elsewhere. The rest tells
about other tenants, and is for administrators: the unix socket's owner, or a key with the scope `admin`.

## Scraping

`examples/monitoring/prometheus.yml` is a configuration to start from, and `examples/monitoring/rules.yml` has the alerts that are
worth being woken for.

- **Over TCP with a key**: `network.api_keys_file` needs a key with the scope `admin`, and Prometheus a file with the key alone,
  mode 0640 and its own group (`authorization: {credentials_file: ...}`). From another machine that goes with TLS only
  (`scheme: https`, and `tls_config: {ca_file: ...}` for a certificate of your own).
- **Over TCP without keys**: on the same machine, and what comes is the basic family.
- **Over the unix socket**: Prometheus does not scrape one. Either give it a port with a key as above, or put what the socket
  tells into a file that node_exporter's textfile collector hands on, every 30 s by a timer, as the socket's owner:
  `curl -sf --unix-socket /run/acu/0.sock http://localhost/metrics >acu.prom.new && mv acu.prom.new acu.prom`
  (`acu config get network.unix_socket` tells the path). A file that grows old is `time() - node_textfile_mtime_seconds`.

Counters begin at 0 when the daemon does, so ask for `rate(...)` and `increase(...)`. Of a histogram there are `_bucket`, `_sum`
and `_count`. What a box does not have (a GPU, traces, data) has no series.
"""

UNITS = {
    "_bytes_per_hour": "bytes/hour",
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_perc": "share, 0 to 1",
    "_ratio": "share, 0 to 1",
    "_rows": "rows",
}
ODD_UNITS = {
    "gen_ai_client_token_usage": "tokens",
    "acu_data_archive_time_seconds": "Unix time",
    "acu_tls_certificate_end_seconds": "Unix time",
}

T = TypeVar("T")


class Known(Struct, frozen=True):
    """A metric as the registry has it. `name` is what Prometheus asks for; `basic`: strangers see it too."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    basic: bool

    @property
    def unit(self) -> str:
        """What one of it is; empty where it counts things or says yes and no."""
        stem = self.name.removesuffix("_total")
        return ODD_UNITS.get(stem) or next((unit for end, unit in UNITS.items() if stem.endswith(end)), "")


def reference() -> str:
    """docs/metrics.md."""
    known = {metric.name: metric for metric in known_metrics()}
    sections = [HEAD]
    for room, meanings in ROOMS.items():
        rows = [_row(known[name], meaning) for name, meaning in meanings.items()]
        head = "| metric | type | labels | unit | what it is | what to make of it |\n|---|---|---|---|---|---|"
        sections.append("\n".join([f"## {room}\n", head, *rows, ""]))
    return "\n".join(sections)


def _row(metric: Known, meaning: str) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    name = f"`{metric.name}`{' *' if metric.basic else ''}"
    return f"| {name} | {metric.type} | {labels} | {metric.unit} | {metric.help} | {meaning} |"


def known_metrics() -> list[Known]:
    """Everything that a daemon with a GPU, an archive and a collector of traces has."""
    from dataplane.planestatus import PlaneStatus  # with the whole data plane

    tracing: Any = SimpleNamespace(figures=SimpleNamespace(sent=1, lost=1, waiting=1))
    telemetry = Telemetry("", dropped_logs=lambda: 1, dropped_audits=lambda: 1, tracing=tracing)
    status, card, plane = one(ServiceStatus), one(CardStatus), one(PlaneStatus)
    telemetry.watch(lambda: status, lambda: (1, 1, 1), lambda: {"daemon": 1.0}, lambda: card, lambda: 1.0)
    telemetry.watch_data(lambda: plane)
    basic = {metric.name for metric in telemetry.basic.collect()}
    return [_known(metric, labels, metric.name in basic) for metric, labels in _families(telemetry)]


def _families(telemetry: Telemetry) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Each family with its labels, which prometheus_client keeps to itself."""
    for collector in list(telemetry.full._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            yield next(iter(collector.describe())), tuple(collector._labelnames)
        else:
            for family in collector.collect():
                yield family, tuple(family._labelnames)  # type: ignore[attr-defined]


def _known(metric: Metric, labels: tuple[str, ...], basic: bool) -> Known:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return Known(name, metric.type, labels, metric.documentation, basic)


def one(kind: type[T]) -> T:
    """A value of a Struct with something in every field, so that nothing is left out for being absent."""
    return cast("T", _example(inspect.type_info(kind)))


def _example(kind: inspect.Type) -> Any:  # noqa: PLR0911
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: _example(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return _example(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.VarTupleType(item_type=item):
            return (_example(item),)
        case inspect.DictType(key_type=key, value_type=value):
            return {_example(key): _example(value)}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 1.0
        case inspect.StrType():
            return "x"
    return None
