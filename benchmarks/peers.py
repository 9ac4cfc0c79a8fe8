"""Decoders and language models of other projects, on the outputs of our models: their error rates and times beside ours.

Run with the Python of an environment that has them, and nothing of ours; the benchmarks start it (`--peers-python`,
`--nemo-python`), talk to it in lines of JSON, and describe in `ways.PeerProcess` what `--outputs` has:

    pip install pyctcdecode kenlm flashlight-text ctc-beam-decoder "numpy<2"      # one environment
    pip install "nemo_toolkit[asr]==3.0.0"                                        # another one, for NeMo
    echo '{"decoder": "pyctcdecode", "lm": "words.arpa", "lm_weight": 0.5}' | python benchmarks/peers.py --outputs outputs.npz

A request names a `decoder` (a key of `DECODERS`) and its settings (as far as they shan't be the peer's own defaults). `lm`
is a plain ARPA file, of words for `pyctcdecode`, `ctc-beam-decoder` and `flashlight-lexicon` (`lexicon`: from words to
lists of token ids), of decimal token ids for the others. Weights are per natural logarithm whatever the decoder's own unit
is. The answer has the best transcripts (`texts`, or `tokens` of transducers) and the seconds that decoding them all takes:
loading, and making the arrays that a decoder reads, are not counted; turning labels of CTC into text is. A decoder that was
asked for before is used again, so that only the first of its times has the capture of CUDA graphs. `nemo-lm` times the
queries of NeMo's NGPU-LM, and needs no outputs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np

NEMO_OFFSET = 100  # NeMo's ARPA files have chr(id + 100) as the unit of a token
NEVER = -1e4  # a log-probability low enough never to be chosen
MAX_SYMBOLS = 10


class Outputs:
    """What a model made of clips: frames `[T, ...]` of each, the pieces of a CTC model by id, the blank last; and the rest."""

    def __init__(self, path: Path, device: str) -> None:
        self.saved, self.device = np.load(path), device
        ends = np.cumsum(self.saved["lengths"])
        self.rows = [np.ascontiguousarray(row) for row in np.split(self.saved["frames"], ends[:-1])]
        self.pieces = self.saved["pieces"].tolist() if "pieces" in self.saved.files else []

    @property
    def blank(self) -> int:
        return len(self.pieces) - 1

    def text(self, tokens: Iterable[int]) -> str:
        """Return the text of SentencePiece tokens, with one space between words and without special tokens."""
        text = "".join(piece for piece in map(self.pieces.__getitem__, tokens) if (piece[:1], piece[-1:]) != ("<", ">"))
        return " ".join(text.replace("▁", " ").split())

    def batches(self, size: int) -> list[list[int]]:
        """Return numbers of rows of like length."""
        order = sorted(range(len(self.rows)), key=lambda row: len(self.rows[row]))
        return [order[first : first + size] for first in range(0, len(order), size)]


Decode = Callable[[], list[Any]]  # of all rows, in their order


def pyctcdecode(
    library: str, tokens: bool, outputs: Outputs, lm: str | None = None, lm_weight: float = 0.5, length_bonus: float = 1.5,
    beam_width: int = 100,
) -> Decode:  # fmt: skip
    """pyctcdecode as Transformers' `Wav2Vec2ProcessorWithLM` runs it, or a library with its interface, with a model of words
    over pieces of words; or with one of tokens: each is a word of its own, its id, since its label begins with '▁'."""
    logging.disable(logging.WARNING)  # "Unigrams and labels don't seem to agree", which is so for ids
    labels = [f"▁{token}" for token in range(outputs.blank)] if tokens else outputs.pieces[:-1]
    make = importlib.import_module(library).build_ctcdecoder
    beams = functools.partial(make([*labels, ""], lm, alpha=lm_weight, beta=length_bonus).decode_beams, prune_history=True)
    text = (lambda of_ids: outputs.text(map(int, of_ids.split()))) if tokens else str
    return lambda: [text(beams(row, beam_width=beam_width)[0][0]) for row in outputs.rows]


def flashlight(
    outputs: Outputs, lm: str, lm_weight: float = 0.87, beam_width: int = 50, beam_size_token: int = 1 << 30,
    beam_threshold: float = 50.0, length_bonus: float = 0.0, lexicon: dict[str, list[int]] | None = None,
) -> Decode:  # fmt: skip
    """flashlight-text's lexicon-free beam search, as torchaudio's `ctc_decoder` calls it, without a length bonus; or along the
    trie of a lexicon, with a model of words."""
    from flashlight.lib.text import decoder as library
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary, create_word_dict

    blank, settings = outputs.blank, {"beam_size": beam_width, "beam_size_token": min(beam_size_token, len(outputs.pieces))}
    settings |= {"beam_threshold": beam_threshold, "sil_score": 0.0, "log_add": False}
    # Its KenLM scores are base-10 logarithms.
    settings |= {"lm_weight": lm_weight * math.log(10), "criterion_type": library.CriterionType.CTC}

    def best(decoder: Any) -> list[Any]:
        return [decoder.decode(row.ctypes.data, *row.shape)[0] for row in outputs.rows]

    if lexicon is None:
        model = KenLM(lm, Dictionary([*map(str, range(blank)), "<blank>"]))
        options = library.LexiconFreeDecoderOptions(**settings)
        # The path begins and ends with the silence token: as the blank, it can't be taken for a token's repetition.
        ids = {"sil_token_idx": blank, "blank_token_idx": blank, "transitions": []}
        make = functools.partial(library.LexiconFreeDecoder, options, model, **ids)
        return lambda: [outputs.text(collapse(found.tokens, blank)) for found in best(make())]
    words = create_word_dict({word: [list(map(str, tokens))] for word, tokens in lexicon.items()} | {"<unk>": []})
    model, trie = KenLM(lm, words), library.Trie(len(outputs.pieces), blank)
    start = model.start(False)
    for word, tokens in lexicon.items():
        index = words.get_index(word)
        trie.insert(tokens, index, model.score(start, index)[1])
    trie.smear(library.SmearingMode.MAX)
    options = library.LexiconDecoderOptions(**settings, word_score=length_bonus, unk_score=-math.inf)
    make = functools.partial(library.LexiconDecoder, options, trie, model, blank, blank, words.get_index("<unk>"), [], False)
    return lambda: [" ".join(words.get_entry(word) for word in found.words if word >= 0) for found in best(make())]


def nemo_ctc(
    outputs: Outputs, lm: str | None = None, lm_weight: float = 1.0, length_bonus: float = 1.0, beam_width: int = 0,
    batch_size: int = 16,
) -> Decode:  # fmt: skip
    """NeMo's batched greedy search, or beam search, which leaves out blanks and repetitions itself."""
    import torch
    from nemo.collections.asr.parts.submodules.ctc_beam_decoding import BeamBatchedCTCInfer
    from nemo.collections.asr.parts.submodules.ctc_greedy_decoding import GreedyBatchedCTCInfer

    with nemo_lm(lm) as path:
        fused = {"ngram_lm_model": path, "ngram_lm_alpha": lm_weight, "allow_cuda_graphs": False}
        if beam_width:
            beam = {"beam_size": beam_width, "beam_beta": length_bonus, "beam_threshold": 20.0}
            search, tokens = BeamBatchedCTCInfer(blank_index=outputs.blank, **beam, **fused), list
        else:
            search = GreedyBatchedCTCInfer(blank_id=outputs.blank, **fused)
            tokens = functools.partial(collapse, blank=outputs.blank)
    batches = []
    for rows in outputs.batches(batch_size):
        lengths = torch.tensor([len(outputs.rows[row]) for row in rows])
        # Its beam search reads on past the end of a row, so the padding changes results: certain blanks do no harm.
        padded = torch.full((len(rows), int(lengths.max()), len(outputs.pieces)), NEVER)
        padded[..., -1] = 0.0
        for row, utterance in zip(rows, padded):
            utterance[: len(outputs.rows[row])] = torch.from_numpy(outputs.rows[row])
        batches.append((rows, padded, lengths))

    def decode() -> list[str]:
        found = [""] * len(outputs.rows)
        for rows, log_probs, lengths in batches:
            (best,) = search(decoder_output=log_probs, decoder_lengths=lengths)
            for row, hypothesis in zip(rows, best):
                found[row] = outputs.text(tokens(hypothesis.y_sequence.tolist()))
        return found

    return decode


