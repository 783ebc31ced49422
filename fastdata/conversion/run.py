"""Convert a published dataset into a store: read, estimate, decode in parallel, write in order, publish at once.

The store is a function of (source, options): records stand in the order of the splits and, within a split, of the dataset,
whatever the number of workers, and a conversion that was killed and resumed writes the bytes of an undisturbed one.
The source is only ever read.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.catalog import Keypoints
from fastdata.conversion import report as reporting
from fastdata.conversion.estimate import MARGIN, Estimate, choose_codec, estimate, free_nbytes, gigabytes
from fastdata.conversion.options import ConvertOptions, fingerprint
from fastdata.conversion.pool import Pool
from fastdata.conversion.report import Tally
from fastdata.conversion.shared import in_order, shown_again
from fastdata.conversion.worker import Done, Job, Setup
from fastdata.errors import DataError, UsageError
from fastdata.labels import CROWD, Instances
from fastdata.problems import FATAL, Problem, Skip
from fastdata.settle import scaled, settle
from fastdata.sources.detect import read
from fastdata.sources.scan import Scan
from fastdata.store.manifest import Manifest
from fastdata.store.write import Entry, Record, StoreWriter, check_target

PICTURES_PER_WORKER = 32
"""A worker takes about 0.3 s to start, as long as it takes to convert so many pictures: fewer are not worth another one."""


CHECKPOINT_S = 5.0
"""At most so much work is lost by an interruption, also with a slow codec whose bytes come slowly. When checkpoints are taken
does not change the bytes of the store."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is."""

    stage: str
    """``read``, ``convert`` or ``publish``."""
    done: int
    total: int
    """Images."""
    nbytes: int
    """Payload written."""
    skipped: int
    resumed: int = 0
    """Images that an earlier run had done."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What came of a conversion."""

    out: Path
    codec: str
    why_codec: str
    tally: Tally
    scan: Scan
    resumed: int
    """Images that an earlier, interrupted run had already done."""
    why_not_resumed: str | None
    """Why an earlier run's work was thrown away, if it was."""
    seconds: float
    store_nbytes: int
    """Bytes on the disk."""
    summary: dict[str, Any]
    """As in the report."""

    @property
    def warnings(self) -> list[str]:
        """What the user should look at, one sentence each."""
        tally, out = self.tally, []
        if tally.skipped:
            out.append(f"{sum(tally.skipped.values()):,} images could not be stored")
        out += [f"{p.file}: {p.detail}" for p in self.scan.problems if p.kind == "missing-split"]
        if tally.shared:
            out.append(f"{tally.shared:,} images are in two splits: what is measured on them is no validation")
        if self.scan.root.is_dir() and self.scan.root.resolve() in self.out.resolve().parents[1:]:  # beside the data.yaml is fine
            out.append(f"the store lies in the folder of its dataset, {self.scan.root}: a later reading of it may find the store")
        if tally.truncated_kept:
            out.append(f"{tally.truncated_kept:,} pictures break off; what could be decoded was kept, as asked for")
        if tally.stored and tally.background > tally.stored / 2:
            out.append(f"{tally.background:,} of {tally.stored:,} images have no objects; are the labels where they should be?")
        return out

    @property
    def worth_a_report(self) -> bool:
        """Whether anything was skipped, dropped, changed or noted."""
        return bool(self.tally.skipped or self.tally.problems)


Listener = Callable[[Progress], None]


def scan_source(src: Path, options: ConvertOptions) -> Scan:
    """Read a dataset's labels and image list, and refuse one without images."""
    scan = read(Path(src), options.source, options.kind)
    if len(scan) == 0:
        raise DataError(f"{src}: the dataset must have at least one image, got none")
    return scan


def _chosen(options: ConvertOptions | None, given: dict[str, Any]) -> ConvertOptions:
    known = {f.name for f in fields_of(ConvertOptions)}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise UsageError(f"options of convert must be {', '.join(sorted(known))}, got {', '.join(unknown)}")
    return replace(options or ConvertOptions(), **given)


