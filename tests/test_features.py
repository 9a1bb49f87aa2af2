"""The feature cache: content-addressed, whole or not there, safe under kill -9 and under two writers."""

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import NAMES, check, colours, letters_tower

from mmts_ray.cache import default_cache_dir, locked
from mmts_ray.data import features
from mmts_ray.encoders import ENCODERS, Encoder
from mmts_ray.features import encode
from mmts_ray.features.pool import encoding_pool
from mmts_ray.prepare import progress_on


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
import tiny_encoders as t
from mmts_ray.encoders import ENCODERS, Encoder, Tower
from mmts_ray.features import encode
from mmts_ray.features.pool import encoding_pool
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


def test_threads_share_the_cores_and_the_environment_has_the_last_word(monkeypatch):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))

    def seen():
        with encoding_pool() as pool:
            together = threading.Barrier(min(int(os.environ.get("OMP_NUM_THREADS", cores)), 16))

            def one(_):
                together.wait(timeout=5)  # breaks unless as many threads as that are there
                return torch.get_num_threads()

            return list(pool.map(one, range(together.parties)))

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert seen() == [1] * cores if cores <= 16 else [cores // 16] * 16
    for wanted, expected in (("1", [1]), ("3", [1] * 3), ("40", [2] * 16)):
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
        assert seen() == expected
    assert torch.get_num_threads() == before
