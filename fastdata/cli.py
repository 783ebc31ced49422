"""The command line: each command reads its arguments, calls one function of the package and shows what it returns.

Stable contract: machine output (``--json``) goes to stdout alone, progress and warnings to stderr. Exit codes: 0 fine, 1 the data
or the check is bad, 2 wrong usage, 130 interrupted. Heavy imports happen inside the commands: ``--help`` must answer at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fastdata import __version__
from fastdata.choices import Codec, Decoder, Format, OnError, Preset, Resample, SourceKind, TaskKind, VocOrigin
from fastdata.errors import FastdataError, MissingExtra, UsageError

app = typer.Typer(
    name="fastdata",
    help="Feed YOLO training: convert a detection dataset once, then never wait for data again.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="An .lmdb file or a shard folder made by fastdata convert.")]
SAMPLES = "Samples of a training"
Split = Annotated[str | None, typer.Option("--split", help="Look at this split only.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastdata {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
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
            splits=_commas(split),
            images=images,
            labels=labels,
            names=_commas(names),
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


@app.command()
def info(
    store: StorePath,
    problems: Annotated[bool, typer.Option("--problems", help="List what the conversion skipped or changed.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a store holds: counts, classes, sizes, codec, splits."""
    from fastdata.conversion.report import kept_in
    from fastdata.conversion.tables import problems_table
    from fastdata.info import describe, render
    from fastdata.store.read import open_store
    from fastdata.terminal import put_json, stdout

    with open_store(store) as opened:
        description = describe(opened)
        rows = list(kept_in(opened.catalog)) if problems else []
    if as_json:
        listed = [{"skipped" if kind == "skip" else "problem": row} for kind, row in rows]
        put_json({**description, **({"report": listed} if problems else {})})
        return
    stdout().print(render(description))
    if problems:
        stdout().print(problems_table(rows))


