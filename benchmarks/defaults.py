"""What somebody gets who passes lm= and says nothing else: error rates and times beside greedy search, by tokens and by words.

    python benchmarks/defaults.py

The bundled clips of the domain, the bundled CTC model and transducers, LMs that are trained here on the domain's text, so that
nothing was tuned for them; the whole pipeline, batches of 16, median of three.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import Any

import measure

sys.path.insert(0, str(measure.ROOT))

from bundled import SPEECH, clips_in, recogniser

from hf_ngpulm import NGramLM
from hf_ngpulm.evaluation import word_errors

HEADER = ["model", "search", "wer", "seconds"]
ORDERS = {"token": 6, "word": 3}
SEARCHES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "tokens, greedy": ("token", {"num_beams": 1}),
    "tokens": ("token", {}),
    "words, greedy": ("word", {"num_beams": 1}),
    "words": ("word", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="ctc,rnnt,tdt")
    arguments = parser.parse_args()
    clips = clips_in(SPEECH / "harbour")
    texts = (SPEECH / "harbour" / "text.txt").read_text().splitlines()
    rows = []
    for name in arguments.models.split(","):
        asr = recogniser(name)
        lms = {unit: NGramLM.train(texts, tokenizer=asr.tokenizer, unit=unit, order=order) for unit, order in ORDERS.items()}
        heard: dict[str, list[str]] = {}

        def timed(search: str, asr: Any = asr, lms: dict[str, NGramLM] = lms, heard: dict[str, list[str]] = heard) -> float:
            unit, settings = SEARCHES[search]
            given = settings if unit is None else {"lm": lms[unit], **settings}
            audio = [{"raw": clip["audio"].copy(), "sampling_rate": 16_000} for clip in clips]
            begin = time.perf_counter()
            heard[search] = [result["text"] for result in asr(audio, batch_size=16, **given)]
            return time.perf_counter() - begin

        seconds = measure.by_turns({search: partial(timed, search) for search in SEARCHES}, 3)
        for search in SEARCHES:
            errors = word_errors([clip["text"] for clip in clips], heard[search])
            rows.append([name, search, 100 * errors.rate, seconds[search]])
    print(measure.table(HEADER, rows))
    print(measure.save("defaults", {"rows": [dict(zip(HEADER, row)) for row in rows]}))


if __name__ == "__main__":
    main()
