"""What whole towers read: pixels and tokens as the library makes them, prompts for folders of classes."""

import shutil

import numpy as np
import pictures
import pytest
import torch
from tower_trials import ALL, frozen_of

from mmts_ray.config import from_flat
from mmts_ray.data.class_folders import class_folders
from mmts_ray.towers.clip import Clip
from mmts_ray.towers.weights import find
from mmts_ray.train import TrainData, train

torch.set_num_threads(1)
pytest.importorskip("open_clip")


def test_pixels_and_tokens_are_what_the_librarys_transform_and_tokenizer_give(drawn, place):
    import open_clip
    from PIL import Image

    _, data = drawn
    pixels, tokens = data.inputs()
    assert (pixels.array.dtype, pixels.shape) == (np.uint8, (96, 3 * 32 * 32))
    assert (tokens.array.dtype, tokens.shape) == (np.int32, (96, 16))
    open_clip.add_model_config(place / "tiny.json")
    _, _, transform = open_clip.create_model_and_transforms("tiny")
    model = Clip(find(str(place / "tiny.json")), 0, crop=1.0, batch_norm="batch", precision="float32", **ALL)
    seen = []
    model.network.encode_image = lambda x: seen.append(x) or x.flatten(1)
    model.image(pixels.take(torch.arange(3)))
    for number in range(3):
        theirs = transform(Image.open(place / "drawn" / f"{number:03}.png").convert("RGB"))
        assert torch.equal(seen[0][number], theirs)
    unique = sorted({f"a {list(pictures.COLOURS)[n % 4]} stripe at place {n // 4 % 8}, number {n}" for n in range(96)})
    assert torch.equal(tokens.take(torch.arange(96)).long(), open_clip.get_tokenizer("tiny")(unique))


def test_nothing_is_encoded_that_nobody_asked_for(drawn):
    _, data = drawn
    assert data.frozen.image_NI.shape == (96, 0)
    assert data.frozen.text_UT.shape == (96, 0)
    with pytest.raises(ValueError, match=r"clusters of captions need features, and model\.text_encoder is none"):
        data.groups("captions", {"k": 3, "seed": 0})
    with pytest.raises(ValueError, match=r"soft_labels: image needs features, and model\.image_encoder is none"):
        data.teacher("image")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups.name": "captions"}, r"groups\.name: captions needs text features, and model\.text_encoder is none"),
        ({"groups.name": "images"}, r"groups\.name: images needs image features"),
        ({"eval.source": "captions"}, r"eval\.source: captions needs text features"),
        ({"loss.angular_margin": 0.1}, r"loss\.soft_labels: text needs text features"),
        ({"loss.filter_threshold_image": 0.9, "loss.soft_labels": "image"}, r"soft_labels: image needs image features"),
    ],
)
def test_what_needs_features_that_nobody_makes_is_refused_before_anything_runs(given, message, drawn):
    with pytest.raises(ValueError, match=message):
        from_flat({**drawn[0], **given})
    assert from_flat({**drawn[0], "loss.soft_labels": "image"})  # no teacher: nothing reads them


def test_heads_need_features_of_both_sides():
    with pytest.raises(ValueError, match=r"model\.name: frozen_heads needs text features"):
        from_flat({"model.text_encoder": "none", "groups.name": "classes", "eval.source": "classes"})


def test_a_process_that_finds_no_inputs_makes_them_anew_and_one_with_other_data_refuses(place, drawn):
    flat, data = drawn
    here = shutil.copytree(place / "cache", place / "elsewhere")
    shutil.rmtree(here / data.frozen.inputs[0].entry)
    again = TrainData(data.frozen, cache_dir=here)
    assert np.array_equal(again.inputs()[0].array, data.inputs()[0].array)
    other = pictures.table(place / "other", count=90)
    frozen = frozen_of({**flat, "data.path": str(other)}, place / "cache")[1]
    moved = type(frozen)(**{**vars(frozen), "encoding": data.frozen.encoding})
    with pytest.raises(ValueError, match="here they are others"):
        TrainData(moved, cache_dir=place / "nothing").inputs()


