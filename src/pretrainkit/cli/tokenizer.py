"""`pretrainkit tokenizer`: train tokenizers, encode a corpus to token shards, inspect both."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Execution, Json, MaxBad, TextKey, print_json
from pretrainkit.cli.settings_options import changed, with_settings
from pretrainkit.cli.stages import amount, shown_stages
from pretrainkit.errors import InputError
from pretrainkit.tokenizers.punkt import PunktRules
from pretrainkit.tokenizers.sentences import SplitterName
from pretrainkit.tokenizers.train import TokenizerSettings

app = typer.Typer(add_completion=False, no_args_is_help=True)

PunktRulesOption = Annotated[
    PunktRules,
    Option(
        help="Rules of the splitter punkt. nltk: those of NLTK. default: also take '. . .' as an ellipsis and Unicode "
        "spaces as spaces. sabertooth: put closing quotes at the start of the next sentence."
    ),
]
Language = Annotated[
    str,
    Option(
        metavar="auto|none|CODE",
        help="Language whose common abbreviations punkt knows: en, de, es, fr, it, pt or ru. auto: the language of "
        "the text.",
    ),
]


@app.command()
@with_settings
def train(
    words: Annotated[
        list[str], Argument(metavar="WORDS.tsv...", help="Word counts that `pretrainkit corpus count-words` wrote.")
    ],
    *,
    out: Annotated[Path, Option(help="New folder to write.")],
    vocab_size: Annotated[
        int | None, Option(help="Number of pieces. Default: 32128, or as many as the text yields.")
    ] = None,
    settings: Annotated[
        type[TokenizerSettings],
        *("kind", "layout", "lowercase", "classes"),
        *(changed("num_sentinels", "--sentinels"), changed("num_bins", "--bins"), "max_length"),
    ],
    classes: Annotated[
        str | None,
        Option(
            metavar="FILE|coco",
            help="For --kind multimodal: file of names that become a token each, one per line. coco: the 80 of COCO.",
        ),
    ] = None,
    sentences_from: Annotated[
        list[str] | None,
        Option(metavar="INPUT", help="Also learn sentence boundaries (Punkt) from these files. May be repeated."),
    ] = None,
    abbreviations: Annotated[
        Path | None,
        Option(help="With --sentences-from: file of abbreviations that end with a period, one per line."),
    ] = None,
    language: Language = "auto",
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    json_output: Json = False,
) -> None:
    """Train a tokenizer from word counts. Equal counts and options give equal files.

    If the tokenizer exists, the same command leaves it unchanged.
    """
    from pretrainkit.tokenizers.punkt import read_abbreviations
    from pretrainkit.tokenizers.subwords import read_classes
    from pretrainkit.tokenizers.train import manifest_of_existing, train_tokenizer
    from pretrainkit.tokenizers.unigram import DEFAULT_VOCAB_SIZE

    wanted = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    chosen = settings(vocab_size=wanted, classes=read_classes(classes))
    manifest_of_existing(out, chosen)  # fail before the work if OUT is another tokenizer
    for option, given in (("abbreviations", abbreviations), ("language", "" if language == "auto" else language)):
        if given and not sentences_from:
            raise InputError(
                f"--{option} {given} has an effect only with --sentences-from\n"
                f"  add that option, or leave out --{option}"
            )
    more = read_abbreviations(abbreviations) if abbreviations else []
    punkt = None
    with shown_stages() as progress:
        if sentences_from:
            from pretrainkit.files.sources import find_sources
            from pretrainkit.tokenizers.sentences import about_language, learn_punkt

            progress.note("learning sentence boundaries")
            punkt = learn_punkt(find_sources(sentences_from), text_key=text_key, max_bad=max_bad, language=language)
            progress.note(about_language(punkt))
            punkt = punkt.with_abbreviations(more)
        progress.note(f"learning a {chosen.kind} vocabulary of {wanted:,} pieces")
        manifest = train_tokenizer(words, out, chosen, punkt=punkt, as_many_as_possible=vocab_size is None)
        if (size := manifest["vocab_size"]) < wanted:
            progress.note(f"this text yields only {size:,} pieces, so the vocabulary has {size:,}")
    if json_output:
        print_json(manifest)
        return
    typer.echo(
        f"{out}: {manifest['kind']}, {manifest['vocab_size']:,} pieces from "
        f"{manifest['settings']['num_words']:,} words, fingerprint {manifest['fingerprint'][:12]}"
    )


@app.command()
@with_settings
def encode(
    inputs: Annotated[
        list[str],
        Argument(
            metavar="CORPUS...", help="A folder that `pretrainkit corpus shards` wrote; or files, globs or addresses."
        ),
    ],
    *,
    tokenizer: Annotated[Path, Option(help="Tokenizer folder.")],
    out: Annotated[Path, Option(help="Output folder.")],
    splitter: Annotated[
        SplitterName,
        Option(
            help="How documents are split into sentences. punkt: at learned boundaries. newline: one per line. regex: "
            "by --pattern. none: not at all."
        ),
    ] = "punkt",
    punkt_rules: PunktRulesOption = "default",
    pattern: Annotated[
        str | None, Option(help="For --splitter regex: regular expression that matches the text between two sentences.")
    ] = None,
    language: Language = "auto",
    control_pieces: Annotated[
        Literal["text", "ids"],
        Option(
            help="How <mask> and other control pieces in a document are encoded. text: as text. ids: as their ids, as "
            "by AutoTokenizer."
        ),
    ] = "text",
    execution: Annotated[Execution, "workers", "engine", "slurm", "ray"],
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    json_output: Json = False,
) -> None:
    """Encode documents to token shards (OUT/train and OUT/valid where CORPUS has both).

    After an interruption, the same command continues. The shards do not depend on --workers or --engine.
    """
    from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside
    from pretrainkit.tokenizers.encode import EncodeSettings, encode_corpus

    settings = EncodeSettings(
        splitter=splitter,
        punkt_rules=punkt_rules,
        pattern=pattern,
        language=language,
        control_pieces=control_pieces,
        text_key=text_key,
        max_bad=max_bad,
    )
    with shown_stages() as progress:
        manifests = encode_corpus(
            *(inputs, tokenizer_beside(tokenizer) or tokenizer, out, settings),
            workers=execution.workers,
            engine=execution.open_engine(),
            progress=progress,
        )
    if json_output:
        print_json(manifests)
        return
    for split, manifest in manifests.items():
        # Without a splitter, only the lines of BERT text are sentences; other documents are whole.
        is_whole = splitter == "none" and manifest["num_sentences"] == manifest["num_documents"]
        counted = [word for word in ("document", "sentence", "token") if not (is_whole and word == "sentence")]
        typer.echo(
            f"{out / split}: {', '.join(amount(manifest[f'num_{word}s'], word) for word in counted)} "
            f"in {amount(len(manifest['shards']), 'shard')}, "
            f"fingerprint {manifest['fingerprint'][:12]}"
        )
        for reason, entry in manifest["skipped"].items():
            typer.echo(f"skipped: {entry['count']:,} {reason.replace('_', ' ')}", err=True)


@app.command()
def inspect(
    folder: Annotated[Path, Argument(help="A tokenizer folder or a folder of token shards.")],
    *,
    verify: Annotated[bool, Option("--verify", help="Also check the sha256 of every file.")] = False,
    document: Annotated[int | None, Option(help="Also print the document with this number, from 0.")] = None,
    json_output: Json = False,
) -> None:
    """Show the properties of a tokenizer or of token shards, and check that they are complete."""
    from pretrainkit.tokenizers.folder import MODEL, TOKENIZER_JSON
    from pretrainkit.tokenizers.load import load_tokenizer
    from pretrainkit.tokenizers.shards import TokenShards

    if any((folder / name).is_file() for name in (MODEL, TOKENIZER_JSON)):
        loaded = load_tokenizer(folder)
        facts: dict[str, Any] = {"kind": loaded.kind, "vocab_size": loaded.vocab_size, **loaded.special.as_dict()}
        facts |= {"learned": len(loaded.learned_ids()), "fingerprint": loaded.fingerprint}
        _echo_facts(folder, facts, json_output)
        return
    shards = TokenShards.open(folder, verify=verify)
    own = load_tokenizer(shards.tokenizer_folder)
    if own.fingerprint != shards.manifest["tokenizer"]["fingerprint"]:
        raise InputError(
            f"{shards.tokenizer_folder} is not the tokenizer that encoded {folder}\n"
            "  restore the folder from a copy, or encode again"
        )
    names = ("num_documents", "num_sentences", "num_tokens", "num_shards", "vocab_size", "fingerprint")
    facts = {name: getattr(shards, name) for name in names}
    if not json_output and shards.num_sentences == shards.num_documents:  # documents that are not split
        del facts["num_sentences"]
    _echo_facts(folder, facts, json_output)
    if document is not None:
        if not 0 <= document < shards.num_documents:
            raise InputError(f"there is no document {document}\n  the documents are 0 to {shards.num_documents - 1}")
        for sentence in shards.document(document):
            typer.echo(own.decode(sentence))


@app.command()
def show(
    text: Annotated[str, Argument(help="Text to encode.")],
    *,
    tokenizer: Annotated[Path, Option(help="Tokenizer folder.")],
    punkt_rules: PunktRulesOption = "default",
    json_output: Json = False,
) -> None:
    """Show the sentences of a text and their pieces."""
    from pretrainkit.exporting.foreign_tokenizer import tokenizer_beside
    from pretrainkit.tokenizers.folder import PUNKT_JSON
    from pretrainkit.tokenizers.load import load_tokenizer
    from pretrainkit.tokenizers.sentences import load_splitter

    loaded = load_tokenizer(tokenizer_beside(tokenizer) or tokenizer)
    stored = tokenizer / PUNKT_JSON
    name, parameters = ("punkt", stored) if stored.is_file() else ("none", None)
    sentences = load_splitter(name, parameters, rules=punkt_rules)(text)
    pieces = loaded.pieces()
    for ids in loaded.encode_batch(sentences):
        if json_output:
            print_json({"ids": ids.tolist(), "pieces": [pieces[i] for i in ids]})
        else:
            typer.echo(" ".join(f"{pieces[i]}·{i}" for i in ids))


def _echo_facts(folder: Path, facts: dict[str, Any], json_output: bool) -> None:
    if json_output:
        print_json(facts)
        return
    typer.echo(f"{folder}")
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        typer.echo(f"  {name.removeprefix('num_').replace('_', ' '):<14}{shown:>16}")