@contextlib.contextmanager
def nemo_lm(arpa: str | None) -> Iterator[str | None]:
    """Give a copy of an ARPA file of decimal ids in NeMo's units."""
    if arpa is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lm.arpa")
        with open(arpa, encoding="utf-8") as source, path.open("w", encoding="utf-8") as target:
            for line in source:
                prob, *rest = line.split("\t")
                if rest:
                    units = [chr(int(unit) + NEMO_OFFSET) if unit.isdecimal() else unit for unit in rest[0].split()]
                    end = "" if len(rest) > 1 else "\n"
                    line = "\t".join([prob, " ".join(units) + end, *rest[1:]])
                target.write(line)
        yield str(path)


def collapse(labels: Iterable[int], blank: int) -> list[int]:
    """Return the tokens of a path: its labels without repetitions and blanks."""
    return [label for label, _ in itertools.groupby(labels) if label != blank]


def nemo_transducer(
    kind: str, outputs: Outputs, lm: str | None = None, lm_weight: float | None = None, beams: int = 6, batch_size: int = 16
) -> Decode:
    """NeMo's label looping ("greedy") or `malsd_batch`, with late pruning and the blank weighted as the LM is; all else is as
    NeMo has it by default, with CUDA graphs where there is CUDA."""
    import torch
    from nemo.collections.asr.parts.submodules import rnnt_malsd_batched_computer as rnnt_malsd
    from nemo.collections.asr.parts.submodules import tdt_malsd_batched_computer as tdt_malsd
    from nemo.collections.asr.parts.submodules.transducer_decoding import rnnt_label_looping, tdt_label_looping
    from nemo.collections.asr.parts.utils.rnnt_utils import batched_hyps_to_hypotheses

    decoder, joint, durations = nemo_networks(outputs)
    model = None if lm_weight is None else nemo_automaton(lm, decoder.blank_idx, outputs.device)
    of_search = {"decoder": decoder, "joint": joint, "blank_index": decoder.blank_idx, "max_symbols_per_step": MAX_SYMBOLS}
    of_search |= {"durations": durations} if durations else {}
    of_search |= {} if model is None else {"fusion_models": [model], "fusion_models_alpha": [lm_weight]}
    of_search["allow_cuda_graphs"] = outputs.device == "cuda"
    if kind == "greedy":
        of_rnnt = rnnt_label_looping.GreedyBatchedRNNTLabelLoopingComputer
        search = (tdt_label_looping.GreedyBatchedTDTLabelLoopingComputer if durations else of_rnnt)(**of_search)
    else:
        of_search |= {"beam_size": beams, "blank_lm_score_mode": "lm_weighted_full", "pruning_mode": "late"}
        of_rnnt = rnnt_malsd.ModifiedALSDBatchedRNNTComputer
        search = (tdt_malsd.ModifiedALSDBatchedTDTComputer if durations else of_rnnt)(**of_search)
    batches = []
    for rows in outputs.batches(batch_size):
        frames = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(outputs.rows[i]) for i in rows], batch_first=True)
        lengths = torch.tensor([len(outputs.rows[i]) for i in rows], device=outputs.device)
        batches.append((rows, frames.to(outputs.device), lengths))

    def decode() -> list[list[int]]:
        tokens = {}
        for rows, frames, lengths in batches:
            found, *_ = search(x=frames, out_len=lengths)
            is_greedy = kind == "greedy"
            best = batched_hyps_to_hypotheses(found, len(rows)) if is_greedy else found.to_hyps_list(score_norm=True)
            tokens |= {row: hypothesis.y_sequence.tolist() for row, hypothesis in zip(rows, best)}
        return [tokens[row] for row in range(len(outputs.rows))]

    return decode


