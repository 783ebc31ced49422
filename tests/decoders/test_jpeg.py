"""JPEG: what libjpeg-turbo complains about is judged, not passed over and not printed."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import numpy as np
import picture_kit as kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_kit import good, refused
from PIL import Image

import fastdata.decoders.jpeg
from fastdata.errors import MissingExtra
from fastdata.images import Decoded, Refused, decode_image

RGB = kit.picture(48, 64)
JPEG = kit.saved(RGB, "JPEG", quality=92)
PROGRESSIVE = kit.saved(RGB, "JPEG", quality=92, progressive=True)
END = b"\xff\xd9"


PIXELS = good(JPEG).rgb


@pytest.mark.parametrize("library", ["simplejpeg", "opencv"])
@pytest.mark.parametrize(
    ("quality", "sampling"), [(30, "4:2:0"), (75, "4:2:0"), (95, "4:4:4"), (90, "4:2:2"), (100, "4:4:4"), (85, "4:1:1")]
)
@pytest.mark.parametrize("progressive", [False, True])
def test_every_library_gives_the_same_pixels(library: Any, quality: int, sampling: str, progressive: bool) -> None:
    """Pillow brings a libjpeg-turbo of its own: a third opinion."""
    import io

    data = kit.saved(kit.picture(131, 77), "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
    assert np.array_equal(good(data, jpeg=library).rgb, np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("library", ["simplejpeg", "opencv"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_missing_end_mark_alone_loses_nothing(library: Any, cut: int) -> None:
    """One or both of its bytes: every pixel is there, which is proved by decoding with an end mark put back."""
    found = good(JPEG[:-cut], jpeg=library)
    assert np.array_equal(found.rgb, PIXELS)
    assert [kind for kind, _ in found.notes] == ["decoder"]
    assert "end mark" in found.notes[0][1]


@pytest.mark.parametrize("library", ["simplejpeg", "opencv"])
def test_a_progressive_picture_without_its_end_mark_is_refused(library: Any) -> None:
    """Nobody can tell whether another scan would have followed."""
    assert refused(PROGRESSIVE[:-2], jpeg=library).reason == "truncated"


@pytest.mark.parametrize("library", ["simplejpeg", "opencv"])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_end_mark_after_the_cut_hides_nothing(library: Any, data: st.DataObject) -> None:
    """Downloads are sometimes closed with an end mark. Of one scan every cut is noticed."""
    header = JPEG.index(b"\xff\xda") + 14
    length = data.draw(st.integers(header, len(JPEG) - 3))
    found = decode_image(JPEG[:length] + END, jpeg=library)
    if isinstance(found, Decoded):
        assert np.array_equal(found.rgb, PIXELS)
    else:
        assert found.reason in ("truncated", "unreadable")


@pytest.mark.parametrize("library", ["simplejpeg", "opencv"])
def test_zeros_in_place_of_the_rest_are_refused(library: Any) -> None:
    """A file of the right length whose second half never arrived."""
    half = len(JPEG) // 2
    assert refused(JPEG[:half] + bytes(len(JPEG) - half), jpeg=library).reason == "truncated"


def test_junk_between_segments_is_noted_and_hides_no_early_end(capfd: pytest.CaptureFixture[str]) -> None:
    """Only libjpeg's first warning is heard, so the junk is taken out before the second look."""
    junk = JPEG[:2] + b"\xff\xe5\0\4abjunk" + JPEG[2:]
    found = good(junk)
    assert np.array_equal(found.rgb, PIXELS)
    assert found.notes[0][0] == "decoder"
    assert "extraneous bytes" in found.notes[0][1]
    for part in (junk[:-200], junk[:-200] + END):
        assert refused(part).reason == "truncated"
    assert capfd.readouterr() == ("", "")


def test_damage_within_a_scan_is_kept_with_a_note() -> None:
    """A restart interval that holds more than its blocks: every decoder shows the picture, and says what it met."""
    data = kit.saved(RGB, "JPEG", quality=92, restart_marker_rows=1)
    at = data.index(b"\xff\xd0")
    found = good(data[:at] + b"\x12\x34\x56\x78" * 4 + data[at:])
    assert found.rgb.shape == RGB.shape
    assert found.notes[0][0] == "decoder"
    assert "before marker 0xd0" in found.notes[0][1]


