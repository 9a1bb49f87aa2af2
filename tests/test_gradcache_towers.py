"""Encoder chunks of the libraries' towers, tiny and untrained, whose dropout draws in their own ways."""

import json

import pytest
import torch
from test_gradcache import BATCH, close, gradients, in_one_graph, whole
from torch.nn.functional import normalize

from mmts_ray.gradcache import chunked_step
from mmts_ray.losses import info_nce


@pytest.mark.slow
def test_open_clip_with_patch_dropout(tmp_path):
    import open_clip

    vision = {"image_size": 32, "patch_size": 8, "layers": 2, "width": 32, "head_width": 16, "patch_dropout": 0.5}
    text = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    path = tmp_path / "chunk-test-clip.json"
    path.write_text(json.dumps({"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}))
    open_clip.add_model_config(path)
    torch.manual_seed(0)
    model = open_clip.create_model("chunk-test-clip").double().train()
    batch = {
        "image": torch.randn(BATCH, 3, 32, 32, dtype=torch.float64),
        "text": torch.randint(1, 64, (BATCH, 8)),
    }

    def encode(part):
        return model(part["image"], part["text"])

    def objective(image_BD, text_BD, logit_scale):
        return info_nce(image_BD, text_BD, temperature=1 / logit_scale, r_mix=0.2, mix_mode="weighted")

    for chunk in (3, 10):
        torch.manual_seed(1)
        loss, expected = in_one_graph(model, encode, batch, objective, chunk)
        model.zero_grad()
        torch.manual_seed(1)
        out = chunked_step(encode, batch, objective, chunk=chunk)
        assert out.loss.item() == pytest.approx(loss, rel=1e-12)
        assert "logit_scale" in expected
        close(gradients(model), expected, rtol=1e-10)
    model.eval()  # without dropout: the step of the whole batch
    loss, expected = whole(model, encode, batch, objective)
    model.zero_grad()
    out = chunked_step(encode, batch, objective, chunk=4)
    assert out.loss.item() == pytest.approx(loss, rel=1e-12)
    close(gradients(model), expected, rtol=1e-10)


@pytest.mark.slow
def test_sentence_transformers_with_hidden_dropout(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["a", "b", "c", "red", "fish", "bird", "sun"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)).save_pretrained(tmp_path)
    transformer = Transformer(str(tmp_path))
    model = SentenceTransformer(modules=[transformer, Pooling(16, pooling_mode="cls")], device="cpu").double().train()
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(words), (BATCH, 5), generator=generator)
    sentences = [" ".join(words[i] for i in row[: 2 + n % 4]) for n, row in enumerate(picks.tolist())]
    tokens = {k: v for k, v in model.preprocess(sentences).items() if isinstance(v, torch.Tensor)}

    def encode(part):
        views = [model({k: v.clone() for k, v in part.items()})["sentence_embedding"] for _ in range(2)]
        return tuple(normalize(view, dim=1) for view in views)

    def objective(view1_BD, view2_BD):
        return info_nce(view1_BD, view2_BD, temperature=0.05, directions="image_to_text")

    def by_chunks(chunk):
        model.zero_grad()
        size = len(tokens["input_ids"])
        parts = [encode({k: v[s : s + chunk] for k, v in tokens.items()}) for s in range(0, size, chunk)]
        out = objective(*(torch.cat(column) for column in zip(*parts)))
        out.loss.backward()
        return out.loss.item(), gradients(model)

    torch.manual_seed(2)
    loss, expected = by_chunks(3)
    model.zero_grad()
    torch.manual_seed(2)
    out = chunked_step(encode, tokens, objective, chunk=3)
    assert out.loss.item() == pytest.approx(loss, rel=1e-12)
    assert out.loss.item() > 1e-4  # the two views differ: dropout is on
    close(gradients(model), expected, rtol=1e-9)
