"""YouCook2: the official JSON with the dirt that it has, features by clip, by order and by second of a video."""

import json

import numpy as np
import pytest

from mmts_ray.config import from_flat
from mmts_ray.data import TEST, TRAIN, VALIDATION, youcook2
from mmts_ray.encoders import ENCODERS, Encoder, Tower
from mmts_ray.prepare import features
from mmts_ray.train import TrainData, train


def video(subset, sentences, recipe="101", **more):
    annotations = [
        {"id": i, "segment": [10 * i + 5, 10 * i + 9], "sentence": sentence} for i, sentence in enumerate(sentences)
    ]
    address = "https://www.youtube.com/watch?v=x"
    return (
        {"duration": 200.5, "subset": subset, "recipe_type": recipe, "video_url": address}
        | {"annotations": annotations}
        | more
    )


DATABASE = {
    "GLd3aX16zBg": video("training", ["spread margarine on two slices of white bread", "place a slice of cheese"]),
    "-dh_uGahzYo": video("training", ["chop  the onion ", "fry the onion"], "202"),
    "_bare_": video("training", [], "202", annotations=[]),
    "no_annotations": {"duration": 3.0, "subset": "training", "recipe_type": "1"},
    "aaaaaaaaaaa": video("training", ["fry the egg", "add salt"], "202"),
    "testing_one": {"duration": 3.0, "subset": "testing", "recipe_type": "1"},
    "xHr8X2Wpmno": video("validation", ["fry the onion", "fry the onion", "serve"], "202"),
}


@pytest.fixture
def annotations(tmp_path):
    path = tmp_path / "youcookii_annotations_trainval.json"
    path.write_text(json.dumps({"database": DATABASE}), encoding="utf-8")
    return path


def test_clips_are_named_by_video_and_id_and_no_video_is_in_two_splits(annotations):
    data = youcook2(path=str(annotations), validation_share=0.3)
    assert [name for name, part in zip(data.image_ids, data.split_N) if part == TEST] == [
        "xHr8X2Wpmno_0",
        "xHr8X2Wpmno_1",
        "xHr8X2Wpmno_2",
    ]
    videos = [{n.rpartition("_")[0] for n in np.array(data.image_ids)[data.split_N == part]} for part in range(3)]
    assert [len(v) for v in videos] == [2, 1, 1]
    assert not videos[TRAIN] & videos[VALIDATION]
    assert "chop the onion" in data.captions
    assert data.class_names == ("recipe 101", "recipe 202")
    notes = " ".join(data.notes)
    assert "2 videos without annotations" in notes
    assert "1 videos of another subset" in notes
    assert "test on 3 of 3 official validation segments, 2 different sentences" in notes
    assert "stand-in" in data.name


def test_segments_that_cannot_be_used_are_dropped_and_counted(annotations):
    dirty = video("training", ["a", "b", "c", "d", "e", "f"])
    for place, change in enumerate(
        [{"id": "0"}, {"id": 5}, {"segment": [9, 3]}, {"segment": "5-9"}, {"sentence": "  "}, {}]
    ):
        dirty["annotations"][place] |= change
    annotations.write_text(json.dumps({"database": DATABASE | {"zzz": dirty}}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"5 of 15 rows"):
        youcook2(path=str(annotations))
    data = youcook2(path=str(annotations), max_dropped=0.5)
    assert data.dropped == {
        "segment is not [start, end] in seconds": 2,
        "id is not a whole number": 1,
        "empty sentence": 1,
        "id occurs twice in its video": 1,
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"database": []}', '{"database": {"a": 3}}', "{"])
def test_another_json_is_refused_in_one_line(annotations, text):
    annotations.write_text(text)
    with pytest.raises(ValueError, match=r"database|no annotated video") as caught:
        youcook2(path=str(annotations))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["order", "clips", "videos"])
def test_features_by_order_by_clip_and_by_second_and_vanished_videos_are_counted(annotations, kind):
    keys = [f"{name}_{a['id']}" for name, v in DATABASE.items() for a in v.get("annotations", [])]
    given = np.arange(len(keys) * 2, dtype=np.float32).reshape(-1, 2)
    where, vanished = annotations.parent / "features", "aaaaaaaaaaa"
    if kind == "order":
        where = where.with_suffix(".npy")
        np.save(where, given)
    else:
        where.mkdir()
        for key, row in zip(keys, given):
            name, _, number = key.rpartition("_")
            if name == vanished:
                continue
            if kind == "clips":
                np.save(where / f"{key}.npy", row)
                continue
            path = where / f"{name}.npy"
            seconds = np.load(path) if path.is_file() else np.full((60, 2), -1, dtype=np.float32)
            seconds[10 * int(number) + 5 : 10 * int(number) + 9] = row
            np.save(path, seconds)
    data = youcook2(path=str(annotations), features=str(where), max_dropped=0.3)
    for key, row in zip(keys, given):
        if kind != "order" and key.startswith(vanished):
            assert key not in data.image_ids
        else:
            np.testing.assert_array_equal(data.image_features_NI[data.image_ids.index(key)], row)
    if kind != "order":
        assert data.dropped == {"no features of this clip": 2}
        assert "1 videos have no features at all" in " ".join(data.notes)
    assert data.name == "youcook2"


def test_a_run_on_stand_ins_reports_recall(annotations, tmp_path, monkeypatch):
    def letters(texts):
        return np.array([[text.count(c) for c in "aeinorst"] for text in texts], dtype=np.float32)

    tower = Tower(dim=8, batch_size=8, prepare=str, encode=letters)
    monkeypatch.setitem(ENCODERS["text"], "minilm-l6", lambda: Encoder("minilm-l6", "letters", lambda: tower))
    flat = {"data.name": "youcook2", "data.path": str(annotations), "data.validation_share": 0.3, "train.epochs": 1}
    config = from_flat({**flat, "groups.name": "classes", "eval.source": "classes"})
    frozen = features(config.flat(), cache_dir=tmp_path / "cache", quiet=True)
    assert frozen.names["image_encoder"].startswith("stand-in")
    (row,) = train(config, TrainData(frozen), test=True)
    assert 0 <= row.metrics["test_t2i_r1"] <= 1
    assert "test_map" not in row.metrics
