"""OPT: the MLP's two layers are in the block itself."""

from typing import Any

from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.family import Family, Separate


def _refuse(module: Any) -> str | None:
    if not module.config.do_layer_norm_before:
        return (
            "its blocks normalise the stream itself behind each addition (do_layer_norm_before is False, as "
            "in OPT-350m), so the stream is not the sum of what its nodes write"
        )
    if module.model.decoder.project_out is not None:
        return "it projects the stream between blocks and embeddings (word_embed_proj_dim), as OPT-350m does"
    return None


def _run_mlp(block: Any, normed: Tensor) -> Tensor:
    output: Tensor = block.fc2(block.activation_fn(block.fc1(normed)))
    return output


def _without_final_norm(module: Any) -> dict[str, Any]:
    return {"final_norm": None} if module.model.decoder.final_layer_norm is None else {}


FAMILIES.add(
    "opt",
    Family(
        key="opt",
        serves="OPT",
        model_types=("opt",),
        backbone="model.decoder",
        blocks="model.decoder.layers",
        attention_norm="self_attn_layer_norm",
        mlp_norm="final_layer_norm",
        final_norm="model.decoder.final_layer_norm",
        unembed="lm_head",
        learned_positions=True,
        attention="self_attn",
        qkv=Separate(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj"),
        out="self_attn.out_proj",
        mlp="fc1",
        mlp_out="fc2",
        run_mlp=_run_mlp,
        activation="activation_fn",
        norm="layer",
        variant=_without_final_norm,
        refuse=_refuse,
    ),
)
