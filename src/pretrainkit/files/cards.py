"""Cards of the Hugging Face hub: a YAML header that the hub reads, then Markdown for people."""

from collections.abc import Mapping
from typing import Any

import yaml

CARD = "README.md"


def card_header(values: Mapping[str, Any]) -> str:
    """Return the header of a card, without the values that are None or empty."""
    known = {key: value for key, value in values.items() if value not in (None, "", [], {})}
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True)}---"


def data_card(
    name: str,
    splits: Mapping[str, Mapping[str, Any]],
    *,
    about: str,
    use: str,
    license: str | None = None,
    header: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of a data set: counts and fingerprints, usage, and placeholders for the author.

    Args:
        name: Name on the hub, such as `USER/NAME`.
        splits: Name of each split to its manifest.
        about: Description of the data and of how they were made.
        use: Commands that use the data after they were downloaded to the folder `data`.
        license: The hub's identifier of the licence (`cc-by-4.0`); None leaves it to the author.
        header: Further entries of the header.
    """
    counts = list(dict.fromkeys(key for entry in splits.values() for key in entry if key.startswith("num_")))
    columns = ["split", *(key.removeprefix("num_").replace("_", " ") for key in counts), "fingerprint"]
    rows = [
        [
            split or "all",
            *(f"{entry[key]:,}" if key in entry else "" for key in counts),
            f"`{entry.get('fingerprint', '')}`",
        ]
        for split, entry in splits.items()
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
