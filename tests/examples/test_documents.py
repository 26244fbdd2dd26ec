"""The documents' assistant: its search, its sections, and one question in a daemon."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

from pathlib import Path

import pytest

from acu.config import load
from tests.acu.running import DaemonFactory, acu
from tests.examples.loading import EXAMPLES, served, tools_of

TOOLS = tools_of("documents")


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("How do I stop the daemon?", "starting: Stopping"),
        ("Which languages does the small model speak?", "models: Languages"),
        ("where are models stored", "starting: Where models and data are stored"),
        ("certificates", "security: Beyond this machine"),
        ("怎么停止服务", "中文: 停止服务"),
        ("文档里关于密钥是怎么写的", "中文: 密钥"),
        ("怎样让它重新读取密钥文件", "中文: 密钥"),
        ("小模型会说中文吗", "中文: 语言"),
        ("Who is responsible for TLS certificates?", "security: Beyond this machine"),
        ("where does the daemon keep its log", "starting: Where models and data are stored"),
    ],
)
def test_a_search_finds_the_section_that_answers(query: str, place: str) -> None:
    assert TOOLS["search_documents"](query).startswith(f"{place}. ")


@pytest.mark.parametrize(
    "query",
    ["xyzzy", "", "the", '"; DROP xyzzy --', "NEAR(", "\x00", "*", "Who owns the billing service?"],
)
def test_what_no_document_has_is_said_whatever_is_asked(query: str) -> None:
    assert TOOLS["search_documents"](query).startswith("The documents say nothing about ")


def test_what_no_document_has_is_said_in_chinese_to_whom_asks_so() -> None:
    assert TOOLS["search_documents"]("没有显卡能运行吗") == "文档里没有关于“没有显卡能运行吗”的内容。"


@pytest.mark.parametrize(
    ("question", "section"),
    [
        ("怎么停止服务？", "中文: 停止服务. "),
        ("密钥有哪些权限？", "中文: 密钥. "),
        ("TLS 怎么打开？", "security: Beyond this machine. "),
    ],
)
def test_the_chinese_questions_of_the_readme_find_their_sections(question: str, section: str) -> None:
    assert question in (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert TOOLS["search_documents"](question).startswith(section)


def test_a_section_is_read_whole_by_its_name_or_by_words_of_it() -> None:
    text = TOOLS["read_section"]("models: languages")
    assert text.startswith("models: Languages\n\nThe small model SmolLM2 speaks English only.")
    assert TOOLS["read_section"]("languages of the small model") == text
    assert TOOLS["read_section"]("Read the section about the languages of the models") == text
    assert TOOLS["read_section"]("xyzzy") == "There is no section 'xyzzy'. Search for it."


@pytest.mark.parametrize(
    ("said", "places"),
    [
        ("Read the section about API keys", ["security: API keys"]),
        ("Read the section on long results", ["agents: Long results"]),
        ("show me all of 'Where models and data are stored'", ["starting: Where models and data are stored"]),
        ("Read the section about deleting in security", ["security: Deleting a tenant's data"]),
        (
            "Read the section about security",
            [
                "security: Without keys",
                "security: API keys",
                "security: Beyond this machine",
                "security: Deleting a tenant's data",
            ],
        ),
        ("读一下密钥", ["中文: 密钥"]),
    ],
)
def test_the_section_that_the_user_names_is_read_or_the_document(said: str, places: list[str]) -> None:
    lines = TOOLS["read_section"](said).splitlines()
    assert [line for line in lines if line in lines[:1] or line in places] == places


def test_its_configuration_is_valid(clean_environ: dict[str, str]) -> None:
    loaded = load(clean_environ, file=EXAMPLES / "documents" / "acu.yaml", gpu_present=False)
    assert set(loaded.config.agents["documents"].tools) == set(TOOLS)


def test_a_question_is_looked_up_in_a_daemon(daemon: DaemonFactory, tmp_path: Path) -> None:
    script = {
        "rules": [
            {"match": "^How do I stop the daemon", "answer": '{"query": "How do I stop the daemon?"}'},
        ]
    }
    running = daemon(served("documents", tmp_path / "data"), script=script)
    words = ("--socket", str(running.socket), "--agent", "documents", "--once", "How do I stop the daemon?")
    done = acu("chat", *words, environ=running.environ)
    assert done.returncode == 0
    assert done.stdout.startswith("starting: Stopping. ")
    assert done.stderr == '-> search_documents {"query": "How do I stop the daemon?"}\n'
