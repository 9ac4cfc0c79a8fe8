"""Times of decoding transducers of real size (110 million parameters) with random weights, to be run where there are no models.

    python benchmarks/transducer_random.py
    python benchmarks/transducer_random.py --layers 2      # of the prediction network's LSTM

Parakeet RNN-T and TDT as Transformers has them: FastConformer of 17 layers of 512, prediction and joint networks of 640, 1,024
tokens. The encoder is timed on noise of 5 to 15 s. What is decoded are random frames of the same lengths, since an encoder
with random weights says nothing: frames and predictions weigh alike, logits are about as far apart as trained ones, and a bias
of the blank's, found by bisection, makes greedy search emit about 4 tokens for each second of audio, as speech does. The LM
has order 6 and is trained on 100,000 random tokens. Whole models are as in transducer.py: the encoder and the decoder, by
turns, medians. On the CPU there are 32 clips, on a GPU 128, unless `--batch-sizes` says otherwise.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
import torch

sys.path.insert(0, str(measure.ROOT))

import encoded
import make_arpa
from candidates import Candidate, Ours, Stock, columns, timed

from hf_ngpulm import NGramLM, TransducerDecoder


class Sizes(NamedTuple):
    """Tokens, width of the encoder, its layers and heads, width of the other networks, and how long clips are (seconds)."""

    vocab_size: int
    width: int
    layers: int
    heads: int
    decoder_width: int
    seconds: tuple[int, int]


REAL = Sizes(1024, 512, 17, 8, 640, (5, 15))
TINY = Sizes(24, 16, 1, 2, 16, (1, 1))
LM_TOKENS, LM_WEIGHT = 100_000, 0.5
BEAM = 6
BATCH_SIZES = (1, 16, 32)
LARGEST_ON_GPU = 128
FEATURES_A_SECOND, SUBSAMPLING, MELS = 100, 8, 80
TOKENS_A_SECOND = 4
SPREAD = 4.0  # standard deviation of logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1, help="layers of the prediction network")
    parser.add_argument("--tiny", action="store_true", help="tiny networks and clips, to see that it runs")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="the largest is the number of clips, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3 if torch.cuda.is_available() else 1)
    parser.add_argument("--name", default="transducer_random", help="name of the result file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="Using the model-agnostic default")
    sizes = tuple(args.batch_sizes or BATCH_SIZES + ((LARGEST_ON_GPU,) if args.device == "cuda" else ()))
    sizes_of = TINY if args.tiny else REAL
    lengths = random_lengths(max(sizes), sizes_of)
    lm = random_lm(sizes_of).to(args.device)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for kind in ("RNNT", "TDT"):
            clips = random_clips(kind, lengths, sizes, args.layers, args.device, sizes_of)
            beam = {"strategy": "alsd", "num_beams": BEAM}
            stock, greedy = Stock("stock generate", clips, sizes), Ours("greedy", clips, sizes, lm, {"strategy": "greedy"})
            alsd = Ours(f"ALSD {BEAM}", clips, sizes, lm, beam)
            chosen: list[tuple[Candidate, float | None]] = [
                (stock, None), (greedy, None), (greedy, LM_WEIGHT), (alsd, LM_WEIGHT)
            ]  # fmt: skip
            for (candidate, weight), times in zip(chosen, timed(chosen, clips, args.repeats)):
                facts = {"model": candidate.clips.name, "decoder": candidate.name + (" + LM" if weight else "")}
                rows.append({**facts, "clips": len(candidate.clips.rows), "audio_seconds": candidate.clips.seconds, **times})
            measure.save(args.name, {"layers": args.layers, "decoders": rows}, args.out)
    header, cells = columns(rows, sizes)
    table = [[row["model"], row["decoder"], *figures] for row, figures in zip(rows, cells)]
    print(measure.table(["model", "decoder", *header], table))
    print("results in", measure.save(args.name, {"layers": args.layers, "decoders": rows}, args.out))


def random_lengths(count: int, sizes: Sizes) -> list[int]:
    """Features of so many clips."""
    low, high = (FEATURES_A_SECOND * seconds for seconds in sizes.seconds)
    return torch.randint(low, high + 1, (count,)).tolist()


def random_lm(sizes: Sizes = REAL) -> NGramLM:
    size = sizes.vocab_size
    tokens, _ = make_arpa.random_text(size, LM_TOKENS, np.random.default_rng(0))
    sentences = np.split(tokens, np.flatnonzero(tokens >= size))
    return NGramLM.train([sentence[sentence < size].tolist() for sentence in sentences], vocab_size=size, order=6)


def random_clips(
    kind: str, lengths: list[int], sizes: tuple[int, ...], layers: int, device: str, sizes_of: Sizes = REAL
) -> encoded.Clips:
    """A model, and clips of so many features."""
    model = random_model(kind, layers, sizes_of).to(device)
    tokenizer = plain_tokenizer(sizes_of.vocab_size)
    rows = [torch.randn(-(-length // SUBSAMPLING), model.config.decoder_hidden_size, device=device) for length in lengths]
    seconds = sum(lengths) / FEATURES_A_SECOND
    inputs = {}
    for size in sizes:
        padded = [[lengths[i] for i in numbers] for numbers in encoded.by_length(rows, size)]
        inputs[size] = [
            {
                "input_features": torch.randn(len(of_batch), max(of_batch), MELS, device=device),
                "attention_mask": (torch.arange(max(of_batch)) < torch.tensor(of_batch)[:, None]).to(device),
            }
            for of_batch in padded
        ]
    batches = {size: encoded.batched(rows, size) for size in sizes}
    rate = set_blank_rate(model, tokenizer, batches[max(sizes)], seconds)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{kind}: {parameters / 1e6:.0f} M parameters, {len(rows)} clips, {seconds:.0f} s, {rate:.1f} tokens a second",
        flush=True,
    )
    return encoded.Clips(kind, model, tokenizer, [], seconds, rows, batches, inputs)


def random_model(kind: str, layers: int, sizes: Sizes = REAL) -> Any:
    import transformers

    vocab_size = sizes.vocab_size
    durations = {"durations": [0, 1, 2, 3, 4]} if kind == "TDT" else {}
    family = getattr(transformers, f"ParakeetFor{kind}")
    config = family.config_class(
        encoder_config={
            "hidden_size": sizes.width, "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads,
            "intermediate_size": 4 * sizes.width,
            "num_mel_bins": MELS, "subsampling_factor": SUBSAMPLING,
        },
        vocab_size=vocab_size + 1, blank_token_id=vocab_size, pad_token_id=0, decoder_hidden_size=sizes.decoder_width,
        num_decoder_layers=layers, **durations,
    )  # fmt: skip
    model = family(config).eval()
    hidden = config.decoder_hidden_size
    model.decoder.embedding.weight.normal_()
    model.decoder.lstm.reset_parameters()
    predictions = model.decoder(torch.randint(vocab_size, (1, 200)))
    model.decoder.decoder_projector.weight.div_(predictions.std())
    model.joint.head.weight.normal_(std=SPREAD / hidden**0.5)
    if durations:
        model.joint.head.bias[vocab_size + 1] = -2 * SPREAD  # a duration of 0 is rare
    model.generation_config.suppress_tokens = list(range(vocab_size + 1, len(model.joint.head.bias))) or None
    model.generation_config.decoder_start_token_id = vocab_size
    return model


def set_blank_rate(model: Any, tokenizer: Any, batches: list[encoded.Batch], seconds: float) -> float:
    """Bisect for the bias of the blank that gives `TOKENS_A_SECOND`; returns what it gave."""
    low, high = 2 * SPREAD, 6 * SPREAD
    for _ in range(10):
        model.joint.head.bias[model.config.blank_token_id] = (low + high) / 2
        decoder = TransducerDecoder(model, tokenizer, confidence=None)
        found = [best for _, frames, lengths in batches for (best,) in decoder.decode(frames, lengths)]
        rate = sum(len(best.token_ids) for best in found) / seconds
        low, high = (low, (low + high) / 2) if rate < TOKENS_A_SECOND else ((low + high) / 2, high)
    return rate


def plain_tokenizer(vocab_size: int) -> Any:
    """Each token is a word of its own: the number i is the token i."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Metaspace
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({f"▁{i}": i for i in range(vocab_size)}, unk_token="▁0"))
    tokenizer.pre_tokenizer = Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


if __name__ == "__main__":
    main()
