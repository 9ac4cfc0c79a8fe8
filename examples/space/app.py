"""A page on which to try what a language model and phrases do: microphone or file, without and with them, side by side.

python examples/space/app.py                                      the bundled model and language model; offline
python examples/space/app.py --model openai/whisper-tiny.en       any of the Hub's; type text of your domain, or name an --lm

As a Space it is told by the variables MODEL and LM. Needs `pip install gradio` besides hf-ngpulm[audio].
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import os
import re
from typing import Any

import gradio as gr
import torch
from transformers import pipeline

import hf_ngpulm
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.sound.files import read_audio

BUNDLED = "examples/models/ctc", "examples/speech/harbour"
SHORTEST, MOST_SECONDS = 0.2, 30  # Whisper hears no more at once
MOST_TEXT, MOST_PHRASES, LONGEST_PHRASE = 1_000_000, 500, 200  # characters, and phrases
MOST_BYTES = "50mb"  # of a file; uploads and recordings are deleted an hour later
Marked = list[tuple[str, str | None]]


class Recogniser:
    """A model with what is decoded beside it.

    Args:
        model: folder or Hub id of a speech recogniser; the bundled one if left out, with the language model that belongs to it.
        lm: folder or Hub id of a language model for it.
    """

    def __init__(self, model: str | None = None, lm: str | None = None) -> None:
        own, speech = map(bundled, BUNDLED)
        self.name = model or f"the bundled {own.name} model (which knows synthetic voices only)"
        self.examples: dict[str, str] = {}  # files by what is said
        if model is None:
            lines = (speech / "clips.jsonl").read_text(encoding="utf-8").splitlines()[:4]
            self.examples = {clip["text"]: str(speech / clip["audio"]) for clip in map(json.loads, lines)}
        self.asr = pipeline("automatic-speech-recognition", model=model or str(own), dtype=torch.float32)
        lm = lm or (None if model else str(speech / "lm"))
        self.lm = None if lm is None else hf_ngpulm.NGramLM.from_pretrained(lm, device=self.asr.device)
        self.trained = functools.lru_cache(8)(self._trained)

    def _trained(self, text: str) -> hf_ngpulm.NGramLM:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return hf_ngpulm.NGramLM.from_texts(lines, tokenizer=self.asr.tokenizer, order=4, device=str(self.asr.device))

    def compare(
        self, audio: str | None, phrases: str, text: str, lm_weight: float, phrase_weight: float, num_beams: int
    ) -> tuple[Marked, Marked]:
        """Return what is recognised without and with the language model and the phrases, with changed words marked.

        Args:
            audio: a file.
            phrases: one a line.
            text: sentences, one a line, that a language model is made of in place of the one that is there.

        Raises:
            ValueError: no audio, too much of something, or nothing to compare with; it says so to whoever looks at the page.
        """
        if audio is None:
            raise ValueError("Record something, or choose a file.")
        rate = self.asr.feature_extractor.sampling_rate
        samples = read_audio(audio, rate)
        if not SHORTEST * rate <= len(samples) <= MOST_SECONDS * rate:
            raise ValueError(f"{len(samples) / rate:.1f} seconds of audio: {SHORTEST} to {MOST_SECONDS} are taken here.")
        listed = [line.strip() for line in phrases.splitlines() if line.strip()]
        if len(text) > MOST_TEXT or len(listed) > MOST_PHRASES or max(map(len, listed), default=0) > LONGEST_PHRASE:
            raise ValueError(
                f"Too much: {MOST_TEXT:,} characters of text, {MOST_PHRASES} phrases of {LONGEST_PHRASE} characters are taken."
            )
        with_them: dict[str, Any] = {}
        lm = self.trained(text) if text.strip() else self.lm
        if lm is not None and lm_weight:
            with_them |= {"lm": lm, "lm_weight": lm_weight}
        if listed and phrase_weight:
            with_them |= {"phrases": listed, "phrase_weight": phrase_weight}
        if not with_them:
            raise ValueError("There is nothing to compare with: type phrases or text, and give them a weight.")
        settings = {"num_beams": int(num_beams)}
        alone, fused = (
            self.asr({"raw": samples.copy(), "sampling_rate": rate}, **settings, **more)["text"].strip()
            for more in ({"lm": None, "phrases": None}, with_them)
        )
        return marked(alone, fused)


def marked(alone: str, fused: str) -> tuple[Marked, Marked]:
    """Return both transcripts in parts; those that the other hasn't got are marked. Case and punctuation make no other word."""
    words = alone.split(), fused.split()
    plain = ([re.sub(r"\W", "", word).casefold() or word for word in each] for each in words)
    found: tuple[Marked, Marked] = [], []
    for kind, *ranges in difflib.SequenceMatcher(None, *plain, autojunk=False).get_opcodes():
        for side, first, last in ((0, *ranges[:2]), (1, *ranges[2:])):
            if first < last:
                label = None if kind == "equal" else ("changed", "new")[side]
                found[side].append((" ".join(words[side][first:last]), label))
    return found


def page(recogniser: Recogniser) -> gr.Blocks:
    """Return the page."""

    def compare(*given: Any) -> tuple[Marked, Marked]:
        try:
            return recogniser.compare(*given)
        except ValueError as error:
            raise gr.Error(str(error)) from error

    with gr.Blocks(title="hf_ngpulm", delete_cache=(600, 3600)) as blocks:
        gr.Markdown(
            "# A language model, and phrases, in speech recognition\n"
            f"Recogniser: {recogniser.name}. Record something or choose a file; names and terms that shall be recognised go "
            "under *phrases*, and text of your domain makes a language model on the spot."
        )
        with gr.Row():
            with gr.Column():
                audio = gr.Audio(sources=["microphone", "upload"], type="filepath", label="Speech")
                if recogniser.examples:
                    files = [[path] for path in recogniser.examples.values()]
                    gr.Examples(files, [audio], label="Or one of these", example_labels=list(recogniser.examples))
                lm_weight = gr.Slider(0, 3, 0.7, step=0.05, label="Weight of the language model", elem_id="lm-weight")
                phrase_weight = gr.Slider(0, 5, 1.5, step=0.1, label="Weight of the phrases", elem_id="phrase-weight")
                num_beams = gr.Slider(1, 16, 5, step=1, label="Beam (1: greedy search)", elem_id="beam")
            with gr.Column():
                phrases = gr.Textbox(label="Phrases, one a line", lines=5, max_lines=5, elem_id="phrases")
                own = "empty: the one that is there" if recogniser.lm is not None else "a sentence a line"
                text = gr.Textbox(label=f"Text for a language model ({own})", lines=8, max_lines=8, elem_id="text")
                button = gr.Button("Transcribe", variant="primary", elem_id="transcribe")
        colours: dict[str, Any] = {"color_map": {"changed": "orange", "new": "green"}, "show_inline_category": False}
        with gr.Row():
            alone = gr.HighlightedText(label="Without", elem_id="without", **colours)
            fused = gr.HighlightedText(label="With", elem_id="with", **colours)
        inputs = [audio, phrases, text, lm_weight, phrase_weight, num_beams]
        gr.on([button.click, audio.stop_recording], compare, inputs, [alone, fused], api_name="compare")
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("MODEL") or None, help="folder or Hub id; by default the bundled one")
    parser.add_argument("--lm", default=os.environ.get("LM") or None, help="folder or Hub id of a language model for it")
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    page(Recogniser(args.model, args.lm)).launch(server_port=args.port, max_file_size=MOST_BYTES)


if __name__ == "__main__":
    main()
