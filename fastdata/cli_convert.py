"""``fastdata convert``: from its options to a conversion, or to a table of what one would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fastdata.choices import Codec, Decoder, Json, OnError, Resample, SourceKind, TaskKind, VocOrigin, commas
from fastdata.errors import UsageError


def convert(
    src: Annotated[
        Path, typer.Argument(metavar="SRC", help="COCO folder or json, data.yaml or YOLO folder, VOC folder, DOTA folder.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="NAME.lmdb makes one LMDB file, anything else a folder of shards.")],
    imgsz: Annotated[str, typer.Option(help="Long side of the stored pictures in px, or 'full' to keep their size.")] = "640",
    codec: Annotated[
        Codec,
        typer.Option(
            help="raw: fastest to load. jpeg, webp: smaller. original: published bytes. auto: raw where it fits, else jpeg."
        ),
    ] = Codec.auto,
    quality: Annotated[int, typer.Option(help="Quality of jpeg and webp, 1..100.")] = 95,
    resample: Annotated[
        Resample, typer.Option(help="trainer: the bilinear resize of the trainers. area: antialiased when shrinking.")
    ] = Resample.trainer,
    split: Annotated[str | None, typer.Option(help="Splits to convert, separated by commas; all by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode; as many as cores may be used by default.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Continue what an interrupted run left, or start anew.")
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the store that is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tabulate bytes, time and loading speed of every codec; write nothing.")
    ] = False,
    source: Annotated[SourceKind | None, typer.Option(help="Say what SRC is instead of detecting it.")] = None,
    images: Annotated[Path | None, typer.Option(help="Root folder of the images, where the labels do not lead to them.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Root folder of the labels, where the images do not lead to them.")] = None,
    names: Annotated[str | None, typer.Option(help="Class names in order, separated by commas.")] = None,
    task: Annotated[
        TaskKind | None, typer.Option(help="Decides what nine columns of a YOLO row are; detected by default.")
    ] = None,
    single_cls: Annotated[bool, typer.Option("--single-cls", help="Make every class 0.")] = False,
    voc_origin: Annotated[
        VocOrigin, typer.Option(help="Whether VOC boxes count from 1 or 0; auto looks at the whole set.")
    ] = VocOrigin.auto,
    on_error: Annotated[
        OnError,
        typer.Option(
            help="safe: leave out and report, stop where the set is misread. skip: never stop. raise: stop at the first fault."
        ),
    ] = OnError.safe,
    max_pixels: Annotated[int | None, typer.Option(help="Leave out pictures with more pixels than this.")] = None,
    allow_truncated: Annotated[
        bool, typer.Option("--allow-truncated", help="Keep what can be decoded of pictures that break off.")
    ] = False,
    decoder: Annotated[Decoder, typer.Option(help="Library that decodes JPEG first.")] = Decoder.simplejpeg,
    report: Annotated[Path | None, typer.Option(help="Write every skipped image and changed label to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Convert a dataset once into a store.

    The source is only read. An interrupted run continues when the same command is given again.
    """
    from fastdata.conversion.options import MAX_PIXELS, ConvertOptions
    from fastdata.sources.scan import SourceOptions

    options = ConvertOptions(
        source=SourceOptions(
            splits=commas(split),
            images=images,
            labels=labels,
            names=commas(names),
            task=task.value if task else None,
            single_cls=single_cls,
            on_error=on_error.value,
            voc_origin=voc_origin.value,
        ),
        kind=source.value if source else None,
        imgsz=_imgsz(imgsz),
        codec=codec.value,
        quality=quality,
        resample=resample.value,
        decoder=decoder.value,
        max_pixels=MAX_PIXELS if max_pixels is None else max_pixels,
        allow_truncated=allow_truncated,
        workers=workers,
    )
    if dry_run:
        _dry_run(src, out, options, as_json)
    else:
        _convert(src, out, options, overwrite, resume, report, as_json)


def _convert(src: Path, out: Path, options: Any, overwrite: bool, resume: bool, report: Path | None, as_json: bool) -> None:
    from fastdata.conversion.run import convert as run
    from fastdata.conversion.tables import summary_table
    from fastdata.terminal import put_json, say, stdout, ticking, warn

    with ticking("converting") as ticker:
        done = run(src, out, options, overwrite=overwrite, resume=resume, report=report, listener=ticker)
    if done.why_not_resumed:
        warn(f"an earlier, interrupted run was not continued: {done.why_not_resumed}")
    if done.resumed:
        say(f"continued after {done.resumed:,} images of an earlier run")
    for text in done.warnings:
        warn(text)
    if as_json:
        put_json(
            {
                "store": str(done.out),
                "seconds": round(done.seconds, 3),
                "resumed": done.resumed,
                "nbytes": done.store_nbytes,
                **done.summary,
            }
        )
        return
    console = stdout()
    console.print(summary_table(done))
    if done.worth_a_report and report is None:
        say(f"every skipped image and changed label: fastdata info {done.out} --problems")


def _dry_run(src: Path, out: Path, options: Any, as_json: bool) -> None:
    from fastdata.conversion.estimate import choose_codec, estimate
    from fastdata.conversion.run import scan_source
    from fastdata.conversion.tables import estimate_table
    from fastdata.terminal import put_json, stdout, ticking

    with ticking("reading"):
        scan = scan_source(src, options)
        estimated = estimate(scan, options, out)
    codec, why = choose_codec(estimated, options)
    if as_json:
        put_json({**estimated.to_json(), "codec": codec, "why": why, "splits": scan.count_by_split()})
    else:
        stdout().print(estimate_table(scan, estimated, codec, why))


def _imgsz(text: str) -> int | None:
    if text == "full":
        return None
    if not text.isdecimal():
        raise UsageError(f"imgsz must be 'full' or a whole number, got {text}")
    return int(text)
