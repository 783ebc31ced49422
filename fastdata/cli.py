"""The command line: each command reads its arguments, calls one function of the package and shows what it returns.

Stable contract: machine output (``--json``) goes to stdout alone, progress and warnings to stderr. Exit codes: 0 fine, 1 the data
or the check is bad, 2 wrong usage, 130 interrupted. Heavy imports happen inside the commands: ``--help`` must answer at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fastdata import __version__
from fastdata.choices import Format, Json, StorePath, commas
from fastdata.cli_convert import convert
from fastdata.cli_show import show
from fastdata.errors import FastdataError, MissingExtra, UsageError

app = typer.Typer(
    name="fastdata",
    help="Feed YOLO training: convert a detection dataset once, then never wait for data again.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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


app.command()(convert)


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
        told = SourceOptions(splits=commas(split), images=images, labels=labels, names=commas(names), on_error="skip")
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


app.command()(show)


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
