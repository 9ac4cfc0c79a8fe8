"""Draw speed against batch size from measured results.

    python benchmarks/draw_speed.py        benchmarks/results/speed_against_batch.png (needs matplotlib)

What is drawn are the times of decoding alone that `ctc_beam.py` and `words.py` measured on the development set.
"""

from __future__ import annotations

import json

import matplotlib
import measure

matplotlib.use("Agg")
from matplotlib import pyplot

TITLES = {"ctc_beam_development_set": "LM over tokens", "words_development_set": "LM over words"}
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (5, 1, 1, 1)), "v"), ((0, (1, 3)), "x")]


def main() -> None:
    figure, panels = pyplot.subplots(1, len(TITLES), figsize=(12, 6), sharey=True, layout="constrained")
    for panel, (name, title) in zip(panels, TITLES.items(), strict=True):
        decoders = json.loads((measure.RESULTS / f"{name}.json").read_text())["decoders"]
        for number, decoder in enumerate(decoders):
            sizes = sorted(map(int, decoder["rtfx"]))
            line, marker = STYLES[number % len(STYLES)]
            grey = str(0.7 * number / len(decoders))
            speeds = [decoder["rtfx"][str(size)] for size in sizes]
            panel.plot(sizes, speeds, linestyle=line, marker=marker, color=grey, label=decoder["decoder"])
        panel.set(xscale="log", yscale="log", title=title, xlabel="batch size")
        panel.grid(alpha=0.3)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize=7)
    panels[0].set_ylabel("times real time, decoding alone, one thread")
    figure.savefig(measure.RESULTS / "speed_against_batch.png", dpi=120)


if __name__ == "__main__":
    main()
