"""Search-space files: what is read, what is refused and how."""

from pathlib import Path

import pytest
import yaml

from mmts_ray import space_file, study
from mmts_ray.config import from_flat, set_path

SPACES = sorted((Path(__file__).parents[1] / "search_spaces").rglob("*.yaml"))

GOOD = """
study: toy
trials: 4
fixed:
  loss.name: info_nce
  schedule: {name: cosine}
search:
  train.lr: {loguniform: [1.0e-3, 1.0e-2]}
  schedule.tau_min: {loguniform: [0.01, 0.1]}
baseline:
  - {name: plain, schedule.name: constant, schedule.value: 0.05}
"""

ONE_CHOICE = """objective: {val_i2t_r1: max, val_modality_distance: min}
strategy: nsga2
fixed: {loss.name: info_nce}
search:
  loss.r_mix: {choice: [0, 0.1]}
"""


def load(tmp_path, text, overrides=None):
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf8")
    return space_file.load(path, overrides)


@pytest.mark.parametrize("path", SPACES, ids=lambda p: p.stem)
def test_shipped_spaces_are_legal_and_survive_a_round_trip(path):
    loaded = space_file.load(path)
    assert loaded.baselines
    again = space_file.parse(yaml.safe_load(yaml.safe_dump(study.to_dict(loaded), sort_keys=False)))
    assert again == loaded


def test_a_point_is_completed_from_fixed_values_defaults_and_the_study_seed(tmp_path):
    config = load(tmp_path, GOOD + "seed: 7\n").trial_config({"train.lr": 0.002, "schedule.tau_min": 0.02})
    assert config.name("schedule") == "cosine"
    assert config.kwargs("train")["lr"] == 0.002
    assert config.seed == 7
    assert config.kwargs("schedule")["alpha"] == 0.08


def test_a_baseline_that_chooses_another_function_drops_what_only_the_first_knew(tmp_path):
    text = GOOD.replace("{name: cosine}", "{name: cosine, oscillations: 2}")
    config = load(tmp_path, text).baseline_config("plain")
    assert config.kwargs("schedule") == {"value": 0.05}


def test_the_hash_is_of_the_configuration_without_its_seed():
    one, two = from_flat({"train.lr": 0.002}), from_flat({"train.lr": 0.002, "train.seed": 5})
    assert one.hash == two.hash
    assert one.hash != from_flat({"train.lr": 0.003}).hash
    assert one.with_seed(5) == two


def test_the_papers_shift_names_are_accepted(tmp_path):
    text = GOOD.replace(
        "plain, schedule.name: constant, schedule.value: 0.05",
        "paper, schedule.shift_min: 0.17, schedule.shift_max: 0.3, schedule.alpha: 0.2",
    )
    assert load(tmp_path, text).baseline_config("paper").kwargs("schedule") == {
        "tau_min": pytest.approx(0.07),
        "spread": pytest.approx(0.13),
        "alpha": 0.2,
        "oscillations": 5.0,
        "shift_map": "linear",
    }


def test_overrides_fix_a_searched_parameter(tmp_path):
    loaded = load(tmp_path, GOOD, {"train.lr": 0.005})
    assert [e.path for e in loaded.searched] == ["schedule.tau_min"]
    assert loaded.trial_config({"schedule.tau_min": 0.02}).kwargs("train")["lr"] == 0.005


def test_overrides_reach_the_top_level_and_are_named_when_wrong(tmp_path):
    given = [set_path(text) for text in ("trials=9", "train.lr=5e-3", "confirm.top=1", "strategy=random")]
    loaded = load(tmp_path, GOOD, dict(given))
    assert (loaded.trials, loaded.confirm_top, loaded.confirm_seeds, loaded.strategy) == (9, 1, 5, "random")
    assert loaded.trial_config({"schedule.tau_min": 0.02}).kwargs("train")["lr"] == 0.005
    with pytest.raises(ValueError, match=r"^train\.lr: 5 is out of range"):
        load(tmp_path, GOOD, {"train.lr": 5})
    for wrong in ("train.lr", "=3", "train.lr=[1"):
        with pytest.raises(ValueError, match="is not an override"):
            set_path(wrong)


