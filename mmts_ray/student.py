"""A sentence encoder that is trained: loaded, cut before its first trained layer, given heads, written out again.

Shapes: S sentences of a batch, L tokens of its longest sentence, E hidden size of the encoder, G grounding space,
I and T teacher features of images and texts.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmts_ray.encoders import find_encoder, minilm_folder
from mmts_ray.recipe import torch_stream
from mmts_ray.towers import linear, uniform

LAYERS = ("encoder.layer", "transformer.layer")  # BERT, RoBERTa, MPNet, Electra, ...; DistilBERT
HEADS = ("text", "grounded", "image", "caption")  # 1 to 4 of KDMCSE
INIT_DEVIATION = 0.02  # of weights in a fresh transformer layer


def version(name: str) -> str:
    """Changes with the student's weights; ValueError, one line, when nothing of that name can be loaded."""
    if name.startswith("open_clip:"):
        raise ValueError(f"model.student: {name} is a text tower of open_clip; legal are minilm-l6 and saved encoders")
    try:
        return find_encoder("text", name).version
    except ValueError as problem:
        raise ValueError(f"model.student: {str(problem).removeprefix('text_encoder: ')}") from None


@cache
def loaded(name: str) -> Any:
    """The SentenceTransformer of that name, once per process; callers copy what they change."""
    import sentence_transformers

    version(name)  # says in one line what it cannot find
    folder = minilm_folder() if name == "minilm-l6" else Path(name).expanduser()
    local = folder.is_dir()
    try:
        with _without_bars():
            model = sentence_transformers.SentenceTransformer(
                str(folder) if local else name, device="cpu", local_files_only=local
            )
    except Exception as problem:  # the library raises anything here
        said = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise ValueError(f"model.student: cannot load {name} ({said})") from problem
    if not hasattr(model[0], "auto_model"):
        raise ValueError(f"model.student: {name} does not begin with a transformer; legal is a Hugging Face encoder")
    return model