@app.command()
def verify(
    store: StorePath,
    source: Annotated[Path | None, typer.Option(help="The dataset: has any label or picture changed since?")] = None,
    images: Annotated[Path | None, typer.Option(help="Root folder of its images, if convert was told one.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Root folder of its labels, if convert was told one.")] = None,
    names: Annotated[str | None, typer.Option(help="Its class names, if convert was told them.")] = None,
    split: Annotated[str | None, typer.Option(help="Its splits, if convert was told them.")] = None,
    workers: Annotated[int | None, typer.Option(help="Threads; as many as cores may be used by default.")] = None,
    as_json: Json = False,
) -> None:
    """Check every checksum, decode every record, test every label. Exit 1 and a list if anything is wrong."""
    from fastdata.sources.scan import SourceOptions
    from fastdata.terminal import put_json, stdout, ticking
    from fastdata.verification import render
    from fastdata.verification import verify as run

    told = None
    if images or labels or names or split:
        told = SourceOptions(splits=_commas(split), images=images, labels=labels, names=_commas(names), on_error="skip")
    with ticking("verifying") as ticker:
        verdict = run(store, source=source, source_options=told, workers=workers, listener=ticker)
    if as_json:
        put_json(verdict.to_json())
    else:
        stdout().print(render(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


@app.command()
def export(
    store: StorePath,
    dst: Annotated[Path, typer.Argument(metavar="DST", help="Folder to write; must not be there yet, or be empty.")],
    format: Annotated[Format, typer.Option("--format", help="coco: annotations/*.json. yolo: data.yaml and labels/*.txt.")],
    images: Annotated[bool, typer.Option("--images/--no-images", help="Write the pictures too.")] = True,
    image_format: Annotated[str, typer.Option(help="How raw pictures are written: png (lossless) or jpg.")] = "png",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write labels and pictures back out, so that other tools read them."""
    from fastdata.export import export as run
    from fastdata.export import render
    from fastdata.store.read import open_store
    from fastdata.terminal import put_json, stdout, ticking

    if image_format not in ("png", "jpg"):
        raise UsageError(f"image-format must be png or jpg, got {image_format}")
    with open_store(store) as opened, ticking("exporting") as ticker:
        done = run(
            opened,
            dst,
            format=format.value,
            images=images,
            image_format=image_format,  # type: ignore[arg-type]
            overwrite=overwrite,
            listener=ticker,
        )
    if as_json:
        put_json(done.to_json())
    else:
        stdout().print(render(done))


@app.command()
def show(
    store: StorePath,
    out: Annotated[Path, typer.Argument(metavar="OUT.png", help="The contact sheet, .png or .jpg.")],
    split: Split = None,
    ids: Annotated[str | None, typer.Option(help="Images to show, separated by commas; an even spread by default.")] = None,
    images: Annotated[int, typer.Option(help="How many, when --ids says nothing.")] = 24,
    tile: Annotated[int, typer.Option(help="Side of one picture on the sheet in px.")] = 320,
    augment: Annotated[
        bool, typer.Option("--augment", help="Show samples as a training sees them: augmented, with their planned labels.")
    ] = False,
    policy: Annotated[
        Preset | None, typer.Option(help="How samples are augmented; yolov8 by default.", rich_help_panel=SAMPLES)
    ] = None,
    imgsz: Annotated[
        int | None, typer.Option(help="Side of a sample in px; 640 by default.", rich_help_panel=SAMPLES)
    ] = None,
    task: Annotated[
        TaskKind | None, typer.Option(help="Which labels; what the store was converted for by default.", rich_help_panel=SAMPLES)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the training; 0 by default.", rich_help_panel=SAMPLES)] = None,
    epochs: Annotated[
        int | None, typer.Option(help="How many the training has: the last ones mix nothing.", rich_help_panel=SAMPLES)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Take all of these from a run: a file with a loader's state_dict, or an Ultralytics run folder.",
            rich_help_panel=SAMPLES,
        ),
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="From 0, the default.", rich_help_panel=SAMPLES)] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Show the very batch of this number, from 0, of the epoch instead of --ids.", rich_help_panel=SAMPLES),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a batch and rank; 16 by default, to be given with --run.", rich_help_panel=SAMPLES)
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Ranks of the training; 1 by default.", rich_help_panel=SAMPLES)] = None,
    rank: Annotated[int | None, typer.Option(help="Whose batch; 0 by default.", rich_help_panel=SAMPLES)] = None,
) -> None:
    """Draw a contact sheet: pictures with boxes, polygons, keypoints and class names.

    With --augment, --batch or --run it shows samples of a training instead. A sample depends on the store, the options below and
    its epoch alone, so a batch is drawn again as it was: --run runs/detect/train --epoch 37 --batch 112 --batch-size 16.
    """
    from fastdata.terminal import say

    _check_folder_of(out)
    settings = {"policy": policy, "imgsz": imgsz, "task": task and task.value, "seed": seed, "epochs": epochs}
    place = {"epoch": epoch, "batch": batch, "batch_size": batch_size, "world_size": world_size, "rank": rank}
    sheet: dict[str, Any] = {"ids": _integers(ids), "tile_px": tile, "max_images": images}
    if augment or batch is not None or run is not None:
        _show_samples(store, out, split, run, _given(settings), _given(place), sheet)
    else:
        _refuse(settings | place, "come with --augment, --batch or --run")
        from fastdata.show import write_contact_sheet
        from fastdata.store.read import open_store

        with open_store(store, split=split) as opened:
            write_contact_sheet(opened, out, **sheet)
    say(f"wrote {out}")


def _show_samples(
    store: Path,
    out: Path,
    split: str | None,
    run: Path | None,
    settings: dict[str, Any],
    place: dict[str, Any],
    sheet: dict[str, Any],
) -> None:
    if "batch" not in place:
        _refuse({name: place.get(name) for name in ("batch_size", "world_size", "rank")}, "come with --batch")
    if run is not None:
        _refuse(settings | {"split": split}, "be left to --run, which says it")
        if "batch" in place and "batch_size" not in place:
            raise UsageError("--batch-size must be given with --batch and --run, got none: a run may go on with another one")

    import warnings

    from fastdata.augment.policy import preset
    from fastdata.samples import Samples
    from fastdata.show_augmented import samples_of_run, training_split, write_samples_sheet
    from fastdata.terminal import warn

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if run is not None:
            samples, shuffle = samples_of_run(store, run)
        else:
            chosen = preset(settings.pop("policy", "yolov8"))
            samples, shuffle = Samples(training_split(store, split), policy=chosen, stride=1, **settings), None
        with samples.store:
            write_samples_sheet(samples, out, shuffle=shuffle, **place, **sheet)
    for warning in told:
        warn(str(warning.message))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], rule: str) -> None:
    for name in _given(options):
        raise UsageError(f"--{name.replace('_', '-')} must {rule}, got {options[name]}")


@app.command()
def doctor(
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="A dataset or store: its disk is looked at too.")] = None,
    as_json: Json = False,
) -> None:
    """Look at this machine: cores, memory, disk, decoders, GPU, settings that slow training. One fix each."""
    from fastdata.doctor import diagnose, render, to_json
    from fastdata.terminal import put_json, stdout

    if path is not None and not path.exists():
        raise UsageError(f"path must exist, got {path}")
    findings = diagnose(path)
    if as_json:
        put_json(to_json(findings))
    else:
        stdout().print(render(findings))
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(1)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where everything goes.")] = Path("fastdata-demo"),
    images: Annotated[int, typer.Option(help="Pictures to make.")] = 400,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FOLDER if an earlier demo made it.")] = False,
) -> None:
    """The two-minute tour: make a small dataset, convert, verify, show, measure."""
    from fastdata.demo import run

    run(folder, images=images, overwrite=overwrite)


def _check_folder_of(file: Path) -> None:
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder of {file} must exist, got none; make it with: mkdir -p '{folder}'")


def _commas(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _integers(text: str | None) -> list[int] | None:
    parts = _commas(text)
    if parts is None:
        return None
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"ids must be whole numbers separated by commas, got {text}")
    return [int(part) for part in parts]


def _imgsz(text: str) -> int | None:
    if text == "full":
        return None
    if not text.isdecimal():
        raise UsageError(f"imgsz must be 'full' or a whole number, got {text}")
    return int(text)


class _Interrupted(BaseException):
    """Ctrl-C, under a name that no library takes for its own."""


def _interrupt(number: int, frame: object) -> NoReturn:
    raise _Interrupted


def main() -> None:
    """Run the command line and turn every expected failure into one line and an exit code."""
    import signal

    from fastdata.terminal import fail

    signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except _Interrupted:
        fail("interrupted; give the same command again: it continues at the last checkpoint, a few seconds back")
        sys.exit(130)
    except (UsageError, MissingExtra) as err:
        fail(str(err))
        sys.exit(2)
    except FastdataError as err:
        fail(str(err))
        sys.exit(1)
    except OSError as err:
        fail(_os_error(err))
        sys.exit(1)


def _os_error(err: OSError) -> str:
    name = f": {err.filename}" if err.filename is not None else ""
    return f"{err.strerror or err}{name}"


if __name__ == "__main__":
    main()
