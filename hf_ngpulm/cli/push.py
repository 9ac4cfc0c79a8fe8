"""Define the command `hf-ngpulm push`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError, RevisionNotFoundError

from . import library
from .models import load
from .options import LMArgument, TokenizerOption, UnitsOption, VocabSizeOption, argument, given, option
from .output import tell


def push(
    *,
    lm: LMArgument,
    repo: str = argument("Target repo, org/name; created if it doesn't exist."),
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    asr_model: str | None = option("Recogniser in the card's example [default: that of the tokenizer]."),
    dataset: list[str] | None = option("For the card: Hub id of a dataset that the LM was trained on; may be repeated."),
    language: list[str] | None = option("For the card: code of the LM's language, such as en; may be repeated."),
    license: str | None = option("For the card: the LM's licence as the Hub names it, such as cc-by-4.0."),
    private: bool = option("Make a new repo private.", default=False),
    branch: str | None = option("Branch to push to [default: main]; created if it doesn't exist."),
    pull_request: bool = option("Open a pull request.", default=False),
    message: str | None = option("The commit's message.", "--message"),
) -> None:
    """Upload a language model to the Hub in one commit: config.json, model.safetensors and a card.

    hf-ngpulm push my-lm org/my-lm --license cc-by-4.0 --language en --dataset org/dataset
    hf-ngpulm push lm.arpa.gz org/my-lm --tokenizer nvidia/parakeet-ctc-0.6b

    The model is loaded and checked first. If the folder's card, or else the repo's card, was edited by hand, it is kept.
    Without options for datasets, languages or licence, the entries of the repo's card are kept. Log in first with hf auth
    login, or set HF_TOKEN.
    """
    model = load(lm, tokenizer, vocab_size, units)
    told = {"asr_model": asr_model, "datasets": dataset, "language": language, "license": license}
    path = Path(lm, library.CARD_FILE)
    card = path.read_text(encoding="utf-8") if path.is_file() else None
    if by_hand := card is not None and not library.is_as_written(card):
        _refuse(told, str(path))
    api = HfApi()
    with tempfile.TemporaryDirectory() as folder, _hub_errors(repo):
        repo_id = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
        if branch is not None:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        there = _card_of(api, repo_id, branch)
        files: dict[str, str | bytes] = {}
        if by_hand:
            files[library.CARD_FILE] = str(path)
        elif there is not None and not library.is_as_written(str(there)):
            _refuse(told, f"the {library.CARD_FILE} of {repo_id}")
            tell(f"the {library.CARD_FILE} of {repo_id} was changed by hand and is kept")
        else:
            data = {} if there is None else there.data.to_dict()
            there_already = {name: data[name] for name in ("datasets", "language", "license") if name in data}
            files[library.CARD_FILE] = model.model_card(repo_id, **{**there_already, **given(**told)}).encode()
        model.save_pretrained(folder)
        files |= {path.name: str(path) for path in Path(folder).iterdir() if path.name != library.CARD_FILE}
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message=message or f"Push {model.order}-gram language model with hf_ngpulm",
            revision=branch,
            create_pr=pull_request,
        )
    print(commit.pr_url or commit.commit_url)


def _refuse(told: dict[str, Any], card: str) -> None:
    """Raise ValueError if options about the card are given, because the card was edited by hand. `told`: the given options
    about the card. `card`: the card's place, for the message.
    """
    if options := [f"--{name.replace('_', '-').removesuffix('s')}" for name in given(**told)]:
        raise ValueError(f"{card} was changed by hand and is kept; add the values of {', '.join(options)} there")


def _card_of(api: HfApi, repo_id: str, branch: str | None) -> ModelCard | None:
    """Return the model card of a repo. If the repo has no card, return None."""
    try:
        path = api.hf_hub_download(repo_id, library.CARD_FILE, revision=branch)
    except LocalEntryNotFoundError:  # the Hub can't be reached
        raise
    except (EntryNotFoundError, RevisionNotFoundError):
        return None
    return ModelCard(Path(path).read_text(encoding="utf-8"), ignore_metadata_errors=True)


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Convert the Hub's errors to errors whose messages name the remedy.

    Raises:
        PermissionError: the user isn't logged in, or may not write to the repo.
        ConnectionError: the Hub can't be reached.
    """
    try:
        yield
    except HfHubHTTPError as error:
        if getattr(error.response, "status_code", None) in (401, 403):
            raise PermissionError(f"{repo}: {error}. Log in with a token that may write there: hf auth login") from error
        raise
    except Exception as error:  # raised by httpx, or by requests in older versions of huggingface_hub
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & {"TransportError", "ConnectionError", "Timeout", "LocalEntryNotFoundError"}:
            raise ConnectionError(f"the Hub can't be reached: {error}") from error
        raise