def test_a_warning_does_not_hide_that_the_file_ends() -> None:
    """The first warning is about the interval, and the end mark is missing as well."""
    data = kit.saved(RGB, "JPEG", quality=92, restart_marker_rows=1)
    at = data.index(b"\xff\xd0")
    damaged = data[:at] + b"\x12\x34\x56\x78" * 4 + data[at:]
    assert refused(damaged[:-100]).reason == "truncated"
    assert good(damaged[:-100], allow_truncated=True).notes[0][0] == "truncated-kept"


def test_what_libjpeg_turbo_cannot_do_is_unsupported_not_damaged() -> None:
    """Twelve bits, by the frame header: the file is fine, the decoders are not."""
    at = JPEG.index(b"\xff\xc0")
    twelve = JPEG[: at + 1] + b"\xc1" + JPEG[at + 2 : at + 4] + b"\x0c" + JPEG[at + 5 :]
    found = refused(twelve)
    assert (found.reason, "12 bits" in found.detail) == ("unsupported", True)


def test_thousands_of_scans_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may ask for a pass over all pixels as often as it likes."""
    at = PROGRESSIVE.rindex(b"\xff\xda")
    bomb = PROGRESSIVE[:-2] + PROGRESSIVE[at:-2] * 600 + END
    monkeypatch.setattr(fastdata.decoders.jpeg, "by_simplejpeg", lambda *_: pytest.fail("decoded"))
    found = refused(bomb)
    assert (found.reason, "scans" in found.detail) == ("unreadable", True)


class _FakeTurboJPEG:
    """Answers as PyTurboJPEG does: pixels and a warning, or OSError."""

    complaint = ""
    fatal = False

    def decode(self, data: bytes, *, pixel_format: int) -> Any:
        import simplejpeg

        assert pixel_format == 0
        if self.fatal:
            raise OSError(self.complaint)
        if b"junk" in data:  # unlike simplejpeg it is lenient about headers, and then only the first warning is heard
            warnings.warn("Corrupt JPEG data: 4 extraneous bytes before marker 0xe0", stacklevel=2)
            return np.zeros((48, 64, 3), np.uint8)
        if self.complaint:
            warnings.warn(self.complaint, stacklevel=2)
        return simplejpeg.decode_jpeg(data, "RGB", strict=False)


@pytest.fixture
def turbojpeg(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTurboJPEG, whether it is installed or not."""
    module = types.ModuleType("turbojpeg")
    decoder = type("TurboJPEG", (_FakeTurboJPEG,), {})
    module.TurboJPEG, module.TJPF_RGB, module.TJPF_GRAY = decoder, 0, 6  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "turbojpeg", module)
    fastdata.decoders.jpeg._turbojpeg.cache_clear()
    yield decoder
    fastdata.decoders.jpeg._turbojpeg.cache_clear()


def test_warnings_of_turbojpeg_become_the_same_reasons(turbojpeg: Any) -> None:
    """They come through Python's warnings, which are errors here: none may get out."""
    assert np.array_equal(good(JPEG, jpeg="turbojpeg").rgb, PIXELS)
    assert good(JPEG, jpeg="turbojpeg").notes == ()
    turbojpeg.complaint = "Premature end of JPEG file"
    assert refused(PROGRESSIVE[:-300], jpeg="turbojpeg") == Refused("truncated", "libjpeg-turbo: Premature end of JPEG file")
    turbojpeg.complaint = "Corrupt JPEG data: premature end of data segment"
    assert refused(JPEG, jpeg="turbojpeg").reason == "truncated"
    assert good(JPEG, jpeg="turbojpeg", allow_truncated=True).notes[0][0] == "truncated-kept"
    turbojpeg.complaint = "Corrupt JPEG data: 3 extraneous bytes before marker 0xd9"
    assert good(JPEG, jpeg="turbojpeg").notes == (("decoder", f"libjpeg-turbo: {turbojpeg.complaint}"),)


