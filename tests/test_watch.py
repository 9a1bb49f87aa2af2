"""What Tune does not tell of a trial: that it waits, that it has gone silent, and of what it died."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
from mmts_ray.search.watch import Silence, Watch, cause_of_death, waiting_reason
from mmts_ray.study import Resources


def test_silence_counts_from_the_last_new_sign():
    silence = Silence()
    seen = [("a", 0), ("a", 10), ("b", 20), ("b", 50), ("b", 79.5), ("c", 80)]
    assert [silence.seconds("t0", sign, now) for sign, now in seen] == [0, 10, 0, 30, 59.5, 0]


def test_silence_before_the_first_sign_counts_from_when_it_was_first_looked_for():
    silence = Silence()
    assert [silence.seconds("t0", None, now) for now in (5, 65)] == [0, 60]
    assert silence.seconds("t0", "first", 70) == 0


def test_a_forgotten_trial_and_other_trials_count_anew():
    silence = Silence()
    silence.seconds("t0", "a", 0)
    assert silence.seconds("t1", "a", 100) == 0
    silence.forget("t0")
    assert silence.seconds("t0", "a", 100) == 0


# as Ray 2.60 writes them
KILLED = """Failure # 1 (occurred at 2026-11-30_09-40-00)
The actor died unexpectedly before finishing this task.
\tclass_name: with_parameters
\tactor_id: 5eb0b0f6
\tpid: 31337
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process \
is killed by SIGKILL by OOM killer due to high memory usage.
"""
NODE = """Failure # 2 (occurred at 2026-11-30_09-41-00)
The actor died because its node has died. Node Id: 8f2a
\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats
"""
MEMORY = """Failure # 1 (occurred at 2026-11-30_09-41-00)
Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.1, ID: 8f2a) where the task (actor ID: 5eb0, name=Trial, pid=1, memory used=1.2GB) was
"""
RAISED = """Failure # 1 (occurred at 2026-11-30_09-41-00)
ray::TrialActor.__init__() (pid=1, ip=127.0.0.1)
  File "actor.py", line 3, in setup
    raise ValueError("no such thing")
ValueError: no such thing
"""


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (KILLED, "failed", ["process died", "connection error code 2"]),
        (NODE, "failed", ["machine was lost"]),
        (MEMORY, "infeasible", ["out of memory"]),
        (RAISED, "failed", ["ValueError: no such thing"]),
        (MEMORY + KILLED, "failed", ["process died"]),  # the last one counts
        (KILLED + MEMORY, "infeasible", ["out of memory"]),
        ("", "failed", ["process died"]),
    ],
)
def test_the_cause_of_death_is_in_rays_words(text, status, words):
    found, reason = cause_of_death(text)
    assert found == status
    assert all(word in reason for word in words)
    assert "\n" not in reason


def test_a_waiting_reason_says_how_many_for_what_and_what_is_being_done():
    need = Resources(gpus_per_worker=1)
    assert waiting_reason(1, 1, need, {"CPU": 4}, {"CPU": 4}, {}) == "1 trial waiting for 1 GPU each; 0 of 0 GPU free"
    report = {
        "pending_launches": {"gpu_spot": 2},
        "pending_nodes": [["10.0.0.1", "gpu_spot", "setting-up"], ["10.0.0.2", "other", "uninitialized"]],
        "node_availability_summary": {
            "node_availabilities": {
                "gpu_spot": {"is_available": True, "unavailable_node_information": None},
                "other": {
                    "is_available": False,
                    "unavailable_node_information": {"category": "InsufficientCapacity", "description": "sold out"},
                },
            }
        },
    }
    told = waiting_reason(3, 4, need, {"GPU": 1}, {}, report)
    assert told == (
        "3 trials waiting for 1 GPU each; 0 of 1 GPU free; starting 3 gpu_spot, 1 other; "
        "other could not be had: sold out"
    )
    assert waiting_reason(2, 2, Resources(workers=2, cpus_per_worker=2), {"CPU": 4}, {"CPU": 1}, {}) == (
        "2 trials waiting for 4 CPU each; 1 of 4 CPU free"
    )


def test_trials_that_have_their_place_are_starting_not_waiting():
    need = Resources()
    assert waiting_reason(2, 2, need, {"CPU": 2}, {"CPU": 0}, {}) == "2 trials starting"
    assert waiting_reason(1, 3, need, {"CPU": 2}, {}, {}) == "1 trial waiting for 1 CPU each; 0 of 2 CPU free"


@pytest.mark.ray
def test_a_group_whose_workers_have_no_room_yet_waits_although_tune_says_that_it_runs(local_ray, monkeypatch):
    from ray.tune.experiment import Trial

    from mmts_ray.trial import pulse

    told = SimpleNamespace(live={"id": SimpleNamespace(trial="t0000")}, progress=SimpleNamespace(), why=None)
    told.progress.waiting, said = lambda reason: said.append(reason), []
    told.progress.resources = lambda used, total: None
    watch = Watch("run", told, Resources(workers=2), stall_seconds=1000)
    monkeypatch.setattr("mmts_ray.search.watch.SHOWN_AFTER", 0.0)
    driver = SimpleNamespace(trial_id="id", status=Trial.RUNNING)

    def look():
        watch.next_look = 0.0
        watch.on_step_end(0, [driver])
        return said[-1]

    assert look() == "1 trial waiting for 2 CPU each; 2 of 2 CPU free"
    pulse.Pulse("run", "t0000", every=0).beat(0, 1)  # its first worker trains
    assert look() == ""
    pulse.forget("run", "t0000")  # as after a death
    assert look().startswith("1 trial waiting")
