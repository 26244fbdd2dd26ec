"""Ten sentences about ten things, questions that each belong to one of them, and their token ids."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "Quarterly revenue rose by four percent.",
    "Boil the pasta for nine minutes in salted water.",
    "The spacecraft entered orbit around Mars.",
    "He tuned his guitar before the concert.",
    "The vaccine protects against measles.",
    "Glaciers are melting faster than expected.",
    "The striker scored twice in the final.",
    "Our train to Vienna leaves at noon.",
    "The court rejected the appeal.",
)
QUESTIONS = {
    "How long should noodles cook?": 2,
    "Which planet did the probe reach?": 3,
    "Who won the football match?": 7,
}


def token_ids(model: Path, texts: list[str]) -> list[list[int]]:
    """The texts as the model in folder `model` reads them, neither padded nor cut."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [tokenizer.encode(text).ids for text in texts]
