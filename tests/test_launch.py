"""How kernels get to a GPU: their translation and its cache, and NVRTC, which may be missing."""

from undistracted.kernels import launch


def test_a_translation_is_kept_and_made_anew_if_it_is_not_whole(monkeypatch, tmp_path):
    class Nvrtc:
        version = 13

        def nvrtcVersion(self, major, minor):
            major._obj.value, minor._obj.value = self.version, 0

    made = []
    monkeypatch.setenv("UNDISTRACTED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(launch, "library", Nvrtc)
    monkeypatch.setattr(launch, "translated", lambda source: made.append(source) or f".entry {source}\n")

    def ptx(source):
        return launch.ptx.__wrapped__(source)

    assert ptx("a") == ptx("a") == ".entry a\n" and made == ["a"]
    assert ptx("b") == ".entry b\n" and made == ["a", "b"]
    (kept,) = (path for path in (tmp_path / "cache" / "kernels").iterdir() if "entry a" in path.read_text())
    for damage in (b"", kept.read_bytes()[:-2], b"\xff"):
        kept.write_bytes(damage)
        assert ptx("a") == ptx("a") == ".entry a\n" and made.pop() == "a" and made == ["a", "b"]
    Nvrtc.version = 14
    assert ptx("a") == ".entry a\n" and made == ["a", "b", "a"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNDISTRACTED_CACHE", str(tmp_path / "file"))
    assert ptx("a") == ptx("a") == ".entry a\n" and len(made) == 5


def test_nvrtc_is_taken_from_packages_first_and_may_be_missing(monkeypatch, tmp_path):
    place = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    place.parent.mkdir(parents=True)
    place.touch()
    asked = []

    def load(name):
        asked.append(name)
        raise OSError

    monkeypatch.setattr(launch.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(launch, "find_library", lambda name: None)
    monkeypatch.setattr(launch.ctypes, "CDLL", load)
    assert launch.library.__wrapped__() is None
    assert asked == [str(place), "libnvrtc.so"]
