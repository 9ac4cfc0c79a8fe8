"""Draw the plots of the docs from measured results (needs matplotlib).

    python benchmarks/plots.py

`errors_against_time.png` is of `sweep.py ctc_beam` and `words`, decoding alone (in batches of 16, where a decoder knows
batches), each decoder's beams joined by a line; `knee.png` and `blank_scoring.png` of the experiments
of these names; `orders_against_noise.png` of `real_speech/tasks.py`, in grey what the benchmark's authors published;
`real_errors_against_time.png` of `real_speech/families.py`; `false_accepts_against_misses.png` of `real_speech/commands.py`;
`phrases.png` of `real_speech/phrases.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import matplotlib
import measure

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = measure.ROOT / "docs"
CTC, WORDS = "ctc_beam_development_set", "words_development_set"
QUIET = 30  # decibels at which the plot has quiet
OF_A_SECOND, ERRORS = "ms of decoding for a second of audio, one thread", "word error rate, %"
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (5, 1, 1, 1)), "v"), ((0, (1, 3)), "x")]
# Names in the results, the name in the plot, and what a line looks like.
LINES = [
    (CTC, r"greedy|beam \d+", "hf_ngpulm, token LM", "-o", "tab:blue"),
    (WORDS, r"hf_ngpulm, beam \d+", "hf_ngpulm, word LM", "-s", "tab:green"),
    (WORDS, r"hf_ngpulm\.compat.*", "hf_ngpulm.compat, word LM", ":s", "tab:cyan"),
    (WORDS, r"ctc-beam-decoder.*", "ctc-beam-decoder, word LM", "--v", "0.2"),
    (WORDS, r"pyctcdecode.*", "pyctcdecode, word LM", "--D", "0.32"),
    (WORDS, r"flashlight.*", "flashlight-text, word LM", "--^", "0.44"),
    (CTC, r"NeMo, .*", "NeMo, token LM", "--x", "0.56"),
]
REAL_LINES = [
    (r"none, .*", "no language model", "-x", "0.6"),
    (r"in-domain LM, .*", "hf_ngpulm, token LM", "-o", "tab:blue"),
    (r"word LM, 16 beams", "hf_ngpulm, word LM", "s", "tab:green"),
    (r"word LM, graph", "hf_ngpulm, word LM, graph", "P", "tab:green"),
    (r"ctc-beam-decoder, .*", "ctc-beam-decoder, word LM", "--v", "0.3"),
    (r"pyctcdecode, .*", "pyctcdecode, word LM", "--D", "0.3"),
    (r"flashlight, .*", "flashlight-text, word LM", "^", "0.3"),
]


def results(name: str) -> dict[str, Any]:
    return json.loads((measure.RESULTS / f"{name}.json").read_text())


def rows_of(name: str) -> list[dict[str, Any]]:
    found = results(name)
    return found["rows"] if "rows" in found else found["decoders"]  # as it was called before


def panel_of(height: float = 5.0) -> Any:
    panel = pyplot.subplots(figsize=(8, height), layout="constrained")[1]
    panel.grid(alpha=0.3)
    return panel


def finish(panel: Any, name: str, **labels: Any) -> None:
    """Label a panel and save its figure."""
    panel.set(**labels)
    if panel.get_xscale() == "log":
        panel.xaxis.set_major_formatter("{x:g}")
    panel.legend(fontsize=8, loc="lower right" if "noise" in name else "best")
    panel.figure.savefig(DOCS / f"{name}.png", dpi=120)


def errors_against_time() -> None:
    panel = panel_of()
    for name, pattern, label, style, colour in LINES:
        rows = [row for row in rows_of(name) if re.fullmatch(pattern, row["decoder"])]
        times = [1e3 / row["rtfx"].get("16", row["rtfx"].get("1")) for row in rows]
        panel.plot(times, [row["odd"] for row in rows], style, color=colour, label=label)
    panel.axhline(rows_of(CTC)[0]["odd"], color="0.7", linewidth=1, label="no language model")
    finish(panel, "errors_against_time", xscale="log", xlabel=OF_A_SECOND, ylabel=ERRORS)


def real_errors_against_time() -> None:
    found, panel = results("real_speechocean_ctc"), panel_of(4.5)
    a_second = found["clips"] / found["seconds"]
    for pattern, label, style, colour in REAL_LINES:
        rows = [(row["ms a clip"] * a_second, row["wer"]) for row in found["rows"] if re.fullmatch(pattern, row["way"])]
        panel.plot(*zip(*sorted(rows, key=lambda row: -row[1])), style, color=colour, label=label)
    finish(panel, "real_errors_against_time", xscale="log", xlabel=OF_A_SECOND, ylabel=ERRORS)


def orders_against_noise() -> None:
    found, panel = results("real_orders"), panel_of()
    found["rows"] += results("real_orders_noise")["rows"]
    for (line, marker), (name, shares) in zip(STYLES, found["published"]["right"].items()):
        style = {"linestyle": line, "marker": marker, "color": "0.6", "markersize": 4}
        panel.plot(found["published"]["decibels"], [100 * share for share in shares], label=name, **style)
    for way, colour in (("none", "tab:orange"), ("LM", "tab:blue"), ("LM + phrases", "tab:green")):
        rows = [row for row in found["rows"] if row["way"] == way and row["num_beams"] == 1]
        rows.sort(key=lambda row: row["decibels"] or QUIET)
        places, right = [row["decibels"] or QUIET for row in rows], [100 * row["right"] for row in rows]
        bounds = [[100 * abs(row["right"] - row["interval"][side]) for row in rows] for side in (0, 1)]
        label = f"whisper-tiny.en {'alone' if way == 'none' else f'with {way}'}"
        panel.errorbar(places, right, bounds, color=colour, marker="o", capsize=3, label=label)
    ticks = [*found["published"]["decibels"], QUIET]
    panel.set_xticks(ticks, [*map(str, ticks[:-1]), "quiet"])
    finish(panel, "orders_against_noise", xlabel="speech over noise of a kitchen, dB", ylabel="orders whole, %")


def false_accepts_against_misses() -> None:
    """Draw false accepts an hour over missed orders, for all bounds on the evidence, and without one."""
    found, panel = results("real_commands_ctc"), panel_of(4.5)
    others, hours = found["evidence"]["other"], found["others"][0]["hours"]
    for name, colour in (("quiet", "tab:blue"), ("24", "tab:green"), ("12", "tab:orange"), ("6", "tab:red")):
        orders = sorted(found["evidence"][name])
        bounds = [bound for bound in orders[: len(orders) // 8] if bound >= others[-1]]  # fewer are kept of other speech
        missed = [100 * orders.index(bound) / len(orders) for bound in bounds]
        accepted = [sum(each >= bound for each in others) / hours for bound in bounds]
        label = f"{len(orders)} orders, {name if name == 'quiet' else f'noise at {name} dB'}"
        panel.plot(missed, accepted, drawstyle="steps-post", marker=".", color=colour, label=label)
    panel.plot(0, found["others"][0]["without rejection"] / hours, "kx", label="a grammar without rejection")
    panel.axhline(1, color="0.6", linewidth=1)
    panel.set_yscale("symlog", linthresh=1)
    panel.set_ylim(-0.1, 2000)
    labels = {"xlabel": "orders that are missed, %", "ylabel": f"false accepts an hour ({hours:.1f} hours of other speech)"}
    finish(panel, "false_accepts_against_misses", **labels)


def knee() -> None:
    """Draw error rates over times of a clip, with the number of beams at each point and a ring around the knee."""
    found, panel = results("knee_development_set"), panel_of()
    for number, model in enumerate(dict.fromkeys(row["model"] for row in found["rows"])):
        of_model, (line, marker) = [row for row in found["rows"] if row["model"] == model], STYLES[number]
        places = [row["ms a clip"] for row in of_model], [row["odd"] for row in of_model]
        panel.plot(*places, linestyle=line, marker=marker, color=f"C{number}", label=model)
        for row, *place in zip(of_model, *places):
            panel.annotate(str(row["beams"]), place, xytext=(4, 4), textcoords="offset points", fontsize=8)
            if row["beams"] == found["knees"][model]:
                panel.plot(*place, "o", markersize=15, color=f"C{number}", fillstyle="none")
    finish(panel, "knee", xscale="log", xlabel="ms of decoding for a clip, one thread, batch 16", ylabel=ERRORS)


def phrases() -> None:
    """Draw recall over false alarms, a line for each list, over weights (boosted) and over limits (second look)."""
    rows, panel = results("real_phrases")["rows"], panel_of(4.5)
    for number, size in enumerate(sorted({row["distractors"] for row in rows if row.get("distractors")})):
        for way, name, line in (("flat", "boosted", "--"), ("look", "second look", "-")):
            some = [row for row in rows if row["way"] == way and row["distractors"] == size and row["own"]]
            points = sorted((row["false an hour"], row["recall"]) for row in some)
            panel.plot(*zip(*points), line, marker="o", color=f"C{number}", label=f"{size:,} others, {name}")
    finish(panel, "phrases", xscale="log", xlabel="false alarms an hour", ylabel="recall of phrases, %")


def blank_scoring() -> None:
    rows = rows_of("blank_scoring")
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = pyplot.subplots(1, len(models), figsize=(3.6 * len(models), 3), sharey=True, squeeze=False)
    for model, panel in zip(models, axes[0]):
        for scoring, title, colour in (("lm_weighted", "blank-aware", "tab:blue"), ("none", "tokens alone", "tab:red")):
            of_both = [row for row in rows if (row["model"], row["blank_scoring"]) == (model, scoring)]
            for rate, name, line in (("deletions", "deletions", "--"), ("all", "WER", "-")):
                places = [row["lm_weight"] for row in of_both], [row[rate] for row in of_both]
                panel.plot(*places, line, color=colour, marker=".", label=f"{name}, {title}")
        panel.set(title=model.upper(), xlabel="weight of the LM")
        panel.grid(alpha=0.3)
    axes[0, 0].set_ylabel("% of words")
    axes[0, 0].set_ylim(bottom=0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=2, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    figure.savefig(DOCS / "blank_scoring.png", dpi=100)


if __name__ == "__main__":
    of_speed = errors_against_time, real_errors_against_time
    for draw in (blank_scoring, knee, phrases, orders_against_noise, false_accepts_against_misses, *of_speed):
        draw()
