"""Decode the frames of a transducer's encoder with NeMo, to set its word error rates and times beside ours.

Run it with the python of an environment that has NeMo (`pip install "nemo_toolkit[asr]==3.0.0"`), and nothing of ours:

    echo '{"decoder": "malsd", "beams": 6, "lm_weight": 0.9, "batch_size": 16}' |
        python benchmarks/peers_transducer.py --outputs rnnt.npz --lm tokens.arpa

`--outputs` is an .npz as `benchmarks/transducer.py` writes it: `frames` (float32 `[sum of lengths, D]`, projected for the joint
network), `lengths` (`[N]`), `durations` (empty for an RNN-T), `activation` of the joint network, and its weights and the
prediction network's under the names that they have in Transformers. The blank is the last token class. `--lm` is a plain ARPA
file of decimal token ids.

Each line of the standard input is a request, answered by a line of JSON with the token ids of the best hypothesis of each
utterance and the seconds of decoding them all, the median of `repeats` (default 1): loading and making batches are not
counted, nor is text. A request has the `decoder`, "greedy" (label looping), "malsd" (`malsd_batch`) or "maes" (`maes_batch`);
`beams`, for the last two; `lm_weight`, per natural logarithm, null for no LM; and `batch_size`. All else is as NeMo has it by
default, with CUDA graphs where there is CUDA. A decoder that was asked for before is used again, so that only the first of its
times has the capture of the graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from peers_ctc import nemo_lm

MAX_SYMBOLS = 10
AES_STEPS, AES_BETA, AES_GAMMA = 2, 2, 2.3  # NeMo's own


def load(path: Path, device: str) -> tuple[Any, Any, list[Any], list[int]]:
    """NeMo's modules for the prediction network and the joint network; frames of each utterance; durations."""
    import torch
    from nemo.collections.asr.modules import RNNTDecoder, RNNTJoint

    saved = np.load(path)
    weights = {name: torch.from_numpy(saved[name]) for name in saved.files if name.startswith(("decoder.", "joint."))}
    durations = saved["durations"].tolist()
    num_classes, hidden = weights["decoder.embedding.weight"].shape
    layers = sum("weight_hh" in name for name in weights)
    decoder = RNNTDecoder({"pred_hidden": hidden, "pred_rnn_layers": layers}, vocab_size=num_classes - 1)
    # As in Transformers the first input is the blank's embedding: NeMo looks it up too, it is only its own training that keeps
    # it at zero.
    prefixes = {"decoder.embedding.": "prediction.embed.", "decoder.lstm.": "prediction.dec_rnn.lstm."}
    for_nemo = {}
    for prefix, nemo_prefix in prefixes.items():
        named = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        for_nemo |= {nemo_prefix + name: weight for name, weight in named.items()}
    decoder.load_state_dict(for_nemo)
    joint = RNNTJoint(
        {"encoder_hidden": hidden, "pred_hidden": hidden, "joint_hidden": hidden, "activation": str(saved["activation"])},
        num_classes=num_classes - 1,
        num_extra_outputs=len(durations),
    )
    joint.enc = torch.nn.Identity()  # the frames are projected
    joint.load_state_dict(
        {
            "pred.weight": weights["decoder.decoder_projector.weight"],
            "pred.bias": weights["decoder.decoder_projector.bias"],
            "joint_net.1.weight": weights["joint.head.weight"],
            "joint_net.1.bias": weights["joint.head.bias"],
        }
    )
    frames = torch.from_numpy(saved["frames"]).to(device).split(saved["lengths"].tolist())
    return decoder.eval().to(device), joint.eval().to(device), list(frames), durations