def convert(
    src: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    overwrite: bool = False,
    resume: bool = True,
    report: str | os.PathLike[str] | None = None,
    listener: Listener | None = None,
    **fields: Any,
) -> Converted:
    """Convert a dataset once.

    Args:
        src: COCO folder or json, data.yaml or YOLO folder, VOC folder, DOTA folder.
        out: ``*.lmdb`` makes one LMDB file, anything else a folder of shards.
        options: How.
        overwrite: Replace a store that is there; it opens until the moment the new one takes its place.
        resume: Continue what an interrupted run of the same source and options left.
        report: Where the problems report goes (JSON).
        listener: Called now and then with the progress.
        **fields: Of :class:`~fastdata.conversion.options.ConvertOptions`, as ``imgsz=320``: they go before ``options``.

    Returns:
        The counts and where the store is.

    Raises:
        UsageError: An option breaks its rule, or the target is there already.
        DataError: The dataset is misread, or with ``on_error="raise"`` the first fault of any kind.
        OSError: No space, no permission.
    """
    began = time.monotonic()
    options = _chosen(options, fields)
    target = Path(out)
    check_target(target, overwrite=overwrite)
    if report is not None:
        reporting.check_report(Path(report))
    tell = listener or (lambda progress: None)
    tell(Progress("read", 0, 0, 0, 0))
    scan = scan_source(Path(src), options)
    first_choice = "raw" if options.codec == "auto" else options.codec
    estimated = estimate(scan, options, target, codecs=(first_choice,), timed=False)
    codec, why_codec = choose_codec(estimated, options)
    if codec != first_choice:
        estimated = estimate(scan, options, target, codecs=(codec,), timed=False)
    mark = fingerprint(scan, replace(options, codec=codec))  # type: ignore[arg-type]

    with StoreWriter.begin(target, fingerprint=mark, keypoints=scan.keypoints, overwrite=overwrite, resume=resume) as writer:
        _check_disk(scan, options, estimated.cost(codec).nbytes - writer.payload_nbytes, codec, target)
        run = _Run(scan, options, codec, writer, tell)
        resumed = run.start()
        run.convert(estimated)
        tell(Progress("publish", run.position, len(scan), run.tally.payload_nbytes, run.skipped, resumed))
        run.tally.check()
        if run.tally.stored == 0:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(run.tally.skipped.items()))
            raise DataError(f"{src}: the dataset must have at least one picture that can be stored, got none ({reasons})")
        summary = _summary(scan, run.tally, codec, run.stored_by_split)
        if report is not None:
            reporting.write_report(Path(report), summary, writer.log_path())
        writer.publish(_manifest(scan, options, codec, summary), scan.label_files)
    return Converted(
        out=target,
        codec=codec,
        why_codec=why_codec,
        tally=run.tally,
        scan=scan,
        resumed=resumed,
        why_not_resumed=writer.why_not_resumed,
        seconds=time.monotonic() - began,
        store_nbytes=target.stat().st_size if target.is_file() else sum(f.stat().st_size for f in target.iterdir()),
        summary=summary,
    )