def test_conditions_order_parents_first_and_leave_inactive_parameters_out(tmp_path):
    text = GOOD.replace(
        "search:",
        "search:\n"
        "  loss.mix_mode: {choice: [replace, weighted], when: {loss.r_mix: [0.1]}}\n"
        "  loss.r_mix: {choice: [0, 0.1]}",
    )
    loaded = load(tmp_path, text)
    paths = [e.path for e in loaded.searched]
    assert paths.index("loss.r_mix") < paths.index("loss.mix_mode")
    entry = loaded.searched[paths.index("loss.mix_mode")]
    assert loaded.active({"loss.r_mix": 0.1}, entry)
    assert not loaded.active({"loss.r_mix": 0.0}, entry)


def test_a_grid_counts_conditional_points_once(tmp_path):
    text = """
strategy: grid
grid_points: 3
search:
  loss.r_mix: {choice: [0, 0.1]}
  loss.mix_mode: {choice: [replace, weighted], when: {loss.r_mix: 0.1}}
  train.lr: {loguniform: [1.0e-3, 1.0e-1]}
"""
    points = study.grid(load(tmp_path, text))
    assert len(points) == 9  # (r_mix 0) + (r_mix .1) x 2 modes, each x 3 rates
    assert {"loss.r_mix": 0.0, "train.lr": pytest.approx(0.01)} in points


REFUSED = {
    "misspelt key": (GOOD.replace("train.lr:", "train.learning_rate:"), 8, ["train.learning_rate", "unknown", "lr"]),
    "misspelt parameter": (GOOD.replace("tau_min:", "tau_mn:"), 9, ["schedule.tau_mn", "did you mean tau_min?"]),
    "misspelt section": (
        GOOD.replace("schedule.tau_min:", "schedul.tau_min:"),
        9,
        ["schedul", "did you mean schedule?"],
    ),
    "misspelt top key": (GOOD.replace("trials:", "trails:"), 3, ["trails", "did you mean trials?"]),
    "outside the declaration": (GOOD.replace("[0.01, 0.1]", "[0.01, 5]"), 9, ["5", "out of range", "[0.001, 1]"]),
    "text for a number": (GOOD.replace("[1.0e-3,", "[1e-3,"), 8, ["YAML reads 1e-3 as a string", "1.0e-3"]),
    "text for a fixed number": (GOOD + "seed: 1e3\n", 12, ["seed", "string"]),
    "another loss's parameter": (
        GOOD.replace("loss.name: info_nce", "loss.name: max_margin").replace(
            "search:", "search:\n  loss.r_mix: {uniform: [0, 1]}"
        ),
        8,
        ["loss.r_mix", "not a parameter of loss max_margin", "belongs to info_nce"],
    ),
    "another schedule's parameter": (
        GOOD.replace("{name: cosine}", "{name: constant}"),
        9,
        ["tau_min", "belongs to cosine"],
    ),
    "negative temperature": (
        GOOD.replace(
            "plain, schedule.name: constant, schedule.value: 0.05",
            "p, schedule.shift_min: 0.05, schedule.shift_max: 0.3, schedule.alpha: 0.2",
        ),
        11,
        ["0.05", "0.3", "0.2", "must be above 0"],
    ),
    "fixed and searched": (GOOD.replace("loss.name: info_nce", "train.lr: 0.1"), 5, ["both fixed and searched"]),
    "searched seed": (
        GOOD.replace("train.lr: {loguniform: [1.0e-3, 1.0e-2]}", "train.seed: {int: [0, 9]}"),
        8,
        ["noise"],
    ),
    "searched encoder": (
        GOOD.replace("train.lr: {loguniform: [1.0e-3, 1.0e-2]}", "model.text_encoder: {choice: [a, b]}"),
        8,
        ["one set of features"],
    ),
    "key twice": (GOOD + "trials: 5\n", 12, ["trials", "given twice"]),
    "unknown strategy": (GOOD + "strategy: tpee\n", 12, ["tpee", "did you mean tpe", "random", "nsga2"]),
    "test metric": (GOOD + "objective: {test_r1: max}\n", 12, ["test split must not guide"]),
    "unknown metric": (GOOD + "objective: {val_i2t_r2: max}\n", 12, ["val_i2t_r2", "is not a metric", "val_i2t_r1"]),
    "one metric under nsga2": (
        GOOD + "objective: {val_i2t_r1: max}\nstrategy: nsga2_asha\n",
        12,
        ["nsga2_asha needs two or more metrics"],
    ),
    "a choice alone under nsga2": (
        ONE_CHOICE,
        5,
        ["loss.r_mix", "nsga2 hands on what every trial has", "legal are random, random_asha, grid, tpe, tpe_asha, "],
    ),
    "a choice and what hangs on it under nsga2": (
        ONE_CHOICE + "  train.lr: {loguniform: [1.0e-3, 1.0e-2], when: {loss.r_mix: 0.1}}\n",
        5,
        ["loss.r_mix", "this choice alone", "a second parameter without `when`"],
    ),
    "unknown constraint": (GOOD + "constraints: {val_modality: {max: 1}}\n", 12, ["val_modality", "did you mean"]),
    "constraint without a side": (GOOD + "constraints: {val_modality_distance: 0.5}\n", 12, ["0.5", "{max: bound}"]),
    "constraint that none keeps": (
        GOOD + "constraints: {val_modality_distance: {min: 1, max: 0.5}}\n",
        12,
        ["min 1 is above max 0.5"],
    ),
    "constraint on the test split": (GOOD + "constraints: {test_i2t_r1: {min: 0.1}}\n", 12, ["must not guide"]),
    "controls of a grid": (GOOD + "strategy: grid\ncontrols: 3\n", 13, ["a grid is not sampled"]),
    "more controls than trials": (GOOD + "controls: 5\n", 12, ["5 of 4 trials"]),
    "unknown condition": (
        GOOD.replace("[0.01, 0.1]}", "[0.01, 0.1], when: {loss.mix_mod: replace}}"),
        9,
        ["loss.mix_mod", "neither searched nor fixed"],
    ),
    "learned margin": (
        GOOD.replace("loss.name: info_nce", "loss.name: max_margin").replace(
            "schedule.name: constant, schedule.value: 0.05", "schedule.name: learnable"
        ),
        11,
        ["learnable does not fit loss max_margin", "plain"],
    ),
    "functions that clash": (
        GOOD.replace("loss.name: info_nce\n  schedule: {name: cosine}", "groups.k: 5")
        .replace("schedule.tau_min: {loguniform: [0.01, 0.1]}", "loss.name: {choice: [info_nce, max_margin]}")
        .replace("train.lr: {", "schedule.name: {choice: [learnable, constant]}\n  train.lr: {"),
        7,
        ["learnable does not fit loss max_margin", "loss.name=max_margin", "when"],
    ),
    "resources": (
        GOOD + "resources: {cpus_per_work: 1}\n",
        12,
        ["resources.cpus_per_work", "did you mean cpus_per_worker"],
    ),
    "parameter at top level": (GOOD + "train.epochs: 3\n", 12, ["train.epochs", "under fixed"]),
    "trials zero": (GOOD.replace("trials: 4", "trials: 0"), 3, ["trials"]),
}


