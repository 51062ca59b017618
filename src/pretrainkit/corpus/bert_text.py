"""Write BERT text for GluonNLP and the original BERT: one sentence per line, a blank line between documents."""

from collections.abc import Callable, Iterable
from pathlib import Path

from pretrainkit.corpus.readers import Document
from pretrainkit.files.manifest import atomic_file


def write_bert_text(
    documents: Iterable[Document], sentences: Callable[[str], list[str]], out: str | Path
) -> tuple[int, int]:
    """Write the file `out`, and return the numbers of documents and sentences written. The file is complete or absent.

    Reading it gives the same sentences of the same documents, except documents without a sentence, which are dropped.
    `sentences` splits texts whose lines are not already sentences. White space in a sentence becomes one space.
    """
    num_documents = num_sentences = 0
    with atomic_file(out) as file:
        for document in documents:
            parts = document.text.split("\n") if document.has_sentence_lines else sentences(document.text)
            lines = [line for sentence in parts if (line := " ".join(sentence.split()))]
            if not lines:
                continue
            if num_documents:
                file.write(b"\n")
            file.write("\n".join(lines).encode() + b"\n")
            num_documents += 1
            num_sentences += len(lines)
    return num_documents, num_sentences
