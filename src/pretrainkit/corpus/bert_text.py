"""BERT text, as GluonNLP and the original BERT read it: one sentence per line, a blank line between documents."""

from collections.abc import Callable, Iterable
from pathlib import Path

from pretrainkit.corpus.readers import Document
from pretrainkit.files.manifest import atomic_file


def write_bert_text(
    documents: Iterable[Document], sentences: Callable[[str], list[str]], out: str | Path
) -> tuple[int, int]:
    """Writes `out`, whole or not at all, and returns the documents and sentences written. Reading it again gives the
    same sentences of the same documents; those without a sentence are left out. `sentences` cuts texts whose lines are
    not sentences already. White space inside a sentence becomes one space."""
    num_documents = num_sentences = 0
    with atomic_file(out) as file:
        for document in documents:
            found = document.text.splitlines() if document.has_sentence_lines else sentences(document.text)
            lines = [line for sentence in found if (line := " ".join(sentence.split()))]
            if not lines:
                continue
            if num_documents:
                file.write(b"\n")
            file.write("\n".join(lines).encode() + b"\n")
            num_documents += 1
            num_sentences += len(lines)
    return num_documents, num_sentences
