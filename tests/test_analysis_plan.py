"""Planned runs: what a study lacks, what it costs, and that running it closes the gaps that the report names."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import yaml
from ledger_maker import DEFAULT, OBJECTIVE, SPACE, Maker, diverges, meta_of, metrics_of, native, unit, write_study
from mmts_ray.analysis import choice, commands, plan, plan_text, probes, report, steps, tables
from mmts_ray.analysis.panels import budget, fidelity, flat, interactions

VAL = f"val_{OBJECTIVE}"
QUICK = {"train.epochs": 4}
TOP = np.array([0.58, 0.55, 0.40, 0.15, 0.35, 0.5])  # near the optimum of the simulator


class World:
    """A synthetic study that can run its own plans."""

    def __init__(self, folder, *, trials=30, points=(), confirm=0, **changes):
        self.folder, self.changes, self.rng = folder, changes, np.random.default_rng(11)
        self.maker, self.number = Maker(folder.name), 0
        self.maker.run(
            "t0000", "baseline", {**DEFAULT, **QUICK}, self.measure(unit(DEFAULT), 0), name="paper", epochs=4
        )
        for place, u in enumerate([*points, *self.rng.random((trials, 6))], start=1):
            good = self.rng.random() >= diverges(u)
            status = {} if good else {"status": "infeasible"}
            metrics = self.measure(u, 0) if good else {}
            self.maker.run(f"t{place:04d}", "search", {**native(u), **QUICK}, metrics, epochs=4, **status)
        for label in ("t0001", "paper"):
            trial = "t0000" if label == "paper" else label
            for seed in range(1000, 1000 + confirm):
                self.run(label, "confirm", self.study.configs[trial], seed)

    def measure(self, u, seed):
        """The same seed gives the same numbers, and the dead parameter none."""
        alive = np.where(np.arange(6) == 5, 0.0, u)
        stream = np.random.default_rng([seed, *np.round(alive * 1e6).astype(np.int64) % 2**31])
        return metrics_of(alive, stream, test=True)

    def run(self, name, kind, config, seed):
        values = {k: v for k, v in config.items() if k != "train.seed"}
        self.number += 1
        metrics = self.measure(unit({p["path"]: values[p["path"]] for p in SPACE}), seed)
        epochs = int(values.get("train.epochs", 4))
        self.maker.run(f"p{self.number:04d}", kind, values, metrics, seed=seed, name=name, epochs=epochs)

    @property
    def study(self):
        return tables.load(write_study(self.folder, self.maker.rows, meta_of(self.folder.name, **self.changes)))

    def carry_out(self, made, most=math.inf):
        for entry in made.entries:
            for seed in entry.seeds:
                if self.number < most:
                    self.run(entry.name, entry.kind, entry.config, seed)


def names(made, kind=None):
    return [e.name for e in made.entries if kind in (None, e.kind)]


def test_a_study_without_fresh_seeds_is_told_to_confirm_first(tmp_path):
    world = World(tmp_path / "s", points=[TOP])
    made = plan.plan(world.study)
    assert {e.kind for e in made.entries} == {"confirm"}
    assert names(made)[0] == "paper"
    assert len(made.entries) == 4  # the default and the best three
    assert all(e.seeds == (1000, 1001, 1002, 1003, 1004) for e in made.entries)
    assert any("--plan` again" in note for note in made.notes)
    assert report.find(world.study)["verdict"].refusal is not None
    world.carry_out(made)
    verdict = report.find(world.study)["verdict"]
    assert verdict.refusal is None
    assert verdict.numbers["difference"]["n"] == 5


def test_plans_carried_out_leave_nothing_missing_and_run_nothing_twice(tmp_path):
    world = World(tmp_path / "s", points=[TOP])
    made = []
    for _ in range(4):
        made.append(plan.plan(world.study))
        world.carry_out(made[-1])
    assert not made[-1].entries
    assert plan_text.total(made[-1]) == "Nothing is missing."
    ended = world.study.trials
    fresh = ended[ended["kind"].isin(["confirm", "probe"])]
    keys = [(probes.identity(world.study.configs[t]), s) for t, s in zip(fresh["trial"], fresh["seed"])]
    assert len(keys) == len(set(keys))
    assert world.study.duplicates == 0


def test_a_plan_interrupted_half_way_asks_for_the_rest_only(tmp_path):
    whole, halted = World(tmp_path / "s", points=[TOP], confirm=5), World(tmp_path / "h", points=[TOP], confirm=5)
    made = plan.plan(whole.study)
    whole.carry_out(made)
    halted.carry_out(plan.plan(halted.study), most=halted.number + made.runs // 2)
    rest = plan.plan(halted.study)
    assert rest.runs < made.runs
    halted.carry_out(rest)
    again = {(r["name"], r["seed"]) for r in halted.study.trials.to_dict("records") if r["kind"] != "search"}
    assert again >= {(e.name, s) for e in made.entries for s in e.seeds if e.kind == "confirm"}


def test_rings_lie_a_tenth_and_a_quarter_of_the_range_around_the_winner_on_its_seeds(tmp_path):
    world = World(tmp_path / "s", points=[TOP], confirm=5)
    made = plan.plan(world.study)
    chosen = choice.choose(world.study)
    assert chosen.winner.label == "t0001"
    by_name = {e.name: e for e in made.entries}
    for parameter in world.study.space:
        if parameter.short == "margin":  # 0.15 of the range: the lower quarter ends at the bound
            steps_ = ["-0.15", "-0.10", "+0.10", "+0.25"]
        else:
            steps_ = ["-0.25", "-0.10", "+0.10", "+0.25"]
        (here,) = parameter.position([chosen.winner and world.study.configs["t0001"][parameter.path]])
        for step in steps_:
            entry = by_name[f"ring {parameter.path} {step}"]
            (there,) = parameter.position([entry.config[parameter.path]])
            assert there - here == pytest.approx(float(step), abs=2e-3)
            assert entry.seeds == tuple(chosen.winner.done.index)
            assert entry.start == "t0001"
            assert set(entry.changes) == {parameter.path}
    world.carry_out(made)
    measured = probes.probes(world.study)
    rings = measured[measured["role"] == "ring"]
    assert set(rings["path"]) >= {"train.lr", "schedule.tau", "loss.mix"}
    assert rings[f"metric.{VAL}"].notna().all()
    assert set(rings["seed"]) == set(chosen.winner.done.index)


def test_a_parameter_that_does_nothing_is_found_before_its_ring_is_paid(tmp_path):
    world = World(tmp_path / "s", points=[TOP], confirm=5)
    made = plan.plan(world.study)
    inert = [e for e in made.entries if e.name.startswith("inert")]
    assert {e.name for e in inert} >= {"inert loss.dead low", "inert loss.dead high", "inert train.lr low"}
    assert all(len(e.seeds) == 1 and e.config["train.epochs"] == 1 for e in inert)
    assert probes.reacts(world.study, "loss.dead", inert[0].config) is None
    for entry in inert:
        world.run(entry.name, entry.kind, entry.config, entry.seeds[0])
    assert probes.reacts(world.study, "loss.dead", world.study.configs["t0001"]) is False
    assert probes.reacts(world.study, "train.lr", world.study.configs["t0001"]) is True
    after = plan.plan(world.study)
    assert not any("loss.dead" in e.name for e in after.entries)
    assert any(note.startswith("dead: inert") for note in after.notes)
    assert any(e.name.startswith("ring train.lr") for e in after.entries)


def test_two_runs_that_diverged_do_not_prove_a_parameter_inert(tmp_path):
    maker = Maker("s")
    for place, margin in enumerate((0.1, 0.3)):
        maker.run(f"t000{place}", "search", {"loss.margin": margin}, {}, status="infeasible")
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s")))
    assert probes.reacts(study, "loss.margin", {"loss.margin": 0.2}) is None


def test_a_winner_at_a_bound_gets_runs_there_and_beyond_where_the_declared_domain_goes_on(tmp_path):
    edge = TOP.copy()
    edge[0], edge[3] = 0.97, 0.02  # lr near its upper end (declared up to 1), margin near 0 (declared from 0)
    world = World(tmp_path / "s", points=[edge], trials=0, confirm=5)
    made = plan.plan(world.study)
    bounds = {e.name: e.config for e in made.entries if e.name.startswith("bound")}
    assert set(bounds) == {
        "bound train.lr high", "bound train.lr high +0.10", "bound train.lr high +0.25", "bound loss.margin low",
    }  # fmt: skip
    assert bounds["bound train.lr high"]["train.lr"] == 0.1
    assert bounds["bound train.lr high +0.25"]["train.lr"] == pytest.approx(0.1 * 1000**0.25, rel=1e-3)
    assert bounds["bound loss.margin low"]["loss.margin"] == 0.0


def test_the_ablation_path_changes_one_thing_at_a_time_and_a_function_with_all_it_knows():
    space = [
        {**SPACE[0]},
        {"path": "loss.name", "kind": "choice", "values": ["a", "b"], "default": "a"},
    ]
    study = type("S", (), {"space": tuple(tables._parameter(p) for p in space), "searched": None})()
    default = {"train.lr": 1e-3, "loss.name": "a", "loss.only_a": 1, "train.seed": 0, "groups.k": 5}
    winner = {"train.lr": 1e-2, "loss.name": "b", "loss.only_b": 2, "train.seed": 7, "groups.k": 5}
    study.searched = pd.DataFrame({"trial": [], "score": []})
    path = steps.path_between(study, default, winner)
    assert [block for block, _ in path] == ["loss.*", "train.lr"]
    assert path[0][1] == {"train.lr": 1e-3, "loss.name": "b", "loss.only_b": 2, "groups.k": 5}
    assert path[-1][1] == {k: v for k, v in winner.items() if k != "train.seed"}


def test_ablation_steps_lead_from_the_default_to_the_winner(tmp_path):
    world = World(tmp_path / "s", points=[TOP], confirm=5)
    found = [e for e in plan.plan(world.study).entries if e.name.startswith("ablation")]
    assert [e.name.split()[1] for e in found] == ["1", "2", "3", "4"]  # mix or dead may equal the default's
    winner = world.study.configs["t0001"]
    for entry in found:
        assert entry.start == "paper"
        assert all(winner[path] == value for path, value in entry.changes.items())
    assert all(set(a.changes) < set(b.changes) for a, b in itertools.pairwise(found))


def test_a_study_that_stops_trials_gets_twenty_random_controls_that_do_not_move(tmp_path):
    world = World(tmp_path / "s", points=[TOP], strategy="tpe_asha")
    made = plan.plan(world.study)
    controls = [e for e in made.entries if e.kind == "control"]
    assert len(controls) == 20
    assert all(e.start is None and e.seeds == (0,) for e in controls)
    positions = np.array([[p.position([e.changes[p.path]])[0] for p in world.study.space] for e in controls])
    assert (positions >= 0).all()
    assert (positions <= 1).all()
    assert positions.std(axis=0).min() > 0.15
    for entry in controls[:7]:
        world.run(entry.name, entry.kind, entry.config, 0)
    rest = [e for e in plan.plan(world.study).entries if e.kind == "control"]
    assert [e.changes for e in rest] == [e.changes for e in controls[7:]]
    assert not [e for e in plan.plan(World(tmp_path / "r", points=[TOP]).study).entries if e.kind == "control"]


def test_costs_are_medians_of_like_runs_and_extrapolations_say_so(tmp_path):
    world = World(tmp_path / "s", points=[TOP], confirm=5)
    made = plan.plan(world.study)
    ring = next(e for e in made.entries if e.name.startswith("ring"))
    assert ring.seconds == 9.0  # four epochs of two seconds and one
    assert ring.basis.startswith("median of ")
    inert = next(e for e in made.entries if e.name.startswith("inert"))
    assert inert.seconds == pytest.approx(9.0 / 4)
    assert inert.basis.startswith("extrapolated from ")
    assert made.hours == pytest.approx(sum(e.seconds * len(e.seeds) for e in made.entries) / 3600)
    assert f"{made.runs} runs" in plan_text.total(made)
    written = yaml.safe_load(plan_text.yaml_text(made))
    assert sum(len(run["seeds"]) for run in written["runs"]) == made.runs
    assert all(run["reason"] and run["device_hours"] > 0 for run in written["runs"])
    # the whole file is plain YAML: what was planned is read back exactly
    for run, entry in zip(written["runs"], made.entries):
        assert run.get("set", {}) == dict(entry.changes)
        assert run["seeds"] == list(entry.seeds)


def test_a_condition_that_does_not_hold_leaves_its_parameter_out(tmp_path):
    space = [*SPACE[:5], {**SPACE[5], "when": [["loss.kind", ["soft"]]]}]
    world = World(tmp_path / "s", points=[TOP], confirm=5, space=space)
    made = plan.plan(world.study)
    assert not any("dead" in e.name for e in made.entries if not e.name.startswith("ablation"))
    assert any("not used by the winner" in note for note in made.notes)


def test_no_finished_trial_is_refused_in_one_line(tmp_path):
    maker = Maker("s")
    maker.run("t0001", "search", {"train.lr": 0.01}, {}, status="infeasible")
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s")))
    with pytest.raises(ValueError, match="no finished trial to plan around; run `mmts-ray resume s` first"):
        plan.plan(study)


@pytest.mark.parametrize("value", [0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize(
    ("low", "high", "log", "kind"),
    [(0.0, 1.0, False, "float"), (1e-4, 1e-1, True, "float"), (1, 10, False, "int"), (2, 512, True, "int")],
)
def test_ring_values_are_legal_different_and_inside_the_searched_range(value, low, high, log, kind):
    parameter = tables._parameter({"path": "a.b", "kind": kind, "low": low, "high": high, "log": log})
    here = steps.legal_value(parameter, parameter.at(value))
    found = [v for _, v in steps.ring(parameter, here)]
    assert len(set(found)) == len(found)
    assert here not in found
    assert all(low <= v <= high for v in found)
    assert all(isinstance(v, int) == (kind == "int") for v in found)


def test_planned_runs_fill_the_panels_that_lacked_them(tmp_path):
    world = World(tmp_path / "s", trials=40, points=[TOP], confirm=5)
    before = report.find(world.study)
    assert before["inert"].refusal is not None
    assert before["ablation"].refusal is not None
    assert "rings" not in before["plateau"].frames
    made = plan.plan(world.study)
    world.carry_out(made)
    after = report.find(world.study)
    assert after["inert"].refusal is None
    assert after["ablation"].refusal is None
    assert after["tunability"].refusal is None
    rings = after["plateau"].frames["rings"]
    assert set(rings["path"]) == {p["path"] for p in SPACE}
    assert (rings["n"] == 5).all()
    planned = {(path, v) for e in made.entries if e.name.startswith("ring") for path, v in e.changes.items()}
    assert len(planned) == 4 * len(SPACE)
    assert planned <= set(zip(rings["path"], rings["value"]))


@pytest.mark.parametrize("strategy", ["random", "grid", "tpe", "tpe_asha", "random_asha", "hyperband", "pbt"])
@pytest.mark.parametrize("panel", [budget.budget, fidelity.fidelity, flat.flat, interactions.interactions])
def test_the_command_of_a_panel_that_lacks_random_trials_brings_them(tmp_path, strategy, panel):
    study = World(tmp_path / "s", trials=6, strategy=strategy).study
    found = panel(study)
    assert found.refusal is not None
    if " --plan" in found.refusal.command:
        planned = [e for e in plan.plan(study).entries if e.kind == "control"]
        assert len(planned) == commands.CONTROLS
    elif " search " in found.refusal.command:
        assert "strategy=random trials=" in found.refusal.command
    else:
        assert found.refusal.command.startswith("mmts-ray extend s --trials ")
        assert strategy in ("random", "grid") or panel is interactions.interactions
