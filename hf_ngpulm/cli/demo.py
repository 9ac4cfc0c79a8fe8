"""hf-ngpulm demo"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .models import JsonOption, load, load_recogniser
from .output import console, print_json, progress

if TYPE_CHECKING:
    from rich.text import Text

# The best one for this recogniser on the development set of README.md: other recordings, another domain, another LM.
LM_WEIGHT = 0.9
# Each clip is timed so often; the fastest counts, since other work on the machine only ever adds time.
PASSES = 3


def demo(
    lm_weight: Annotated[float, typer.Option("--lm-weight", help="Weight of the language model.")] = LM_WEIGHT,
    as_json: JsonOption = False,
) -> None:
    """Transcribe the bundled clips with and without a language model, and compare. Works offline.

    hf-ngpulm demo

    hf-ngpulm demo --lm-weight 0.5 --json
    """
    import jiwer
    import torch

    from ..audio import read_audio
    from ..bundled import bundled

    folder = bundled("examples/demo")
    asr = load_recogniser(str(folder / "model"), "cpu", dtype=torch.float32)
    lm = load(str(folder / "lm.arpa.gz"), asr.tokenizer, units="id")
    asr = load_recogniser(str(folder / "model"), "cpu", dtype=torch.float32, lm=lm, lm_weight=lm_weight)
    clips = [json.loads(line) for line in (folder / "clips.jsonl").read_text(encoding="utf-8").splitlines()]
    references = [clip["text"] for clip in clips]
    rate = asr.feature_extractor.sampling_rate
    recordings = [read_audio(folder / clip["audio"], rate) for clip in clips]
    duration = sum(len(samples) for samples in recordings) / rate

    without: list[str] = []
    with_lm: list[str] = []
    seconds_without, seconds_with = 0.0, 0.0
    _transcribe(asr, recordings[0], rate)  # warm-up: compiled loops are loaded
    with progress(len(clips), "clips") as bar:
        for samples in recordings:  # one by one, so that no padding is decoded
            text, seconds = _transcribe(asr, samples, rate, lm=None)
            without.append(text)
            seconds_without += seconds
            text, seconds = _transcribe(asr, samples, rate)
            with_lm.append(text)
            seconds_with += seconds
            bar.update()
    words = sum(len(reference.split()) for reference in references)
    wer_without, wer_with = (100 * jiwer.wer(references, texts) for texts in (without, with_lm))
    change = 100 * (wer_with - wer_without) / wer_without

    if as_json:
        for clip, text, text_with_lm in zip(clips, without, with_lm):
            print_json(audio=clip["audio"], reference=clip["text"], without_lm=text, with_lm=text_with_lm)
        print_json(
            clips=len(clips),
            words=words,
            seconds=round(duration, 2),
            lm_weight=lm_weight,
            wer_without_lm=wer_without,
            wer_with_lm=wer_with,
            wer_change=change,
            rtfx_without_lm=duration / seconds_without,
            rtfx_with_lm=duration / seconds_with,
            lm_order=lm.order,
            lm_ngrams=sum(lm.num_ngrams),
            lm_nbytes=lm.nbytes,
        )
        return

    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.print(
        Text.assemble(
            f"{len(clips)} clips of orders on a harbour launch, ",
            ("[wrong]", "bold red"),
            " and ",
            ("(missing)", "yellow"),
            " words; ",
            ("put right by the LM", "green"),
            "\n",
        )  # fmt: skip
    )
    for clip, text, text_with_lm in zip(clips, without, with_lm):
        marked, wrong = _marked(clip["text"], text)
        marked_with_lm, _ = _marked(clip["text"], text_with_lm, put_right=wrong)
        for label, style, line in (
            ("reference", "dim", Text(clip["text"])),
            ("without LM", "dim", marked),
            ("with LM", "bold", marked_with_lm),
        ):
            screen.print(Text.assemble((f"{label:>10}  ", style), line), soft_wrap=True)
        screen.print()
    table = Table()
    for heading in ("", "without LM", "with LM", "change"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row(
        f"word error rate ({words} words)",
        f"{wer_without:.1f}%",
        f"[bold]{wer_with:.1f}%[/bold]",
        f"[bold]{change:+.0f}%[/bold]",
    )
    table.add_row(
        "times faster than real time",
        f"{duration / seconds_without:.0f}",
        f"{duration / seconds_with:.0f}",
        f"{100 * (seconds_without / seconds_with - 1):+.0f}%",
    )
    table.add_row("language model", "", f"{lm.nbytes / 1e6:.1f} MB", "")
    screen.print(table)
    chosen = (
        "the best one on other recordings, of another domain; it wasn't tuned on these clips"
        if lm_weight == LM_WEIGHT
        else "as you asked for"
    )
    screen.print(
        f"The LM is a {lm.order}-gram of 6,000 sentences of this domain ({sum(lm.num_ngrams):,} n-grams), none of them spoken "
        f"here.\nIts weight is {lm_weight:g}: {chosen}."
    )


def _transcribe(asr: Any, samples: Any, rate: int, **settings: Any) -> tuple[str, float]:
    """Text of a recording, and the time it takes."""
    text, fastest = "", float("inf")
    for _ in range(PASSES):
        begin = time.perf_counter()
        text = asr({"raw": samples, "sampling_rate": rate}, **settings)["text"]
        fastest = min(fastest, time.perf_counter() - begin)
    return text, fastest


def _marked(reference: str, hypothesis: str, put_right: set[int] | None = None) -> tuple[Text, set[int]]:
    """A hypothesis with its errors marked, and the places of the reference's words that it has wrong."""
    import jiwer
    from rich.text import Text

    expected, heard = reference.split(), hypothesis.split()
    if not heard:
        return Text(f"({reference})", style="yellow"), set(range(len(expected)))
    text, wrong = Text(), set[int]()
    alignment: Any = jiwer.process_words(reference, hypothesis).alignments[0]
    for chunk in alignment:
        places = range(chunk.ref_start_idx, chunk.ref_end_idx)
        if chunk.type == "equal":
            for place in places:
                text.append(expected[place] + " ", style="green" if place in (put_right or ()) else None)
            continue
        wrong.update(places)
        if chunk.type == "delete":
            text.append(f"({' '.join(expected[place] for place in places)}) ", style="yellow")
        else:
            text.append(f"[{' '.join(heard[chunk.hyp_start_idx : chunk.hyp_end_idx])}] ", style="bold red")
    text.rstrip()
    return text, wrong
