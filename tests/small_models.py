"""Small random models of every family of text and images in float64, and examples of each."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from assay.models import Model, attention_only
from assay.tasks import ImageTask, PairTask, Task


COMMON = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
SHORT = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 16,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
PLAIN = {**COMMON, "num_attention_heads": 3, "intermediate_size": 40, "initializer_range": 0.3}
GROUPED = {**PLAIN, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = {**GROUPED, "hidden_size": 32}  # heads of 8, so that a quarter of a head can turn
OPT = {
    **COMMON,
    "num_attention_heads": 4,
    "ffn_dim": 40,
    "word_embed_proj_dim": 24,
    "max_position_embeddings": 16,
    "init_std": 0.3,
    "pad_token_id": 0,
}
GEMMA = {**GROUPED, "head_dim": 8, "sliding_window": 3, "query_pre_attn_scalar": 12, "pad_token_id": 0}
FALCON = {**COMMON, "num_attention_heads": 4, "initializer_range": 0.3}
NEO = {
    **COMMON,
    "num_layers": 2,
    "num_heads": 3,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "max_position_embeddings": 16,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}
NEO.pop("num_hidden_layers")
TOWER = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
}
IMAGE = {**TOWER, "num_labels": 5}
DINO = {**{name: value for name, value in IMAGE.items() if name != "intermediate_size"}, "mlp_ratio": 2}
TEXT = {"num_hidden_layers": 1, "vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
CLIP = {"vision_config": TOWER, "text_config": TEXT, "num_labels": 5}

# Model type and what varies -> entries of its configuration. A new family is a line here.
TEXT: dict[str, dict[str, Any]] = {
    "gpt2": SHORT,
    "gpt2 with scaled layers": {**SHORT, "scale_attn_by_inverse_layer_idx": True},
    "attention_only": {**SHORT, "tie_word_embeddings": False},
    "gpt_neo": NEO,
    "gptj": {**SHORT, "n_head": 2, "rotary_dim": 4},
    "gpt_neox parallel": PLAIN,
    "gpt_neox sequential": {**PLAIN, "use_parallel_residual": False},
    "opt": OPT,
    "opt without final norm": {**OPT, "_remove_final_layer_norm": True},
    "opt with plain norms": {**OPT, "layer_norm_elementwise_affine": False, "enable_bias": False},
    "bloom": {**COMMON, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    "bloom of three heads": {**COMMON, "n_layer": 2, "n_head": 3, "initializer_range": 0.3},
    "falcon with one key": {**FALCON, "multi_query": True},
    "falcon without sharing": {**FALCON, "multi_query": False},
    "falcon sequential with slopes": {
        **FALCON,
        "multi_query": False,
        "parallel_attn": False,
        "alibi": True,
        "bias": True,
    },
    "falcon sequential": {**FALCON, "parallel_attn": False},
    "falcon with two norms": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon with one norm": {
        **FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
    },
    "phi": {**WIDE, "num_key_value_heads": 4},
    "phi with head norms": {**WIDE, "qk_layernorm": True},
    "phi3": {**GROUPED, "pad_token_id": 0},
    "phi3 with a window": {**WIDE, "pad_token_id": 0, "sliding_window": 3, "partial_rotary_factor": 0.5},
    "llama": {**GROUPED, "head_dim": 6},
    "llama with biases": {**GROUPED, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
    "llama with tied embeddings": {**GROUPED, "tie_word_embeddings": True},
    "mistral with a window": {**GROUPED, "head_dim": 6, "sliding_window": 3},
    "qwen2": GROUPED,
    "qwen2 with a window": {
        **GROUPED,
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
    },
    "qwen3 with head norms": {**GROUPED, "head_dim": 8},
    "mixtral": {
        **GROUPED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_implementation": "eager",
    },
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
    "gemma2 without caps": {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3_text": {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    "olmo2": {**GROUPED, "pad_token_id": 0},
    "stablelm": WIDE,
    "stablelm parallel with head norms": {
        **WIDE,
        "use_parallel_residual": True,
        "qk_layernorm": True,
        "use_qkv_bias": True,
    },
    "smollm3": {**GROUPED, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "starcoder2 with a window": {**GROUPED, "sliding_window": 3},
}
IMAGES: dict[str, dict[str, Any]] = {
    "vit": IMAGE,
    "vit without biases": {**IMAGE, "qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    "vit of oblong images": {**IMAGE, "image_size": (16, 24), "patch_size": (8, 6)},
    "vit with dropout": {**IMAGE, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3},
    "deit": IMAGE,
    "deit with a teacher": IMAGE,
    "dinov2": DINO,
    "dinov2 with gated MLPs": {**DINO, "use_swiglu_ffn": True},
    "dinov2_with_registers": {**DINO, "num_register_tokens": 2},
    "clip": CLIP,
    "siglip": {**CLIP, "vision_config": {**TOWER, "vision_use_head": False}},
}


def build(name: str) -> nn.Module:
    """The random module of one of these configurations, norms and biases random too."""
    return _build_text(name) if name in TEXT else randomise(_build_image(name))


def _build_text(name: str) -> nn.Module:
    attention_only.register()
    config = transformers.AutoConfig.for_model(name.split()[0], **TEXT[name])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = transformers.AutoModelForCausalLM.from_config(config).double().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def _build_image(name: str) -> nn.Module:
    config = transformers.AutoConfig.for_model(name.split()[0], **IMAGES[name])
    if name.startswith("deit"):  # two classes read this configuration
        teacher = "WithTeacher" if name.endswith("teacher") else ""
        deit: nn.Module = getattr(transformers, f"DeiTForImageClassification{teacher}")(config)
        return deit
    module: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    return module


def randomise(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """Numbers far from the usual starts (zero biases, unit gains), so that none can be left out."""
    generator = torch.Generator().manual_seed(seed)
    norms = {id(part.weight) for part in module.modules() if isinstance(part, nn.LayerNorm)}
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if id(parameter) in norms else 0.35 * noise)
    return module.double().eval()


def tokens(model: Model, n: int = 3, length: int = 7) -> Tensor:
    return torch.randint(1, model.n_vocab, (n, length), generator=torch.Generator().manual_seed(5))


def text_task(model: Model) -> PairTask:
    """Three pairs of prompts with a right and a wrong answer each."""
    clean, answers = tokens(model), torch.tensor([[3], [5], [7]])
    return PairTask(clean=clean, corrupted=clean.roll(1, 0), answers=answers, wrong=answers + 1)


def image_task(model: Model, n: int = 4) -> ImageTask:
    """Images with counterparts and labels, as the model takes them."""
    generator = torch.Generator().manual_seed(5)
    both = torch.randn(2, n, 3, *model.image_size, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, model.n_classes, (n,), generator=generator)
    return ImageTask(images=both[0], corrupted=both[1], labels=labels)


def examples(model: Model) -> Task:
    """Prompts or images, bound to the model."""
    return model.bind(text_task(model) if model.vision is None else image_task(model))