def test_a_warning_about_junk_hides_no_early_end_from_turbojpeg(turbojpeg: Any) -> None:
    """The second look is at the bytes without the junk."""
    junk = JPEG[:2] + b"\xff\xe5\0\4abjunk" + JPEG[2:]
    assert np.array_equal(good(junk, jpeg="turbojpeg").rgb, PIXELS)
    turbojpeg.complaint = "Corrupt JPEG data: premature end of data segment"
    assert refused(junk[:-200] + END, jpeg="turbojpeg").reason == "truncated"


def test_an_error_that_turbojpeg_takes_for_a_warning_is_an_error(turbojpeg: Any) -> None:
    """After a warning libjpeg-turbo reports errors as warnings too; only the words tell, and the pixels are not finished."""
    turbojpeg.complaint = "Bogus marker length"
    for fatal in (False, True):
        turbojpeg.fatal = fatal
        assert refused(JPEG, jpeg="turbojpeg") == Refused("unreadable", "libjpeg-turbo: Bogus marker length")
        assert refused(JPEG, jpeg="turbojpeg", allow_truncated=True).reason == "unreadable"


def test_a_missing_turbojpeg_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, or the library of the system that it needs."""
    monkeypatch.setitem(sys.modules, "turbojpeg", None)
    fastdata.decoders.jpeg._turbojpeg.cache_clear()
    with pytest.raises(MissingExtra, match=r"fastdata-yolo\[turbojpeg\]"):
        decode_image(JPEG, jpeg="turbojpeg")
    module = types.ModuleType("turbojpeg")
    module.TurboJPEG = lambda: (_ for _ in ()).throw(RuntimeError("Unable to locate turbojpeg library"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "turbojpeg", module)
    with pytest.raises(MissingExtra, match="libturbojpeg"):
        decode_image(JPEG, jpeg="turbojpeg")


def test_the_real_turbojpeg_agrees_where_it_is_installed() -> None:
    """Pixels, a cut file and a file that goes on after its end mark."""
    pytest.importorskip("turbojpeg")
    fastdata.decoders.jpeg._turbojpeg.cache_clear()
    try:
        for data in (JPEG, PROGRESSIVE, JPEG + bytes(9), kit.saved(RGB[:, :, 0].copy(), "JPEG")):
            mine, theirs = good(data), good(data, jpeg="turbojpeg")
            assert np.array_equal(mine.rgb, theirs.rgb)
            assert mine.notes == theirs.notes
        assert refused(JPEG[:-100], jpeg="turbojpeg") == refused(JPEG[:-100])
    except MissingExtra as err:
        pytest.skip(str(err))


@pytest.mark.parametrize("kind", ["RGB", "CMYK"])
@pytest.mark.parametrize("part", ["adobe", "jfif", "icc"])
def test_header_segments_that_nobody_understands_are_noted_and_change_no_pixel(kind: str, part: str) -> None:
    """libjpeg assumes the usual meaning; a picture that also ends early is refused all the same."""
    data = kit.saved(Image.fromarray(RGB).convert(kind), "JPEG", quality=92)
    plain = good(data)
    if part == "icc":
        odd = kit.jpeg_with(data, (0xE2, b"ICC_PROFILE\0\1\1"), (0xE2, b"ICC_PROFILE\0\1\1"))
    elif part == "jfif":
        odd = kit.jpeg_with(data, (0xE0, b"JFIF\0\5\0\0\0\1\0\1\0\0"))
    elif kind == "RGB":
        odd = kit.jpeg_with(data[:2] + data[20:], (0xEE, b"Adobe\0\x64\0\0\0\0\2"))  # JFIF would settle it
    else:
        at = data.index(b"Adobe")
        odd = data[: at + 11] + b"\7" + data[at + 12 :]
    found = good(odd)
    assert [note for note, _ in found.notes] == ["decoder"]
    if (kind, part) == ("CMYK", "adobe"):
        assert found.rgb.shape == plain.rgb.shape  # an unknown code means YCCK, which this file is not
    else:
        assert np.array_equal(found.rgb, plain.rgb)
    assert refused(odd[:-200]).reason == "truncated"
    assert refused(odd[:-200] + END).reason == "truncated"
