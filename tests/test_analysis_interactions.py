"""Pairs of parameters that only work together: found, mapped, drawn where trials are, refused."""

import re

import numpy as np
import pytest
from ledger_maker import SPACE, Maker, meta_of, native, synthetic, write_study
from mmts_ray.analysis import statistics as st
from mmts_ray.analysis import tables
from mmts_ray.analysis.model import model_of
from mmts_ray.analysis.panels import interactions, surfaces
from mmts_ray.analysis.wording import plain
from simulator import Truth
from sweeps import VAL, write_more


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A random search of 260 trials on the simulator, where lr and wd pull at each other."""
    return tables.load(synthetic(tmp_path_factory.mktemp("wide") / "s", trials=260, confirm=0, seed=1))


def test_the_interaction_of_the_truth_is_found_and_drawn(wide):
    found = interactions.interactions(wide)
    chosen = found.frames["pairs"].query("selected")
    assert "lr × wd" in set(chosen["pair"])
    row = chosen.set_index("pair").loc["lr × wd"]
    assert row["lo"] <= 0.010 <= row["hi"]
    assert not row["together"]
    surface = found.frames["surface"]
    assert 0 < surface["supported"].sum() <= len(surface)
    assert "lr × wd" in plain(found.title)


def test_the_share_of_a_pair_is_that_of_its_product_in_the_variance(wide):
    found, model = interactions.interactions(wide), model_of(wide)
    row = found.frames["pairs"].set_index("pair").loc["lr × wd"]
    variance = model.paired["score"].var(ddof=0)
    assert row["share"] == pytest.approx(row["effect"] ** 2 / variance)
    u = np.random.default_rng(0).random((200_000, 2)) - 0.5  # the truth is .12 (lr - .5) (wd - .5)
    assert row["share_lo"] <= (0.12 * u.prod(1)).var() / variance <= row["share_hi"]
    assert row["null"] < row["share"]


@pytest.mark.parametrize("c", [0.0, 0.12, 0.24])
def test_limits_exclude_nothing_exactly_where_a_pair_is_taken(c):
    truth = Truth(c=c)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        u = rng.random((100, 6))
        y = truth.score(u) + 0.01 * rng.standard_normal(100)
        pairs = st.pairs(u, y, (False,) * 6, np.ones((100, 6), dtype=bool))
        taken = {(p.first, p.second) for p in pairs if p.step}
        clear = {(p.first, p.second) for p in pairs if p.lo > 0}
        assert taken <= clear
        assert clear == taken or len(taken) == 3  # no more than three are taken
        assert all((p.effect > p.null) == (p.lo > 0) for p in pairs)


def cells_of(html):
    """Text and class of every cell of the map, by row."""
    body = re.search(r'data-frame="interactions.map".*?<tbody>(.*?)</tbody>', str(html), re.DOTALL)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cell = re.compile(r"<td[^>]*><span>(.*?)</span></td>")
    return {re.sub("<[^>]+>", "", row.split("</th>")[0]): cell.findall(row) for row in rows}


def test_the_map_marks_pairs_whose_limits_exclude_nothing_and_greys_the_others(wide):
    found = interactions.interactions(wide)
    shares, pairs = found.frames["map"], found.frames["pairs"]
    known = {frozenset((r.first, r.second)): r for r in pairs.itertuples()}
    order = list(shares["path"])
    assert [model_of(wide).evidence[model_of(wide).place(p)][1] for p in order] == sorted(
        model_of(wide).evidence[model_of(wide).place(p)][1] for p in order
    )
    drawn = cells_of(interactions.draw(wide, found))
    for place, row in enumerate(shares.to_dict("records")):
        cells = drawn[wide.named(row["path"])]
        for column, cell in zip(shares.columns[1:], cells, strict=True):
            if column in order[: place + 1]:
                assert np.isnan(row[column])
                assert cell == ""
                continue
            pair = known[frozenset((row["path"], column))]
            assert row[column] == pair.share
            assert ("<b>" in cell) == pair.selected
            assert ('class="heat few"' in cell) == (not pair.selected)
            assert re.search(r"\d", cell)


def searched(folder, paths, n=80, corner=None, score=lambda u: 0.3 + 0.05 * u[0]):
    """A random search over ranges from 0 to 1; with `corner` no trial has both first parameters above it."""
    space = [{**SPACE[3], "path": path, "low": 0.0, "high": 1.0} for path in paths]
    maker, rng = Maker(folder.name), np.random.default_rng(2)
    while len(maker.rows) < 3 * n:
        u = rng.random(len(paths))
        if corner is None or min(u[:2]) < corner:
            number = len(maker.rows) // 3
            value = float(score(u) + 0.003 * rng.standard_normal())
            maker.run(f"t{number:04d}", "search", dict(zip(paths, map(float, u))), {VAL: value}, seed=number)
    return tables.load(write_study(folder, maker.rows, meta_of(folder.name, space=space, baselines=[])))


@pytest.mark.parametrize(
    "pair",
    [
        ("schedule.alpha", "schedule.spread"),
        ("schedule.tau_min", "train.batch_size"),
        ("schedule.value", "loss.r_mix"),
        ("loss.filter_threshold", "loss.angular_margin"),
    ],
)
def test_the_pairs_of_the_papers_come_first_and_are_drawn_even_when_nothing_is_established(tmp_path, pair):
    study = searched(tmp_path / "s", ["train.lr", pair[0], "train.weight_decay", pair[1]])
    found = interactions.interactions(study)
    first = found.frames["pairs"].iloc[0]
    assert {first["first"], first["second"]} == set(pair)
    assert not first["selected"]
    assert list(found.alts) == [first["pair"]]
    said = " ".join(plain(s) for s in found.sentences)
    assert f"Surface: {first['pair']}, a pair of the papers, not established" in said
    assert "A pair below" in said


def test_two_papers_pairs_follow_the_order_of_the_papers():
    pairs = [
        ("loss.angular_margin", "loss.filter_threshold"), ("schedule.value", "loss.r_mix"),
        ("train.batch_size", "schedule.value"), ("schedule.spread", "schedule.alpha"),
    ]  # fmt: skip
    assert [interactions.paper(*pair) for pair in reversed(pairs)] == [0, 1, 2, 3]
    assert interactions.paper("train.lr", "schedule.alpha") == len(interactions.PAPERS)


def test_where_a_quarter_of_two_ranges_is_empty_no_share_is_told(tmp_path):
    study = searched(tmp_path / "s", ["train.lr", "train.wd", "loss.mix"], corner=0.5)
    found = interactions.interactions(study)
    rows = found.frames["pairs"].set_index("pair")
    assert rows.loc["lr × wd", "fewest"] == 0
    assert np.isnan(rows.loc["lr × wd", "share"])
    assert not rows.loc["lr × wd", "selected"]
    assert any("Few: fewer than 3 configurations in a quarter of the two ranges, in lr × wd." in plain(s)
               for s in found.sentences)  # fmt: skip
    assert 'class="heat hatched">few' in str(interactions.draw(study, found))


def test_a_surface_is_blank_where_no_trial_is(tmp_path):
    """A product whose best corner was never visited: the model has a value there, the picture has none."""
    study = searched(tmp_path / "s", ["train.lr", "train.wd"], n=150, corner=0.7,
                     score=lambda u: 0.3 + 0.2 * (u[0] - 0.5) * (u[1] - 0.5))  # fmt: skip
    found = interactions.interactions(study)
    cells = found.frames["surface"]
    hole = cells[(cells["x"] > 0.7 + surfaces.NEAR) & (cells["y"] > 0.7 + surfaces.NEAR)]
    assert len(hole) >= 16
    assert not hole["supported"].any()
    assert (hole["band"] == -1).all()
    assert cells.loc[cells["supported"], "band"].between(0, 4).all()
    trials = found.frames["surface_trials"][["x", "y"]].to_numpy()
    away = np.sqrt(((cells[["x", "y"]].to_numpy()[:, None] - trials) ** 2).sum(2)).min(1)
    assert (away[cells["supported"]] <= surfaces.NEAR + 1e-6).all()
    html = str(interactions.draw(study, found))
    picture = re.search(r'<svg class="fig".*?</svg>', html, re.DOTALL)[0]
    assert "blank: no trials here" in picture
    squares = sum(re.search('d="([^"]*)"', path)[1].count("z") for path in re.findall("<path[^>]*--win[^>]*>", picture))
    assert squares == cells["supported"].sum()
    assert f"{(~cells['supported']).sum()} of {len(cells)} cells" in re.search(r"<desc[^>]*>(.*?)</desc>", picture)[1]


def test_the_strongest_band_is_what_lies_within_delta_of_the_best():
    height, known = np.array([0.1, 0.2, 0.3, 0.39, 0.4, 0.5]), np.array([True] * 5 + [False])
    assert list(surfaces.bands(height, known, 0.02)) == [0, 1, 2, 4, 4, -1]
    assert list(surfaces.bands(height, known, float("nan"))) == [0, 1, 2, 3, 4, -1]
    assert list(surfaces.bands(height, known, 9.0)) == [4, 4, 4, 4, 4, -1]


def test_interactions_need_ten_configurations_per_parameter(tmp_path):
    found = interactions.interactions(tables.load(synthetic(tmp_path / "s", trials=50, confirm=0)))
    assert "Needs 60 configurations, 10 per parameter" in plain(found.refusal.needs)


def test_interactions_are_not_looked_for_where_a_sampler_chose(tmp_path):
    folder = synthetic(tmp_path / "s", trials=150, confirm=3, strategy="tpe")
    found = interactions.interactions(tables.load(folder))
    assert "Needs 60 configurations drawn at random, 10 per parameter; 0 were." in plain(found.refusal.needs)
    assert found.refusal.command.endswith("strategy=random trials=60")
    maker, truth, rng = Maker("s"), Truth(), np.random.default_rng(3)
    for number in range(80):
        u = rng.random(6) * [0.8, 1, 1, 1, 1, 1]
        maker.run(f"r{number}", "control", native(u), {VAL: float(truth.score(u)[0])}, seed=0)
    write_more(folder, maker.rows)
    found = interactions.interactions(tables.load(folder))
    assert found.numbers["configurations"] == 80
    assert found.used == "80 configurations drawn at random"
