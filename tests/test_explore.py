"""How a population moves: inside its space, along what may change in mid-run, to what was not tried."""

import numpy as np
import pytest

from mmts_ray import explore, space_file
from mmts_ray.config import NAMED, SINGLE, from_flat
from mmts_ray.space import declared

SPACE = {
    "strategy": "pbt",
    "trials": 4,
    "fixed": {"schedule.name": "cosine"},
    "search": {
        "train.lr": {"loguniform": [1e-4, 1e-2]},
        "train.weight_decay": {"uniform": [0, 1]},
        "schedule.spread": {"uniform": [0, 0.2]},
        "loss.r_mix": {"choice": [0, 0.01, 0.1, 0.5]},
        "loss.mix_mode": {"choice": ["replace", "weighted"], "when": {"loss.r_mix": [0.01, 0.1, 0.5]}},
    },
}


def test_what_is_built_at_the_start_of_a_run_may_not_change():
    assert all(map(explore.movable, ("train.lr", "loss.r_mix", "schedule.value", "schedule.tau_min", "loss.rho")))
    every = [f"{section}.name" for section in NAMED]
    every += [f"{s}.{key}" for s, (table, _) in NAMED.items() for f in table.values() for key in declared(f)]
    every += [f"{section}.{key}" for section, function in SINGLE.items() for key in declared(function)]
    fixed = {path for path in every if not explore.movable(path)}
    assert {"train.batch_size", "train.epochs", "train.seed", "model.dim", "groups.k", "loss.name"} <= fixed
    assert not {path for path in fixed if path.startswith(("loss.", "schedule."))} - set(explore.NOT_MOVABLE)
    assert {path.partition(".")[0] for path in set(every) - fixed} == {"train", "model", "loss", "schedule"}


@pytest.mark.parametrize("seed", range(3))
def test_moves_stay_inside_the_space_and_beside_the_parent(seed):
    study = space_file.parse(SPACE)
    point = {"train.lr": 9e-3, "train.weight_decay": 0.5, "loss.r_mix": 0.1, "loss.mix_mode": "replace"}
    parent = study.trial_config({**point, "schedule.spread": 0.0}).with_seed(7)
    rng = np.random.default_rng(seed)
    ratios = []
    for _ in range(200):
        child = explore.moved(study, parent, rng)
        flat = child.flat()
        assert child.seed == 7
        assert 1e-4 <= flat["train.lr"] <= 1e-2
        assert 0 <= flat["train.weight_decay"] <= 1
        assert flat["loss.r_mix"] in (0, 0.01, 0.1, 0.5)
        changed = {k for k in flat if flat[k] != parent.flat()[k]}
        assert changed
        assert changed <= set(SPACE["search"])
        ratios.append(round(flat["train.weight_decay"] / 0.5, 9))
    moved = sum(ratio in explore.FACTORS for ratio in ratios) / len(ratios)
    assert moved == pytest.approx(1 - explore.RESAMPLE, abs=0.1)
    assert all(ratios.count(factor) > 40 for factor in explore.FACTORS)


def test_a_value_that_is_zero_or_newly_active_is_drawn():
    study = space_file.parse(SPACE)
    parent = study.trial_config({"train.lr": 1e-3, "train.weight_decay": 0, "schedule.spread": 0, "loss.r_mix": 0})
    children = [explore.moved(study, parent, np.random.default_rng(seed)).flat() for seed in range(40)]
    assert all(0 < child["train.weight_decay"] < 1 for child in children)
    assert {child["loss.mix_mode"] for child in children if child["loss.r_mix"]} == {"replace", "weighted"}


def test_a_space_that_is_used_up_has_no_move():
    study = space_file.parse({**SPACE, "search": {"loss.r_mix": {"choice": [0, 0.1]}}})
    here, there = (study.trial_config({"loss.r_mix": value}) for value in (0, 0.1))
    rng = np.random.default_rng(0)
    assert explore.moved(study, here, rng, taken={}) == there
    assert explore.moved(study, here, rng, taken={there.hash}) is None


def test_the_same_stream_gives_the_same_move():
    study = space_file.parse(SPACE)
    parent = study.trial_config(study.example())
    one, two = (explore.moved(study, parent, np.random.default_rng(3)) for _ in range(2))
    assert one == two
    assert from_flat(one.flat()) == one
