"""The encoder and its heads, as the models hold them, and their losses."""

from __future__ import annotations

import torch
from joint import joint_log_probs
from torch import Tensor, nn
from transformers import (
    CanaryConfig,
    CanaryForConditionalGeneration,
    ParakeetCTCConfig,
    ParakeetForCTC,
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
)  # fmt: skip

from hf_ngpulm.models import HatConfig, HatForASR, StatelessTransducerConfig, StatelessTransducerForASR
from hf_ngpulm.models.losses import tdt_loss, transducer_loss

PIECES = 256
SIZE = 144
TRANSDUCERS = ("rnnt", "tdt", "hat", "stateless")
DURATIONS = (0, 1, 2, 3, 4)
ENCODER = {
    "model_type": "parakeet_encoder", "hidden_size": SIZE, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 480, "num_mel_bins": 80, "subsampling_conv_channels": 32, "dropout": 0.05,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0, "max_position_embeddings": 2000,
}  # fmt: skip
TRANSDUCER = {"decoder_hidden_size": SIZE, "encoder_config": ENCODER}


def models() -> dict[str, nn.Module]:
    """A model of each kind with new weights."""
    canary = {
        "vocab_size": PIECES + 4, "hidden_size": SIZE, "intermediate_size": 2 * SIZE, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": SIZE // 4, "max_position_embeddings": 256,
        "attention_dropout": 0.0, "bos_token_id": PIECES, "eos_token_id": PIECES + 1, "pad_token_id": PIECES + 2,
    }  # fmt: skip
    return {
        "ctc": ParakeetForCTC(
            ParakeetCTCConfig(vocab_size=PIECES + 1, pad_token_id=PIECES, encoder_config=ENCODER)
        ),
        "rnnt": ParakeetForRNNT(
            ParakeetRNNTConfig(
                vocab_size=PIECES + 1, blank_token_id=PIECES, pad_token_id=PIECES, num_decoder_layers=1, **TRANSDUCER
            )
        ),
        "tdt": ParakeetForTDT(
            ParakeetTDTConfig(
                vocab_size=PIECES + 2, blank_token_id=PIECES + 1, pad_token_id=PIECES, num_decoder_layers=1,
                durations=DURATIONS, **TRANSDUCER,
            )
        ),
        "hat": HatForASR(HatConfig(vocab_size=PIECES + 1, blank_token_id=PIECES, pad_token_id=PIECES, **TRANSDUCER)),
        "stateless": StatelessTransducerForASR(
            StatelessTransducerConfig(vocab_size=PIECES + 1, blank_token_id=PIECES, pad_token_id=PIECES, **TRANSDUCER)
        ),
        "canary": CanaryForConditionalGeneration(
            CanaryConfig(
                vocab_size=PIECES + 4, bos_token_id=PIECES, eos_token_id=PIECES + 1, pad_token_id=PIECES + 2,
                decoder_start_token_id=PIECES + 3, encoder_config=ENCODER, decoder_config=canary,
            )
        ),
    }  # fmt: skip


class Heads(nn.Module):
    """One encoder for all models, and the losses of all heads.

    Each step trains the CTC head, the attention decoder and one of the four transducers, in turn.
    """

    def __init__(self) -> None:
        super().__init__()
        made = models()
        self.encoder = made["ctc"].encoder
        self.ctc_head = made["ctc"].ctc_head
        self.canary = made["canary"].model.decoder
        self.canary_bias = nn.Parameter(torch.zeros(PIECES + 4))
        for name in TRANSDUCERS:
            parts = {"projector": made[name].encoder_projector, "decoder": made[name].decoder, "joint": made[name].joint}
            setattr(self, name, nn.ModuleDict(parts))
        # The initial weights of Transformers, 0.02 everywhere, don't train from scratch.
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM)):
                module.reset_parameters()
        nn.init.normal_(self.canary.embed_tokens.weight, std=SIZE**-0.5)

    def forward(self, features: Tensor, mask: Tensor, tokens: list[Tensor], step: int) -> dict[str, Tensor]:
        """Losses per token of each head; `tokens` has each row's pieces."""
        outputs = self.encoder(features, attention_mask=mask)
        frames = outputs.last_hidden_state
        lengths = outputs.attention_mask.sum(-1)
        num_tokens = torch.tensor([len(row) for row in tokens])
        padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        count = num_tokens.sum()

        log_probs = self.ctc_head(frames).float().log_softmax(-1).transpose(0, 1)
        losses = {"ctc": nn.functional.ctc_loss(log_probs, padded, lengths, num_tokens, PIECES, "sum", True) / count}
        losses["canary"] = self._attention(frames, outputs.attention_mask, tokens)
        name = TRANSDUCERS[step % len(TRANSDUCERS)]
        losses[name] = self._transducer(name, frames, lengths, padded, num_tokens) / count
        return losses

    def _transducer(self, name: str, frames: Tensor, lengths: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        head = getattr(self, name)
        start = PIECES + 1 if name == "tdt" else PIECES  # the blank, which is also the last class
        predictions = head["decoder"](nn.functional.pad(tokens, (1, 0), value=start))
        weight, bias, classes = head["joint"].head.weight, head["joint"].head.bias, start + 1
        if name == "hat":
            # The blank is decided by itself.
            own = head["joint"].blank_head
            weight, bias, classes = torch.cat([weight, own.weight]), torch.cat([bias, own.bias]), PIECES
        blank, labels, others = joint_log_probs(head["projector"](frames), predictions, weight, bias, tokens, classes)
        if name == "tdt":
            return tdt_loss(blank, labels, others.log_softmax(-1), DURATIONS, lengths, num_tokens).sum().float()
        if name == "hat":
            blank = nn.functional.logsigmoid(others[..., 0])
            labels = labels + nn.functional.logsigmoid(-others[:, :, :-1, 0])
        return transducer_loss(blank, labels, lengths, num_tokens).sum().float()

    def _attention(self, frames: Tensor, mask: Tensor, tokens: list[Tensor]) -> Tensor:
        pad, start, end = PIECES + 2, PIECES + 3, PIECES + 1
        inputs = nn.utils.rnn.pad_sequence([nn.functional.pad(row, (1, 0), value=start) for row in tokens], True, pad)
        targets = nn.utils.rnn.pad_sequence([nn.functional.pad(row, (0, 1), value=end) for row in tokens], True, -100)
        hidden = self.canary(input_ids=inputs, encoder_hidden_states=frames, encoder_attention_mask=mask, use_cache=False)
        logits = nn.functional.linear(hidden.last_hidden_state, self.canary.embed_tokens.weight, self.canary_bias)  # tied
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), label_smoothing=0.05)
