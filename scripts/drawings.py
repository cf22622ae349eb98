"""Draw the rooms of the library and the way of a batch, from the source itself.

    uv run python scripts/drawings.py

writes docs/images/rooms.svg and docs/images/batch.svg. A test compares the committed files with
what this script draws, so they stay true.
"""

import ast
import re
import runpy
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
WIDTH = 960

# A file below src/chomp, a name in it, and what it makes of what the file before it gives.
BATCH = (
    ("data/sources.py", "FileSource", "records of files, tables and datasets, with their places"),
    ("data/formats.py", "TextFormat", "documents: text, chat turns or token ids"),
    ("tokenize/tokenizer.py", "Tokenizer", "token ids of each document"),
    ("data/store/build.py", "build_store", "a token store for each component and split, on disk"),
    ("data/store/store.py", "TokenStore", "tokens of any range, each chunk checked once"),
    ("data/rows.py", "ConcatRows", "rows of seq_len tokens, with weights and document ids"),
    ("data/order.py", "RowOrder", "the same rows in another order each epoch"),
    ("data/mixture.py", "Mixture", "which component gives example n, by exact shares"),
    ("data/dataset.py", "TrainDataset", "rows of any range of examples"),
    ("data/loader.py", "TrainLoader", "batch n as [A, B, T] arrays, made ahead by a thread"),
    ("training/run.py", "Run.batches", "that batch on the devices, for the template's loop"),
)

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.name { font-weight: 600; font-size: 15px } .code { font: 12px ui-monospace, monospace }
.soft { fill: #57606a } .edge { fill: none; stroke: #8c959f; stroke-width: 1.3 }
.head { fill: #8c959f } .box { fill: #f6f8fa; stroke: #8c959f }
.jax { fill: #ddf4ff; stroke: #54aeff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #9198a1 } .box { fill: #21262d; stroke: #6e7681 }
  .jax { fill: #0c2d6b; stroke: #388bfd } .edge { stroke: #6e7681 } .head { fill: #6e7681 }
}
"""


def _svg(height: int, title: str, parts: list[str]) -> str:
    arrow = (
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{arrow}</defs>",
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def rooms_svg(root: Path = ROOT) -> str:
    """The rooms in rows by layer; an arrow is an import that no other arrow implies."""
    rules = runpy.run_path(str(root / "tests/architecture/rules.py"))
    layers = rules["LAYERS"]
    imports, uses_jax = rules["room_imports"](root)

    def below(room: str) -> set[str]:
        found = set(imports[room])
        return found.union(*(below(other) for other in found))

    rows: dict[int, list[str]] = {}
    for room in imports:
        if not room.startswith("__"):
            rows.setdefault(layers[room], []).append(room)
    place, parts, boxes = {}, [], []
    for index, layer in enumerate(sorted(rows, reverse=True)):
        names = sorted(rows[layer])
        for number, room in enumerate(names):
            x = WIDTH * (number + 0.5) / len(names)
            place[room] = (x, 34 + index * 122)
    for room, (x, y) in place.items():
        width = min(WIDTH / len(rows[layers[room]]) - 14, 300)
        kind = "jax" if room in uses_jax else "box"
        shape = f'width="{width:g}" height="78" rx="8"/>'
        boxes.append(f'<rect class="{kind}" x="{x - width / 2:g}" y="{y}" {shape}')
        boxes.append(_text(x, y + 21, room, "name"))
        path = root / "src/chomp" / room
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        sentence = re.split(r"\.\s", doc.replace("`", ""))[0].rstrip(".")
        lines = wrap(sentence, int(width / 7), max_lines=3, placeholder=" …")
        for number, line in enumerate(lines):
            boxes.append(_text(x, y + 38 + 15 * number, line, "soft"))
        direct = {o for o in imports[room] if not any(o in below(other) for other in imports[room])}
        for other in sorted(direct & place.keys()):
            (x2, y2), start = place[other], y + 78
            bend = (y2 - start) / 2
            curve = f"M{x:g} {start}C{x:g} {start + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2}"
            parts.append(f'<path class="edge" marker-end="url(#head)" d="{curve}"/>')
    height = 34 + len(rows) * 122
    legend = [
        '<rect class="jax" x="14" y="8" width="14" height="14" rx="3"/>',
        _text(34, 20, "imports JAX", "soft", "start"),
        '<rect class="box" x="124" y="8" width="14" height="14" rx="3"/>',
        _text(144, 20, "without JAX", "soft", "start"),
        _text(WIDTH - 14, 20, "a room imports only rooms below it", "soft", "end"),
    ]
    return _svg(height, "The rooms of the library", [*parts, *boxes, *legend])


def batch_svg(root: Path = ROOT) -> str:
    """The files that a batch passes, from a document to the device."""
    parts = []
    for index, (file, name, result) in enumerate(BATCH):
        source, y = require_defined(root, file, name), 10 + index * 58
        kind = "jax" if "\nimport jax" in source else "box"
        parts += [
            f'<rect class="{kind}" x="14" y="{y}" width="400" height="40" rx="8"/>',
            _text(30, y + 25, name, "name", "start"),
            _text(398, y + 25, file, "code", "end"),
            _text(440, y + 25, result, "", "start"),
        ]
        if index:
            parts.append(f'<path class="edge" marker-end="url(#head)" d="M214 {y - 18}V{y}"/>')
    return _svg(10 + len(BATCH) * 58, "The way of a batch", parts)


def require_defined(root: Path, file: str, name: str) -> str:
    """The source of a file of the library; `LookupError` if it does not define the name."""
    source = (root / "src/chomp" / file).read_text()
    scope: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        found = [node for node in scope if getattr(node, "name", None) == part]
        if not found:
            raise LookupError(f"src/chomp/{file} has no {name}")
        scope = getattr(found[0], "body", [])
    return source


DRAWINGS = {"rooms.svg": rooms_svg, "batch.svg": batch_svg}

if __name__ == "__main__":
    for drawing, draw in DRAWINGS.items():
        (IMAGES / drawing).write_text(draw())
        print(f"wrote {IMAGES / drawing}")
