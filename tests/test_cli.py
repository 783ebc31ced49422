"""The command line as a contract: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fastdata
from fastdata.augment.policy import preset
from fastdata.loader import Loader
from fastdata.show_augmented import write_samples_sheet

RUN = "import sys; from fastdata.cli import main; sys.argv[0] = 'fastdata'; main()"


def run(*args: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, without a terminal."""
    return subprocess.run([sys.executable, "-c", RUN, *map(str, args)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def cases(shared: Path) -> Path:
    return shared / "cases"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, cases: Path) -> Path:
    out = tmp_path_factory.mktemp("cli") / "out.lmdb"
    done = run("convert", cases / "lab-bad-rows/input/data.yaml", out, "--imgsz", "full", "--split", "train")
    assert done.returncode == 0, done.stderr
    return out


def test_help_names_every_command() -> None:
    """One line each, on stdout, exit 0."""
    done = run("--help")
    assert done.returncode == 0
    for command in ("convert", "info", "verify", "export", "show", "doctor", "demo"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("command", ["convert", "info", "verify", "export", "show", "doctor", "demo"])
def test_every_command_explains_itself(command: str) -> None:
    """--help of each command works and loads nothing heavy."""
    heavy = ("torch", "cv2", "PIL", "pycocotools", "simplejpeg")
    code = f"import sys; sys.argv = ['fastdata', {command!r}, '--help']\n"
    code += "from fastdata.cli import app\ntry: app()\nexcept SystemExit: pass\n"
    code += f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage:" in done.stdout
    assert done.stderr.strip() == "[]"


def test_the_version_is_that_of_the_package() -> None:
    """--version prints it."""
    assert run("--version").stdout.strip() == f"fastdata {fastdata.__version__}"


def test_json_is_alone_on_stdout(tmp_path: Path, cases: Path) -> None:
    """The document parses as it stands; progress and warnings are elsewhere."""
    done = run("convert", cases / "img-jpeg-cut/input/data.yaml", tmp_path / "o.lmdb", "--split", "train", "--json")
    assert done.returncode == 0
    summary = json.loads(done.stdout)
    assert summary["images"] == {
        "images_in": 2, "stored": 1, "skipped": {"truncated": 1}, "background": 0, "shared": 0, "recoded": 0,
    }  # fmt: skip
    assert "1 images could not be stored" in done.stderr


def test_dry_run_tabulates_and_writes_nothing(tmp_path: Path, cases: Path) -> None:
    """Bytes, time and speed of every codec; the folder stays empty."""
    done = run("convert", cases / "img-alpha/input/data.yaml", tmp_path / "o.lmdb", "--dry-run", "--json", "--imgsz", "full")
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert [cost["codec"] for cost in read["costs"]] == ["raw", "jpeg", "webp", "original"]
    assert read["costs"][0]["nbytes"] == 24 * 32 * 3
    assert list(tmp_path.iterdir()) == []


def test_info_counts_and_lists_problems(store: Path) -> None:
    """The counts of the set; the rows that were dropped, with file and line."""
    read = json.loads(run("info", store, "--json", "--problems").stdout)
    assert (read["images"], read["annotations"]) == (2, 2)
    assert [row["problem"]["line"] for row in read["report"]] == [1, 2, 2, 3, 4, 5, 6]
    table = run("info", store, "--problems")
    assert table.returncode == 0
    assert "labels/mixed.txt:4" in table.stdout.replace("\n", "")


def test_verify_answers_with_its_exit_code(store: Path, tmp_path: Path) -> None:
    """0 for a whole store, 1 and a list for a damaged one."""
    assert run("verify", store).returncode == 0
    data = bytearray(store.read_bytes())
    data[8192 + 100] ^= 1
    (tmp_path / "bad.lmdb").write_bytes(data)
    done = run("verify", tmp_path / "bad.lmdb", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False


def test_show_draws_a_sheet(store: Path, tmp_path: Path) -> None:
    """A PNG comes out."""
    done = run("show", store, tmp_path / "sheet.png", "--ids", "0,1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_show_draws_the_batch_that_a_run_is_asked_for(store: Path, tmp_path: Path) -> None:
    """By its settings, and by the state of a loader with them: the same sheet, and not that of another epoch."""
    with fastdata.open_store(store) as opened:
        settings = {"imgsz": 64, "seed": 3, "epochs": 12, "task": "detect", "policy": preset("yolov5")}
        loader = Loader(opened, 2, threads=1, stride=1, **settings)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()), encoding="utf-8")
        write_samples_sheet(loader.samples, tmp_path / "want.png", epoch=7, batch=0, batch_size=2, tile_px=64)
    place = ("--epoch", 7, "--batch", 0, "--batch-size", 2, "--tile", 64)
    said = ("--imgsz", 64, "--seed", 3, "--epochs", 12, "--task", "detect", "--policy", "yolov5")
    for name, args in (("a.png", said), ("b.png", ("--run", tmp_path / "state.json"))):
        done = run("show", store, tmp_path / name, *args, *place)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_bytes() == (tmp_path / "want.png").read_bytes()
    done = run("show", store, tmp_path / "c.png", *said, "--augment", "--ids", "0,1", "--tile", 64)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").read_bytes() != (tmp_path / "want.png").read_bytes()


def test_export_writes_what_convert_reads(store: Path, tmp_path: Path) -> None:
    """Out as YOLO, in again."""
    assert run("export", store, tmp_path / "yolo", "--format", "yolo").returncode == 0
    done = run("convert", tmp_path / "yolo", tmp_path / "again.lmdb", "--imgsz", "full", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["kept"] == 2


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["convert", "no/such/set", "o.lmdb"], 2, "must be an existing file or folder"),
        (["convert", ".", "o.lmdb", "--imgsz", "big"], 2, "imgsz must be 'full' or a whole number"),
        (["convert", ".", "o.lmdb", "--imgsz", "7"], 2, "imgsz must be 'full' or 32..16384"),
        (["convert", ".", "o.lmdb", "--codec", "original"], 2, "--imgsz full"),
        (["convert", ".", "o.lmdb", "--workers", "0"], 2, "workers must be at least 1"),
        (["info", "no-such.lmdb"], 1, "no-such.lmdb"),
        (["show", "no-such.lmdb", "x.png"], 1, "no-such.lmdb"),
        (["show", "no-such.lmdb", "x.png", "--augment"], 1, "no-such.lmdb"),
        (["show", "s.lmdb", "x.png", "--seed", "1"], 2, "--seed must come with --augment, --batch or --run, got 1"),
        (["show", "s.lmdb", "x.png", "--epoch", "1"], 2, "--epoch must come with --augment, --batch or --run, got 1"),
        (["show", "s.lmdb", "x.png", "--augment", "--rank", "1"], 2, "--rank must come with --batch, got 1"),
        (["show", "s.lmdb", "x.png", "--run", "r", "--imgsz", "64"], 2, "--imgsz must be left to --run, which says it, got 64"),
        (["show", "s.lmdb", "x.png", "--run", "r", "--split", "val"], 2, "--split must be left to --run"),
        (["show", "s.lmdb", "x.png", "--run", "r", "--batch", "1"], 2, "--batch-size must be given with --batch and --run"),
        (["show", "s.lmdb", "x.png", "--run", "no-run.json"], 1, "no-run.json"),
        (["show", "s.lmdb", "x.png", "--augment", "--policy", "strong"], 2, "'strong' is not one of"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_wrong_usage_and_missing_files_are_told_in_one_sentence(args: list[str], code: int, words: str) -> None:
    """The exit code says which it is, and nobody sees a traceback."""
    done = run(*args)
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_misread_set_stops_with_file_and_line_and_leaves_nothing(tmp_path: Path, cases: Path) -> None:
    """A class beyond the names: exit 1, the place, the fix."""
    done = run("convert", cases / "lab-class-too-large/input/data.yaml", tmp_path / "o.lmdb")
    assert done.returncode == 1
    assert "b.txt:3" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_doctor_reports_as_json() -> None:
    """Every finding has a status, and unknown ones have a reason."""
    done = run("doctor", "--json")
    assert done.returncode in (0, 1)
    text = json.dumps(json.loads(done.stdout))
    assert "cores" in text
