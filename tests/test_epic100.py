"""EPIC-KITCHENS-100: dirt that people's copies have, features by name and by order, frames, training."""

import csv
import gzip

import numpy as np
import pytest
import torch

from mmts_ray.config import from_flat
from mmts_ray.data import TEST, TRAIN, epic100
from mmts_ray.data.clip_features import stand_in
from mmts_ray.encoders import ENCODERS, Encoder, Tower
from mmts_ray.features import encode
from mmts_ray.train import TrainData, train

torch.set_num_threads(1)
CLIPS = ("narration_id", "participant_id", "narration", "verb", "verb_class", "noun", "noun_class", "all_noun_classes")


def row(name, text, verb, noun, nouns=None):
    given = f"[{noun}]" if nouns is None else nouns
    return dict(zip(CLIPS, (name, name[:3], text, "x", verb, "x", noun, given)))


def write(path, rows, columns=CLIPS):
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


TRAINED = [
    row("P01_01_0", "take plate", 0, 2),
    row("P01_01_1", "put plate on table", 1, 2, "[2, 3]"),
    row("P01_02_0", "wash knife, twice", 2, 4, "[4, 4]"),  # a noun listed twice, a comma in the text
    row("P02_01_0", "take plate", 0, 2),
    row("P02_02_0", "open door", 3, 5),
    row("P03_01_0", "take knife", 0, 4),
]
TESTED = [row("P04_01_0", "take plate", 0, 2), row("P04_01_1", "take plate", 0, 6), row("P04_01_2", "open tin", 3, 7)]


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "EPIC_100_retrieval_train.csv", TRAINED)
    write(tmp_path / "EPIC_100_retrieval_test.csv.gz", TESTED)
    columns = ("narration_id", "narration")
    write(
        tmp_path / "EPIC_100_retrieval_test_sentence.csv",
        [{name: r[name] for name in columns} for r in TESTED],
        columns,
    )
    return tmp_path


def test_without_a_training_sentence_file_the_distinct_narrations_are_the_captions(folder):
    data = epic100(path=str(folder), validation_share=0.3)
    assert [data.listed[c] for c in np.flatnonzero(data.relevance.split_C == TRAIN)] == [
        "take plate",
        "put plate on table",
        "wash knife, twice",
        "open door",
        "take knife",
    ]
    assert any("no training sentence file" in note for note in data.notes)
    twice = data.relevance.noun_KV[data.relevance.key_N[data.image_ids.index("P01_02_0")]]
    assert twice.sum() == 1
    assert {data.listed[c] for c in np.flatnonzero(data.relevance.split_C == TEST)} == {"take plate", "open tin"}


def test_rows_that_cannot_be_used_are_dropped_and_counted_by_file(folder):
    dirty = [*TRAINED, row("P01_01_0", "take plate", 0, 2), row("P09_1", "  ", 0, 2), row("", "take it", 0, 2)]
    dirty += [row("P09_2", "take it", "?", 2), row("P09_3", "take it", 0, 2, "__import__('os')"), TESTED[0]]
    write(folder / "EPIC_100_retrieval_train.csv", dirty)
    with pytest.raises(ValueError, match=r"retrieval_train.csv: 6 of 12 rows .* narration_id occurs twice 1"):
        epic100(path=str(folder))
    data = epic100(path=str(folder), max_dropped=0.6, validation_share=0.3)
    assert data.dropped == {
        "a class is not a whole number": 2,
        "narration_id occurs twice": 1,
        "empty narration": 1,
        "no narration_id": 1,
        "is a test clip": 1,
    }
    with pytest.raises(ValueError, match=r"strict refuses"):
        epic100(path=str(folder), strict=True)


