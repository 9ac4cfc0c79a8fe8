"""Define the command `hf-ngpulm serve`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..serving.limits import Limits
from ..serving.logs import log_json
from . import library
from .models import check_folder, load_serving, warm_up
from .options import AT, Chunks, Decoding, DeviceOption, JsonOption, ModelArgument, Rescoring, existing, option
from .output import print_json, tell

KEY = "HF_NGPULM_API_KEY"


@dataclass(frozen=True)
class Address:
    """Options for the server's address, and for the keys and origins that may use it."""

    host: str = option("Address to listen on; 0.0.0.0 lets other machines in.", default="127.0.0.1")
    port: int = option("0: any free port.", default=8765, min=0, max=65535)
    wyoming: str | None = option("Address for Wyoming (Home Assistant), such as tcp://0.0.0.0:10300. Wyoming has no keys.")
    workers: int = option("Processes that share the address, each with its own model and clients.", default=1, min=1, max=256)
    api_key: list[str] | None = option(f"Key that clients must send; may be repeated. A file or {KEY} is safer.")
    api_key_file: str | None = option("File with such keys, one per line.")
    tls_cert: str | None = option("Certificate for https:// and wss://, a PEM file.")
    tls_key: str | None = option("Key of the certificate, if it is in another file.")
    origin: list[str] | None = option(
        "Origin (https://example.org) whose pages may connect, besides the server's own. Requests may also use its host name, "
        "as behind a proxy. * allows all pages. May be repeated."
    )
    proxy: list[str] | None = option(
        "Address or network of a reverse proxy that sends clients' addresses in X-Forwarded-For; may be repeated. Proxies on "
        "this machine needn't be listed."
    )


def _limit(field: str, help: str, name: str, least: float = 1) -> Any:
    """Return a description of an option for a field of `Limits`. The option has the field's default. `name`: the option's name.
    `least`: the option's minimum.
    """
    return option(help, name, default=getattr(Limits, field), min=least)


@dataclass(frozen=True)
class Most:
    """Options for fields of `Limits`."""

    clients: int = _limit("clients", "Most clients with live audio at the same time.", "--max-clients")
    clients_per_address: int = _limit(
        "clients_per_address", "Most clients from one IPv4 address or IPv6 /64 network.", "--max-per-address"
    )
    uploads: int = _limit("uploads", "Most recordings at the same time.", "--max-uploads")
    upload_bytes: int = _limit("upload_bytes", "Most bytes of a recording.", "--max-upload", 1024)
    spool_bytes: int = _limit(
        "spool_bytes", "Most bytes of all current recordings, which are in temporary files.", "--max-spool", 1024
    )
    audio_seconds: float = _limit("audio_seconds", "Most seconds of a recording.", "--max-audio")
    beams: int = _limit("beams", "Largest num_beams that clients may request.", "--max-beams")
    phrases: int = _limit("phrases", "Most phrases of a client.", "--max-phrases")
    corrections: int = _limit("corrections", "Most corrections of a key.", "--max-corrections")
    phrase_bytes: int = _limit("phrase_bytes", "Most bytes of all phrases of a client, in UTF-8.", "--max-phrase-bytes")
    message_bytes: int = _limit("message_bytes", "Most bytes of a client's message.", "--max-message", 1024)
    idle_seconds: float = _limit(
        "idle_seconds", "Seconds without a message after which a client is disconnected.", "--idle", 0.1
    )


