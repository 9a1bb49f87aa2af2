"""Scored sentence pairs and text corpora, in the form in which people have them, dirt included."""

import gzip

import numpy as np
import pytest

from mmts_ray.data.corpus import corpus
from mmts_ray.data.sts import SUBSETS, TASKS, scored_pairs
from mmts_ray.metrics import METRICS, STS_TASKS, spearman, sts_scores


def senteval(root):
    """SentEval's folder in small: every subset of STS12 to 16, STS-B and SICK-R, with the dirt that these have."""
    for year, subsets in SUBSETS.items():
        folder = root / "STS" / f"STS{year}-en-test"
        folder.mkdir(parents=True)
        for number, subset in enumerate(subsets.split()):
            pairs = [f"A man plays the {subset} guitar.\tA man is playing a guitar.\tsource\thttp://x"]
            pairs += ['He said "no.\tHe said it\u2028twice.', "A dog runs.\tA cat sleeps."]
            (folder / f"STS.input.{subset}.txt").write_bytes("\r\n".join(pairs).encode() + b"\r\n")
            (folder / f"STS.gs.{subset}.txt").write_text(f"{4 + number / 10}\n\n0.5\n")
    (root / "STS" / "STS13-en-test" / "STS.input.SMT.txt").write_text("left\tout\n")  # not evaluated by SentEval
    bench = root / "STS" / "STSBenchmark"
    bench.mkdir()
    row = 'main-captions\tMSRvid\t2012test\t0001\t{}\tA "plane is taking off.\tAn air plane takes off.'
    for split in ("train", "dev", "test"):
        lines = [row.format(5.0), row.format(2.5) + "\tsome licence\tanother"]
        (bench / f"sts-{split}.csv").write_text("\n".join(lines) + "\n")
    sick = root / "SICK"
    sick.mkdir()
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    for split in ("train", "trial", "test_annotated"):
        text = header + "1\tA child plays\tA kid plays\t4.5\tNEUTRAL\n2\tA tree\tA car\t1\tNEUTRAL\n"
        (sick / f"SICK_{split}.txt").write_text(text)
    return root


def test_a_senteval_folder_is_read_subsets_together_unscored_pairs_left_out(tmp_path):
    root = senteval(tmp_path / "downstream")
    parts, notes = scored_pairs(root)
    assert [p.task for p in parts if p.split == 2] == list(TASKS)
    assert {p.task for p in parts if p.split == 1} == {"stsb", "sickr"}
    by_task = {p.task: p for p in parts if p.split == 2}
    assert len(by_task["sts12"].left) == 2 * 5  # of three pairs a subset, one is unscored
    assert by_task["sts13"].gold_P.tolist() == [4.0, 0.5, 4.1, 0.5, 4.2, 0.5]
    assert by_task["sts12"].right[0] == "A man is playing a guitar."
    assert by_task["stsb"].left[0] == 'A "plane is taking off.'
    assert by_task["sickr"].gold_P.tolist() == [4.5, 1.0]
    assert notes == ("downstream: 24 sentence pairs left out: unscored",)
    for other in (root.parent, root / "STS"):  # the folder above SentEval's data, and the one with the years
        if other == root.parent:
            assert scored_pairs(other)[0][0].task == "sts12"
    assert scored_pairs(root / "STS")[0][0].gold_P.tolist() == by_task["sts12"].gold_P.tolist()


def test_what_is_not_there_is_told_and_what_is_broken_refused(tmp_path):
    root = senteval(tmp_path / "SentEval")
    for path in sorted((root / "STS" / "STS16-en-test").iterdir()):
        path.unlink()
    (root / "STS" / "STS16-en-test").rmdir()
    _, notes = scored_pairs(root)
    assert notes[-1] == "SentEval: no test pairs of sts16; sts_avg is over the others"
    gold = root / "STS" / "STS12-en-test" / "STS.gs.MSRvid.txt"
    for content, message in (("4\n\n", "3 pairs, but .* has 2 scores"), ("4\n\nhigh\n", "line 3: 'high' is no score")):
        gold.write_text(content)
        with pytest.raises(ValueError, match=message):
            scored_pairs(root)
    gold.write_text("4\n\n5.5\n")
    with pytest.raises(ValueError, match=r"'5.5' is no score; legal is a number from 0 to 5, or blank"):
        scored_pairs(root)
    gold.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        scored_pairs(root)
    with pytest.raises(ValueError, match="is not there; legal is a folder"):
        scored_pairs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="not in SentEval's layout"):
        scored_pairs(tmp_path / "empty")