def nemo_networks(outputs: Outputs) -> tuple[Any, Any, list[int]]:
    """Return NeMo's prediction and joint networks with our weights (the frames are projected already), and durations."""
    import torch
    from nemo.collections.asr.modules import RNNTDecoder, RNNTJoint

    saved = outputs.saved
    weights = {name: torch.from_numpy(saved[name]) for name in saved.files if name.startswith(("decoder.", "joint."))}
    durations = saved["durations"].tolist()
    num_classes, hidden = weights["decoder.embedding.weight"].shape
    layers = sum("weight_hh" in name for name in weights)
    decoder = RNNTDecoder({"pred_hidden": hidden, "pred_rnn_layers": layers}, vocab_size=num_classes - 1)
    # As in Transformers the first input is the blank's embedding: NeMo looks it up too, it is only its own training that keeps
    # it at zero.
    prefixes = {"decoder.embedding.": "prediction.embed.", "decoder.lstm.": "prediction.dec_rnn.lstm."}
    named = [(name, ours, nemo) for ours, nemo in prefixes.items() for name in weights if name.startswith(ours)]
    decoder.load_state_dict({nemo + name.removeprefix(ours): weights[name] for name, ours, nemo in named})
    sizes = dict.fromkeys(("encoder_hidden", "pred_hidden", "joint_hidden"), hidden) | {"activation": str(saved["activation"])}
    joint = RNNTJoint(sizes, num_classes=num_classes - 1, num_extra_outputs=len(durations))
    joint.enc = torch.nn.Identity()
    ours = {"pred": "decoder.decoder_projector", "joint_net.1": "joint.head"}
    joint.load_state_dict({f"{n}.{kind}": weights[f"{o}.{kind}"] for n, o in ours.items() for kind in ("weight", "bias")})
    return decoder.eval().to(outputs.device), joint.eval().to(outputs.device), durations


