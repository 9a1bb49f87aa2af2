"""What can never start is refused with the numbers; what can, says how many at once."""

import pytest
import yaml
from cluster_checks import ROOT

pytest.importorskip("ray")
from mmts_ray.search import preflight
from mmts_ray.search.preflight import Cluster, Machine, trials_at_once, workers_on
from mmts_ray.study import Resources

LAPTOP = Cluster((Machine("head", {"CPU": 8}),))
TWO_GPUS = Cluster((Machine("head", {"CPU": 16, "GPU": 2, "trial_slot": 1000}),))
HEAD = Machine("head", {"trial_slot": 16})
FROM_ZERO = Cluster((HEAD,), types=(Machine("gpu_spot", {"CPU": 8, "GPU": 1}, 8),), most=8)
MIXED = Cluster(
    (HEAD,), types=(Machine("big", {"CPU": 48, "GPU": 4}, 2), Machine("small", {"CPU": 4, "GPU": 1}, 8)), most=4
)
UNKNOWN = Cluster((HEAD,), types=())  # there is an autoscaler, and its limits cannot be read


@pytest.mark.parametrize(
    ("resources", "cluster", "expected"),
    [
        (Resources(), LAPTOP, 8),
        (Resources(cpus_per_worker=0.5), LAPTOP, 16),
        (Resources(cpus_per_worker=3), LAPTOP, 2),
        (Resources(concurrent=3), LAPTOP, 3),
        (Resources(concurrent=99), LAPTOP, 8),
        (Resources(gpus_per_worker=0.5), TWO_GPUS, 4),
        (Resources(gpus_per_worker=0.4), TWO_GPUS, 4),  # a share lies on one GPU: two of 0.4 on each, not five on both
        (Resources(gpus_per_worker=0.1, cpus_per_worker=0.1), TWO_GPUS, 20),
        (Resources(gpus_per_worker=2), TWO_GPUS, 1),
        (Resources(workers=2, gpus_per_worker=1), TWO_GPUS, 1),
        (Resources(cpus_per_worker=4, gpus_per_worker=1), FROM_ZERO, 8),
        (Resources(workers=2, cpus_per_worker=4, gpus_per_worker=1), FROM_ZERO, 4),
        (Resources(workers=8, gpus_per_worker=1), FROM_ZERO, 1),
        (Resources(cpus_per_worker=0.1, gpus_per_worker=0.1), FROM_ZERO, 80),
        (Resources(workers=2, cpus_per_worker=0.1, gpus_per_worker=0.1), FROM_ZERO, 16),  # one driver in each slot
        (Resources(gpus_per_worker=1), MIXED, 2 * 4 + 2 * 1),  # four machines at most: the two big ones first
        (Resources(gpus_per_worker=2), MIXED, 4),
        (Resources(gpus_per_worker=1), UNKNOWN, 16),
        (Resources(gpus_per_worker=1, concurrent=5), UNKNOWN, 5),
        (Resources(gpus_per_worker=1), Cluster((Machine("head", {"CPU": 2}),), types=()), 1),
        # more machines were added by hand than the file allows: what is there counts
        (Resources(), Cluster((Machine("node", {"CPU": 4}, 9),), (Machine("a", {"CPU": 4}, 1),), 1), 36),
        (Resources(), Cluster((Machine("head", {"CPU": 2}),), (Machine("a", {"CPU": 4}, 3),), 3), 14),
    ],
)
def test_trials_at_once(resources, cluster, expected):
    assert trials_at_once(resources, cluster) == expected


@pytest.mark.parametrize(
    ("resources", "cluster", "words"),
    [
        (Resources(cpus_per_worker=9), LAPTOP, ["9 CPU", "largest has 8", "cpus_per_worker"]),
        (Resources(gpus_per_worker=1), LAPTOP, ["1 GPU", "largest has 0", "gpus_per_worker"]),
        (Resources(gpus_per_worker=3), TWO_GPUS, ["3 GPU", "largest has 2"]),
        (Resources(workers=2, gpus_per_worker=2), TWO_GPUS, ["its 2 workers", "2 GPU", "room for 1", "add machines"]),
        (Resources(workers=2), LAPTOP, ["2 workers are led", "trial_slot", "has none"]),
        (Resources(workers=9), LAPTOP, ["its 9 workers of 1 CPU", "has room for 8", "resources.workers"]),
        (Resources(gpus_per_worker=2), FROM_ZERO, ["2 GPU", "largest has 1", "8 gpu_spot", "machine type"]),
        (Resources(workers=9, gpus_per_worker=1), FROM_ZERO, ["its 9", "can have room for 8", "raise max_workers"]),
        (Resources(cpus_per_worker=16, gpus_per_worker=1), FROM_ZERO, ["16 CPU", "largest has 8"]),
        (Resources(workers=11, gpus_per_worker=1), MIXED, ["its 11 workers", "room for 10", "2 big", "2 small"]),
        (Resources(workers=2, gpus_per_worker=0.6), Cluster((Machine("head", {"CPU": 4, "GPU": 1}),)), ["room for 1"]),
        (
            Resources(cpus_per_worker=4, gpus_per_worker=1),
            Cluster((Machine("head", {"CPU": 8}), Machine("node", {"CPU": 1, "GPU": 1}))),
            ["4 CPU and 1 GPU on one machine", "no machine has both"],
        ),
    ],
)
def test_what_can_never_start_is_refused_with_the_numbers(resources, cluster, words):
    with pytest.raises(ValueError, match=r"^resources(\.workers)?: ") as refused:
        trials_at_once(resources, cluster)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["cluster.yaml", "deploy/gcp.yaml"])
def test_the_cluster_files_grow_from_nothing_to_their_maximum(name):
    config = yaml.safe_load((ROOT / name).read_text())
    grown = preflight.limits(Cluster((Machine("head", config["available_node_types"]["head"]["resources"]),)), config)
    gpu = Resources(gpus_per_worker=1)
    assert trials_at_once(gpu, grown) == config["max_workers"]
    assert [kind.name for kind in grown.types] == [t for t in config["available_node_types"] if t != "head"]


@pytest.mark.parametrize(
    ("has", "need", "expected"),
    [({"CPU": 1}, {"CPU": 0.1}, 10), ({"GPU": 2}, {"GPU": 0.6}, 2), ({"GPU": 4}, {"GPU": 2}, 2), ({}, {"CPU": 1}, 0)],
)
def test_workers_on_one_machine(has, need, expected):
    assert workers_on(has, need) == expected
