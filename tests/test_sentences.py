"""A sentence student: what is trained, what two passes are, which batches, exact resume, what is refused."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import students
import torch
from students import config_and_data, config_of, run_of

from mmts_ray import space_file, student
from mmts_ray.config import from_flat
from mmts_ray.recipe import torch_stream
from mmts_ray.sentences import with_sentences
from mmts_ray.student import Student, drawing_from
from mmts_ray.train import TrainData, train
from mmts_ray.train.sentences import SentenceRun

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return students.home(tmp_path_factory.mktemp("students"))


@pytest.fixture
def made(home):
    return partial(config_and_data, home)


def steps(run, count=4, epoch=0):
    """The losses and statistics of the first steps of an epoch."""
    dropout, mix = (torch_stream(run.recipe.seed, what, epoch) for what in ("dropout", "mix"))
    batches = list(run.batches(epoch))[:count]
    return [run.update(batch, i, dropout, mix, with_stats=True) for i, batch in enumerate(batches)]


def plain(tree):
    return {k: v.clone() for k, v in tree.items()}


@pytest.mark.parametrize(
    ("loss", "heads"),
    [("simcse", {"text"}), ("mcse", {"text", "grounded", "image"}), ("kdmcse", set(student.HEADS))],
)
def test_the_last_layer_and_the_heads_of_the_loss_change_and_nothing_else(made, home, loss, heads):
    run = run_of(*made(loss__name=loss))
    before = plain(run.model.tensors())
    teacher = run.data.frozen.image_NI.copy()
    found = steps(run)
    changed = {key for key, value in run.model.tensors().items() if not torch.equal(value, before[key])}
    own = set(dict(student.loaded(str(home / "bert"))[0].auto_model.named_parameters()))
    layer = {key for key in own if key.startswith("encoder.layer.2.")}
    assert changed == layer | {f"head.{name}_{part}" for name in heads for part in ("weight", "bias")}
    assert set(before) - {k for k in before if k.startswith("head.")} == layer
    assert all(bool(torch.isfinite(loss)) for loss, _ in found)
    assert np.array_equal(run.data.frozen.image_NI, teacher)
    assert not any(rows.requires_grad or rows.grad is not None for rows in run.teachers.values())


def test_the_whole_encoder_is_trained_when_no_layer_is_frozen(made):
    run = run_of(*made(model__trained_layers=None, model__pooling="mean"))
    assert run.state_LE is None
    before = plain(run.model.tensors())
    steps(run)
    same = [key for key, value in run.model.tensors().items() if torch.equal(value, before[key])]
    assert "embeddings.word_embeddings.weight" in before
    assert not [key for key in same if "encoder" in key or "word_embeddings" in key]


@pytest.mark.parametrize("kind", students.KINDS)
def test_cached_states_and_last_layers_give_what_the_whole_encoder_gives(tmp_path, kind):
    where = str(students.folder(tmp_path / kind, kind=kind))
    assert len(student.tokens(where, ["a dog runs"], 32)[0]) == 5
    for layers in (1, 2, 3):
        assert student.cut_error(where, layers) < 1e-5
    with pytest.raises(ValueError, match="has 3; legal are 1 to that, null"):
        student.trunk(where, 4)


def test_embeddings_from_cached_states_are_those_of_the_library(made, home):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    config, data = made()
    run = run_of(config, data)
    texts = ["a dog runs", "the red bird sings", "man"]
    whole = SentenceTransformer(
        modules=[Transformer(str(home / "bert")), Pooling(32, pooling_mode="cls")], device="cpu"
    )
    token_S = student.tokens(str(home / "bert"), texts, 32)
    starts = data.frozen.sentences.start_S1
    flat = data.frozen.sentences.token_L
    for text, tokens in zip(texts, token_S, strict=True):  # a sentence of the data with these tokens, or none
        same = [s for s in range(len(starts) - 1) if flat[starts[s] : starts[s + 1]].tolist() == tokens]
        for s in same[:1]:
            direct = torch.nn.functional.normalize(torch.from_numpy(whole.encode([text])), dim=1)
            assert torch.allclose(run.embedded(np.array([s])), direct, atol=1e-5)
    rows = np.arange(20)
    one_by_one = torch.cat([run.embedded(rows[i : i + 1]) for i in rows])
    assert torch.allclose(run.embedded(rows), one_by_one, atol=1e-5)  # padding does not matter, order is kept


@pytest.mark.parametrize("trained", [1, None])
def test_two_passes_differ_also_right_after_an_evaluation(made, trained):
    run = run_of(*made(model__trained_layers=trained))
    first = steps(run, 1)[0][1]["view_cosine"]
    assert run.evaluate(1, final=True)
    run.model.eval()  # what a library's encode() leaves behind
    again = steps(run, 1)[0][1]["view_cosine"]
    assert first < 0.999
    assert again < 0.999


def test_dropout_follows_from_seed_epoch_and_step_and_leaves_the_global_generator_alone(made):
    config, data = made()
    torch.manual_seed(1)
    one = steps(run_of(config, data))
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    two = steps(run_of(config, data))
    assert [float(loss) for loss, _ in one] == [float(loss) for loss, _ in two]
    torch.manual_seed(1)
    run_of(config, data)
    before = torch.random.get_rng_state()
    steps(run_of(config, data))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(state, before)
    other = steps(run_of(config.with_seed(1), data))
    assert float(one[0][0]) != float(other[0][0])


def test_every_arm_has_the_same_start_and_batches_whatever_its_loss_and_weights(made):
    arms = [
        {},
        {"loss__grounding_weight": 0},
        {"loss__angular_margin": 0.2, "loss__text_threshold": None},
        {"loss__name": "simcse"},
    ]
    runs = [run_of(*made(**arm)) for arm in arms]
    sequences = [[(b.captions, b.rows.tolist()) for e in range(3) for b in run.batches(e)] for run in runs]
    assert all(sequence == sequences[0] for sequence in sequences)
    assert [captions for captions, _ in sequences[0]] == [False, True] * 6
    starts = [run.model.tensors() for run in runs]
    assert all(torch.equal(start[key], starts[0][key]) for start in starts for key in starts[0])
    never = run_of(*made(loss__name="simcse", model__caption_every=None))
    assert not any(b.captions for b in never.batches(0))


def test_a_pass_reads_every_caption_image_and_every_line_once_and_epochs_go_on_where_the_last_one_ended(made):
    run = run_of(*made(model__caption_every=3))
    rows = [(b.captions, b.rows) for e in range(9) for b in run.batches(e)]
    captions = [r for of_captions, r in rows if of_captions]
    assert len(captions) == 12  # of 36 steps
    images = run.data.frozen.image_M
    per_pass = len(run.data.split(0).images) // 8
    for start in range(0, len(captions) - per_pass + 1, per_pass):
        seen = images[np.concatenate(captions[start : start + per_pass])]
        assert len(set(seen.tolist())) == 8 * per_pass
    lines = [r for of_captions, r in rows if not of_captions]
    per_pass = len(run.text.corpus_C) // 8
    first = np.concatenate(lines[:per_pass])
    assert len(set(first.tolist())) == len(first)


def test_lambda_0_is_simcse_on_the_same_batches(made):
    zero = steps(run_of(*made(loss__grounding_weight=0)))
    plain_simcse = steps(run_of(*made(loss__name="simcse")))
    assert [float(loss) for loss, _ in zero] == pytest.approx([float(loss) for loss, _ in plain_simcse], abs=1e-6)


def test_margin_0_and_filter_off_is_the_plain_two_branch_loss(made):
    config, data = made(loss__angular_margin=0, loss__text_threshold=None, loss__grounding_weight=0.5)
    run = run_of(config, data)
    batch = next(b for b in run.batches(0) if b.captions)
    dropout = torch_stream(0, "dropout", 0)
    state = dropout.get_state()
    loss, stats = run.update(batch, 0, dropout, torch_stream(0, "mix", 0), with_stats=True)
    fresh = run_of(config, data)
    dropout.set_state(state)
    sentence_B = fresh.sentence_M[batch.rows]
    with drawing_from(dropout, "cpu"), torch.no_grad():
        fresh.model.train()
        one, two = fresh.model.sentences(*fresh._given(np.concatenate([sentence_B, sentence_B]))).split(8)
        z, z2, s, s2 = (fresh.model.headed(h, x) for h in ("text", "grounded") for x in (one, two))
        rows = torch.from_numpy(batch.rows)
        image = fresh.teachers["image"][torch.from_numpy(data.frozen.image_M)[rows].long()]
        text = fresh.teachers["text"][torch.from_numpy(data.frozen.text_M)[rows].long()]
        v = fresh.model.headed("image", image * image.shape[1] ** 0.5)
        w = fresh.model.headed("caption", text * text.shape[1] ** 0.5)

        def softmax(a, b):
            return torch.nn.functional.cross_entropy(a @ b.T / 0.05, torch.arange(8))

        branches = (softmax(s, v) + softmax(s2, v)) / 2 + (softmax(s, w) + softmax(s2, w)) / 2
        by_hand = softmax(z, z2) + 0.5 * branches
    assert float(loss) == pytest.approx(float(by_hand), abs=1e-6)
    assert float(stats["filtered_share_text"]) == 0


def test_the_filtered_share_is_told_and_is_0_above_the_largest_cosine(made):
    config, data = made(loss__text_threshold=0.5)
    rows = list(train(config, data))
    assert rows[-1].metrics["train_filtered_share_text"] > 0
    assert rows[-1].metrics["train_filtered_share_image"] == 0
    config, data = made(loss__text_threshold=1.0)
    assert list(train(config, data))[-1].metrics["train_filtered_share_text"] == 0


def test_equal_sentences_and_captions_of_one_image_are_not_each_others_negatives(home):
    config = config_of(home)
    frozen = students.frozen()
    first, second = frozen.text_M[[0, 2]]  # captions of two training images
    captions = list(frozen.captions_U)
    captions[second] = captions[first]
    same = with_sentences(replace(frozen, captions_U=tuple(captions)), config.kwargs("model"), cache_dir=home / "cache")
    run = run_of(config, TrainData(same, cache_dir=home / "cache"))
    assert run.id_M[0] == run.id_M[2] == run.id_M[1] == run.id_M[3]
    assert len(set(run.id_M[run.caption_rows].tolist())) == len(run.data.split(0).images) - 1


@pytest.mark.parametrize("changes", [{}, {"model__trained_layers": None, "schedule__name": "learnable"}])
def test_a_run_resumes_bit_for_bit_between_epochs_and_within_one(made, changes):
    config, data = made(model__epoch_steps=5, **changes)
    kept = []
    straight = list(train(config, data, pulse=lambda step, epoch, state: kept.append((step, state()))))
    assert [row.step for row in straight] == [5, 10]
    assert {"val_stsb", "val_sickr", "val_sts_avg", "val_alignment", "val_uniformity"} <= set(straight[0].metrics)
    final = straight[-1].state()["model"]
    for step, state in [*kept, (5, None)]:
        if state is None:
            rows = train(config, data)
            state = next(rows).state()
        again = list(train(config, data, state))[-1]
        assert again.metrics == straight[-1].metrics, step
        assert all(torch.equal(again.state()["model"][key], value) for key, value in final.items())
    with pytest.raises(ValueError, match="checkpoint of another trial"):
        next(train(config.with_seed(3), data, kept[0][1]))


def test_the_test_split_is_scored_task_by_task(made):
    config, data = made()
    row = list(train(config, data, test=True))[-1]
    scores = [row.metrics[f"test_{task}"] for task in ("sts12", "stsb")]
    assert row.metrics["test_sts_avg"] == pytest.approx(np.mean(scores))
    assert row.ranks is not None
    assert row.ranks() == {}


def test_untaught_layers_come_from_the_seed(home):
    def layer(seed, **options):
        options = {"student": str(home / "bert"), "pooling": "cls", "trained_layers": 2, "grounding_dim": 8, **options}
        made = Student(**options, image_dim=4, text_dim=4, seed=seed).tensors()
        return {key: value.detach() for key, value in made.items()}

    taught, fresh, again, other = (
        layer(0, reinit_layers=0),
        layer(0, reinit_layers=1),
        layer(0, reinit_layers=1),
        layer(1, reinit_layers=1),
    )
    last = "encoder.layer.2.output.dense.weight"
    assert torch.equal(fresh[last], again[last])
    assert not torch.equal(fresh[last], other[last])
    assert float(fresh[last].std()) == pytest.approx(0.02, rel=0.2)
    assert float(fresh["encoder.layer.2.output.LayerNorm.weight"].min()) == 1
    assert float(fresh["encoder.layer.2.output.dense.bias"].abs().max()) == 0
    assert torch.equal(fresh["encoder.layer.1.output.dense.weight"], taught["encoder.layer.1.output.dense.weight"])
    # the library's own weights are not touched
    assert not torch.equal(fresh[last], dict(student.loaded(str(home / "bert"))[0].auto_model.named_parameters())[last])


def test_centring_the_teacher_moves_its_cosines_to_0(made):
    cosines = []
    for centre in (False, True):
        _, data = made()
        rows = data.teacher("image", centre=centre)[torch.from_numpy(data.frozen.split_N == 0)]
        cosines.append(float((rows @ rows.T).mean()))
    assert abs(cosines[1]) < 0.05
    assert run_of(*made(model__centre_images=True)).teachers["image"].shape == (60, 12)


def test_the_cache_is_keyed_by_student_sentences_and_layers_and_read_again(made, home, monkeypatch):
    _, one = made()
    _, two = made(model__trained_layers=2)
    assert one.frozen.key != two.frozen.key
    assert one.frozen.sentences.states.entry != two.frozen.sentences.states.entry
    monkeypatch.setattr("mmts_ray.student.prefix", None)  # made anew it would fail
    _, again = made()
    assert again.frozen.key == one.frozen.key
    assert np.array_equal(again.states(), one.states())


def test_what_does_not_go_together_is_refused_in_one_line(home, tmp_path):
    def refused(message, **changes):
        with pytest.raises(ValueError, match=message) as told:
            config_of(home, **changes)
        assert "\n" not in str(told.value)

    refused("^loss.name: info_nce compares images with texts, .*legal are simcse, mcse, kdmcse", loss__name="info_nce")
    refused("^model.reinit_layers: 2, but 1 are trained", model__reinit_layers=2)
    refused("^model.caption_every: null .*leaves kdmcse nothing", model__caption_every=None)
    refused("^schedule.spread: 0.15, but sentences", schedule__name="cosine")
    with pytest.raises(ValueError, match=r"^loss.name: kdmcse reads sentences, which model frozen_heads does not"):
        from_flat({"loss.name": "kdmcse"})
    openmoji = {"data.name": "openmoji", "model.name": "sentence_student", "model.sts": "x", "loss.name": "kdmcse"}
    with pytest.raises(ValueError, match=r"^loss.image_threshold: 0.9 .* share no space; legal is null"):
        from_flat(openmoji)
    with pytest.raises(ValueError, match=r"^loss.soft_label_source: paper .*legal is code"):
        from_flat({**openmoji, "loss.image_threshold": None, "loss.soft_label_source": "paper"})
    assert from_flat({**openmoji, "loss.image_threshold": None}).name("loss") == "kdmcse"
    config = config_of(home)
    bare = replace(students.frozen(), captions_U=())
    with pytest.raises(ValueError, match=r"^data.name: these features come without captions"):
        with_sentences(bare, config.kwargs("model"), cache_dir=tmp_path)
    for key, value, message in (
        ("student", str(tmp_path / "none"), "^model.student: .*is not known"),
        ("student", "open_clip:ViT-B-32/openai", "^model.student: .*text tower of open_clip"),
        ("sts", str(tmp_path / "none"), "^model.sts: .*is not there"),
        ("corpus", str(tmp_path / "none"), "^model.corpus: .*cannot be read"),
        ("max_length", 71, "^model.max_length: 71, but .* takes 70 tokens"),
        ("trained_layers", 9, "^model.trained_layers: 9, but .* has 3"),
    ):
        with pytest.raises(ValueError, match=message):
            with_sentences(students.frozen(), {**config.kwargs("model"), key: value}, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"^train.batch_size: 64, but there are 40 captions"):
        run_of(*config_and_data(home, train__batch_size=64))


def test_a_student_without_dropout_is_refused(home, tmp_path):
    where = students.folder(tmp_path / "still")
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(
        json.dumps({**config, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0})
    )
    sizes = {"grounding_dim": 4, "image_dim": 4, "text_dim": 4}
    with pytest.raises(ValueError, match="no dropout where it is trained, so two passes are one"):
        Student(student=str(where), pooling="cls", trained_layers=1, reinit_layers=0, seed=0, **sizes)


def test_a_study_on_several_workers_is_refused(home, tmp_path):
    import yaml

    path = tmp_path / "space.yaml"
    flat = config_of(home).flat()
    path.write_text(yaml.safe_dump({"study": "s", "objective": {"val_stsb": "max"}, "fixed": flat, "trials": 0,
                                    "resources": {"workers": 2}}))  # fmt: skip
    with pytest.raises(ValueError, match=r"resources.workers: 2, but a sentence_student trains on one; legal is 1"):
        space_file.load(path)
    config, data = config_and_data(home)
    with pytest.raises(ValueError, match=r"resources.workers: a sentence student trains on one worker"):
        SentenceRun(config=config, data=data, recipe=config.function("train")(), group=object())
