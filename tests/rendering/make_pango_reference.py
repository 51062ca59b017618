"""Writes pango_reference.json: offsets and windows of pairs by the original's own PangoCairo renderer.

    pip install the original (https://github.com/xplip/pixel) with manimpango, PyGObject and pycairo
    python tests/rendering/make_pango_reference.py > tests/rendering/pango_reference.json

The font is that of Pillow. Nothing of pretrainkit is used: this is the other side of the comparison.
"""

import hashlib
import json
import tempfile

PROSE = (
    "It was a bright cold day in the office of AVA, and the five clocks (of 1914) were striking; "
    "office fluff, minimum will: WWW mmm iii. "
)
PAIRS = [
    ("What does my cat love?", "Oatmeal, fish and sleep."),
    ("", ""),
    ("one", ""),
    *(("i" * num, "l" * (num + 3)) for num in range(1, 24)),
    ("Who struck?", PROSE),
    ("Who struck five times, and in which office?", PROSE * 3),
    ("Why?", " ".join(f"word{number}" for number in range(90))),
]
SETTINGS = [  # patches of a canvas, stride, patches of the first text, from the right
    (30, 6, None, False),
    (40, 8, 5, False),
    (40, 8, 20, True),
]


def main() -> None:
    from PIL import ImageFont
    from pixel import PangoCairoTextRenderer

    font = ImageFont.load_default(12).font_bytes
    cases = []
    with tempfile.NamedTemporaryFile(suffix=".ttf") as file:
        file.write(font)
        file.flush()
        for length, stride, limit, rtl in SETTINGS:
            renderer = PangoCairoTextRenderer(font_file=file.name, max_seq_length=length)
            for pair in PAIRS:
                try:
                    first = renderer(
                        pair,
                        return_offset_mapping=True,
                        return_overflowing_patches=True,
                        stride=stride,
                        text_a_max_length=limit,
                        rtl=rtl,
                    )
                except (IndexError, ZeroDivisionError):
                    continue  # the question leaves no room
                windows = [first, *(first.overflowing_patches or [])]
                cases.append(
                    {
                        "pair": pair,
                        "settings": [length, stride, limit, rtl],
                        "maps": [list(map(list, window.offset_mapping)) for window in windows],
                        "ends": [window.num_text_patches for window in windows],
                    }
                )
    found = {"font_sha256": hashlib.sha256(font).hexdigest(), "cases": cases}
    print(json.dumps(found, separators=(",", ":")).replace('{"pair"', '\n{"pair"'))


if __name__ == "__main__":
    main()
