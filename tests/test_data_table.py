"""Users' tables, however dirty."""

import csv
import gzip
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from image_files import jpeg, png, truncated_jpeg

from mmts_ray.data import TEST, TRAIN, VALIDATION, table

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def folder(tmp_path):
    for number in range(30):
        (tmp_path / f"p{number:02d}.png").write_bytes(png((number * 8, 0, 0)))
    return tmp_path


def write_csv(folder, rows, header=("image", "caption"), name="t.csv", delimiter=","):
    path = folder / name
    with path.open("w", newline="", encoding="utf8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def rows_of(folder, count=30, caption="a picture of {}"):
    return [(f"p{i:02d}.png", caption.format(i)) for i in range(count)]


def test_a_clean_table(folder):
    data = table(path=str(write_csv(folder, rows_of(folder))))
    assert sorted(data.captions) == sorted(caption for _, caption in rows_of(folder))
    assert data.dropped == {}
    assert np.bincount(data.split_N).tolist() == [24, 3, 3]
    for m, caption in enumerate(data.captions):
        number = int(caption.split()[-1])
        assert data.image(int(data.image_M[m])).getpixel((0, 0)) == (number * 8, 0, 0)
        assert data.row_M[m] == number + 2  # the header is line 1


def test_the_order_of_the_rows_does_not_matter(folder):
    rows = [*rows_of(folder), *rows_of(folder, caption="again {}")]
    one = table(path=str(write_csv(folder, rows)))
    two = table(path=str(write_csv(folder, rows[::-1])))
    assert one.fingerprint == two.fingerprint
    assert list(one.captions) == list(two.captions)


def test_a_changed_picture_changes_the_fingerprint_and_a_new_caption_does_not_change_the_pictures(folder):
    path = write_csv(folder, rows_of(folder))
    before = table(path=str(path))
    write_csv(folder, [*rows_of(folder), ("p00.png", "one more")])
    after = table(path=str(path))
    assert after.images_fingerprint == before.images_fingerprint
    assert after.fingerprint != before.fingerprint
    (folder / "p03.png").write_bytes(png("blue", size=(9, 9)))
    assert table(path=str(path)).images_fingerprint != before.images_fingerprint


DIRTY = b'''\xef\xbb\xbfimage,caption\r
p00.png,a clean row\r
p01.png,null\r
p02.png,NA\r
p03.png,nan\r
p04.png,\r
p05.png,   \r
,a caption without a picture\r
gone.png,a picture that is gone\r
with space.png,a path with a space\r
zero.png,a file of no bytes\r
cmyk.jpg,four inks\r
truncated.jpg,cut short\r
p06.png,caf\xe9 in Latin-1\r
p07.png,"an open quote\r
p08.png,the next row\r
p09.png,"a quoted, proper row"\r
p10.png,"two lines,\r
of one caption"\r
p11.png,"she said ""hello"""\r
p12.png,a 12" disc\r
image,caption\r
p13.png,too,many\r
p14.png\r
\r
p15.png,the last row'''


@pytest.fixture
def dirty(folder):
    (folder / "with space.png").write_bytes(png("green"))
    (folder / "zero.png").touch()
    (folder / "cmyk.jpg").write_bytes(jpeg("CMYK", (0, 255, 255, 0)))
    (folder / "truncated.jpg").write_bytes(truncated_jpeg())
    (folder / "dirty.csv").write_bytes(DIRTY)
    return folder / "dirty.csv"


def test_a_dirty_table_is_read_and_every_drop_has_its_reason_and_row(dirty):
    data = table(path=str(dirty), max_dropped=0.6)
    assert set(data.captions) == {
        "a clean row", "null", "NA", "nan", "a path with a space", "four inks", "cut short", "the next row",
        "a quoted, proper row", "two lines,\nof one caption", 'she said "hello"', 'a 12" disc', "the last row",
    }  # fmt: skip
    found = {row: reason for row, reason, _ in data.drops.rows}
    assert found == {
        6: "empty caption", 7: "empty caption", 8: "no image given", 9: "image file not found",
        11: "image is empty (0 bytes)", 14: "not text in this encoding", 15: "unbalanced quotes",
        22: "repeated header", 23: "wrong number of columns", 24: "wrong number of columns",
    }  # fmt: skip
    assert data.dropped["empty caption"] == 2
    assert data.drops.total == 23
    assert data.row_M[data.captions.index("the last row")] == 26
    assert "10 of 23 rows dropped" in data.drops.notes()[0]


def test_strict_refuses_a_dirty_table_with_its_rows_in_one_line(dirty):
    with pytest.raises(
        ValueError, match=r"strict refuses 10 of 23 rows: row 6: empty caption; .*row 14: not text"
    ) as refused:
        table(path=str(dirty), strict=True)
    assert "\n" not in str(refused.value)


def test_too_many_drops_refuse_the_table_with_counts_by_reason(dirty):
    with pytest.raises(
        ValueError, match=r"10 of 23 rows \(43%\).*max_dropped=0.1.*empty caption 2 \(rows 6, 7\)"
    ) as no:
        table(path=str(dirty))
    assert "set data.encoding" in str(no.value)
    assert "\n" not in str(no.value)


def test_latin_1_reads_with_its_encoding_and_utf_16_by_its_mark(folder):
    rows = [("p00.png", "café"), ("p01.png", "naïve"), ("p02.png", "plain")]
    text = "image,caption\n" + "\n".join(",".join(row) for row in rows)
    for encoding, given in (("latin-1", "latin-1"), ("cp1252", "cp1252"), ("utf-16", "utf-8"), ("utf-8-sig", "utf-8")):
        (folder / "t.csv").write_bytes(text.encode(encoding))
        assert set(table(path=str(folder / "t.csv"), encoding=given).captions) == {"café", "naïve", "plain"}
    (folder / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="unknown encoding 'latin-99'"):
        table(path=str(folder / "t.csv"), encoding="latin-99")


@pytest.mark.parametrize(
    ("lines", "captions"),
    [
        (['p00.png,"open', "p01.png,b", 'p02.png,"c"', "p03.png,d"], {"b", "c", "d"}),
        (["p00.png,a", 'p01.png,"open', 'p02.png,ends in a quote"', "p03.png,d"], {"a", 'ends in a quote"', "d"}),
        (["p00.png,a", "p01.png,b", "p02.png,c", 'p03.png,"never closed'], {"a", "b", "c"}),
        (['p00.png,line\u2028separator "quoted"', 'p01.png,"a\u2028b', 'c"', "p02.png,c"],
         {'line\u2028separator "quoted"', "a\u2028b\nc", "c"}),
        (['p00.png,"one', 'two"', "p01.png,b", "p02.png,c"], {"one\ntwo", "b", "c"}),
        (['p00.png,"one, with commas,', 'and more, too"', "p01.png,b", "p02.png,c"],
         {"one, with commas,\nand more, too", "b", "c"}),
    ],
)  # fmt: skip
def test_a_quote_that_never_closes_costs_one_row_and_a_caption_of_two_lines_stays(folder, lines, captions):
    (folder / "t.csv").write_text("\n".join(["image,caption", *lines]) + "\n")
    assert set(table(path=str(folder / "t.csv"), max_dropped=0.5).captions) == captions


def test_quotes_in_a_tab_separated_file_are_quotes(folder):
    lines = ["image\tcaption", 'p00.png\t"hello" he said', 'p01.png\ta 5" pipe', "p02.png\tplain", 'p03.png\t"whole"']
    (folder / "t.tsv").write_text("\n".join(lines))
    data = table(path=str(folder / "t.tsv"))
    assert set(data.captions) == {'"hello" he said', 'a 5" pipe', "plain", "whole"}


def test_several_captions_per_image_by_columns_by_rows_and_by_lists(folder):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    names = [f"p{i:02d}.png" for i in range(6)]
    expected = Counter((name, f"{name} {which}") for name in names for which in "ab")
    by_columns = [(name, f"{name} a", f"{name} b", "") for name in names]
    by_rows = [(name, f"{name} {which}") for which in "ab" for name in names]
    write_csv(folder, by_columns, header=("image", "one", "two", "three"), name="columns.csv")
    write_csv(folder, by_rows, name="rows.csv")
    lists = [{"image": name, "caption": [f"{name} a", f"{name} b", "", None]} for name in names]
    (folder / "lists.jsonl").write_text("\n".join(map(json.dumps, lists)))
    (folder / "lists.jsonl.gz").write_bytes(gzip.compress((folder / "lists.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(lists), folder / "lists.parquet")
    for name, columns in {
        "columns.csv": "one, two, three", "rows.csv": "caption", "lists.jsonl": "caption", "lists.jsonl.gz": "caption",
        "lists.parquet": "caption",
    }.items():  # fmt: skip
        data = table(path=str(folder / name), caption_columns=columns)
        pairs = Counter((data.image_ids[i], caption) for i, caption in zip(data.image_M, data.captions))
        assert pairs == expected, name
        assert len(data.split_N) == 6
        assert data.dropped == {}
        blank = {"columns.csv": 6, "rows.csv": 0}.get(name, 12)
        assert any(f"{blank} blank captions" in note for note in data.notes) == (blank > 0)


@pytest.mark.parametrize("wrapped", [False, True])
def test_bytes_in_a_parquet_column(tmp_path, wrapped):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    raws = [png((i * 20, 0, 0)) for i in range(5)]
    cells = [{"bytes": raw, "path": None} if wrapped else raw for raw in [*raws, raws[0], b"", b"junk"]]
    captions = [*"abcde", "a again", "none", "bad"]
    pq.write_table(pa.table({"picture": cells, "text": captions}), tmp_path / "t.parquet")
    data = table(path=str(tmp_path / "t.parquet"), image_column="picture", caption_columns="text", max_dropped=0.5)
    assert len(data.split_N) == 5
    pixels = {c: data.image(int(i)).getpixel((0, 0))[0] for i, c in zip(data.image_M, data.captions)}
    assert pixels == {"a": 0, "a again": 0, "b": 20, "c": 40, "d": 60, "e": 80}
    assert {(row, reason) for row, reason, _ in data.drops.rows} == {(7, "no image given"), (8, "not an image")}


def test_ids_join_pictures_and_are_never_divided_by_a_split(folder):
    rows = [(f"p{i:02d}.png", f"c{i}", f"id{i // 3}") for i in range(30)]
    rows.append(("p00.png", "also under another id", "id9"))  # so ids 0 and 9 are one
    path = write_csv(folder, rows, header=("image", "caption", "id"))
    for seed in range(5):
        data = table(path=str(path), id_column="id", seed=seed)
        assert len(set(data.id_N.tolist())) == 9
        assert data.id_N[0] == data.id_N[29]
        for own_id in set(data.id_N.tolist()):
            assert len(set(data.split_N[data.id_N == own_id].tolist())) == 1


def test_a_split_column_is_followed_and_an_id_in_two_splits_is_refused(folder):
    words = ["train"] * 24 + ["val", "Valid", "dev", "test", "TEST", "testing"]
    header = ("image", "caption", "split")
    rows = [(*row, word) for row, word in zip(rows_of(folder), words)]
    data = table(path=str(write_csv(folder, rows, header)), split_column="split")
    assert data.split_N.tolist() == [TRAIN] * 24 + [VALIDATION] * 3 + [TEST] * 3
    leak = [*rows, ("p29.png", "again", "train")]
    with pytest.raises(ValueError, match=r"'p29.png' is in test \(row 31\) and in train \(row 32\)"):
        table(path=str(write_csv(folder, leak, header)), split_column="split")
    odd = [*rows[:-1], ("p29.png", "c", "tesst")]
    data = table(path=str(write_csv(folder, odd, header)), split_column="split")
    assert data.drops.rows == [(31, "split is not train, validation or test", "'tesst'")]
    untrained = [(*row, "test") for row in rows_of(folder)]
    with pytest.raises(ValueError, match="no training row"):
        table(path=str(write_csv(folder, untrained, header)), split_column="split")


def test_without_validation_rows_some_training_ids_are_taken(folder):
    rows = [(*row, "test" if i >= 20 else "train") for i, row in enumerate(rows_of(folder))]
    data = table(path=str(write_csv(folder, rows, ("image", "caption", "split"))), split_column="split")
    assert np.bincount(data.split_N).tolist() == [18, 2, 10]
    assert data.split_N[20:].tolist() == [TEST] * 10
    assert "2 of 20 training ids" in data.notes[0]


def test_classes_come_from_their_column(folder):
    rows = [(*row, "" if i == 0 else "odd" if i % 2 else "even") for i, row in enumerate(rows_of(folder))]
    rows.append(("p01.png", "again", "even"))
    data = table(path=str(write_csv(folder, rows, ("image", "caption", "kind"))), class_column="kind")
    assert data.class_names == ("(none)", "even", "odd")
    assert data.class_N[:4].tolist() == [0, 1, 1, 2]
    assert "1 pictures have several classes" in data.notes[0]


def test_a_column_named_twice_is_taken_once_and_refused_under_strict(folder):
    rows = [(name, caption, "other") for name, caption in rows_of(folder)]
    path = write_csv(folder, rows, header=("image", "caption", "caption"))
    data = table(path=str(path))
    assert "other" not in data.captions
    assert "'caption' appears 2 times" in data.notes[0]
    with pytest.raises(ValueError, match="appears 2 times; strict needs one"):
        table(path=str(path), strict=True)


def test_refusals_name_the_file_the_problem_and_what_is_legal(folder):
    write_csv(folder, rows_of(folder))
    (folder / "t.xls").write_text("x")
    (folder / "empty.csv").touch()
    (folder / "header.csv").write_text("image,caption\n")
    (folder / "bad.parquet").write_text("x")
    (folder / "semicolon.csv").write_text("image;caption\np00.png;a\n")
    (folder / "allbad.jsonl").write_text("not json\n[1]\n")
    cases = [
        ({"path": "none.csv"}, "no such file"),
        ({"path": "t.xls"}, r"legal are \.csv, \.tsv"),
        ({"path": "empty.csv"}, "the file is empty"),
        ({"path": "header.csv"}, "no rows"),
        ({"path": "bad.parquet"}, "not a readable parquet"),
        ({"path": "semicolon.csv"}, r"no column 'image'.*split at ','.*image;caption"),
        ({"path": "t.csv", "caption_columns": "captoin"}, r"no column 'captoin' \(did you mean caption\?\)"),
        ({"path": "t.csv", "caption_columns": " , "}, "no column named"),
        ({"path": "t.csv", "delimiter": "ab"}, "not a delimiter"),
        ({"path": "allbad.jsonl"}, r"2 of 2 rows .*not a JSON object 2"),
    ]
    for kwargs, message in cases:
        with pytest.raises(ValueError, match=message) as refused:
            table(**{**kwargs, "path": str(folder / kwargs["path"])})
        assert "\n" not in str(refused.value)
    (folder / "semicolon.csv").write_text("image;caption\n" + "\n".join(f"p0{i}.png;c{i}" for i in range(5)))
    assert len(table(path=str(folder / "semicolon.csv"), delimiter=";").captions) == 5


def test_captions_that_are_not_text_are_dropped(folder):
    lines = [{"image": f"p{i:02d}.png", "caption": "fine"} for i in range(5)]
    lines += [{"image": "p06.png", "caption": 5}, {"image": "p07.png", "caption": float("nan")}, {"image": "p08.png"}]
    text = "\n".join(map(json.dumps, lines)) + '\n{"image": "p09.png", "caption": "half \\ud83d emoji"}'
    (folder / "t.jsonl").write_text(text)
    data = table(path=str(folder / "t.jsonl"), max_dropped=0.5)
    assert data.dropped == {"caption is not text": 3, "empty caption": 1}


def test_a_table_elsewhere_finds_its_pictures_beside_itself(folder, monkeypatch):
    write_csv(folder, [(f" ./{name} ", caption) for name, caption in rows_of(folder)])
    monkeypatch.chdir(folder.parent)
    data = table(path=f"{folder.name}/t.csv")
    assert data.image_ids[0] == "p00.png"
    data.image(0)


def unpacked(name, tmp_path):
    if not (SHARED / name).is_dir():
        pytest.skip(f"development data {name} is not here")
    with zipfile.ZipFile(SHARED / name / "images.zip") as archive:
        archive.extractall(tmp_path)
    path = tmp_path / "captions.csv"
    with (SHARED / name / "captions.csv").open(encoding="utf8", newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.DictWriter(file, ["image", *rows[0]])
        writer.writeheader()
        writer.writerows({**row, "image": row["id"] + ".webp"} for row in rows)
    return path


def test_photographs_with_captions_in_four_languages(tmp_path):
    path = unpacked("tuxpaint", tmp_path)
    data = table(
        path=str(path), caption_columns="caption,caption_de,caption_fr", class_column="category", split_column="split"
    )
    assert np.bincount(data.split_N).tolist() == [488, 60, 65]
    assert len(data.class_names) == 101
    assert data.dropped == {}
    assert len(data.captions) > 3 * 600
    assert data.image(0).mode == "RGB"


@pytest.mark.slow
def test_two_styles_of_one_emoji_share_an_id(tmp_path):
    path = unpacked("emoji", tmp_path)
    data = table(
        path=str(path), id_column="concept", class_column="subgroup", split_column="split", image_column="image"
    )
    assert np.bincount(data.split_N).tolist() == [6348, 590, 634]
    assert len(set(data.id_N.tolist())) == 3786
    assert np.bincount(np.bincount(data.id_N)).tolist() == [0, 0, 3786]
    assert len(data.class_names) == 99
