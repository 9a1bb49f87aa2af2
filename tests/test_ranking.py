"""Which configuration is better: constraints before the objective, the front of a trade-off."""

from mmts_ray import ranking

ONE = (("val_i2t_r1", "max"),)
TWO = (("val_i2t_r1", "max"), ("val_modality_distance", "min"))
BOUNDS = (("val_modality_distance", "max", 0.5), ("val_i2t_r1", "min", 0.1))


def rows(**metrics):
    return [
        {"trial": trial, "status": "done", "metric.val_i2t_r1": r1, "metric.val_modality_distance": gap}
        for trial, (r1, gap) in metrics.items()
    ]


def names(found):
    return [row["trial"] for row in found]


def test_what_breaks_a_constraint_ranks_below_what_keeps_it_the_least_broken_first():
    made = rows(a=(0.5, 0.7), b=(0.2, 0.5), c=(0.3, 0.4), d=(0.9, 0.6), e=(0.05, 0.1))
    assert names(ranking.ranked(ONE, (), made)) == ["d", "a", "c", "b", "e"]
    # d is 20 % beyond, a 40 %, e 50 % below the least recall
    assert names(ranking.ranked(ONE, BOUNDS, made)) == ["c", "b", "d", "a", "e"]
    assert [round(ranking.broken(BOUNDS, ranking.metrics_of(row)), 6) for row in made] == [0.4, 0, 0, 0.2, 0.5]


def test_a_metric_that_is_missing_breaks_its_constraint():
    (row,) = rows(a=(0.5, None))
    assert ranking.broken(BOUNDS, ranking.metrics_of(row)) == float("inf")
    assert ranking.excess((("x", "max", 0.0),), {"x": 0.25}) == {"x max 0": 0.25}


def test_the_front_holds_what_no_other_beats_and_only_what_keeps_the_constraints():
    made = rows(a=(0.3, 0.4), b=(0.4, 0.9), c=(0.2, 0.1), d=(0.29, 0.45), e=(0.4, 0.95), f=(0.3, 0.4))
    assert names(ranking.front(TWO, (), made)) == ["b", "a", "f", "c"]
    assert names(ranking.front(TWO, BOUNDS, made)) == ["a", "f", "c"]
    stopped = [{**row, "status": "stopped"} for row in made]
    assert ranking.front(TWO, (), stopped) == []


def test_what_breaks_a_constraint_cannot_push_down_what_keeps_it():
    made = rows(a=(0.9, 0.6), b=(0.3, 0.5), c=(0.2, 0.5))
    assert names(ranking.ranked(TWO, BOUNDS, made)) == ["b", "c", "a"]


def test_a_group_is_its_mean_and_ends_as_its_worst_seed():
    made = {
        "t0001": {"trial": "t0001", "kind": "search", "seed": 0, "status": "done", "metric.x": 1.0, "end_time": 5.0},
        "t0001-1": {
            "trial": "t0001-1",
            "kind": "search",
            "seed": 1,
            "status": "done",
            "metric.x": 2.0,
            "end_time": 4.0,
        },
        "c0000": {
            "trial": "c0000",
            "kind": "confirm",
            "seed": 1000,
            "status": "done",
            "metric.x": 9.0,
            "end_time": 6.0,
        },
    }
    two = ranking.grouped(made, (0, 1))
    assert (two["t0001"]["metric.x"], two["t0001"]["status"], two["t0001"]["end_time"]) == (1.5, "done", 5.0)
    assert two["c0000"]["status"] == "done"
    assert ranking.grouped(made, (0, 1, 2))["t0001"]["status"] == "running", "a seed is missing"
    for bad in ("stopped", "failed", "infeasible"):
        made["t0001-1"]["status"] = bad
        assert ranking.grouped(made, (0, 1, 2))["t0001"]["status"] == bad
    made["t0001-1"]["status"] = "running"
    assert ranking.grouped(made, (0, 1))["t0001"]["status"] == "running"
