"""Times of transducers of real size (110 million parameters) with random weights, to be run where there are no trained ones.

    python benchmarks/transducer_random.py
    python benchmarks/transducer_random.py --layers 2      # of the prediction network's LSTM

Parakeet RNN-T and TDT (see random_models.py). The encoder is timed on noise of 5 to 15 s; what is decoded are random frames of
the same lengths. By turns, medians. On the CPU there are 32 clips, on a GPU 128, unless `--batch-sizes` says otherwise.
"""

from __future__ import annotations

import warnings

import measure
import torch
from random_models import REAL, TINY, random_clips, random_lengths, random_lm
from ways import Row, Stock, Way, show, timed

LM_WEIGHT = 0.5


def main() -> None:
    parser = measure.arguments(__doc__, "transducer_random")
    parser.add_argument("--layers", type=int, default=1, help="layers of the prediction network")
    parser.add_argument("--tiny", action="store_true", help="tiny networks and clips, to see that it runs")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="the largest is the number of clips, too")
    parser.add_argument("--repeats", type=int, default=3 if torch.cuda.is_available() else 1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="Using the model-agnostic default")
    sizes = tuple(args.batch_sizes or (1, 16, 32, *((128,) if args.device == "cuda" else ())))
    of_model = TINY if args.tiny else REAL
    lengths, lm = random_lengths(max(sizes), of_model), random_lm(of_model).to(args.device)
    rows: list[Row] = []
    with torch.inference_mode():
        for kind in ("RNNT", "TDT"):
            heard = random_clips(kind, lengths, args.layers, args.device, of_model)
            fused, beam = {"lm": lm, "lm_weight": LM_WEIGHT, "ilm_weight": 0.0}, {"strategy": "alsd", "num_beams": 6}
            ways = [
                Stock("stock generate", heard, sizes=sizes),
                Way("greedy", heard, fixed={"strategy": "greedy"}, sizes=sizes),
                Way("greedy + LM", heard, fixed={"strategy": "greedy", **fused}, sizes=sizes),
                Way("ALSD 6 + LM", heard, fixed={**beam, **fused}, sizes=sizes),
            ]
            rows += timed([(way, {"model": kind, "decoder": way.name}) for way in ways], args.repeats)
            path = measure.save(args.name, {"layers": args.layers, "decoders": rows}, args.out)
    print(show(rows))
    print("results in", path)


if __name__ == "__main__":
    main()
