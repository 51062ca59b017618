"""Encode a corpus to token shards in parallel. The bytes are the same for any number of workers.

Every input file (or group of files, if there are very many) becomes one shard. If there are many shards, each worker
makes whole shards. If there are few, one process reads and the workers encode batches of documents. A shard appears
under its name when it is complete and leaves a record in `OUT/.work`, so that the same command resumes after a crash.
The manifest is written last.

Every sentence is encoded separately. Sentences and documents without ids are dropped and counted.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import explained_write_errors, fingerprint, made_by
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile, find_sources, find_splits
from pretrainkit.files.work import work_folder
from pretrainkit.tokenizers.folder import PUNKT_JSON, copy_tokenizer
from pretrainkit.tokenizers.load import ControlPieces, Tokenizer, load_tokenizer
from pretrainkit.tokenizers.punkt import PunktParameters
from pretrainkit.tokenizers.sentences import (
    SAMPLE_BYTES,
    Splitter,
    about_language,
    learn_punkt,
    load_splitter,
)
from pretrainkit.tokenizers.shard_encoder import (
    Encoder,
    EncodeSettings,
    ShardTask,
    encode_shard,
    encode_together,
    finished_record,
)
from pretrainkit.tokenizers.shard_writer import finish_shards
from pretrainkit.tokenizers.shards import TOKENIZER_FOLDER, TokenShards
from pretrainkit.workers.engine import LOCAL, Engine, StageRunner
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, Quiet, num_processes, run_tasks

MAX_SHARDS = 1024
_LARGE_UNKNOWN = 0.01
"""Share of unknown tokens above which a warning is shown."""
_MANY_BYTES = 0.2
"""The same for tokens of single bytes, which rare characters always have."""
_MANY_INDENTED = 0.1
"""Share of documents with indented lines above which a warning is shown if they are lost."""
_COUNTED = ("unknown", "bytes")
_Split = tuple[list[SourceFile], str | None]
"""The files of a split, and the fingerprint of their corpus folder (None if they are not in one)."""


def encode_corpus(
    inputs: Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    settings: EncodeSettings | None = None,
    *,
    workers: int | None = None,
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Encode documents to `out`, or to `out/train` and `out/valid` if the input is a corpus folder with these splits.

    Returns the manifest of each split, or a single manifest under the key "" if there are no splits.

    Args:
        inputs: A corpus folder, or files, folders, globs and addresses.
        tokenizer: Folder of a tokenizer. If it has no sentence boundaries, they are learned from the (training) text.
        out: Folder to create, or to complete after a crash.
        workers: Number of tasks that run at once; None lets the engine choose, for example all cores.
        engine: Runs the tasks.

    Raises:
        DataError: The input cannot be used, or `out` has other content.
    """
    settings, progress, out = settings or EncodeSettings(), progress or Quiet(), Path(out)
    runner = StageRunner(engine, workers, DEFAULT_MEMORY, progress)
    loaded = load_tokenizer(tokenizer, settings.control_pieces)
    splits = corpus_splits(inputs)
    sentences = _sentences(Path(tokenizer), splits, out, settings, progress)
    return {
        split: _encode_split(files, loaded, *sentences, out / split, settings, runner, split or out.name)
        for split, files in splits.items()
    }


def _sentences(
    tokenizer: Path, splits: dict[str, _Split], out: Path, settings: EncodeSettings, progress: Progress
) -> tuple[Splitter, PunktParameters | None, str | None]:
    """Return the splitter, Punkt's parameters and the fingerprint of the text that they were learned from.

    The parameters are learned unless the tokenizer or an earlier attempt at this output has them. The fingerprint is
    None if they came with the tokenizer.
    """
    punkt, learned_from = None, None
    if settings.splitter == "punkt" and (tokenizer / PUNKT_JSON).is_file():
        if settings.language != "auto":
            raise DataError(
                f"{tokenizer} already has sentence boundaries, so --language {settings.language} would be ignored\n"
                "  leave it out, or give it to: pretrainkit tokenizer train --sentences-from"
            )
        punkt = PunktParameters.load(tokenizer / PUNKT_JSON)
    elif settings.splitter == "punkt":
        split, (sources, corpus) = next(iter(splits.items()))
        content = corpus or [source.identity for source in sources]
        learned_from = fingerprint([content, settings.text_key, SAMPLE_BYTES, settings.language, made_by()])
        punkt = _learned_before(out / split, learned_from)
        if punkt is None:
            progress.note("learning sentence boundaries from the text (`tokenizer train --sentences-from` keeps them)")
            punkt = learn_punkt(
                sources, text_key=settings.text_key, max_bad=settings.max_bad, language=settings.language
            )
            progress.note(about_language(punkt))
    splitter = load_splitter(settings.splitter, punkt, rules=settings.punkt_rules, pattern=settings.pattern)
    return splitter, punkt, learned_from


