"""Encoder chunks: the gradients of the whole batch, dropout replayed, memory of one chunk, several workers."""

import math
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import normalize
from vectors import rows

from mmts_ray.gradcache import chunked_step
from mmts_ray.losses import info_nce, kdmcse
from mmts_ray.towers import Heads

BATCH, IMAGE, TEXT, WIDTH = 10, 7, 5, 4
IDS_B = torch.tensor([0, 1, 2, 0, 3, 4, 1, 5, 6, 7])


class Towers(nn.Module):
    """Two small towers with dropout, and a learnable temperature returned beside the embeddings."""

    def __init__(self, dropout=0.0, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(nn.Linear(IMAGE, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, WIDTH))
        self.text = nn.Sequential(nn.Linear(TEXT, 16), nn.Dropout(dropout), nn.Tanh(), nn.Linear(16, WIDTH))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.2)))
        self.to(dtype)

    def forward(self, batch):
        image_BD, text_BD = self.image(batch["image"]), self.text(batch["text"])
        return normalize(image_BD, dim=1), normalize(text_BD, dim=1), self.log_temperature.exp()


def data(size=BATCH, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(size, width, generator=generator, dtype=dtype)
        for name, width in (("image", IMAGE), ("text", TEXT))
    }


def composed(image_BD, text_BD, temperature):
    """Everything at once: margin, filter, ids, mixing."""
    return info_nce(
        image_BD,
        text_BD,
        temperature=temperature,
        ids_B=torch.arange(len(image_BD)) // 2,
        teacher_BE=rows(3, len(image_BD), 3).to(image_BD),
        angular_margin=0.2,
        filter_threshold=0.7,
        r_mix=0.3,
        mix_mode="weighted",
    )


def gradients(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def whole(module, encode, batch, objective):
    """The step without chunks."""
    module.zero_grad()
    out = objective(*encode(batch))
    out.loss.backward()
    return out.loss.item(), gradients(module)


def in_one_graph(module, encode, batch, objective, chunk):
    """The same forward pass by chunks, all of whose activations stay: what a chunked step must reproduce."""
    module.zero_grad()
    size = len(batch["image"])
    parts = [encode({k: v[start : start + chunk] for k, v in batch.items()}) for start in range(0, size, chunk)]
    out = objective(*(torch.cat(column) if column[0].ndim else column[0] for column in zip(*parts)))
    out.loss.backward()
    return out.loss.item(), gradients(module)


def close(actual, expected, rtol=1e-12):
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=rtol, atol=rtol, msg=name)


@pytest.mark.parametrize("chunk", [1, 3, 5, 9, 10, 64])
def test_gradients_are_those_of_the_whole_batch(chunk):
    towers, batch = Towers(), data()
    loss, expected = whole(towers, towers, batch, composed)
    assert "log_temperature" in expected
    towers.zero_grad()
    out = chunked_step(towers, batch, composed, chunk=chunk)
    assert out.loss.item() == pytest.approx(loss, rel=1e-13)
    assert not out.loss.requires_grad
    assert {"filtered_share", "same_id_share"} <= set(out.stats)
    close(gradients(towers), expected)


@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_dropout_is_replayed_and_the_random_state_moves_on_as_after_one_pass(chunk):
    towers, batch = Towers(dropout=0.4), data()
    torch.manual_seed(5)
    loss, expected = in_one_graph(towers, towers, batch, composed, chunk)
    after = torch.get_rng_state()
    towers.zero_grad()
    torch.manual_seed(5)
    out = chunked_step(towers, batch, composed, chunk=chunk)
    assert out.loss.item() == pytest.approx(loss, rel=1e-13)
    close(gradients(towers), expected)
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(6)
    assert chunked_step(towers, batch, composed, chunk=chunk).loss.item() != pytest.approx(loss, rel=1e-3)


def test_dropout_from_explicit_generators_is_replayed_too():
    heads = Heads(image_dim=IMAGE, text_dim=TEXT, dim=WIDTH, image_dropout=0.5, text_dropout=0.3, seed=0).double()
    batch, generator = data(), torch.Generator()

    def encode(part):
        return heads.image(part["image"], generator), heads.text(part["text"], generator)

    def objective(image_BD, text_BD):
        return info_nce(image_BD, text_BD, temperature=0.1)

    generator.manual_seed(3)
    loss, expected = in_one_graph(heads, encode, batch, objective, 4)
    after = generator.get_state()
    heads.zero_grad()
    generator.manual_seed(3)
    out = chunked_step(encode, batch, objective, chunk=4, generators=[generator])
    assert out.loss.item() == pytest.approx(loss, rel=1e-13)
    close(gradients(heads), expected)
    assert torch.equal(generator.get_state(), after)