def test_a_table_is_read_without_quoting(tmp_path):
    rows = ["dataset\tsubset\tsplit\tscore\tsentence1\tsentence2"]
    rows += [f"STSB\timages\t{split}\t{score}\tthe \"first\t'second" for split in ("dev", "test") for score in (1, 5)]
    rows += ["SICKR\t\ttest\t\tunscored\tpair"]
    path = tmp_path / "sts.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    parts, notes = scored_pairs(path)
    assert [(p.task, p.split, p.left[0]) for p in parts] == [("stsb", 1, 'the "first'), ("stsb", 2, 'the "first')]
    assert "1 sentence pairs left out: unscored" in notes[0]
    assert "sts_avg is over the others" in notes[1]
    for wrong, message in (
        ("a\tb", "its header is 'a, b'"),
        (rows[0] + "\nMRPC\t\ttest\t1\ta\tb", "row 2 is 'MRPC"),
        ("\n".join([rows[0], *rows[3:5]]), "no STS-B development pairs"),
    ):
        path.write_bytes(gzip.compress(wrong.encode()))
        with pytest.raises(ValueError, match=message):
            scored_pairs(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="cannot be read"):
        scored_pairs(path)


def test_a_corpus_is_text_a_line_a_sentence(tmp_path):
    lines = ['He said "no', "a, b\tc", "= Heading =", "", "twice", "twice", "   ", "caf\u00e9\u2028bar"]
    path = tmp_path / "wiki.txt"
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe broken\nlast")
    sentences, notes = corpus(path)
    assert sentences == ['He said "no', "a, b\tc", "= Heading =", "twice", "twice", "caf\u00e9\u2028bar", "last"]
    assert "3 of 10 rows dropped: empty line 2 (rows 4, 7), not UTF-8 1 (row 9" in notes[0]
    (tmp_path / "wiki.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert corpus(tmp_path / "wiki.txt.gz")[0] == sentences
    some = corpus(path, limit=3)[0]
    assert len(some) == 3
    assert [s for s in sentences if s in some][:3] == some  # in their order, and the same each time
    assert corpus(path, limit=3)[0] == some
    path.write_text("one\n\n")
    with pytest.raises(ValueError, match="has 1 sentences; legal are 2 or more"):
        corpus(path)
    with pytest.raises(ValueError, match=r"nowhere.txt cannot be read .*one sentence a line"):
        corpus(tmp_path / "nowhere.txt")


def test_spearman_equals_a_computation_by_hand():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 6, 40) / 2, rng.normal(size=40).round(1)

    def ranks(x):  # mean of the places that a value takes, by counting
        return np.array([1 + np.sum(x < v) + (np.sum(x == v) - 1) / 2 for v in x])

    a, b = ranks(first), ranks(second)
    by_hand = np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std())
    assert spearman(first, second) == pytest.approx(by_hand, abs=1e-12)
    assert np.isnan(spearman(np.ones(3), np.arange(3)))
    assert spearman(np.arange(5), np.arange(5) ** 3) == pytest.approx(1)


def test_the_score_of_a_task_is_one_correlation_over_all_its_pairs_not_a_mean_over_subsets():
    import torch

    torch.manual_seed(0)
    left, right = (torch.nn.functional.normalize(torch.randn(6, 4), dim=1) for _ in range(2))
    gold = np.array([5.0, 4.0, 1.0, 0.0, 2.0, 3.0])
    other = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])
    found = sts_scores({"stsb": (left, right, gold), "sts12": (left, right, other)}, spread="stsb")
    cosines = (left * right).sum(1).numpy()
    assert found["stsb"] == pytest.approx(spearman(cosines, gold))
    halves = [spearman(cosines[:3], gold[:3]), spearman(cosines[3:], gold[3:])]
    assert found["stsb"] != pytest.approx(np.mean(halves))
    assert found["sts_avg"] == pytest.approx((found["stsb"] + found["sts12"]) / 2)
    assert found["alignment"] == pytest.approx(float((left[:2] - right[:2]).square().sum(1).mean()))
    rows = torch.cat([left, right]).double()
    pairs = [float(torch.exp(-2 * (rows[i] - rows[j]).square().sum())) for i in range(12) for j in range(i)]
    assert found["uniformity"] == pytest.approx(np.log(np.mean(pairs)), abs=1e-6)


def test_every_task_is_a_metric():
    assert STS_TASKS == TASKS
    assert set(TASKS) | {"sts_avg"} <= set(METRICS)