@pytest.mark.parametrize("case", REFUSED, ids=REFUSED)
def test_refusals_are_one_line_with_file_row_and_what_is_legal(tmp_path, case):
    text, row, words = REFUSED[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the words are checked below)
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 'space.yaml'}:{row}: "), message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("- 1\n", "mapping"),
        ("a: [1\n", "not YAML"),
        ("study: !!python/object:os.system x\n", "not YAML"),
    ],
)
def test_files_that_are_no_study_are_refused(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        load(tmp_path, text)


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        space_file.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"study: caf\xe9\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        space_file.load(tmp_path / "latin.yaml")


def test_a_loss_that_cannot_share_a_batch_is_refused_for_several_workers(tmp_path, monkeypatch):
    from mmts_ray.losses import LOSSES, SCHEDULED

    def alone(image_BD, text_BD, *, temperature):
        """A loss that does not know of other workers."""

    monkeypatch.setitem(LOSSES, "alone", alone)
    monkeypatch.setitem(SCHEDULED, "alone", "temperature")
    content = {"fixed": {"loss.name": "alone"}, "resources": {"workers": 2}}
    with pytest.raises(ValueError, match="alone cannot share a batch, and resources"):
        space_file.parse(content)
    assert space_file.parse({**content, "resources": {}}).resources.workers == 1
    for name in set(LOSSES) - {"alone"}:
        space_file.parse({**content, "fixed": {"loss.name": name}})


def test_check_says_what_each_worker_of_a_trial_takes():
    from mmts_ray import reference

    study = space_file.parse({"resources": {"workers": 2, "cpus_per_worker": 4, "gpus_per_worker": 0.5}})
    assert "2 workers x (4 CPU, 0.5 GPU) per trial" in reference.describe(reference.resolved(study))
    assert "1 CPU, 0 GPU per trial" in reference.describe(reference.resolved(space_file.parse({})))


PBT = {"strategy": "pbt", "trials": 4, "search": {"train.lr": {"loguniform": [1e-4, 1e-2]}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"search": {"train.batch_size": {"choice": [64, 256]}}},
            r"batch_size: pbt changes .* legal are train.lr",
        ),
        ({"search": {"groups.k": {"int": [2, 9]}}, "fixed": {"schedule.name": "cosine"}}, "groups.k: pbt changes"),
        ({"search": {"loss.name": {"choice": ["info_nce", "siglip"]}}}, "loss.name: pbt changes"),
        ({"trials": 3}, "trials: 3 is no population"),
        ({"fixed": {"train.epochs": 4, "train.eval_every": 4}}, "train.eval_every: 4 of 4 epochs leaves pbt nothing"),
        ({"strategy": "hyperband", "fixed": {"train.epochs": 1}}, "leaves hyperband nothing to decide on"),
        (
            {"strategy": "bohb", "fixed": {"train.epochs": 8, "train.eval_every": 3}},
            "train.epochs: 8, evaluated every 3, leaves bohb nothing .* legal are 3 evaluations or more",
        ),
        (
            {"strategy": "random_asha", "search": {"train.epochs": {"int": [3, 9]}}},
            "epochs: strategy random_asha",
        ),
        (
            {"strategy": "tpe_asha", "search": {"train.eval_every": {"int": [1, 3]}}},
            "every: strategy tpe_asha",
        ),
    ],
)
def test_a_scheduler_that_could_not_do_its_work_is_refused(change, words):
    space_file.parse(PBT)
    with pytest.raises(ValueError, match=words):
        space_file.parse({**PBT, **change})