class _Run:
    """The state of one conversion between two checkpoints: where it is and what it has counted."""

    def __init__(self, scan: Scan, options: ConvertOptions, codec: str, writer: StoreWriter, tell: Listener) -> None:
        self.scan, self.options, self.codec, self.writer, self.tell = scan, options, codec, writer, tell
        self.order = in_order(scan)
        self.position = 0
        self.split = -1
        self.tally = Tally(images_in=len(scan) + len(scan.skips), rows_in=scan.rows_in, dropped=scan.rows_dropped)
        self.twice = shown_again(scan, self.order)
        firsts = set(self.twice.values())
        self.firsts = {scan.keys[i]: i for i in firsts}
        self.stored: dict[int, tuple[int, tuple[int, int], tuple[int, int]]] = {}
        assert scan.table is not None
        self.table = scan.table
        self.rows_of = scan.table.counts()
        self.resumed = 0
        self.durable = time.monotonic()
        self.stored_by_split = dict.fromkeys(scan.splits, 0)

    @property
    def skipped(self) -> int:
        return sum(self.tally.skipped.values())

    def start(self) -> int:
        """Continue at the last checkpoint, or begin with what the reader found. Returns the images already done."""
        state = self.writer.resumed
        if state is not None:
            self.position, self.split = state["position"], state["split"]
            self.tally = Tally.from_json(state["tally"])
            self.stored_by_split = state["stored_by_split"]
            self.resumed = self.position
            if self.firsts:
                for key, record, original_hw, size_hw in self.writer.entries_so_far():
                    self._remember(key, record, original_hw, size_hw)
            return self.resumed
        for problem in self.scan.problems:
            self._log_problem(problem)
        for skip in self.scan.skips:
            self.tally.skip(skip)
            self.writer.log(reporting.line(skip))
        return 0

    def convert(self, estimated: Estimate) -> None:
        """Convert every image from ``position`` on."""
        setup = Setup(
            imgsz=self.options.imgsz,
            codec=self.codec,  # type: ignore[arg-type]
            quality=self.options.quality,
            resample=self.options.resample,
            decoder=self.options.decoder,
            max_pixels=self.options.max_pixels,
            allow_truncated=self.options.allow_truncated,
            spill_folder=str(self.writer.staging),
            phase=self.writer.payload_phase,
        )
        todo = len(self.order) - self.position
        workers = max(1, min(estimated.workers, -(-todo // PICTURES_PER_WORKER)))
        told = 0.0
        with Pool(setup, self.table, workers, estimated.picture_nbytes) as pool:
            answers = pool.run(self._jobs())
            while self.position < len(self.order):
                index = int(self.order[self.position])
                self._enter_split(int(self.scan.split[index]))
                if index in self.twice:
                    self._share(index, pool)
                else:
                    done, payload = next(answers)
                    assert done.index == index, (done.index, index)
                    self._take(done, payload)
                self.position += 1
                if self.writer.due or time.monotonic() - self.durable > CHECKPOINT_S:
                    self._checkpoint()
                if time.monotonic() - told > 0.1:
                    told = time.monotonic()
                    self.tell(self._progress())
        self._enter_split(len(self.scan.splits) - 1)
        self._checkpoint()
        self.tell(self._progress())

    def _progress(self) -> Progress:
        return Progress("convert", self.position, len(self.order), self.tally.payload_nbytes, self.skipped, self.resumed)

    def _checkpoint(self) -> None:
        self.durable = time.monotonic()
        self.writer.checkpoint(
            {
                "position": self.position,
                "split": self.split,
                "tally": self.tally.to_json(),
                "stored_by_split": self.stored_by_split,
            }
        )

    def _jobs(self) -> Iterator[Job]:
        """Yield the images that must be decoded, in order: all but those that an earlier split stores."""
        for position in range(self.position, len(self.order)):
            index = int(self.order[position])
            if index not in self.twice:
                yield self._job(index)

    def _job(self, index: int) -> Job:
        return Job(index, self.scan.keys[index], self.scan.paths[index], self.table.file(index))

    def _enter_split(self, split: int) -> None:
        while self.split < split:
            self.split += 1
            self.writer.begin_split(self.scan.splits[self.split])

    def _take(self, done: Done, payload: npt.NDArray[np.uint8]) -> None:
        """Write one converted image, or count why there is none."""
        if done.skip is not None:
            self._take_skip(done.index, done.skip)
            return
        for problem in done.problems:
            self._log_problem(problem)
            self.tally.truncated_kept += problem.kind == "truncated-kept"
        assert done.instances is not None
        record = self.writer.add_record(
            Record(payload=payload, encoding=done.encoding, size_hw=done.size_hw, channels=3, crc32c=done.crc32c)
        )
        self.tally.payload_nbytes += done.nbytes
        self.tally.recoded += done.recoded
        if self.firsts:
            self._remember(self.scan.keys[done.index], record, done.original_hw, done.size_hw)
        self._add_entry(done.index, record, done.original_hw, done.instances)

    def _remember(self, key: str, record: int, original_hw: tuple[int, int], size_hw: tuple[int, int]) -> None:
        """Keep where a picture lies that a later split shows again; the first split that shows it stores it."""
        first = self.firsts.get(key)
        if first is not None:
            self.stored.setdefault(first, (record, original_hw, size_hw))

    def _take_skip(self, index: int, skip: Skip) -> None:
        if self.options.source.on_error == "raise":
            raise DataError(f"{skip.file}: {skip.reason}: {skip.detail}; mend or remove it, or convert with --on-error safe")
        self.tally.skip(skip)
        self.tally.rows_of_skipped += int(self.rows_of[index])
        self.writer.log(reporting.line(skip))

    def _add_entry(self, index: int, record: int, original_hw: tuple[int, int], instances: Instances) -> None:
        scan = self.scan
        self.writer.add_entry(
            Entry(
                key=scan.keys[index],
                record=record,
                original_hw=original_hw,
                instances=instances,
                image_id=int(scan.image_id[index]),
                source_nbytes=int(scan.nbytes[index]),
                source_mtime_ns=int(scan.mtime_ns[index]),
            )
        )
        self.tally.stored += 1
        self.stored_by_split[scan.splits[int(scan.split[index])]] += 1
        self.tally.kept += len(instances)
        self.tally.dropped += int(self.rows_of[index]) - len(instances)
        self.tally.crowd += int(np.count_nonzero(instances.flags & CROWD))
        self.tally.background += not len(instances)

    def _share(self, index: int, pool: Pool) -> None:
        """Add an entry for a picture that an earlier split has stored already; it stores no bytes of its own."""
        scan = self.scan
        found = self.stored.get(self.twice[index])
        if found is None:  # it could not be stored there; say again why
            self._take(*pool.one(self._job(index)))
            return
        record, original_hw, size_hw = found
        instances, problems = settle(scan.rows(index), original_hw, key=scan.keys[index])
        for problem in problems:
            self._log_problem(problem)
        self.tally.shared += 1
        self._add_entry(index, record, original_hw, scaled(instances, original_hw, size_hw))

    def _log_problem(self, problem: Problem) -> None:
        on_error = self.options.source.on_error
        if (problem.kind in FATAL and on_error == "safe") or (problem.is_fault and on_error == "raise"):
            raise DataError(f"{problem.where}: {problem.kind}: {problem.detail}")
        self.tally.problem(problem)
        self.writer.log(reporting.line(problem))


def _check_disk(scan: Scan, options: ConvertOptions, nbytes: int, codec: str, target: Path) -> None:
    """Refuse to begin what cannot fit, and say what would."""
    need, free = int(nbytes * MARGIN), free_nbytes(target)
    if need <= free:
        return
    costs = estimate(scan, options, target, timed=False).costs
    smaller = [f"--codec {cost.codec} ({gigabytes(cost.nbytes)})" for cost in costs if cost.nbytes * MARGIN <= free]
    fix = f"{' or '.join(smaller)} would fit" if smaller else "choose another disk or a smaller --imgsz"
    wanted = f"the disk of {target} must have {gigabytes(need)} free for codec {codec}"
    raise OSError(errno.ENOSPC, f"{wanted}, got {gigabytes(free)}; {fix}")


def _summary(scan: Scan, tally: Tally, codec: str, stored_by_split: dict[str, int]) -> dict[str, Any]:
    """Return what stands first in the report and in the manifest."""
    counts = tally.to_json()
    return {
        "source": scan.source,
        "codec": codec,
        "images": {name: counts[name] for name in ("images_in", "stored", "skipped", "background", "shared", "recoded")},
        "rows": {name: counts[name] for name in ("rows_in", "kept", "crowd", "dropped", "rows_of_skipped")},
        "problems": counts["problems"],
        "truncated_kept": tally.truncated_kept,
        "splits": stored_by_split,
        "classes": len(scan.names),
        "decisions": _lasting(scan.decisions),
        "payload_nbytes": tally.payload_nbytes,
    }


def _lasting(decisions: dict[str, str]) -> dict[str, str]:
    """Return the decisions that shape the store; how the format was detected does not, and saying it must change nothing."""
    return {rule: choice for rule, choice in decisions.items() if rule != "detected"}


def _manifest(scan: Scan, options: ConvertOptions, codec: str, summary: dict[str, Any]) -> Manifest:
    """Return the manifest as far as the conversion knows it; the writer adds splits, counts, files and uid."""
    lossy = codec in ("jpeg", "webp") or (codec == "original" and summary["images"]["recoded"])
    keypoints = None
    if scan.keypoints:
        keypoints = Keypoints(scan.keypoints, scan.keypoint_names, scan.flip_idx, scan.skeleton, scan.keypoint_dims)
    return Manifest(
        names=scan.names,
        codec=codec,  # type: ignore[arg-type]
        task=scan.task,
        imgsz=options.imgsz,
        resample=options.resample if options.imgsz is not None else None,
        quality=options.quality if lossy else None,
        category_ids=scan.category_ids,
        keypoints=keypoints,
        source=scan.source,
        decisions=_lasting(scan.decisions),
        options=replace(options, codec=codec).as_json(),  # type: ignore[arg-type]
        summary=summary,
    )
