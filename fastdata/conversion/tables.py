"""A conversion and its estimate as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastdata.conversion.estimate import Estimate, gigabytes

if TYPE_CHECKING:
    from rich.table import Table

    from fastdata.conversion.run import Converted
    from fastdata.sources.scan import Scan


def summary_table(done: Converted) -> Table:
    """Say what came of a conversion."""
    tally = done.tally
    table = _two_columns(f"{done.out}")
    splits = ", ".join(f"{name} {count:,}" for name, count in done.summary["splits"].items())
    table.add_row("images", f"{tally.stored:,} of {tally.images_in:,} stored ({splits})")
    if tally.skipped:
        table.add_row("skipped", _counts(tally.skipped))
    table.add_row("background", f"{tally.background:,} images without objects")
    table.add_row("objects", f"{tally.kept:,} of {tally.rows_in:,} label rows kept, {len(done.scan.names):,} classes")
    if tally.crowd:
        table.add_row("crowd", f"{tally.crowd:,} kept with a flag, left out of training")
    if tally.dropped:
        table.add_row("dropped", f"{tally.dropped:,} rows")
    if tally.rows_of_skipped:
        table.add_row("lost", f"{tally.rows_of_skipped:,} rows of skipped images")
    if tally.problems:
        table.add_row("reported", _counts(tally.problems))
    if tally.shared:
        table.add_row("shared", f"{tally.shared:,} images are in two splits and stored once")
    if tally.recoded:
        table.add_row("encoded anew", f"{tally.recoded:,} pictures that are no upright 8-bit JPEG")
    for rule, choice in done.scan.decisions.items():
        if choice != "0":
            table.add_row(rule, choice)
    table.add_row("codec", f"{done.codec} ({done.why_codec})")
    table.add_row("bytes", f"{gigabytes(done.store_nbytes)}")
    fresh = tally.images_in - done.resumed
    table.add_row("time", f"{done.seconds:.1f} s, {fresh / max(done.seconds, 1e-9):,.0f} images/s")
    return table


def estimate_table(scan: Scan, estimated: Estimate, codec: str, why: str) -> Table:
    """Say what a conversion would cost with each codec."""
    from rich import box
    from rich.table import Table

    splits = ", ".join(f"{name} {count:,}" for name, count in scan.count_by_split().items())
    sizes = "all sizes stated by the labels" if estimated.exact_sizes else "sizes from a sample"
    table = Table(
        title=f"{estimated.images:,} images ({splits}), {estimated.rows:,} label rows; nothing was written",
        caption=f"{sizes}; {estimated.workers} workers; free: {gigabytes(estimated.free_nbytes)} of disk, "
        f"{gigabytes(estimated.memory_nbytes or 0)} of memory",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("codec", "bytes", "convert", "load images/s per core", ""):
        table.add_column(name, justify="left" if name in ("codec", "") else "right")
    for cost in estimated.costs:
        chosen = f"<- {why}" if cost.codec == codec else ""
        load = f"{cost.load_images_per_s:,.0f}"
        table.add_row(cost.codec, gigabytes(cost.nbytes), f"{cost.convert_s:,.0f} s", load, chosen)
    return table


def problems_table(rows: Iterable[tuple[str, dict[str, Any]]]) -> Table:
    """List what a conversion skipped or changed."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("where", "what", "done", "detail"):
        table.add_column(name, overflow="fold")
    for kind, row in rows:
        if kind == "skip":
            table.add_row(row["file"], row["reason"], "skipped", row["detail"])
            continue
        place = next((f"{sep}{row[name]}" for name, sep in PLACES if name in row), "")
        table.add_row(f"{row['file']}{place}", row["kind"], row["action"], row.get("detail", ""))
    return table


PLACES = (("line", ":"), ("annotation_id", ": annotation "), ("object", ": object "))
"""How the place of a problem is written behind its file."""


def _two_columns(title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