@pytest.mark.parametrize("from_default", [False, True])
def test_an_objective_that_draws_draws_once(from_default):
    towers, batch = Towers(dropout=0.2), data()

    def objective(image_BD, text_BD, temperature):
        return info_nce(image_BD, text_BD, temperature=temperature, r_mix=0.5, generator=mix)

    results = []
    for step in (in_one_graph, None):
        mix = torch.default_generator if from_default else torch.Generator().manual_seed(9)
        torch.manual_seed(5)
        if step:
            _, found = step(towers, towers, batch, objective, 3)
        else:
            towers.zero_grad()
            chunked_step(towers, batch, objective, chunk=3)
            found = gradients(towers)
        results.append((found, mix.get_state()))
    close(results[1][0], results[0][0])
    assert torch.equal(results[0][1], results[1][1])


def test_gradients_add_to_what_is_there_and_parameters_of_the_objective_get_theirs():
    towers, batch = Towers(), data()
    own = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def objective(image_BD, text_BD, _):
        return info_nce(image_BD, text_BD, temperature=own)

    _, once = whole(towers, towers, batch, objective)
    of_own = own.grad.clone()
    own.grad = None
    towers.zero_grad()
    for _ in range(2):
        chunked_step(towers, batch, objective, chunk=3)
    close(gradients(towers), {name: 2 * value for name, value in once.items()})
    torch.testing.assert_close(own.grad, 2 * of_own)


def test_six_heads_and_a_frozen_teacher_go_through_one_call():
    torch.manual_seed(0)
    student, heads = nn.Linear(TEXT, 8).double(), nn.ModuleList(nn.Linear(8, WIDTH) for _ in range(4)).double()
    frozen = nn.Linear(IMAGE, 8).double().requires_grad_(False)
    both = nn.ModuleList([student, heads])
    drop = nn.Dropout(0.3)
    batch = data()

    def encode(part):
        views = [drop(student(part["text"])) for _ in range(2)]
        image = frozen(part["image"])
        outs = [heads[0](views[0]), heads[0](views[1]), heads[1](views[0]), heads[1](views[1]), heads[2](image)]
        return tuple(normalize(x, dim=1) for x in (*outs, heads[3](image), image))

    def objective(*rows_):
        return kdmcse(*rows_[:6], teacher_image_BE=rows_[6], teacher_text_BE=rows_[6], temperature=0.1)

    torch.manual_seed(1)
    loss, expected = in_one_graph(both, encode, batch, objective, 3)
    both.zero_grad()
    torch.manual_seed(1)
    out = chunked_step(encode, batch, objective, chunk=3)
    assert out.loss.item() == pytest.approx(loss, rel=1e-13)
    close(gradients(both), expected)
    assert frozen.weight.grad is None


def peak_of_saved_tensors(run):
    """The largest number of bytes that autograd held at once."""
    live, peak = [0], [0]

    class Held:
        def __init__(self, tensor):
            self.tensor = tensor
            size = tensor.numel() * tensor.element_size()
            live[0] += size
            peak[0] = max(peak[0], live[0])
            weakref.finalize(self, lambda: live.__setitem__(0, live[0] - size))

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        run()
    return peak[0]


def test_memory_is_that_of_one_chunk():
    towers, batch = Towers(dropout=0.1), data(size=512)

    def objective(image_BD, text_BD, temperature):
        # a loss that keeps little, so that the encoder's activations are what is measured
        return info_nce(image_BD, text_BD, temperature=temperature, impl="stream", with_stats=False)

    peaks = {
        n: peak_of_saved_tensors(lambda n=n: chunked_step(towers, batch, objective, chunk=n)) for n in (512, 64, 8)
    }
    assert peaks[64] < 0.4 * peaks[512]
    assert peaks[8] <= peaks[64]