def computer(
    decoder: Any, joint: Any, durations: list[int], lm: Any, kind: str, beams: int | None, lm_weight: float | None
) -> Callable[..., list[Any]]:
    """A search of NeMo: frames `[B, T, D]` and lengths `[B]` to the best hypothesis of each row."""
    from nemo.collections.asr.parts.submodules.rnnt_maes_batched_computer import ModifiedAESBatchedRNNTComputer
    from nemo.collections.asr.parts.submodules.rnnt_malsd_batched_computer import ModifiedALSDBatchedRNNTComputer
    from nemo.collections.asr.parts.submodules.tdt_malsd_batched_computer import ModifiedALSDBatchedTDTComputer
    from nemo.collections.asr.parts.submodules.transducer_decoding.rnnt_label_looping import (
        GreedyBatchedRNNTLabelLoopingComputer,
    )
    from nemo.collections.asr.parts.submodules.transducer_decoding.tdt_label_looping import (
        GreedyBatchedTDTLabelLoopingComputer,
    )
    from nemo.collections.asr.parts.utils.rnnt_utils import batched_hyps_to_hypotheses

    of_model = {"decoder": decoder, "joint": joint, "blank_index": decoder.blank_idx}
    of_tdt = {"durations": durations} if durations else {}
    of_beam = {"beam_size": beams, "blank_lm_score_mode": "lm_weighted_full", "pruning_mode": "late"}
    fused = {} if lm_weight is None else {"fusion_models": [lm], "fusion_models_alpha": [lm_weight]}
    if kind == "maes":
        search = ModifiedAESBatchedRNNTComputer(
            **of_model,
            **of_beam,
            maes_num_steps=AES_STEPS,
            maes_expansion_beta=AES_BETA,
            maes_expansion_gamma=AES_GAMMA,
            ngram_lm_model=None if lm_weight is None else lm,
            ngram_lm_alpha=lm_weight or 0.0,
        )
    else:
        greedy, malsd = GreedyBatchedRNNTLabelLoopingComputer, ModifiedALSDBatchedRNNTComputer
        if durations:
            greedy, malsd = GreedyBatchedTDTLabelLoopingComputer, ModifiedALSDBatchedTDTComputer
        of_search = {**of_model, **of_tdt, **fused, "max_symbols_per_step": MAX_SYMBOLS}
        on_cuda = next(joint.parameters()).is_cuda
        if kind == "greedy":
            search = greedy(**of_search, allow_cuda_graphs=on_cuda)
        else:
            search = malsd(**of_search, **of_beam, allow_cuda_graphs=on_cuda)

    def best(frames: Any, lengths: Any) -> list[Any]:
        found, *_ = search(x=frames, out_len=lengths)
        if kind == "greedy":
            return batched_hyps_to_hypotheses(found, len(frames))
        return found.to_hyps_list(score_norm=True)[: len(frames)]

    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, required=True, help=".npz with frames, lengths and weights")
    parser.add_argument("--lm", type=Path, help="ARPA file, plain text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # NeMo logs and draws progress bars
        import torch
        from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

        torch.set_num_threads(args.threads)
        decoder, joint, utterances, durations = load(args.outputs, args.device)
        lm = None
        if args.lm:
            with nemo_lm(args.lm) as path:
                lm = NGramGPULanguageModel.from_file(path, vocab_size=decoder.blank_idx).to(args.device)

        @functools.cache
        def batches(size: int) -> list[tuple[list[int], Any, Any]]:
            order = sorted(range(len(utterances)), key=lambda i: len(utterances[i]))
            found = []
            for rows in (order[first : first + size] for first in range(0, len(order), size)):
                frames = torch.nn.utils.rnn.pad_sequence([utterances[i] for i in rows], batch_first=True)
                found.append((rows, frames, torch.tensor([len(utterances[i]) for i in rows], device=args.device)))
            return found

        @functools.cache
        def search(kind: str, beams: int | None, lm_weight: float | None, size: int) -> Callable[..., list[Any]]:
            # CUDA graphs are of the largest batch that they have met, hence one for each size.
            return computer(decoder, joint, durations, lm, kind, beams, lm_weight)

        def now() -> float:
            if args.device == "cuda":
                torch.cuda.synchronize()
            return time.process_time() if args.device == "cpu" and args.threads == 1 else time.perf_counter()

        for line in sys.stdin:
            request = json.loads(line)
            size = request["batch_size"]
            best = search(request["decoder"], request.get("beams"), request.get("lm_weight"), size)
            of_size = batches(size)
            seconds, tokens = [], {}
            with torch.inference_mode():
                for _ in range(request.get("repeats", 1)):
                    begin = now()
                    for rows, frames, lengths in of_size:
                        tokens |= zip(rows, (hypothesis.y_sequence.tolist() for hypothesis in best(frames, lengths)))
                    seconds.append(now() - begin)
            answer = {
                "settings": {"lm": args.lm and args.lm.name, **request},
                "seconds": statistics.median(seconds),
                "tokens": [tokens[row] for row in range(len(utterances))],
                "versions": {
                    "python": platform.python_version(),
                    "nemo_toolkit": metadata.version("nemo_toolkit"),
                    "torch": torch.__version__,
                },
            }
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
