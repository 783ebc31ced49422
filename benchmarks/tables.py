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
    "gpu_kernel": ("kernel: ", "call: default, B=128", "plan on one thread: default, B=128"),
    "gpu_loader": ("",),
    "gpu_train": ("",),
    "gpu_cold": ("",),
}
"""What the README shows of each script: how the rows begin (``open_store``: what they are). Everything else is in the results."""


def is_shown(row: dict[str, Any]) -> bool:
    """Tell whether the README shows a row."""
    begins = SHOWN.get(row["bench"], ())
    if row["bench"] == "gpu_train" and row["what"].endswith("ceiling beside it"):
        return False  # in its candidate's ratio
    if row["bench"] == "gpu_train" and "cache=ram" in row["what"]:
        return False  # its windows began with empty queues and 16 workers on 16 cores: too short to be fair to it
    if row["bench"] == "gpu_loader" and row.get("own_number") is False:
        return False
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
    """Return the Markdown between the marks: a table for the processor, and one for the GPU where there are results."""
    gpu = [row for row in rows if row["bench"].startswith("gpu_")]
    others = [row for row in rows if not row["bench"].startswith("gpu_")]
    return "\n\n".join(table(part) for part in (others, gpu) if part)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table, and where its rows were measured."""
    lines = ["| what | median (lowest to highest) | against | ratio |", "|---|---|---|---|"]
    for row in rows:
        what = f"{row['bench'].replace('_', ' ')}: {row['what']}"
        details = [str(row[key]) for key in ("backend", "set") if row.get(key)]
        details += [f"{row['workers']} worker{'s' if row['workers'] > 1 else ''}"] if row.get("workers") else []
        what += f" ({', '.join(details)})" if details else ""
        if row["unit"] == "s" and row["median"] < 0.1:
            row = {**row, "unit": "ms", **{key: 1e3 * row[key] for key in ("median", "low", "high")}}
        value = f"{figure(row['median'])} {row['unit']} ({figure(row['low'])} to {figure(row['high'])}, n = {row['n']})"
        value += f"; {row['note']}" if row.get("note") else ""
        lines.append(f"| {what} | {value} | {row.get('against') or ''} | {ratio(row)} |")
    machines = sorted({machine(row["machine"]) for row in rows})
    dates = sorted({row["date"] for row in rows})
    return "\n".join(
        [*lines, "", f"Measured on {' and '.join(machines)}, {dates[0]} to {dates[-1]}; scripts and rows in `benchmarks/`."]
    )


def ratio(row: dict[str, Any]) -> str:
    """Return a ratio, with its interval where it has one: then it is told to a thousandth."""
    if row.get("ratio") is None:
        return ""
    if row.get("ratio_low") is None:
        return f"{row['ratio']:.2f}"
    return f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"


def machine(facts: dict[str, Any]) -> str:
    """Return what a machine is."""
    text = f"{facts['cpu']}, {facts['cores']} cores"
    gpu = facts.get("gpu")
    return f"{gpu['name']} (driver {gpu['driver']}) with {text}" if gpu else text


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