@pytest.mark.parametrize("chunk", [4, 10])
def test_autocast_around_the_step_acts_as_on_the_whole_batch(chunk):
    towers, batch = Towers(dtype=torch.float32), data(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, expected = whole(towers, towers, batch, composed)
    for _ in range(2):  # each in a fresh context, whose first pass fills the cache of cast weights without a graph
        with torch.autocast("cpu", dtype=torch.bfloat16):
            towers.zero_grad()
            out = chunked_step(towers, batch, composed, chunk=chunk)
    assert out.loss.dtype == torch.float32
    assert out.loss.item() == pytest.approx(loss, rel=1e-6)
    close(gradients(towers), expected, rtol=2e-2)
    assert all(value.abs().sum() > 0 for value in gradients(towers).values())


@pytest.mark.parametrize("chunk", [4, 10])
def test_a_scaled_loss_scales_every_gradient(chunk):
    towers, batch = Towers(), data()
    _, expected = whole(towers, towers, batch, composed)
    towers.zero_grad()
    out = chunked_step(towers, batch, composed, chunk=chunk, scale=lambda loss: 1024 * loss)
    close(gradients(towers), {name: 1024 * value for name, value in expected.items()})
    assert out.loss.item() < 20


def test_gradients_are_reduced_once_with_the_last_chunk():
    towers, batch = Towers(), data()
    held = []

    class Holding:
        def __enter__(self):
            held.append(True)

        def __exit__(self, *_):
            held.append(False)

    calls = []

    def encode(part):
        calls.append((torch.is_grad_enabled(), bool(held and held[-1])))
        return towers(part)

    chunked_step(encode, batch, composed, chunk=4, no_sync=Holding)
    assert calls == [(False, True)] * 3 + [(True, True)] * 2 + [(True, False)]


def test_batch_statistics_are_refused_wherever_they_hide():
    norm = nn.BatchNorm1d(IMAGE).double()
    towers = Towers()

    def encode(part):
        return towers({"image": norm(part["image"]), "text": part["text"]})

    with pytest.raises(ValueError, match="BatchNorm1d in training mode takes its statistics over a chunk"):
        chunked_step(encode, data(), composed, chunk=4)
    before = norm.running_mean.clone()
    chunked_step(encode, data(), composed, chunk=10)  # the whole batch at once is fine
    assert not torch.equal(norm.running_mean, before)
    norm.eval()
    _, expected = whole(towers, encode, data(), composed)
    towers.zero_grad()
    chunked_step(encode, data(), composed, chunk=4)
    close(gradients(towers), expected)
    norm.train()
    norm(data()["image"])  # nothing of the refusal stays


def test_refusals():
    towers, batch = Towers(), data()
    for chunk in (0, -1):
        with pytest.raises(ValueError, match=f"chunk: {chunk} is not a number of samples"):
            chunked_step(towers, batch, composed, chunk=chunk)
    with pytest.raises(ValueError, match=r"parts with \[9, 10\] rows do not fit"):
        chunked_step(towers, {**batch, "text": batch["text"][:9]}, composed, chunk=4)
    with pytest.raises(ValueError, match="str has no rows"):
        chunked_step(towers, {**batch, "name": "x"}, composed, chunk=4)


def test_lists_are_rows_and_tuples_are_structure():
    towers = Towers()
    seen = []

    def encode(part):
        (image, words), extra = part
        assert len(words) == len(image) == len(extra["text"])
        seen.append(words)
        return towers({"image": image, "text": extra["text"]})

    batch = data()
    words = [f"w{i}" for i in range(BATCH)]
    chunked_step(encode, ((batch["image"], words), {"text": batch["text"]}), composed, chunk=4)
    assert seen[:3] == [words[:4], words[4:8], words[8:]]


# --- several workers --------------------------------------------------------------------------------------------------


def on_workers(rank, shares, folder):
    """Chunked steps on this worker's rows under DDP; worker 0 has one chunk more than worker 1."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    meet = (folder / "meet").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=len(shares), timeout=timedelta(seconds=60))
    try:
        start = sum(shares[:rank])
        own = slice(start, start + shares[rank])
        batch = {name: value[own] for name, value in data().items()}
        ids_B = IDS_B[own]
        towers = nn.parallel.DistributedDataParallel(Towers())

        def objective(image_BD, text_BD, temperature):
            return info_nce(image_BD, text_BD, temperature=temperature, ids_B=ids_B, group=dist.group.WORLD)

        for _ in range(2):  # a second step: nothing of the first may be left undone
            towers.zero_grad()
            out = chunked_step(towers, batch, objective, chunk=2)
        torch.save({"loss": out.loss, "gradients": gradients(towers.module)}, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_chunks_under_ddp_are_the_whole_batch_in_one_process(tmp_path):
    shares = (7, 3)
    running = mp.spawn(on_workers, (shares, tmp_path), nprocs=len(shares), join=False)
    end = time.monotonic() + 120
    try:
        while not running.join(timeout=5):
            assert time.monotonic() < end, "the workers did not end"
    finally:
        for process in running.processes:
            if process.is_alive():
                process.kill()
    towers = Towers()
    loss, expected = whole(towers, towers, data(), lambda u, w, t: info_nce(u, w, temperature=t, ids_B=IDS_B))
    for rank in range(len(shares)):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["loss"].item() == pytest.approx(loss, rel=1e-12)
        close(found["gradients"], expected)
