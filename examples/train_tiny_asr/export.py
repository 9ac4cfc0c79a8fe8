"""Cut the trained heads into six models that Transformers loads, in half precision.

    python export.py run ../models

Each folder has the weights, the configuration and the processor of one kind of model; the encoder is in all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from heads import PIECES, Heads, models
from tokenizers_of_models import for_transformers
from torch import nn
from train import feature_extractor
from transformers import CanaryProcessor, ParakeetProcessor


def filled(heads: Heads) -> dict[str, nn.Module]:
    """The models with the trained weights."""
    made = models()
    for name, model in made.items():
        owner = model.model if name == "canary" else model
        owner.encoder.load_state_dict(heads.encoder.state_dict())
        if name == "ctc":
            model.ctc_head.load_state_dict(heads.ctc_head.state_dict())
        elif name == "canary":
            owner.decoder.load_state_dict(heads.canary.state_dict())
            model.tie_weights()
            model.proj_out.bias.data.copy_(heads.canary_bias)
        else:
            head = getattr(heads, name)
            model.encoder_projector.load_state_dict(head["projector"].state_dict())
            model.decoder.load_state_dict(head["decoder"].state_dict())
            model.joint.load_state_dict(head["joint"].state_dict())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("models", type=Path)
    arguments = parser.parse_args()
    heads = Heads()
    heads.load_state_dict(torch.load(arguments.run / "checkpoint.pt", weights_only=True)["heads"])
    for name, model in filled(heads).items():
        folder = arguments.models / name
        blank = PIECES + 1 if name == "tdt" else PIECES
        if name in ("rnnt", "tdt"):
            model.generation_config.decoder_start_token_id = blank
        if name == "tdt":
            model.generation_config.suppress_tokens = list(range(blank + 1, blank + 1 + len(model.config.durations)))
        if name == "canary":
            model.generation_config.max_new_tokens = 128
        model.eval().half().save_pretrained(folder)
        tokenizer = for_transformers(arguments.run / "pieces.json", name)
        if name == "canary":
            CanaryProcessor(feature_extractor(), tokenizer).save_pretrained(folder)
        else:
            kind = name if name in ("ctc", "tdt") else "rnnt"
            ParakeetProcessor(feature_extractor(), tokenizer, decoder_type=kind).save_pretrained(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
