"""hf-ngpulm demo"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .models import JsonOption, load_recogniser

if TYPE_CHECKING:
    from rich.text import Text


def demo(
    lm_weight: Annotated[float, typer.Option("--lm-weight", help="Weight of the language model in greedy search.")] = 0.9,
    beam_weight: Annotated[float, typer.Option("--beam-weight", help="Its weight in beam search.")] = 1.0,
    num_beams: Annotated[int, typer.Option("--num-beams", min=2, help="Beam of the search.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """Transcribe the bundled clips without a language model, with one, and with a beam; compare. Works offline."""
    import jiwer
    import torch

    from ..audio import read_audio
    from ..bundled import bundled
    from ..language_model import NGramLM

    folder = bundled("examples/demo")
    asr = load_recogniser(str(folder / "model"), "cpu", dtype=torch.float32)
    lm = NGramLM.from_arpa(folder / "lm.arpa.gz", asr.tokenizer, units="id")
    clips = [json.loads(line) for line in (folder / "clips.jsonl").read_text(encoding="utf-8").splitlines()]
    references = [clip["text"] for clip in clips]
    rate = asr.feature_extractor.sampling_rate
    audio: list[dict[str, Any]] = [{"raw": read_audio(folder / clip["audio"], rate), "sampling_rate": rate} for clip in clips]
    duration = sum(len(recording["raw"]) for recording in audio) / rate

    outputs: dict[str, list[str]] = {}
    speeds: dict[str, float] = {}
    searches: dict[str, dict[str, Any]] = {
        "without LM": {},
        "with LM": {"lm": lm, "lm_weight": lm_weight},
        "with beam": {"lm": lm, "lm_weight": beam_weight, "num_beams": num_beams},
    }
    for name, settings in searches.items():
        asr([dict(recording) for recording in audio[:1]], **settings)  # warm-up: compiled loops are loaded
        begin = time.perf_counter()
        outputs[name] = [out["text"] for out in asr([dict(recording) for recording in audio], batch_size=8, **settings)]
        speeds[name] = duration / (time.perf_counter() - begin)
    wers = {name: 100 * jiwer.wer(references, texts) for name, texts in outputs.items()}

    if as_json:
        for i, clip in enumerate(clips):
            line = {"audio": clip["audio"], "reference": references[i]}
            print(json.dumps({**line, **{name.replace(" ", "_").lower(): texts[i] for name, texts in outputs.items()}}))
        summary: dict[str, Any] = {"lm_weight": lm_weight, "beam_weight": beam_weight, "num_beams": num_beams}
        for name in outputs:
            key = name.replace(" ", "_").lower()
            summary |= {f"wer_{key}": wers[name], f"rtfx_{key}": speeds[name]}
        print(json.dumps(summary))
        return

    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for i, clip in enumerate(clips):
        console.print(f"[dim]{clip['audio']}[/dim]")
        console.print(f"  {'reference':>10}  {references[i]}", soft_wrap=True)
        for name, texts in outputs.items():
            console.print(f"  {name:>10}  ", _marked(references[i], texts[i]), sep="", soft_wrap=True)
    table = Table(title=f"{len(clips)} clips, {duration:.0f} s of audio")
    for heading in ("", "word error rate", "x real time"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name in outputs:
        table.add_row(name, f"{wers[name]:.1f}%", f"{speeds[name]:.0f}")
    console.print(table)
    console.print(
        f"The LM: order {lm.order}, {sum(lm.num_ngrams):,} n-grams of the clips' domain, {lm.nbytes / 1e6:.1f} MB. "
        f"Word error rate {_change(wers['without LM'], wers['with LM'])}, "
        f"with a beam of {num_beams} {_change(wers['without LM'], wers['with beam'])} "
        f"(weights {lm_weight:g} and {beam_weight:g}).",
        soft_wrap=True,
    )


def _change(before: float, after: float) -> str:
    percent = 100 * (after - before) / before if before else 0.0
    return f"{'down' if percent < 0 else 'up'} {abs(percent):.0f}% relative"


def _marked(reference: str, hypothesis: str) -> Text:
    """The hypothesis with its errors marked: [wrong], and (missing) words of the reference."""
    import jiwer
    from rich.text import Text

    text = Text()
    alignment: Any = jiwer.process_words(reference, hypothesis).alignments[0] if hypothesis.strip() else None
    if alignment is None:
        return Text(f"({reference})", style="yellow")
    for chunk in alignment:
        words = " ".join(hypothesis.split()[chunk.hyp_start_idx : chunk.hyp_end_idx])
        missing = " ".join(reference.split()[chunk.ref_start_idx : chunk.ref_end_idx])
        if text:
            text.append(" ")
        if chunk.type == "equal":
            text.append(words)
        elif chunk.type == "delete":
            text.append(f"({missing})", style="yellow")
        else:
            text.append(f"[{words}]", style="bold red")
    return text
