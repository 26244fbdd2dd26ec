"""The page of the metrics, and the rules that are made of them: all of them are there, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from acu.config import AcuConfig
from acu.config.fields import fields_of
from acu.telemetry.meanings import ROOMS
from acu.telemetry.reference import Known, known_metrics, reference

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "examples" / "monitoring"
OURS = re.compile(r"\b(?:acu|gen_ai|process|vllm)[_:][a-zA-Z0-9_:]+")
OF_PROMETHEUS = {"job", "instance", "le"}


@pytest.fixture(scope="module")
def known() -> dict[str, Known]:
    """By the names that Prometheus asks for; of a histogram its series."""
    found: dict[str, Known] = {}
    for metric in known_metrics():
        ends = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
        found |= {f"{metric.name}{end}": metric for end in ends}
    return found


def test_the_page_is_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == reference(), "run: acu status --reference > docs/metrics.md"


def test_every_metric_has_a_meaning_and_nothing_else_has() -> None:
    explained = [name for meanings in ROOMS.values() for name in meanings]
    assert sorted(explained) == sorted(metric.name for metric in known_metrics())


def test_names_types_labels_and_units_are_the_registrys(known: dict[str, Known]) -> None:
    requests = known["acu_http_requests_total"]
    assert (requests.type, requests.labels, requests.unit) == ("counter", ("route", "status"), "")
    first = known["vllm:time_to_first_token_seconds_bucket"]
    assert (first.type, first.labels, first.unit, first.basic) == ("histogram", ("model_name",), "seconds", False)
    assert known["acu_gpu_memory_full_in_seconds"].type == "gauge"
    assert known["acu_data_archive_time_seconds"].unit == "Unix time"
    assert known["acu_ready"].basic


def test_what_the_meanings_name_exists(known: dict[str, Known]) -> None:
    fields = {field.path for field in fields_of(AcuConfig)}
    sections = {path.partition(".")[0] for path in fields}
    names = {metric.name for metric in known.values()}
    for meaning in (text for meanings in ROOMS.values() for text in meanings.values()):
        assert set(OURS.findall(meaning)) <= names, meaning
        for quoted in re.findall(r"`([a-z_]+\.[A-Za-z_.]+)`", meaning):
            assert quoted in fields or quoted.partition(".")[0] not in sections, quoted


def test_the_rules_ask_for_metrics_and_labels_that_exist(known: dict[str, Known]) -> None:
    rules = [
        rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]
    ]
    for rule in rules:
        asked = OURS.findall(rule["expr"])
        assert asked or "up{" in rule["expr"], rule
        assert set(asked) <= set(known), rule["alert"]
        labels = OF_PROMETHEUS.union(*(known[name].labels for name in asked))
        matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", rule["expr"])
        grouped = [label.strip() for by in re.findall(r"by \((.*?)\)", rule["expr"]) for label in by.split(",")]
        told = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert {*matched, *grouped, *told} <= labels, rule["alert"]
    assert len({rule["alert"] for rule in rules}) == len(rules)


def test_the_scrape_configuration_has_the_rules_beside_it() -> None:
    scraping = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert scraping["rule_files"] == ["rules.yml"]
    assert {job["job_name"] for job in scraping["scrape_configs"]} == {"acu", "acu-local"}