def test_pictures_that_cannot_be_decoded_are_passed_over(place):
    flat = pictures.flat(pictures.table(place / "broken", broken=3), pictures.config(place), **{"train.epochs": 1})
    config, frozen = frozen_of(flat, place / "cache")
    data = TrainData(frozen, cache_dir=place / "cache")
    pixels, _ = data.inputs()
    assert len(pixels) == len(frozen.split_N) == 93
    assert np.array_equal(pixels.take(torch.tensor([0])).numpy()[0], pixels.array[3])
    assert sum(frozen.names["dropped"].values()) == 3
    assert list(train(config, data))[-1].metrics["train_loss"] > 0


def test_inputs_are_one_for_a_study_and_prompts_need_a_place(place, drawn):
    flat, _ = drawn
    with pytest.raises(ValueError, match=r"model\.prompts: 'a picture' has no place for the class; legal is text with"):
        frozen_of({**flat, "model.prompts": "a {} | a picture"}, place / "cache")
    features = {k: v for k, v in flat.items() if not k.startswith("data.")}
    np.savez(place / "f.npz", image=np.eye(6, dtype=np.float32), text=np.eye(6, dtype=np.float32))
    with pytest.raises(ValueError, match=r"model\.name: this model reads pictures, and data f has features only"):
        frozen_of({**features, "data.name": "features", "data.path": str(place / "f.npz")}, place / "cache")


def classes_of(folder):
    """Two class folders of twelve pictures each, one of them cut short, and a file that is none."""
    from PIL import Image

    for name, colour in (("red_stripe", (220, 30, 30)), ("n02", (40, 60, 220))):
        (folder / name / "inner").mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (40, 40), colour).save(folder / name / "inner" / f"{number}.png")
        (folder / name / "notes.md").write_text("no picture")
    cut = folder / "n02" / "inner" / "3.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    return folder


def test_class_folders_are_classified_by_their_names(drawn, place, tmp_path):
    flat, _ = drawn
    folder = classes_of(tmp_path / "classes")
    given = {**flat, "model.zeroshot": str(folder), "model.prompts": "a {} | one {}", "train.epochs": 1}
    config, frozen = frozen_of(given, place / "cache")
    assert frozen.zeroshot.prompts_CPL.shape == (2, 2, 16)
    assert frozen.zeroshot.class_N.tolist() == [0] * 11 + [1] * 12
    assert frozen.key != frozen_of(flat, place / "cache")[1].key
    data = TrainData(frozen, cache_dir=place / "cache")
    rows = list(train(config, data, test=True))
    assert rows[-1].metrics["val_zeroshot_top1"] == rows[-1].metrics["test_zeroshot_top1"]
    model = Clip(find(flat["model.weights"]), 0, crop=1.0, batch_norm="batch", precision="float32", **ALL)
    model.load_state_dict(rows[-1].state()["model"])
    import open_clip

    tokenise = open_clip.SimpleTokenizer(context_length=16)
    right = 0
    with torch.no_grad():
        pixels = data.inputs()[2]
        for number in range(23):
            image = model.image(pixels.take(torch.tensor([number])))[0]
            scores = []
            for name in ("n02", "red stripe"):
                both = model.text(tokenise([f"a {name}", f"one {name}"]))
                mean = (both[0] + both[1]) / 2
                scores.append(float(image @ mean / mean.norm()))
            own = int(number >= 11)
            right += scores[own] > scores[1 - own]
    assert rows[-1].metrics["val_zeroshot_top1"] == pytest.approx(right / 23)
    (folder / "classes.txt").write_text("n02\ta blue square\nred_stripe\ta red square\n")
    assert frozen_of(given, place / "cache")[1].zeroshot.prompts_CPL.tolist() != frozen.zeroshot.prompts_CPL.tolist()


def test_class_folders_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model\.zeroshot: .*nowhere: no such folder"):
        class_folders(tmp_path / "nowhere")
    folder = classes_of(tmp_path / "classes")
    (folder / "classes.txt").write_text("n02\tblue\n")
    with pytest.raises(ValueError, match=r"classes\.txt: no name for 'red_stripe'; legal is a line"):
        class_folders(folder)
    (folder / "classes.txt").write_text("n02 blue\n")
    with pytest.raises(ValueError, match=r"classes\.txt: line 1 is not FOLDER<tab>name"):
        class_folders(folder)
    (folder / "classes.txt").unlink()
    shutil.rmtree(folder / "n02")
    with pytest.raises(ValueError, match="pictures of 1 classes; legal is at least two"):
        class_folders(folder)