def test_what_is_missing_is_named(folder):
    with pytest.raises(ValueError, match="no such folder"):
        epic100(path=str(folder / "else"))
    with pytest.raises(ValueError, match=r"other.csv: no such file"):
        epic100(path=str(folder), train="other.csv")
    write(folder / "EPIC_100_retrieval_train.csv", [{"narration_id": "a"}], ("narration_id",))
    with pytest.raises(ValueError, match=r"no column 'narration'"):
        epic100(path=str(folder))
    (folder / "EPIC_100_retrieval_test_sentence.csv").unlink()
    write(folder / "EPIC_100_retrieval_train.csv", TRAINED)
    with pytest.raises(ValueError, match=r"no EPIC_100_retrieval_test_sentence.csv"):
        epic100(path=str(folder))


def values(rows):
    return np.arange(len(rows) * 3, dtype=np.float32).reshape(-1, 3)


@pytest.mark.parametrize("kind", ["npy", "npy of frames", "names", "npz", "parquet", "folder"])
def test_features_follow_their_clips_by_order_or_by_name(folder, kind):
    names = [r["narration_id"] for r in TRAINED]
    given, path = values(TRAINED), folder / f"train.{kind if kind in ('npz', 'parquet') else 'npy'}"
    if kind == "npy":
        np.save(path, given.astype(np.float16))
    elif kind == "npy of frames":
        np.save(path, np.stack([given - 1, given + 1], axis=1))
    elif kind == "names":
        np.save(path, given[::-1])
        path.with_suffix(".ids.txt").write_text("\n".join(names[::-1]))
    elif kind == "npz":
        np.savez(path, ids=np.array(names[::-1]), features=given[::-1])
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"narration_id": names[::-1], "features": given[::-1].tolist()}), path)
    else:
        path = folder / "train"
        path.mkdir()
        for name, own in zip(names, given):
            np.save(path / f"{name}.npy", np.stack([own - 1, own + 1]))
    np.save(folder / "test.npy", -values(TESTED))
    data = epic100(path=str(folder), features=str(path), test_features=str(folder / "test.npy"), validation_share=0.3)
    for name, own in zip(names, given):
        np.testing.assert_array_equal(data.image_features_NI[data.image_ids.index(name)], own)
    assert data.name == "epic100"
    assert "stand-in" not in " ".join(data.notes)


def test_a_clip_without_usable_features_is_dropped(folder):
    given = values(TRAINED)
    given[1, 0], given[2, 0] = np.nan, 1e6
    ids = [r["narration_id"] for r in TRAINED]
    with np.errstate(over="ignore"):
        np.savez(folder / "f.npz", ids=ids[:5], features=given[:5].astype(np.float16))
    np.save(folder / "test.npy", values(TESTED))
    chosen = {"path": str(folder), "features": str(folder / "f.npz"), "test_features": str(folder / "test.npy")}
    data = epic100(**chosen, max_dropped=0.5, validation_share=0.3)
    assert data.dropped == {"features are not finite": 2, "no features of this clip": 1}
    with pytest.raises(ValueError, match="more than max_dropped"):
        epic100(**chosen)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("f.pkl", None, "a pickle runs what it holds"),
        ("f.mat", None, "no such file"),
        ("f.npy", np.zeros((5, 3)), "5 rows for 6 clips"),
        ("f.npy", np.zeros(6), r"shape \(6,\)"),
        ("f.npy", np.array([{}] * 6), "Python objects"),
        ("f.npz", {"ids": np.arange(6), "features": np.zeros((6, 3))}, "its names are like '0'"),
        ("f.npz", {"ids": np.array(["P01_01_0"] * 6), "features": np.zeros((6, 3))}, "is in rows 0 and 1"),
        ("f.npz", {"rows": np.zeros((6, 3))}, "no array 'ids'; it has rows"),
    ],
)
def test_features_that_do_not_fit_are_refused(folder, file, array, message):
    if isinstance(array, dict):
        np.savez(folder / file, **array)
    elif array is not None:
        np.save(folder / file, array, allow_pickle=True)
    elif file.endswith(".pkl"):
        (folder / file).write_bytes(b"\x80\x04N.")
    with pytest.raises(ValueError, match=message) as caught:
        epic100(path=str(folder), features=str(folder / file))
    assert "\n" not in str(caught.value)


