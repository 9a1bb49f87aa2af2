"""A tiny sentence encoder with random weights and what a student of it reads, in the real formats, made in a moment."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import toy

from mmts_ray.config import from_flat
from mmts_ray.features import Frozen
from mmts_ray.sentences import with_sentences
from mmts_ray.train import TrainData
from mmts_ray.train.sentences import SentenceRun

TEXT = "a the man woman dog cat child bird plays runs sleeps eats jumps sings red blue green small large park"
WORDS = TEXT.split()
KINDS = {"bert": "BertModel", "roberta": "RobertaModel", "distilbert": "DistilBertModel", "mpnet": "MPNetModel"}


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, size=rng.integers(2, 9)))


def folder(where: Path, *, kind: str = "bert", seed: int = 0) -> Path:
    """An encoder of three layers as Hugging Face saves one: config, weights, tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {word: number for number, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **names)
    sizes = {"vocab_size": len(words), "max_position_embeddings": 70, "pad_token_id": 0, "initializer_range": 0.3}
    if kind == "distilbert":
        config = transformers.DistilBertConfig(**sizes, dim=32, hidden_dim=48, n_heads=4, n_layers=3)
    else:
        settings = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3}
        config = getattr(transformers, KINDS[kind].replace("Model", "Config"))(**sizes, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = getattr(transformers, KINDS[kind])(config)
    where.mkdir(parents=True)
    net.save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where


def sts_table(path: Path, pairs: int = 24) -> Path:
    rng = np.random.default_rng(1)
    rows = ["dataset\tsubset\tsplit\tscore\tsentence1\tsentence2"]
    for dataset, split in (("STSB", "train"), ("STSB", "dev"), ("STSB", "test"), ("STS12", "test"), ("SICKR", "dev")):
        for _ in range(pairs):
            left = sentence(rng)
            score = rng.integers(0, 6)
            right = left if score == 5 else " ".join(left.split()[: max(1, score)]) + " " + sentence(rng)
            rows.append(f"{dataset}\tx\t{split}\t{score}\t{left}\t{right}")
    path.write_text("\n".join(rows) + "\n")
    return path


def frozen(images: int = 60, captions_each: int = 2) -> Frozen:
    """The toy features, with captions."""
    made = toy.frozen(images=images, captions_each=captions_each)
    rng = np.random.default_rng(2)
    return replace(made, captions_U=tuple(sentence(rng) for _ in range(len(made.text_UT))))


def home(root: Path) -> Path:
    """A folder that holds such an encoder and the STS pairs."""
    folder(root / "bert")
    sts_table(root / "sts.tsv")
    return root


def config_of(home, **changes):
    """A configuration of the student of `home`; `__` stands for the dot of a path."""
    flat = {
        "data.name": "features",
        "data.path": "unused",
        "model.name": "sentence_student",
        "model.student": str(home / "bert"),
        "model.sts": str(home / "sts.tsv"),
        "model.epoch_steps": 4,
        "model.grounding_dim": 8,
        "loss.name": "kdmcse",
        "loss.grounding_weight": 1,
        "train.batch_size": 8,
        "train.epochs": 2,
        "train.lr": 0.01,
        "train.weight_decay": 0,
    }
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    # the toy's image and text features are of two spaces: what compares them is off
    if changes.get("loss.name", "kdmcse") == "kdmcse":
        flat["loss.image_threshold"] = None
    else:
        del flat["loss.grounding_weight"]
    return from_flat({**flat, **changes})


def config_and_data(home, **changes):
    config = config_of(home, **changes)
    return config, TrainData(
        with_sentences(frozen(), config.kwargs("model"), cache_dir=home / "cache"), cache_dir=home / "cache"
    )


def run_of(config, data):
    return SentenceRun(config=config, data=data, recipe=config.function("train")(**config.kwargs("train")))