@functools.cache
def nemo_automaton(lm: str, vocab_size: int, device: str) -> Any:
    from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

    with nemo_lm(lm) as path:
        return NGramGPULanguageModel.from_file(path, vocab_size=vocab_size).to(device)


def nemo_lm_queries(arpa: str, vocab_size: int, batches: list[int]) -> dict[str, Any]:
    """Time loading and `advance` (all scores, all next states) of NeMo's NGPU-LM from an ARPA file in its units. Each row of a
    batch has taken 20 tokens drawn from the model, so that contexts are as long as those a decoder meets."""
    import torch
    from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

    def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
        begin = time.perf_counter()
        made = call()
        return time.perf_counter() - begin, made

    load = functools.partial(NGramGPULanguageModel.from_file, vocab_size=vocab_size)
    of_arpa, lm = seconds_of(lambda: load(arpa))
    with tempfile.TemporaryDirectory() as folder:
        lm.save_to(f"{folder}/lm.nemo")
        loads = [seconds_of(lambda: load(f"{folder}/lm.nemo"))[0] for _ in range(5)]
    lm = lm.eval()
    found: dict[str, Any] = {"load_arpa_s": of_arpa, "load_nemo_s": statistics.median(loads), "advance": []}
    found |= {"arcs": lm.num_arcs, "states": lm.num_states}
    found["bytes"] = sum(tensor.numel() * tensor.element_size() for tensor in lm.state_dict().values())
    for size in batches:
        generator = torch.Generator().manual_seed(0)
        states = lm.get_init_states(batch_size=size, bos=True)
        for _ in range(20):
            scores, following = lm.advance(states)
            tokens = torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)
            states = following.gather(1, tokens)[:, 0]
        times: list[float] = []
        while len(times) < 8 or (sum(times) < 0.3 and len(times) < 1000):
            times.append(seconds_of(lambda: lm.advance(states))[0])  # noqa: B023
        found["advance"].append({"batch": size, "median_ms": 1e3 * statistics.median(times[3:])})
    return found


DECODERS: dict[str, Callable[..., Decode]] = {
    "pyctcdecode": functools.partial(pyctcdecode, "pyctcdecode", False),
    "pyctcdecode-tokens": functools.partial(pyctcdecode, "pyctcdecode", True),
    "ctc-beam-decoder": functools.partial(pyctcdecode, "ctc_beam_decoder", False),  # in C++
    "flashlight": flashlight,
    "flashlight-lexicon": flashlight,
    "nemo-greedy": nemo_ctc,
    "nemo-beam": nemo_ctc,
    **{kind: functools.partial(nemo_transducer, kind) for kind in ("greedy", "malsd")},
}
BATCHED = ("nemo-greedy", "nemo-beam", "greedy", "malsd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, help=".npz with what a model made of clips")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # NeMo logs and draws progress bars
        outputs = args.outputs and Outputs(args.outputs, args.device)
        with contextlib.suppress(ImportError):  # only NeMo needs it
            import torch

            torch.set_num_threads(args.threads)
            torch.set_grad_enabled(False)
        made: dict[str, Decode] = {}
        for line in sys.stdin:
            request = json.loads(line)
            name = request.pop("decoder")
            if name == "nemo-lm":
                print(json.dumps(nemo_lm_queries(**request)), file=answers, flush=True)
                continue
            if name not in BATCHED:
                request.pop("batch_size", None)
            key = json.dumps([name, request])
            if key not in made:
                made[key] = DECODERS[name](outputs, **request)
            begin = now(args)
            found = made[key]()
            answer = {"texts" if outputs.pieces else "tokens": found, "seconds": now(args) - begin}
            print(json.dumps(answer), file=answers, flush=True)


def now(args: argparse.Namespace) -> float:
    if args.device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.process_time() if args.device == "cpu" and args.threads == 1 else time.perf_counter()


if __name__ == "__main__":
    main()
