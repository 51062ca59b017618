"""Cards of the Hugging Face hub: a YAML header that the hub reads, then Markdown for people."""

from collections.abc import Mapping
from typing import Any

import yaml

CARD = "README.md"


def card_header(values: Mapping[str, Any]) -> str:
    """Return the header of a card, without the values that are None or empty."""
    given = {key: value for key, value in values.items() if value not in (None, "", [], {})}
    return f"---\n{yaml.safe_dump(given, sort_keys=False, allow_unicode=True)}---"


def data_card(
    name: str,
    splits: Mapping[str, Mapping[str, Any]],
    *,
    about: str,
    use: str,
    license: str | None = None,
    header: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of a data set: its counts with fingerprints, how to use it, and what only its author can say.

    Args:
        name: Name on the hub, such as `USER/NAME`.
        splits: Name of each split to its manifest.
        about: What the data are, and how they were made.
        use: Commands that use the data after they were downloaded to the folder `data`.
        license: Identifier of the licence, as the hub has it (`cc-by-4.0`); None leaves it to the author.
        header: Further entries of the header.
    """
    counts = list(dict.fromkeys(key for one in splits.values() for key in one if key.startswith("num_")))
    columns = ["split", *(key.removeprefix("num_").replace("_", " ") for key in counts), "fingerprint"]
    rows = [
        [split or "all", *(f"{one[key]:,}" if key in one else "" for key in counts), f"`{one.get('fingerprint', '')}`"]
        for split, one in splits.items()
    ]
    lines = [columns, ["---", *("---:" for _ in counts), "---"], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [
        card_header({"license": license, "tags": ["pretrainkit"], **(header or {})}),
        f"# {name}",
        about,
        *([f"## Contents\n\n{table}"] if splits else []),
        f"## Use\n\n```bash\nhf download {name} --repo-type dataset --local-dir data\n{use}\n```",
        "## Source and limitations\n\nTo be filled in by the author: where the data come from, who may use them for "
        "what, languages and domains, personal or offensive content, and known errors.",
    ]
    return "\n\n".join(parts) + "\n"