def _learned_before(out: Path, learned_from: str) -> PunktParameters | None:
    """Return the parameters that an earlier attempt at `out`, finished or not, learned from the same text."""
    for noted, stored in (
        ("manifest.json", f"{TOKENIZER_FOLDER}/{PUNKT_JSON}"),
        (".work/plan.json", f".work/{PUNKT_JSON}"),
    ):
        with suppress(OSError, ValueError, AttributeError, DataError):  # broken parameters are learned again
            if json.loads((out / noted).read_bytes()).get("learned_from") == learned_from:
                return PunktParameters.load(out / stored)
    return None


def corpus_splits(inputs: Sequence[str | Path]) -> dict[str, _Split]:
    """Map each split to its files and, for folders of `pretrainkit corpus`, the fingerprint of their content."""
    splits = find_splits(inputs) or {"": inputs}
    return {split: (find_sources(paths), _corpus_fingerprint(paths)) for split, paths in splits.items()}


def _corpus_fingerprint(inputs: Sequence[str | Path]) -> str | None:
    """Return the fingerprint of the only input if it is a corpus folder, else None."""
    path = Path(inputs[0]) / "manifest.json"
    if len(inputs) != 1 or not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes()).get("fingerprint")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is not the manifest of a corpus: {error}\n  make the corpus again") from error


def _encode_split(
    files: _Split,
    tokenizer: Tokenizer,
    splitter: Splitter,
    punkt: PunktParameters | None,
    learned_from: str | None,
    out: Path,
    settings: EncodeSettings,
    runner: StageRunner,
    name: str,
) -> dict[str, Any]:
    (sources, corpus), progress = files, runner.progress
    groups = shard_groups(sources)
    encoding = {"tokenizer": tokenizer.fingerprint, "splitter": splitter.fingerprint, "text_key": settings.text_key}
    if settings.control_pieces != "text":
        encoding["control_pieces"] = settings.control_pieces
    # The content of every shard. A corpus is identified by its content, so that a copy of it counts as the same.
    contents: list[Any] = [[source.identity for source in group] for group in groups]
    if corpus:
        contents = [[corpus, index, len(group)] for index, group in enumerate(groups)]
    plan_key = fingerprint([encoding, contents])
    with explained_write_errors(out):
        if (out / "manifest.json").exists():
            return _kept(out, plan_key, progress)
        _refuse_other_content(out)
    learned = {"learned_from": learned_from} if learned_from else {}
    plan = encoding | {"input": corpus or [source.address for source in sources]} | learned
    with work_folder(out / ".work", plan, out) as work, _unfinished_shards_removed(out, work):
        if punkt is not None:
            punkt.save(work / PUNKT_JSON)
        encoder = Encoder(str(tokenizer.folder), settings, work / PUNKT_JSON if punkt else None, plan_key)
        tasks = [
            ShardTask(
                *(out, index, len(groups), tuple(group), encoder, tokenizer.vocab_size),
                *(work / f"shard-{index:05d}", fingerprint([encoding, contents[index]])),
            )
            for index, group in enumerate(groups)
        ]
        results = {task.index: record for task in tasks if (record := finished_record(task)) is not None}
        if results:
            progress.note(f"{out}: {len(results)} of {len(tasks)} shards are already complete")
        left = [task for task in tasks if task.index not in results]
        progress.stage(f"encoding {name}", sum(task.num_bytes for task in left), "B")
        for task, record in _run(left, work, runner):
            results[task.index] = record
            progress.advance(task.num_bytes)
        records = [results[task.index] for task in tasks]
        skips = Skips.of(records, settings.max_bad)
        empty = sum((Counter[str](record["empty"]) for record in records), Counter())
        num_with_control = sum(record.get("with_control", 0) for record in records)
        entries = [record["entry"] for record in records]
        num_tokens = max(1, sum(entry["num_tokens"] for entry in entries))
        unknown, single_bytes = (sum(record.get(kind, 0) for record in records) / num_tokens for kind in _COUNTED)
        for warning in skips.warnings:
            progress.note(f"warning: {warning}")
        if not sum(entry["num_documents"] for entry in entries):
            for path in out.glob("*-of-*.bin"):
                path.unlink()
            shutil.rmtree(work, ignore_errors=True)
            others = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
            raise DataError(
                f"{name}: no document has any text in {sources[0].address}{others}\n"
                "  give other files, or name the key of the text with --text-key"
            )
        if num_with_control:
            progress.note(_about_control_pieces(name, tokenizer, num_with_control, settings.control_pieces))
        if unknown > _LARGE_UNKNOWN:
            piece = tokenizer.pieces()[tokenizer.special.unk]
            progress.note(
                f"warning: {name}: {unknown:.0%} of the tokens are {piece}: the vocabulary cannot represent their text"
                "; train one on this text (pretrainkit tokenizer train; unigram and bpe represent any text)"
            )
        if single_bytes > _MANY_BYTES and not (tokenizer.is_byte | tokenizer.is_special).all():
            progress.note(
                f"warning: {name}: {single_bytes:.0%} of the tokens are single bytes of characters outside the "
                "vocabulary, so texts become long; train one on this text (pretrainkit tokenizer train)"
            )
        num_indented = sum(record.get("indented", 0) for record in records)
        keeps_lines = tokenizer.encode("a\n\tb").tolist() != tokenizer.encode("a b").tolist()
        if (
            num_indented >= _MANY_INDENTED * sum(entry["num_documents"] for entry in entries)
            and num_indented
            and not (keeps_lines and settings.splitter == "none")
        ):
            progress.note(
                f"warning: {name}: {num_indented:,} documents have indented lines, such as source code, but line ends "
                "and indents are lost; a tokenizer of --kind bpe keeps them, with --splitter none"
            )
        copy_tokenizer(tokenizer.folder, out / TOKENIZER_FOLDER, punkt)
        content = fingerprint([entry["sha256"]["hashes"] for entry in entries])
        manifest = finish_shards(
            out,
            entries,
            vocab_size=tokenizer.vocab_size,
            special=tokenizer.special,
            tokenizer=tokenizer.fingerprint,
            corpus=corpus or content,
            splitter=splitter.settings | {"fingerprint": splitter.fingerprint},
            skipped=skips.for_manifest() | {reason: {"count": num, "examples": []} for reason, num in empty.items()},
            settings=asdict(settings),
            control_pieces={"read_as": settings.control_pieces, "num_documents": num_with_control},
            plan=plan_key,
            made_by=made_by(),
            **learned,
        )
        return manifest


