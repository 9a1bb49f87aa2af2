"""Numbers as text."""

import math

import pytest
import yaml
from mmts_ray.analysis import wording
from mmts_ray.analysis.panels.reproduce import as_yaml
from mmts_ray.analysis.statistics import Interval
from mmts_ray.analysis.tables import Metric, Parameter

RECALL = Metric("test_i2t_r1", 1, True)
LOSS = Metric("val_loss", -1, False)


def plain(text):
    return wording.plain(text).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("se", "digits"),
    [(0.255, 1), (2.6, 0), (1.5, 1), (0.15, 2), (0.02, 2), (15.0, 0), (0.0, 3), (math.nan, 3), (1e-17, 6)],
)
def test_decimals_follow_the_standard_error(se, digits):
    assert wording.decimals(se) == digits


def test_scores_show_the_same_decimals_for_value_and_ends():
    assert plain(wording.score(Interval(0.3141, 0.309, 0.319, 5), RECALL)) == "31.4 % [30.9, 31.9]"
    assert plain(wording.score(Interval(0.51, 0.45, 0.57, 5), LOSS)) == "0.51 [0.45, 0.57]"
    assert plain(wording.score(Interval(0.3141, math.nan, math.nan, 1), RECALL)) == "31 % (one run)"
    assert plain(wording.score(Interval(math.nan, math.nan, math.nan, 0), RECALL)) == "no run"


def test_rounding_is_no_standard_error():
    same = Interval(0.1, 0.1 - 1e-17, 0.1 + 2e-17, 5)
    assert plain(wording.change(same, RECALL)) == "+10.0 [+10.0, +10.0]"
    assert plain(wording.score(same, LOSS)) == "0.100 [0.100, 0.100]"


def test_changes_are_signed_with_a_true_minus():
    assert plain(wording.change(Interval(-0.019, -0.027, -0.011, 5), RECALL)) == "\u22121.9 [\u22122.7, \u22121.1]"
    assert plain(wording.change(Interval(0.004, -0.003, 0.011, 5), RECALL)) == "+0.4 [\u22120.3, +1.1]"
    assert wording.fixed(-0.0001, 1) == "0.0"
    assert wording.signed(0.0, 1) == "0.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "0.0123"), (1e-4, "1e-4"), (0.000123, "1.23e-4"), (12345.0, "1.23e4"), (0.5, "0.5"), (256, "256"),
     (None, "null"), (math.nan, "null"), (True, "true"), ("cosine", "cosine"), (-0.2, "\u22120.2"), (0.0, "0")],
)  # fmt: skip
def test_settings(value, text):
    assert wording.setting(value) == text


def test_a_whole_number_that_became_a_float_is_whole_again():
    layers = Parameter("model.layers", "int", 1, 4, False, (), (), 2, 1, 16)
    assert wording.setting(4.0, layers) == "4"


def test_the_exact_value_travels_with_the_text():
    assert str(wording.number(0.314159265358979, "31 %", "b")) == '<b data-v="0.3141592654">31 %</b>'
    assert str(wording.number(math.nan, "no run")) == "no run"
    assert str(wording.number(3, "<three>")) == '<span data-v="3">&lt;three&gt;</span>'


def test_small_words():
    assert wording.count(1, "run") == "1 run"
    assert wording.count(12_345, "run") == "12\u202f345 runs"
    assert plain(wording.listing(["a", "b", "c"])) == "a, b and c"
    assert plain(wording.listing(["a", "<b>", "c", "d", "e"])) == "a, <b>, c and 2 more"
    assert "&lt;b&gt;" in wording.listing(["<b>"])
    assert [wording.duration(s) for s in (12, 100, 7200)] == ["12 seconds", "1.7 minutes", "2 hours"]
    assert wording.percent(0.0912, 50) == "9\u00a0%"
    assert wording.short_hash("0123456789abcdef") == "0123…ef"


def test_labels_of_known_and_unknown_metrics():
    labels = {
        "test_i2t_r1": "image-to-text R@1",
        "val_t2i_r10": "text-to-image R@10",
        "val_r5": "R@5",
        "test_mid_r1": "middle R@1",
        "test_i2t_binary_map": "image-to-text binary mAP",
        "val_ndcg": "nDCG",
        "val_zeroshot_top1": "zero-shot top-1",
        "val_stsb": "STS-B",
        "test_sts_avg": "STS average",
        "test_sts16": "STS16",
        "val_x_y": "x y",
    }
    assert {key: Metric(key, 0, False).label for key in labels} == labels


def test_a_configuration_survives_yaml():
    config = {
        "train.lr": 1e-05,
        "train.big": 1e22,
        "train.tau": 0.07,
        "train.epochs": 10,
        "train.flag": True,
        "loss.name": "info_nce",
        "loss.filter": None,
        "data.path": "a: b #c",
        "data.no": "no",
    }
    assert yaml.safe_load(as_yaml(config))["fixed"] == config