def test_h5_features_are_read_where_h5py_is_installed_and_say_so_where_not(folder):
    path = folder / "f.h5"
    path.write_bytes(b"")
    try:
        import h5py
    except ImportError:
        with pytest.raises(ValueError, match="needs h5py"):
            epic100(path=str(folder), features=str(path))
        return
    with h5py.File(path, "w") as file:
        for r, own in zip(TRAINED + TESTED, values(TRAINED + TESTED)):
            file[r["narration_id"]] = own
    data = epic100(path=str(folder), features=str(path), validation_share=0.3)
    np.testing.assert_array_equal(data.image_features_NI[data.image_ids.index("P04_01_2")], values(TRAINED + TESTED)[8])


def test_stand_ins_do_not_depend_on_which_clips_are_used():
    own_NE = np.random.default_rng(0).normal(size=(9, 12)).astype(np.float32)
    every = stand_in(own_NE, sigma=2.0, parts=(6, 3), place_N=np.arange(9))
    some = stand_in(own_NE[[4, 7, 7]], sigma=2.0, parts=(6, 3), place_N=np.array([4, 7, 7]))
    np.testing.assert_allclose(some, every[[4, 7, 7]], atol=1e-6)
    quiet = stand_in(own_NE, sigma=0.0, parts=(6, 3), place_N=np.arange(9))
    assert np.linalg.norm(every - quiet, axis=1).mean() == pytest.approx(2.0, rel=0.1)


@pytest.fixture
def words(monkeypatch):
    """A text encoder that costs nothing, under the name of the packaged one: hashed words."""

    def encoded(texts):
        out = np.zeros((len(texts), 32), dtype=np.float32)
        for place, text in enumerate(texts):
            for word in text.split():
                out[place, sum(map(ord, word)) % 32] += 1
        return out

    tower = Tower(dim=32, batch_size=64, prepare=str, encode=encoded)
    monkeypatch.setitem(ENCODERS["text"], "minilm-l6", lambda: Encoder("minilm-l6", "words", lambda: tower))


RECIPE = {
    "data.name": "epic100",
    "model.image_dropout": 0,
    "model.text_dropout": 0,
    "loss.name": "max_margin",
    "groups.name": "classes",
    "eval.source": "classes",
    "train.captions": "relevant",
}


def test_a_run_reports_graded_retrieval_and_repeats_itself_from_a_checkpoint(folder, words, tmp_path):
    flat = {**RECIPE, "data.path": str(folder), "train.epochs": 4, "train.batch_size": 2, "data.validation": "test"}
    config = from_flat({**flat, "schedule.name": "cosine", "data.validation_clips": 2})
    kwargs = config.kwargs("data")
    frozen = encode(
        epic100(**kwargs), image_encoder="efficientnet-lite0", text_encoder="minilm-l6", cache_dir=tmp_path / "cache"
    )
    assert frozen.names["image_encoder"].startswith("stand-in")
    rows, states = [], []
    for row in train(config, TrainData(frozen), test=True):
        rows.append(row)
        states.append(row.state())
    again = list(train(config, TrainData(frozen), states[1], test=True))
    assert [row.metrics for row in rows[2:]] == [row.metrics for row in again]
    for name in ("map", "i2t_map", "t2i_binary_map", "ndcg", "tail_map"):
        assert 0 <= rows[-1].metrics[f"test_{name}"] <= 1
        assert f"val_{name}" in rows[0].metrics or name == "tail_map"


