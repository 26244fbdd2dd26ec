"""HTML as a reader sees it."""

from __future__ import annotations

import pytest

from agentflow.library.errors import FileTooLarge
from agentflow.library.formats.markup import MAX_DEPTH, read_html
from agentflow.library.transcript import Transcript


def read(text: str) -> str:
    out = Transcript(1_000_000)
    read_html(text, out)
    return out.text()


def test_blocks_are_paragraphs_and_words_in_a_line_stay_together() -> None:
    page = "<title>T</title><h1>Head</h1><p>One <b>two</b>,\n  <i>th</i>ree<br>four</p>five"
    assert read(page) == "T\n\nHead\n\nOne two, three\nfour\n\nfive"


def test_lists_are_lines_and_cells_are_apart() -> None:
    assert read("<ul><li>a<li>b</ul><table><tr><th>x<th>y<tr><td>1</table>") == "a\nb\n\nx\ty\n1"


def test_preformatted_text_keeps_its_white_space() -> None:
    assert read("<p>a</p><pre>x\n  y</pre>b  c") == "a\n\nx\n  y\n\nb c"
    assert read("<pre></pre>a  b<pre> <b>c </b></pre>d  e") == "a b\n\n c \n\nd e"


def test_what_is_not_seen_is_left_out() -> None:
    page = (
        "<!doctype html><script>var a = '<p>no</p>'</script><style>p{}</style><!-- no --><template><p>no</template>"
        "<p hidden>no</p><p style='DISPLAY : none'>no</p><noscript>no</noscript><p>yes</p>"
    )
    assert read(page) == "yes"


def test_entities_and_other_scripts_are_decoded() -> None:
    assert read("<p>a &amp; b&nbsp;&#x4e2d;") == "a & b\xa0中"


@pytest.mark.parametrize("page", ["", "   ", "<", "</p>", "<p", "<!--", "<div", "&", "<script>", "a\0b"])
def test_broken_pages_are_read_as_far_as_they_go(page: str) -> None:
    assert read(page) in ("", "<", "&", "a\ufffdb", "ab")


def test_a_million_paragraphs_that_nobody_closed_are_read() -> None:
    assert read("<p>" * 100_000 + "end") == "end"


def test_a_million_nested_elements_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(FileTooLarge, match="nested more than 5,000 elements"):
        read("<div>" * 1_000_000)


def test_a_nesting_that_is_allowed_is_read() -> None:
    assert read("<div>" * MAX_DEPTH + "end") == "end"
