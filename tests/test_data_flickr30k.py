"""Flickr30k in its three text forms and in Karpathy's split, with the dirt that people meet."""

import numpy as np
import pytest
from corpora import jpeg, karpathy, one_line, put

from mmts_ray.data import flickr30k


@pytest.fixture
def flickr(tmp_path):
    for number in range(40):
        put(tmp_path / "flickr30k-images" / f"{number + 1000}.jpg", jpeg(number))
    return tmp_path


def test_flickrs_token_file_is_split_at_its_first_tab_and_last_hash(flickr):
    lines = [f'{n + 1000}.jpg#{k}\tTwo "men" , caption {k}\tof {n} .' for n in range(40) for k in range(5)]
    lines[7] = "1001.jpg#2 no tab here"
    lines[8] = "1001.jpg\tno number"
    lines[9] = "1001.jpg#4\t   "
    lines += ["9999.jpg#0\tits picture is gone"]
    file = put(flickr / "results_20130124.token", "\n".join(lines) + "\n")
    data = flickr30k(path=str(file), validation_share=0.1, test_share=0.2)
    assert np.bincount(data.split_N).tolist() == [28, 4, 8]
    assert data.captions[0] == 'Two "men" , caption 0 of 0 .'
    assert len(data.captions) == 197
    assert data.dropped == {
        "no tab between picture and caption": 1,
        "no # between picture and number": 1,
        "empty caption": 1,
        "image file not found": 1,
    }
    with pytest.raises(ValueError, match=r"strict refuses 4 of 201 rows: row 8: no tab"):
        flickr30k(path=str(file), strict=True)


def test_the_other_two_text_forms_of_flickr_give_the_same_data(flickr):
    def texts(n):
        return [f'A man , {n} , says "hi" .', f"plain {n}"]

    token = [f"{n + 1000}.jpg#{k}\t{t}" for n in range(40) for k, t in enumerate(texts(n))]
    piped = ["image_name| comment_number| comment"]
    piped += [f"{n + 1000}.jpg| {k}| {t}" for n in range(40) for k, t in enumerate(texts(n))]
    quoted = ["image,caption"] + [
        f"{n + 1000}.jpg," + (f'"{t}"'.replace('"hi"', '""hi""') if "," in t else t)
        for n in range(40)
        for t in texts(n)
    ]
    found = [
        flickr30k(path=str(put(flickr / name, "\n".join(lines) + "\n")), seed=3)
        for name, lines in (("r.token", token), ("results.csv", piped), ("captions.txt", quoted))
    ]
    assert len({data.fingerprint for data in found}) == 1
    assert 'A man , 3 , says "hi" .' in found[0].captions
    piped[5] = "1002.jpg| 0   the separator is lost"
    data = flickr30k(path=str(put(flickr / "results.csv", "\n".join(piped))))
    assert data.dropped == {"lost separator": 1}
    assert len(data.captions) == 79


def test_karpathys_flickr_brings_its_split(flickr):
    entries = [
        {
            "filename": f"{n + 1000}.jpg",
            "split": "val" if n < 3 else "test" if n < 8 else "train",
            "texts": [f"t {n}", ""],
        }
        for n in range(40)
    ]
    entries[9]["split"] = "extra"
    entries[10]["texts"] = []
    entries[11]["filename"] = "1000.jpg"
    data = flickr30k(path=str(karpathy(flickr / "dataset_flickr30k.json", entries)))
    assert np.bincount(data.split_N).tolist() == [29, 3, 5]
    assert data.dropped == {
        "split is not train, validation or test": 1,
        "empty caption": 1,
        "picture is listed twice": 1,
    }
    assert "37 blank captions skipped" in data.notes[0]


def test_flickr_refuses_in_one_line(flickr, tmp_path):
    other = put(flickr / "other.txt", "a b c\n1 2 3\n")
    empty = put(flickr / "empty.token", "")
    piped = put(flickr / "piped.csv", "a|b\n1|2\n")
    alone = put(tmp_path / "alone" / "results.token", "a.jpg#0\tx\n")
    for path, words in (
        (flickr / "no.token", "no such file; data.path is results_20130124.token"),
        (other, "first line 'a b c' is not one of Flickr30k's"),
        (empty, "the file is empty"),
        (piped, "legal is image_name"),
        (alone, "no folder of pictures .* beside results.token; set data.images"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            flickr30k(path=str(path))
        one_line(caught)