@dataclass(frozen=True)
class Replicas:
    """Options for a server on a Ray cluster."""

    cluster: str | None = option(
        f"Serve with Ray Serve on a Ray cluster{AT}. All machines must see the models.",
        "--ray", metavar="[HOST:PORT]",
    )  # fmt: skip
    replicas: str | None = option(
        "With --ray: number of replicas, each with its own model and clients [default: 1]; or a range such as 1-8, within "
        "which Ray follows the number of clients."
    )
    num_gpus: float | None = option("With --ray: share of a GPU for each replica, such as 0.5.", min=0)

    @property
    def number(self) -> int | tuple[int, int]:
        """Return the number of replicas, or a pair of the minimum and the maximum. Raises ValueError if the text is neither."""
        match = re.fullmatch(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", self.replicas or "1")
        if match is None:
            raise ValueError(f"--replicas should be a number, or the fewest and the most, as in 1-8; got {self.replicas!r}")
        return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def serve(
    *,
    model: ModelArgument,
    decoding: Decoding,
    chunks: Chunks,
    rescoring: Rescoring,
    also_lm: list[str] | None = option(
        "Another language model, as NAME=LM, that clients may select by name (--lm is 'default'); may be repeated."
    ),
    grammar: list[str] | None = option(
        "A grammar, as NAME=FILE (or a folder), that clients may select by name; may be repeated. Wyoming uses the first."
    ),
    corrections_in: str | None = option(
        "Keep clients' corrections (/v1/corrections) in this folder, in a private file for each key.", "--corrections"
    ),
    thresholds: str | None = option(
        "This model's thresholds for clients' false_alarms_per_hour, from `hf-ngpulm tune`.", parser=existing, metavar="FILE"
    ),
    word_confidence: str | None = option(
        "Measure of words' confidences: max_prob, gibbs, tsallis or renyi, or a file from `hf-ngpulm tune` [default: max_prob; "
        "none for encoder-decoders]."
    ),
    served_name: list[str] | None = option(
        "The model's name for clients, instead of its folder or id; may be repeated. OpenAI's names (whisper-1 ...) also work."
    ),
    address: Address,
    most: Most,
    on_cluster: Replicas,
    tick: float = option("Seconds that a chunk waits to share a batch with others.", default=0.08, min=0.001, max=10),
    json_logs: bool = option("Write logs as lines of JSON, including one per request.", default=False),
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve OpenAI's transcriptions (/v1/audio/transcriptions) and realtime transcription (/v1/realtime), a page for
    microphones and files (/), /docs, /health, /ready and /metrics.

    All clients are decoded as one batch, each with its own phrases. Models with attention (Whisper) take recordings only.

    By default the server accepts connections from this machine only. With --host for other machines, set keys and a
    certificate, or put a reverse proxy in front of the server.

    hf-ngpulm serve nvidia/parakeet-tdt-0.6b-v3 --lm org/my-lm --port 8765
    """
    named = dict(_named("--also-lm", text) for text in also_lm or ())
    grammars = dict(_named("--grammar", text) for text in grammar or ())
    if named and (decoding.lm is None or "default" in named or len(named) < len(also_lm or ())):
        raise ValueError("--also-lm needs --lm, whose name is default, and different names")
    if on_cluster.cluster is None:
        of_cluster = {"--replicas": on_cluster.replicas, "--num-gpus": on_cluster.num_gpus}
        library.refuse_idle(of_cluster, "needs a cluster; add --ray")
    else:
        local_only = {
            "--workers": None if address.workers == 1 else address.workers, "--wyoming": address.wyoming,
            "--tls-cert": address.tls_cert, "--tls-key": address.tls_key, "--json-logs": json_logs or None,
            "--port": None if address.port else 0,
        }  # fmt: skip
        library.refuse_idle(local_only, "can't be used with --ray; leave it out")
    library.certificate(address.tls_cert, address.tls_key)  # before the model is loaded
    if address.wyoming is not None:
        library.host_and_port(address.wyoming, address.workers > 1)
    options: dict[str, Any] = {
        "model": model, "decoding": decoding, "chunks": chunks, "rescoring": rescoring, "lms": named,
        "grammars": {name: library.Grammar.load(file) for name, file in grammars.items()},
        "names": served_name or [_name_of(model)], "limits": Limits(**vars(most)), "host": address.host,
        "corrections": corrections_in, "thresholds": thresholds, "word_confidence": word_confidence, "wyoming": address.wyoming,
        "keys": _keys(address.api_key, address.api_key_file), "origins": address.origin or (), "proxies": address.proxy or (),
        "tick": tick, "device": device, "shared": address.workers > 1,
    }  # fmt: skip
    if on_cluster.cluster is not None:
        _serve_on_cluster(on_cluster, options, address, as_json)
        return
    options |= {"tls": (address.tls_cert, address.tls_key), "json_logs": json_logs, "as_json": as_json}
    if address.workers > 1:
        raise typer.Exit(library.run_workers(address.workers, work, options, address.host, address.port))
    work(**options, port=address.port)


def _serve_on_cluster(on_cluster: Replicas, options: dict[str, Any], address: Address, as_json: bool) -> None:
    check_folder(options["model"])
    number, limits = on_cluster.number, options["limits"]
    most = number if isinstance(number, int) else number[1]
    cluster = library.cluster_of(on_cluster.cluster)
    assert isinstance(cluster, library.OnRay)
    _, num_gpus, num_cpus = cluster.placed(library.Actors(most, on_cluster.num_gpus))
    make = functools.partial(_in_replica, os.getcwd(), options)
    deployed = library.deployment(make, number, limits.clients, num_gpus, num_cpus)

    def told() -> None:
        at = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
        if as_json:
            print_json({"page": f"http://{at}/", "openai": f"http://{at}/v1"})
        else:
            print(f"http://{at}/ (OpenAI: http://{at}/v1); Ctrl-C to stop", file=sys.stderr, flush=True)
        _warn_if_open(address.host, options["keys"])

    library.serve_replicas(deployed, address.host, address.port, told)


def _in_replica(folder: str, options: dict[str, Any]) -> Any:
    """Return a replica's application. If the replica's machine has the folder `folder`, work in this folder."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    return application(**options)[0]


def application(
    *, model: str, decoding: Decoding, chunks: Chunks, rescoring: Rescoring, lms: dict[str, str],
    grammars: dict[str, library.Grammar], names: list[str], limits: Limits, host: str, wyoming: str | None, keys: list[str],
    origins: list[str], proxies: list[str], corrections: str | None, thresholds: str | None, word_confidence: str | None,
    tick: float, device: str | None, shared: bool,
) -> tuple[Any, Any, library.Access]:  # fmt: skip
    """Load the recogniser and return the server's application, the recogniser, and the access rules. `names`: the recogniser's
    names for clients. `shared`: whether several processes share the server's addresses.
    """
    recognizer = load_serving(model, device, decoding, chunks, limits.clients, list(lms.values()), rescoring, word_confidence)
    named_lms = dict(zip(["default", *lms], getattr(recognizer, "language_models", ())))
    read_thresholds = thresholds and library.thresholds_for(recognizer.model, thresholds)
    languages = [chunks.language] if chunks.language else ["en"]
    voices = library.Voices(names, named_lms, languages, grammars=grammars, thresholds=read_thresholds)
    warm_up(recognizer, **({"lm": named_lms["default"]} if len(named_lms) > 1 else {}))
    access = library.Access(origins, library.local_hosts(host, origins), proxies, keys)
    app = library.make_app(
        recognizer, limits, access, voices=voices, tick=tick, wyoming=wyoming, reuse_port=shared, corrections=corrections
    )
    return app, recognizer, access


def work(
    *, port: int, tls: tuple[str | None, str | None], json_logs: bool, as_json: bool, number: int = 0, **options: Any
) -> None:
    """Run a server. `options`: the arguments of `application`. `number`: number of this process. Only process 0 prints."""
    if json_logs:
        log_json()
    app, recognizer, access = application(**options)
    host, limits = options["host"], options["limits"]

    def told(at: str) -> None:
        if number:
            return
        secure = "s" if tls[0] else ""
        page, api = f"http{secure}://{at}/", f"http{secure}://{at}/v1"
        live = {} if isinstance(recognizer, library.AttentionRecognizer) else {"realtime": f"ws{secure}://{at}/v1/realtime"}
        plain = app[library.WYOMING]
        also = {} if plain is None else {"wyoming": plain.at}
        if as_json:
            print_json({"page": page, **live, "openai": api, **also})
        else:
            names = {"openai": "OpenAI", "realtime": "live audio", "wyoming": "Wyoming"}
            shown = [f"{names[kind]}: {at}" for kind, at in {"openai": api, **live, **also}.items()]
            shown += [] if live else ["recordings only"]
            print(f"{page} ({', '.join(shown)}); Ctrl-C to stop", file=sys.stderr, flush=True)
        _warn_if_open(host, options["keys"])

    def stopping() -> None:
        if not (number or as_json or json_logs):
            tell(f"stopping; received audio is decoded for up to {limits.shutdown_seconds:g} s")

    certificate = library.certificate(*tls)
    is_busy = asyncio.run(library.listen(app, host, port, limits, told, certificate, options["shared"], access, stopping))
    if is_busy:
        sys.stdout.flush()
        os._exit(0)


def _warn_if_open(host: str, keys: list[str]) -> None:
    if not keys and library.local_hosts(host) is None:
        tell(f"everybody who reaches {host} may use the server: it has no keys (--api-key-file, or {KEY})")


def _keys(given: list[str] | None, file: str | None) -> list[str]:
    """Return the access keys from the options, the file and the environment variable."""
    keys = [*(given or ()), *os.environ.get(KEY, "").split()]
    if file is not None:
        in_file = Path(file).read_text(encoding="utf-8").split()
        if not in_file:
            raise ValueError(f"{file}: holds no keys (one per line)")
        keys += in_file
    if any(not key.strip() for key in keys):
        raise ValueError("--api-key is empty; leave it out, or give a key")
    return keys


def _named(option: str, text: str) -> tuple[str, str]:
    name, _, source = text.partition("=")
    if not name or not source or name == "none":
        source = "LM" if option == "--also-lm" else "FILE"
        raise ValueError(f"{option} should be NAME={source} with a name other than none, got {text!r}")
    return name, source


def _name_of(model: str) -> str:
    """Return a model's name for clients. The name is the model's id, or the last part of the model's path."""
    return Path(model).resolve().name if os.path.exists(model) else model
