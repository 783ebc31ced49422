"""``fastdata show``: contact sheets of stored pictures, or of the samples of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fastdata.choices import Preset, StorePath, TaskKind, commas
from fastdata.errors import UsageError

SAMPLES = "Samples of a training"
"""Panel of the help for what only concerns those."""


def show(
    store: StorePath,
    out: Annotated[Path, typer.Argument(metavar="OUT.png", help="The contact sheet, .png or .jpg.")],
    split: Annotated[str | None, typer.Option("--split", help="Look at this split only.")] = None,
    ids: Annotated[str | None, typer.Option(help="Images to show, separated by commas; an even spread by default.")] = None,
    images: Annotated[int, typer.Option(help="How many, when --ids says nothing.")] = 24,
    tile: Annotated[int, typer.Option(help="Side of one picture on the sheet in px.")] = 320,
    augment: Annotated[
        bool, typer.Option("--augment", help="Show samples as a training sees them: augmented, with their planned labels.")
    ] = False,
    policy: Annotated[
        Preset | None, typer.Option(help="How samples are augmented; yolov8 by default.", rich_help_panel=SAMPLES)
    ] = None,
    imgsz: Annotated[int | None, typer.Option(help="Side of a sample in px; 640 by default.", rich_help_panel=SAMPLES)] = None,
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


def _check_folder_of(file: Path) -> None:
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder of {file} must exist, got none; make it with: mkdir -p '{folder}'")


def _integers(text: str | None) -> list[int] | None:
    parts = commas(text)
    if parts is None:
        return None
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"ids must be whole numbers separated by commas, got {text}")
    return [int(part) for part in parts]
