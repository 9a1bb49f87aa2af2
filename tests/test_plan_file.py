"""A file of planned runs: what it may say, what is refused and where, and that nothing is listed twice."""

import pytest
import yaml

from mmts_ray import plan_file, space_file

CONTENT = {
    "study": "toy",
    "fixed": {"data.name": "features", "data.path": "unused", "schedule.name": "cosine", "groups.k": 3},
    "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}, "schedule.spread": {"uniform": [0, 0.2]}},
    "baseline": [{"name": "plain", "schedule.name": "constant", "schedule.value": 0.07}],
}


@pytest.fixture
def study():
    return space_file.parse(CONTENT)


@pytest.fixture
def known(study):
    point = study.trial_config({"train.lr": 0.01, "schedule.spread": 0.1})
    row = {f"param.{k}": v for k, v in point.items}
    return {
        "t0003": {"trial": "t0003", "kind": "search", "status": "done", "config_hash": point.hash, "seed": 0, **row}
    }


def write(tmp_path, *runs, study="toy"):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"study": study, "runs": list(runs)}, sort_keys=False))
    return path


def ring(**more):
    entry = {"name": "ring train.lr +0.10", "kind": "probe", "from": "t0003", "set": {"train.lr": 0.02}}
    return {**entry, "seeds": [1000, 1001], **more}


def test_an_entry_is_its_start_with_changes_on_each_seed(tmp_path, study, known):
    first, second = plan_file.load(write(tmp_path, ring()), study, known)
    assert (first.trial, second.trial) == ("p0000", "p0001")
    assert (first.config.seed, second.config.seed) == (1000, 1001)
    assert first.kind == "probe"
    assert first.config.flat()["train.lr"] == 0.02
    assert first.config.flat()["schedule.spread"] == 0.1
    assert first.config.hash != known["t0003"]["config_hash"]


def test_a_baseline_or_the_fixed_values_are_a_start_and_another_function_drops_what_the_first_knew(
    tmp_path, study, known
):
    runs = [
        {"name": "plain", "kind": "confirm", "from": "plain", "seeds": [1000]},
        {"name": "ablation 1 schedule.*", "kind": "probe", "from": "plain", "seeds": [1000],
         "set": {"schedule.name": "cosine", "schedule.spread": 0.1}},
        {"name": "control 1", "kind": "control", "set": {"train.lr": 0.05, "schedule.spread": 0.0}, "seeds": [0]},
    ]  # fmt: skip
    plain, ablated, control = plan_file.load(write(tmp_path, *runs), study, known)
    assert plain.config.hash == study.baseline_config("plain").hash
    assert ablated.config.name("schedule") == "cosine"
    assert "schedule.value" not in ablated.config.flat()
    assert control.config.hash == study.trial_config({"train.lr": 0.05, "schedule.spread": 0.0}).hash
    assert [p.trial[0] for p in (plain, ablated, control)] == ["c", "p", "r"]


def test_what_the_ledger_holds_or_the_file_repeats_is_not_run_again_but_a_failed_run_is(tmp_path, study, known):
    path = write(tmp_path, ring(), ring(name="again", seeds=[1001, 1002]))
    planned = plan_file.load(path, study, known)
    assert [(p.name, p.config.seed) for p in planned] == [
        ("ring train.lr +0.10", 1000), ("ring train.lr +0.10", 1001), ("again", 1002),
    ]  # fmt: skip
    for one, status in zip(planned, ("done", "waiting", "failed")):
        row = {"trial": one.trial, "kind": "probe", "status": status, "config_hash": one.config.hash}
        known[one.trial] = {**row, "seed": one.config.seed}
    (rest,) = plan_file.load(path, study, known)
    assert (rest.trial, rest.config.seed) == ("p0003", 1002)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (ring(set={"train.lr": 5}), "train.lr: 5 is out of range"),
        (ring(set={"train.learning": 1}), "train.learning: unknown"),
        (ring(set={"model.text_encoder": "other"}), "one study has one set of features"),
        (ring(set=[1]), "set: [1] is no mapping"),
        (ring(kind="search"), "kind: 'search'; legal are confirm, probe, control"),
        (ring(**{"from": "plane"}), "did you mean plain?"),
        (ring(seeds=[]), "seeds: []; legal is a list of whole numbers"),
        (ring(seeds=[1000, "x"]), "seeds: 'x' is not a whole number"),
        (ring(seeds=[-1]), "seeds: -1 is out of range"),
        (ring(name=""), "name: '' is not text"),
        (ring(sets=1), "sets: unknown (did you mean set?)"),
        ("ring", "'ring' is no run"),
    ],
    ids=str,
)
def test_an_illegal_entry_is_refused_with_file_and_row(run, said, tmp_path, study, known):
    path = write(tmp_path, ring(), run)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        plan_file.load(path, study, known)
    message = str(refusal.value)
    assert said in message
    assert "\n" not in message
    file, row, _ = message.split(":", 2)
    assert file == str(path)
    line = path.read_text().splitlines()[int(row) - 1]
    key = message.split(": ")[1]
    assert key in line or line.startswith("-"), (line, message)
    assert int(row) > 8, "the first entry, which is legal, is not to blame"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "this is NoneType"),
        ("study: toy", "runs: missing"),
        ("study: other\nruns: []", "made for the study 'other'"),
        ("study: toy\nruns: []\nmore: 1", "more: unknown"),
        ("study: toy\nstudy: toy\nruns: []", "plan.yaml:2: study: given twice"),
        ("study: [toy\n", "not YAML"),
        ("study: !!python/object:os.system {}\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text, said, tmp_path, study):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        plan_file.load(path, study, {})
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_missing_file_says_how_to_make_one(tmp_path, study):
    with pytest.raises(ValueError, match="no such file; `mmts-ray report STUDY --plan` writes one"):
        plan_file.load(tmp_path / "none.yaml", study, {})
