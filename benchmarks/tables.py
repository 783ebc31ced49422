"""Write the README's figures from ``results/*.jsonl``: the newest row of each thing measured, and nothing typed by hand.

python benchmarks/tables.py          # print
python benchmarks/tables.py --write  # put it between the marks in README.md
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures: python benchmarks/tables.py --write -->", "<!-- end of figures -->"
IDENTITY = ("bench", "what", "set", "workers", "backend", "images")
"""Rows that agree in these are measurements of the same thing; the last one counts."""


SHOWN = {
    "one_core": ("a training sample",),
    "loader_cpu": ("",),
    "render_cpu": ("",),
    "convert": ("shards", "lmdb", "liblmdb"),
    "open_store": ("open", "open, private memory of each of 8"),
    "read_coco": ("",),
    "startup": ("fastdata --help", "peak memory"),
}
"""What the README shows of each script: how the rows begin (``open_store``: what they are). Everything else is in the results."""


def is_shown(row: dict[str, Any]) -> bool:
    """Tell whether the README shows a row."""
    begins = SHOWN.get(row["bench"], ())
    return row["what"] in begins if row["bench"] == "open_store" else row["what"].startswith(begins)


def newest(folder: Path) -> list[dict[str, Any]]:
    """Return the last row of each thing measured, by script as in :data:`SHOWN`, then as they were first measured."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if is_shown(row):
                rows[tuple(row.get(key) for key in IDENTITY)] = row
    return sorted(rows.values(), key=lambda row: list(SHOWN).index(row["bench"]))


def figure(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def block(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown between the marks."""
    lines = ["| what | median (lowest to highest) | against | ratio |", "|---|---|---|---|"]
    for row in rows:
        what = f"{row['bench'].replace('_', ' ')}: {row['what']}"
        details = [str(row[key]) for key in ("backend", "set") if row.get(key)]
        details += [f"{row['workers']} worker{'s' if row['workers'] > 1 else ''}"] if row.get("workers") else []
        what += f" ({', '.join(details)})" if details else ""
        if row["unit"] == "s" and row["median"] < 0.1:
            row = {**row, "unit": "ms", **{key: 1e3 * row[key] for key in ("median", "low", "high")}}
        value = f"{figure(row['median'])} {row['unit']} ({figure(row['low'])} to {figure(row['high'])}, n = {row['n']})"
        ratio = f"{row['ratio']:.2f}" if row.get("ratio") is not None else ""
        lines.append(f"| {what} | {value} | {row.get('against') or ''} | {ratio} |")
    machines = sorted({f"{row['machine']['cpu']}, {row['machine']['cores']} cores" for row in rows})
    dates = sorted({row["date"] for row in rows})
    return "\n".join(
        [*lines, "", f"Measured on {' and '.join(machines)}, {dates[0]} to {dates[-1]}; scripts and rows in `benchmarks/`."]
    )


def main() -> None:
    """Print the block, or write it into the README."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = block(newest(ROOT / "benchmarks" / "results"))
    if not args.write:
        sys.stdout.write(text + "\n")
        return
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