@contextmanager
def _without_bars() -> Iterator[None]:
    """Nothing of the library's progress on stderr, where ours is."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def tokens(name: str, sentences: Sequence[str], max_length: int) -> list[list[int]]:
    """Token numbers of each sentence, special tokens included, cut at `max_length`."""
    model = loaded(name)
    tokenizer, config = model.tokenizer, model[0].auto_model.config
    # these number their positions from behind that of the padding
    shift = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    most = (getattr(config, "max_position_embeddings", None) or max_length + shift) - shift
    if max_length > most:
        raise ValueError(f"model.max_length: {max_length}, but {name} takes {most} tokens; legal is at most that")
    found: list[list[int]] = []
    for start in range(0, len(sentences), 10_000):
        part = list(sentences[start : start + 10_000])
        found += tokenizer(part, truncation=True, max_length=max_length, padding=False)["input_ids"]
    return found


def _layers(net: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str, torch.nn.ModuleList]:
    """(the module that holds the layers, under which name, the layers)."""
    for path in LAYERS:
        holder, _, last = path.rpartition(".")
        try:
            found = net.get_submodule(path)
        except AttributeError:
            continue
        if isinstance(found, torch.nn.ModuleList):
            return net.get_submodule(holder), last, found
    raise ValueError(
        f"model.trained_layers: {name} ({type(net).__name__}) keeps its layers elsewhere; legal is null (all)"
    )


class _Given(torch.nn.Module):
    """In place of the embeddings: the states before the first layer that is left, as they come."""

    def forward(self, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any) -> Tensor:
        found = inputs_embeds if inputs_embeds is not None else args[1]
        assert isinstance(found, Tensor)
        return found


def trunk(name: str, trained_layers: int | None) -> tuple[torch.nn.Module, dict[str, str]]:
    """A copy of what is trained of an encoder, and the full name of each of its parameters.

    None: the encoder from token numbers on, its pooler left out. Else its last layers; they begin with the states that
    `prefix` gives.
    """
    net = _copied(name)
    names = {id(p): key for key, p in net.named_parameters()}
    if trained_layers is not None:
        holder, key, layers = _layers(net, name)
        net.requires_grad_(False)
        setattr(holder, key, layers[_first(name, layers, trained_layers) :].requires_grad_(True))
        net.embeddings = _Given()
        if hasattr(net, "embeddings_project"):  # Electra
            del net.embeddings_project
    return net, {key: names[id(p)] for key, p in net.named_parameters()}


def prefix(name: str, trained_layers: int) -> Callable[[Tensor, Tensor], Tensor]:
    """From token numbers and mask (S, L) to the states (S, L, E) before the trained layers, dropout off."""
    net = _copied(name).eval()
    holder, key, layers = _layers(net, name)
    setattr(holder, key, layers[: _first(name, layers, trained_layers)])

    def states(token_SL: Tensor, mask_SL: Tensor) -> Tensor:
        with torch.inference_mode():
            return net(input_ids=token_SL, attention_mask=mask_SL).last_hidden_state

    return states


def cut_error(name: str, trained_layers: int) -> float:
    """Largest difference between the last states of the whole encoder and those of `trunk` after `prefix`."""
    lists = tokens(name, ["a dog runs", "two children play football in the park"], 32)
    longest = max(map(len, lists))
    token_SL = torch.tensor([t + [0] * (longest - len(t)) for t in lists])
    mask_SL = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in lists])
    whole, cut = _copied(name).eval(), trunk(name, trained_layers)[0].eval()
    with torch.inference_mode():
        state_SLE = prefix(name, trained_layers)(token_SL, mask_SL)
        direct_SLE = whole(input_ids=token_SL, attention_mask=mask_SL).last_hidden_state
        found_SLE = cut(inputs_embeds=state_SLE, attention_mask=mask_SL).last_hidden_state
    return float((direct_SLE - found_SLE)[mask_SL.bool()].abs().max())


def _copied(name: str) -> Any:
    """The encoder without its pooler, which sentence embeddings do not use."""
    net = copy.deepcopy(loaded(name)[0].auto_model)
    if getattr(net, "pooler", None) is not None:
        net.pooler = None
    return net


def _first(name: str, layers: torch.nn.ModuleList, trained_layers: int) -> int:
    """The number of the first trained layer."""
    if trained_layers > len(layers):
        raise ValueError(
            f"model.trained_layers: {trained_layers}, but {name} has {len(layers)}; legal are 1 to that, null"
        )
    return len(layers) - trained_layers


class Student(torch.nn.Module):
    """Encoder, pooling and the four heads (Linear and Tanh); the seed decides what is drawn anew.

    `names` maps the encoder's own parameter names, as a loaded model has them, to the parameters that are trained.
    """

    def __init__(
        self,
        *,
        student: str,
        pooling: str,
        trained_layers: int | None,
        reinit_layers: int,
        grounding_dim: int,
        image_dim: int,
        text_dim: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.pooling, self.from_states = pooling, trained_layers is not None
        self.net, names = trunk(student, trained_layers)
        if not any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in self.net.modules()):
            raise ValueError(f"model.student: {student} has no dropout where it is trained, so two passes are one")
        generator = torch_stream(seed, "init")
        if reinit_layers:
            _, _, layers = _layers(self.net, student)
            for layer in list(layers)[len(layers) - reinit_layers :]:
                _fresh(layer, generator)
        width = int(loaded(student)[0].auto_model.config.hidden_size)
        shapes = ((width, width), (width, grounding_dim), (image_dim, grounding_dim), (text_dim, grounding_dim))
        self.head = torch.nn.ParameterDict()
        for name, (fan_in, out) in zip(HEADS, shapes, strict=True):
            self.head[f"{name}_weight"] = uniform((out, fan_in), fan_in=max(fan_in, 1), generator=generator)
            self.head[f"{name}_bias"] = uniform((out,), fan_in=max(fan_in, 1), generator=generator)
        self.names = {names[key]: p for key, p in self.net.named_parameters() if p.requires_grad}

    def sentences(self, given: Tensor, mask_SL: Tensor) -> Tensor:
        """Pooled rows (S, E) of states (S, L, E), or of token numbers (S, L) when the whole encoder is trained.

        In training mode dropout is drawn from torch's generator: `drawing_from` says from where.
        """
        key = "inputs_embeds" if self.from_states else "input_ids"
        state_SLE = self.net(**{key: given}, attention_mask=mask_SL).last_hidden_state
        if self.pooling == "cls":
            return state_SLE[:, 0].contiguous()  # products with strided rows are ten times as slow
        weight_SL1 = mask_SL.unsqueeze(-1).to(state_SLE.dtype)
        return (state_SLE * weight_SL1).sum(1) / weight_SL1.sum(1)

    def headed(self, name: str, rows: Tensor) -> Tensor:
        """Unit rows after one of the heads, x / |x| of x = tanh(W r + b)."""
        moved = linear(rows, self.head[f"{name}_weight"], self.head[f"{name}_bias"])
        return functional.normalize(torch.tanh(moved), dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is trained: the encoder under its own names, heads as head.*."""
        return {**self.names, **{f"head.{key}": p for key, p in self.head.items()}}

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        for key, parameter in self.tensors().items():
            parameter.data.copy_(tensors[key])


def _fresh(layer: torch.nn.Module, generator: torch.Generator) -> None:
    """A layer as before any training: weights N(0, 0.02), biases 0, norms the identity."""
    for module in layer.modules():
        for key, parameter in module.named_parameters(recurse=False):
            if "norm" in type(module).__name__.lower():
                parameter.data.fill_(1.0 if key == "weight" else 0.0)
            elif parameter.ndim > 1:
                parameter.data.normal_(0.0, INIT_DEVIATION, generator=generator)
            else:
                parameter.data.zero_()


@contextmanager
def drawing_from(generator: torch.Generator, device: str) -> Iterator[None]:
    """What torch draws without being told from where (a library's dropout) follows from this generator alone."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def export_sentence(model: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: str | Path) -> None:
    """Write a trained student as a folder that `SentenceTransformer(folder)` loads, pooling and tokenizer included.

    `model` holds the arguments of `models.sentence_student`, `tensors` a trial's weights (its weights.safetensors);
    the heads, which only training needs, stay behind. Embeddings are those of the pooled states, of the given
    `max_length`, unnormalised unless the student came with its own normalisation. Raises ValueError when the tensors
    are not of this student.
    """
    import sentence_transformers
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    base = loaded(model["student"])
    made = copy.deepcopy(base)
    parameters = dict(made[0].auto_model.named_parameters())
    own = {key: value for key, value in tensors.items() if not key.startswith("head.") and key in parameters}
    if not own or any(parameters[key].shape != value.shape for key, value in own.items()):
        raise ValueError(f"export: the weights are not those of a student made from {model['student']}")
    for key, value in own.items():
        parameters[key].data.copy_(value)
    made[0].max_seq_length = model["max_length"]
    pooling = Pooling(made[0].auto_model.config.hidden_size, pooling_mode=model["pooling"])
    modules = [made[0], pooling, *(m for m in made if isinstance(m, Normalize))]
    with _without_bars():
        sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