@contextmanager
def _unfinished_shards_removed(out: Path, work: Path) -> Iterator[None]:
    """After an exception, remove the shards in `out` if no task is finished. The work folder is then removed, too, and
    without it the next command would refuse to overwrite the shards. If there is a manifest, the shards are complete
    and are kept: the exception came while the work folder was removed."""
    try:
        yield
    except BaseException:  # also Ctrl-C, after which the command must be able to continue; it is raised again
        if not ((out / "manifest.json").exists() or any(work.glob("*/task.json"))):
            for path in out.glob("*-of-*.bin"):
                path.unlink(missing_ok=True)
        raise


def _about_control_pieces(name: str, tokenizer: Tokenizer, num_documents: int, read_as: ControlPieces) -> str:
    mask, plural = tokenizer.pieces()[tokenizer.special.mask], "s" * (num_documents != 1)
    return f"{name}: control pieces such as {mask} are spelled out in {num_documents:,} document{plural}; " + (
        "they were read as text (--control-pieces ids gives their ids, as AutoTokenizer does)"
        if read_as == "text"
        else "they became their ids (--control-pieces text reads them as text)"
    )


def shard_groups(sources: Sequence[SourceFile]) -> list[list[SourceFile]]:
    """Return the files of each shard: one file, or several neighbours if there are more than `MAX_SHARDS` files."""
    num = min(len(sources), MAX_SHARDS)
    cuts = [len(sources) * index // num for index in range(num + 1)]
    return [list(sources[begin:end]) for begin, end in pairwise(cuts)]


def _run(tasks: Sequence[ShardTask], work: Path, runner: StageRunner) -> Iterator[tuple[ShardTask, dict[str, Any]]]:
    """Encode the shards and yield them in any order."""
    num_bytes = sum(task.num_bytes for task in tasks)
    if not runner.engine.is_local:
        return runner.engine.run(encode_shard, tasks, runner.resources(len(tasks), num_bytes), work, runner.progress)
    # There may be more processes than tasks: several processes then share a shard.
    processes = num_processes(runner.workers, 1 << 30, num_bytes, 1 << 40)
    if processes <= 1:
        return map(encode_shard, tasks)
    if len(tasks) < 2 * processes:
        return encode_together(tasks, processes)
    # The largest shards come first, so that no process is busy with a large one alone at the end.
    by_size = sorted(tasks, key=lambda task: -task.num_bytes)
    return run_tasks(encode_shard, by_size, processes)


def _kept(out: Path, plan_key: str, progress: Progress) -> dict[str, Any]:
    """Return the manifest of a finished output. Raises DataError if it is the output of other input or settings."""
    shards = TokenShards.open(out)
    if shards.manifest.get("plan") != plan_key:
        raise DataError(
            f"{out} holds token shards of another corpus, tokenizer or splitter\n"
            "  name another --out, or remove the folder"
        )
    progress.note(f"{out} is already complete")
    shutil.rmtree(out / ".work", ignore_errors=True)  # a killed command may have left it
    return shards.manifest


def _refuse_other_content(out: Path) -> None:
    """Raise DataError if `out` has content that is not from an earlier attempt."""
    if out.is_file():
        raise DataError(f"{out} is a file\n  name another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / ".work").is_dir():
        raise DataError(f"{out} is not empty and holds no unfinished token shards\n  name another --out")