def test_a_caption_is_drawn_anew_each_epoch_among_those_relevant_enough(folder, words, tmp_path):
    data = TrainData(
        encode(
            epic100(path=str(folder), validation="test", validation_clips=2),
            image_encoder="efficientnet-lite0",
            text_encoder="minilm-l6",
            cache_dir=tmp_path / "cache",
        )
    )
    frozen = data.frozen
    rows = np.flatnonzero(frozen.split_N[frozen.image_M] == TRAIN)
    texts = sorted({*epic100(path=str(folder)).captions, *epic100(path=str(folder)).listed})
    relevance = frozen.relevance
    pool = np.flatnonzero(relevance.split_C == TRAIN)
    for above in (0.1, 0.5):
        drawn = {row: set() for row in rows}
        for seed in range(60):
            for row, text in zip(rows, data.relevant(above).draw(rows, np.random.default_rng(seed))):
                drawn[row].add(texts[text])
        relevancy = relevance.between(relevance.key_N[frozen.image_M[rows]], relevance.key_C[pool])
        for row, own in zip(rows, relevancy):
            assert drawn[row] == {texts[frozen.text_C[pool[c]]] for c in np.flatnonzero(own > above)}


def test_relevant_captions_need_graded_relevancy():
    from toy import frozen

    config = from_flat({"data.name": "features", "data.path": "x", "train.captions": "relevant", "train.epochs": 1})
    with pytest.raises(ValueError, match=r"train.captions: relevant needs graded relevancy"):
        next(train(config, TrainData(frozen())))


def test_a_clip_is_the_mean_of_its_frames_where_frames_are_given(folder, words, tmp_path, monkeypatch):
    from PIL import Image

    tower = Tower(3, 8, lambda picture: np.asarray(picture).mean((0, 1)), lambda inputs: np.stack(inputs))
    monkeypatch.setitem(ENCODERS["image"], "colour", lambda: Encoder("colour", "1", lambda: tower))
    columns = (*CLIPS, "start_frame", "stop_frame")
    for name, clips in (("EPIC_100_retrieval_train.csv", TRAINED), ("EPIC_100_retrieval_test.csv.gz", TESTED)):
        spans = [{"start_frame": 10 * place + 1, "stop_frame": 10 * place + 8} for place in range(len(clips))]
        write(folder / name, [{**clip, **span} for clip, span in zip(clips, spans)], columns)
        for place, clip in enumerate(clips[:-1] if clips is TRAINED else clips):
            video = clip["narration_id"].rpartition("_")[0]
            inside = video if clips is TRAINED else f"{video[:3]}/rgb_frames/{video}"
            (tmp_path / "frames" / inside).mkdir(parents=True, exist_ok=True)
            for frame in range(10 * place + 1, 10 * place + 9):
                picture = Image.new("RGB", (4, 4), (frame, place, 0))
                picture.save(tmp_path / "frames" / inside / f"frame_{frame:010d}.png")
    chosen = {"path": str(folder), "frames": str(tmp_path / "frames"), "validation_share": 0.3, "max_dropped": 0.3}
    data = epic100(**chosen, frames_per_clip=2)
    assert data.dropped == {"no frames of this clip": 1}
    frozen = encode(data, image_encoder="colour", text_encoder="minilm-l6", cache_dir=tmp_path / "cache")
    for place, clip in enumerate(TRAINED[:-1]):
        row = frozen.image_NI[data.image_ids.index(clip["narration_id"])]
        np.testing.assert_array_equal(row, [10 * place + 5, place, 0])  # of frames 3 and 7
    assert frozen.relevance is not None
    assert "stand-in" not in " ".join(data.notes)
    with pytest.raises(ValueError, match="frames or features, not both"):
        epic100(**chosen, features="f.npy")
    with pytest.raises(ValueError, match="no such folder"):
        epic100(path=str(folder), frames=str(tmp_path / "none"))
    write(folder / "EPIC_100_retrieval_test.csv.gz", TESTED)
    with pytest.raises(ValueError, match="no column 'start_frame'"):
        epic100(**chosen)
