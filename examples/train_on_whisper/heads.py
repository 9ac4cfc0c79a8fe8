"""A CTC model and two transducers on one encoder: a frozen Whisper under trained layers; and their losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_ngpulm.models import (
    WhisperTopConfig,
    WhisperTopCTCConfig,
    WhisperTopForCTC,
    WhisperTopForRNNT,
    WhisperTopForTDT,
    WhisperTopRNNTConfig,
    WhisperTopTDTConfig,
)
from hf_ngpulm.models.losses import tdt_loss, transducer_loss

SIZE = 256
DURATIONS = (0, 1, 2, 3, 4)
LAYERS = {
    "hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4 * SIZE, "dropout": 0.1,
    "attention_dropout": 0.1, "activation_dropout": 0.1, "layerdrop": 0.0, "max_position_embeddings": 1000,
    "subsampling_factor": 8,
}  # fmt: skip
KINDS = ("ctc", "rnnt", "tdt")
LETTERS, LETTERS_A_FRAME = 0.3, 2  # weight of the loss of the letters; how many a frame may have


def models(whisper: dict[str, Any], pieces: int) -> dict[str, nn.Module]:
    """Return a model of each kind with new weights. The blank is the last class; a TDT's padding is before it."""
    encoder = WhisperTopConfig(whisper=whisper, **LAYERS)
    transducer = {
        "decoder_hidden_size": SIZE,
        "num_decoder_layers": 1,
        "encoder_config": encoder.to_dict(),
        "pad_token_id": pieces,
    }
    return {
        "ctc": WhisperTopForCTC(
            WhisperTopCTCConfig(vocab_size=pieces + 1, pad_token_id=pieces, encoder_config=encoder.to_dict())
        ),
        "rnnt": WhisperTopForRNNT(WhisperTopRNNTConfig(vocab_size=pieces + 1, blank_token_id=pieces, **transducer)),
        "tdt": WhisperTopForTDT(
            WhisperTopTDTConfig(vocab_size=pieces + 2, blank_token_id=pieces + 1, durations=DURATIONS, **transducer)
        ),
    }


def already_heard(frames: Tensor, attention_mask: Tensor) -> Tensor:
    """Return frames of Whisper that were computed before; in training it stands for the Whisper encoder."""
    return frames


def _ctc(logits: Tensor, tokens: Tensor, lengths: Tensor, num_tokens: Tensor, blank: int) -> Tensor:
    """Return the CTC loss of all rows together, from logits `[B, T, C]` and tokens `[B, L]`."""
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    return nn.functional.ctc_loss(log_probs, tokens, lengths, num_tokens, blank, "sum", zero_infinity=True)


class Heads(nn.Module):
    """The trained layers, once, and the heads of all models.

    Args:
        whisper: configuration of the Whisper model, as a dict.
        pieces: tokens, the blank not counted.
        letters: characters, the blank not counted. The first layer learns to spell in them (Sanabria and Metze 2018,
            hierarchical multitask CTC), because few hours of speech have too few examples of most pieces. The models don't need
            that head.
    """

    def __init__(self, whisper: dict[str, Any], pieces: int, letters: int) -> None:
        super().__init__()
        made = models(whisper, pieces)
        self.pieces = pieces
        self.encoder = made["ctc"].encoder
        self.ctc_head = made["ctc"].ctc_head
        for name in KINDS[1:]:
            parts = {"projector": made[name].encoder_projector, "decoder": made[name].decoder, "joint": made[name].joint}
            setattr(self, name, nn.ModuleDict(parts))
        # The initial weights of Transformers, 0.02 everywhere, don't train from scratch.
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.LSTM)):
                module.reset_parameters()
        self.letters = nn.Linear(SIZE, LETTERS_A_FRAME * (letters + 1))
        self.encoder.layers[0].register_forward_hook(self._keep)
        del self.encoder.subsampling.whisper
        self.encoder.subsampling.heard = already_heard

    def _keep(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self._first_layer = output[0] if isinstance(output, tuple) else output

    def forward(
        self, frames: Tensor, mask: Tensor, tokens: list[Tensor], spelled: list[Tensor], step: int
    ) -> dict[str, Tensor]:
        """Return losses per token: of the CTC head, of one of the transducers by turns, and of the letters.

        Args:
            frames: of Whisper, `[B, T, D]`.
            mask: of mel frames, `[B, 2 * T]`.
            tokens: pieces of each row.
            spelled: letters of each row.
        """
        outputs = self.encoder(frames, attention_mask=mask)
        heard, lengths = outputs.last_hidden_state, outputs.attention_mask.sum(-1)
        num_tokens = torch.tensor([len(row) for row in tokens])
        padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        count = num_tokens.sum()
        logits = self.ctc_head(heard)
        losses = {
            "ctc": _ctc(logits, padded, lengths, num_tokens, self.pieces) / count,
            "letters": _ctc(
                self.letters(self._first_layer).unflatten(-1, (LETTERS_A_FRAME, -1)).flatten(1, 2),
                nn.utils.rnn.pad_sequence(spelled, batch_first=True), LETTERS_A_FRAME * lengths,
                torch.tensor([len(row) for row in spelled]), self.letters.out_features // LETTERS_A_FRAME - 1,
            ) / count * LETTERS,
        }  # fmt: skip
        name = KINDS[1 + step % 2]
        losses[name] = self._transducer(name, heard, lengths, padded, num_tokens) / count
        return losses

    def _transducer(self, name: str, heard: Tensor, lengths: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        head = getattr(self, name)
        blank = self.pieces + (name == "tdt")
        predictions = head["decoder"](nn.functional.pad(tokens, (1, 0), value=blank))
        logits = head["joint"](head["projector"](heard)[:, :, None], predictions[:, None])
        classes = logits[..., : blank + 1].log_softmax(-1)
        index = tokens[:, None, :, None].expand(-1, heard.shape[1], -1, -1)
        of_blank, of_labels = classes[..., blank], classes[:, :, :-1].gather(-1, index)[..., 0]
        if name == "rnnt":
            return transducer_loss(of_blank, of_labels, lengths, num_tokens).sum().float()
        durations = logits[..., blank + 1 :].log_softmax(-1)
        return tdt_loss(of_blank, of_labels, durations, DURATIONS, lengths, num_tokens).sum().float()

    def fill(self, whisper: nn.Module, whisper_config: dict[str, Any]) -> dict[str, nn.Module]:
        """Return the models with the trained weights above a Whisper encoder."""
        made = models(whisper_config, self.pieces)
        for name, model in made.items():
            model.encoder.subsampling.whisper.load_state_dict(whisper.state_dict())
            missing, unexpected = model.encoder.load_state_dict(self.encoder.state_dict(), strict=False)
            if unexpected or any(not key.startswith("subsampling.whisper.") for key in missing):
                raise ValueError(f"the checkpoint's encoder is another one: {[*missing, *unexpected][:3]}")
            if name == "ctc":
                model.ctc_head.load_state_dict(self.ctc_head.state_dict())
                continue
            head = getattr(self, name)
            model.encoder_projector.load_state_dict(head["projector"].state_dict())
            model.decoder.load_state_dict(head["decoder"].state_dict())
            model.joint.load_state_dict(head["joint"].state_dict())
        return made