def test_check_says_when_a_scheduler_decides():
    from mmts_ray import reference

    def told(**changes):
        return reference.resolved(space_file.parse({**PBT, **changes}))["strategy_meaning"]

    assert "at epochs 1, 3, 9, or the next evaluation" in told(strategy="tpe_asha")
    hyperband = told(strategy="hyperband")
    assert "brackets of 9 trials (cut at epochs 1, 3), 5 trials (cut at epoch 3), 3 trials (no cut);" in hyperband
    rarely = told(strategy="hyperband", fixed={"train.epochs": 81, "train.eval_every": 3})
    assert "27 trials (cut at epochs 3, 9, 27), 12 trials (cut at epochs 9, 27), 6 trials (cut at epoch 27)" in rarely
    assert "every 1 epochs the worst 25%" in told()
    assert "every 4 epochs" in told(fixed={"train.epochs": 30, "train.eval_every": 2})
    assert ";" not in told(strategy="tpe")


def test_weights_are_named_in_full_whatever_stands_before_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny.json", "w.pt"):
        (tmp_path / name).write_bytes(b"")
    given = {
        "tiny.json": f"{tmp_path}/tiny.json",
        "tiny.json/w.pt": f"{tmp_path}/tiny.json/{tmp_path}/w.pt",
        f"tiny.json/{tmp_path}/w.pt": f"{tmp_path}/tiny.json/{tmp_path}/w.pt",
        "open_clip:ViT-B-32/w.pt": f"open_clip:ViT-B-32/{tmp_path}/w.pt",
        f"open_clip:ViT-B-32/{tmp_path}/w.pt": f"open_clip:ViT-B-32/{tmp_path}/w.pt",
        "open_clip:ViT-B-32/openai": "open_clip:ViT-B-32/openai",
        "nowhere.json": "nowhere.json",
    }
    for weights, full in given.items():
        (tmp_path / "s.yaml").write_text(f"fixed: {{model: {{name: open_clip, weights: '{weights}'}}}}")
        assert dict(space_file.load(tmp_path / "s.yaml").fixed)["model.weights"] == full


@pytest.mark.parametrize(
    ("strategy", "trials", "controls"),
    [("tpe_asha", 100, 20), ("random_asha", 5000, 20), ("bohb", 100, 20), ("tpe_asha", 99, 0), ("tpe", 1000, 0)],
)
def test_a_large_study_that_stops_trials_spares_twenty_random_ones_for_the_worth_of_an_early_result(
    strategy, trials, controls
):
    study = space_file.parse({"strategy": strategy, "trials": trials})
    assert study.controls == controls
    assert space_file.parse({"strategy": strategy, "trials": trials, "controls": 7}).controls == 7
