"""Write the model cards of the bundled models, with what benchmarks/bundled.py measured.

python cards.py
"""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

from huggingface_hub import EvalResult, ModelCardData
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent.parent
TITLES = {
    "ctc": ("Tiny CTC model", "CTC head", "linear"),
    "rnnt": ("Tiny RNN transducer", "prediction network", "LSTM of 144"),
    "tdt": ("Tiny token-and-duration transducer", "prediction network", "LSTM of 144; durations of 0 to 4 frames"),
    "hat": ("Tiny hybrid autoregressive transducer", "prediction network", "LSTM of 144; the blank is decided by itself"),
    "stateless": ("Tiny stateless transducer", "prediction network", "sees the last two tokens"),
    "canary": ("Tiny attention decoder", "decoder", "transformer, 2 layers of 144"),
}


def results_of(name: str, results: list[dict]) -> str:
    lines = ["| clips | search | WER | in entities |", "|---|---|---|---|"]
    for row in results:
        if row["model"] == name:
            entities = f"{100 * row['entity_wer']:.1f}" if "entity_wer" in row else ""
            lines.append(f"| {row['set']} | {row['search']} | {100 * row['wer']:.1f} | {entities} |")
    return "\n".join(lines)


def metadata_of(name: str, library: str, title: str, results: list[dict]) -> str:
    """What the Hub reads, the error rates among it."""
    found = [
        EvalResult(
            task_type="automatic-speech-recognition", dataset_type=row["set"], dataset_name=f"hf_ngpulm's clips: {row['set']}",
            metric_type="wer", metric_name=f"WER, {row['search']}", metric_value=round(100 * row["wer"], 1),
        )
        for row in results if row["model"] == name
    ]  # fmt: skip
    tags = ["automatic-speech-recognition", "hf_ngpulm"]
    return ModelCardData(
        library_name=library, pipeline_tag="automatic-speech-recognition", license="apache-2.0", language="en", tags=tags,
        metrics=["wer"], model_name=title, eval_results=found,
    ).to_yaml()  # fmt: skip


def main() -> None:
    template = Template((ROOT / "model_cards" / "tiny_asr.md").read_text())
    results = json.loads((ROOT / "benchmarks" / "results" / "bundled.json").read_text())["results"]
    for name, (title, kind, head) in TITLES.items():
        folder = ROOT / "examples" / "models" / name
        config = json.loads((folder / "config.json").read_text())
        with safe_open(folder / "model.safetensors", "pt") as tensors:
            parameters = sum(tensors.get_tensor(key).numel() for key in tensors.keys())  # noqa: SIM118  (no mapping)
        library = "hf_ngpulm" if name in ("hat", "stateless") else "transformers"
        card = template.substitute(
            metadata=metadata_of(name, library, title, results),
            name=name, title=title, parameters=f"{parameters / 1e6:.1f} million",
            megabytes=f"{(folder / 'model.safetensors').stat().st_size / 1e6:.1f}",
            class_name=config["architectures"][0], head_kind=kind, head=head, results=results_of(name, results),
        )  # fmt: skip
        (folder / "README.md").write_text(card)


if __name__ == "__main__":
    main()
