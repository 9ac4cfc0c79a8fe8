"""hf-ngpulm push"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError

from ..formats.safetensors import CONFIG_FILE, WEIGHTS_FILE
from ..language_model.hub import CARD_FILE
from ..language_model.model import NGramLM
from .models import load
from .options import LMArgument, TokenizerOption, UnitsOption, VocabSizeOption, argument, option


def push(
    *,
    lm: LMArgument,
    repo: str = argument("Where to: org/name. It is made if it isn't there."),
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    asr_model: str | None = option("Recogniser in the card's example [default: that of the tokenizer]."),
    dataset: list[str] | None = option("Hub id of a dataset it was trained on, for the card; may be repeated."),
    language: list[str] | None = option("Code of its language, such as en, for the card; may be repeated."),
    license: str | None = option("Its licence, as the Hub names it, such as cc-by-4.0, for the card."),
    private: bool = option("Make the repo a private one, if it isn't there.", default=False),
    branch: str | None = option("Branch to push to [default: main]."),
    pull_request: bool = option("Open a pull request.", default=False),
    message: str | None = option("The commit's message.", "--message"),
) -> None:
    """Put a language model on the Hub, in one commit: config.json, model.safetensors and a card.

    hf-ngpulm push my-lm org/my-lm --license cc-by-4.0 --language en --dataset org/dataset
    hf-ngpulm push lm.arpa.gz org/my-lm --tokenizer nvidia/parakeet-ctc-0.6b

    It is loaded and checked before. A README.md in the folder that was changed by hand is pushed as it is. Log in before, with
    hf auth login, or set HF_TOKEN.
    """
    model = load(lm, tokenizer, vocab_size, units)
    told = {"asr_model": asr_model, "datasets": dataset or (), "language": language or (), "license": license}
    card = _written_by_hand(Path(lm), model)
    if card is None:
        card = model.model_card(repo, **told)  # type: ignore[arg-type]
    elif given := [f"--{name.replace('_', '-').removesuffix('s')}" for name, value in told.items() if value]:
        raise ValueError(
            f"{lm}/{CARD_FILE} was changed by hand and is pushed as it is; write into it what {', '.join(given)} says"
        )
    api = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        files: dict[str, str | bytes] = {name: f"{folder}/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE)}
        additions = [CommitOperationAdd(name, content) for name, content in {**files, CARD_FILE: card.encode()}.items()]
        try:
            repo_id = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
            commit = api.create_commit(
                repo_id,
                additions,
                commit_message=message or f"Push {model.order}-gram language model with hf_ngpulm",
                revision=branch,
                create_pr=pull_request,
            )
        except HfHubHTTPError as error:
            if getattr(error.response, "status_code", None) in (401, 403):
                raise PermissionError(f"{repo}: {error}. Log in with a token that may write there: hf auth login") from error
            raise
        except Exception as error:  # of the HTTP library, which isn't the same for all versions of the client
            if "Connect" in type(error).__name__:
                raise ConnectionError(f"the Hub can't be reached: {error}") from error
            raise
    print(commit.pr_url or commit.commit_url)


def _written_by_hand(folder: Path, model: NGramLM) -> str | None:
    """Return the card in a folder, unless there is none, or it says what saving wrote, under whatever name."""
    path = folder / CARD_FILE
    if not path.is_file():
        return None
    card = path.read_text(encoding="utf-8")
    name = re.search(r' lm="([^"]*)"', card)
    return None if name and _body(model.model_card(name[1])) == _body(card) else card


def _body(card: str) -> str:
    """Return a card without its metadata: tuning adds to that."""
    return ModelCard(card, ignore_metadata_errors=True).text
