"""Provide the library's names for commands. A name is imported on first access, so `--help` needs no torch and no extras."""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from ..common.lazy import attributes_of

if TYPE_CHECKING:
    from ..audio import StreamingRecognizer
    from ..audio.events import final_event, partial_event
    from ..audio.microphone import microphone_pieces
    from ..audio.subtitles import segments, subtitles
    from ..common.checks import check, one_of, refuse_idle
    from ..common.cluster import Actors, OnRay, cluster_of
    from ..config.of_models import refuse_other
    from ..corrections import CorrectionLog
    from ..corrections.lessons import as_terms
    from ..decoding.calibration import confidence_for
    from ..decoding.families import is_seq2seq
    from ..decoding.thresholds import thresholds_for
    from ..evaluation.confidences import ConfidenceBin, ConfidenceTuning, tune_confidence
    from ..evaluation.evaluating import evaluate
    from ..evaluation.grammars import GrammarTuning, OperatingPoint, tune_grammar
    from ..evaluation.phrases import LookPoint, PhraseTuning, tune_phrases
    from ..evaluation.recognition import faint_noise, without_lm
    from ..evaluation.recording_sources import EXTENSIONS, MANIFESTS, audio_files, read_recordings
    from ..evaluation.recordings import Recording, Recordings, listed
    from ..evaluation.results import EDITS, Compared, Evaluation, read_results
    from ..evaluation.transcribing import Transcriber, transcribe_into, transcribed, write_parquet
    from ..evaluation.tuning import TuningPoint, TuningResult, tune_weights
    from ..formats.arpa import write_arpa
    from ..formats.files import KENLM, format_of
    from ..formats.kenlm import KenLMFile
    from ..formats.safetensors import CONFIG_FILE, WEIGHTS_FILE
    from ..grammar.grammar import Grammar
    from ..language_model.hub import CARD_FILE, is_as_written
    from ..language_model.interpolation import fitted_weights
    from ..language_model.loading import load_language_model
    from ..language_model.model import NGramLM
    from ..language_model.pruning import prune_table
    from ..language_model.training import Training, train
    from ..ngrams.kneser_ney import DISCOUNT_FALLBACK
    from ..phrases import Phrase
    from ..phrases.files import read_phrase_file
    from ..pipelines.base import OF_LOOKS
    from ..pipelines.loading import load_pipeline
    from ..rescoring import load_rescorer, sampled_sentences, selected_sentences
    from ..serving.access import Access, local_hosts
    from ..serving.app import WYOMING, make_app
    from ..serving.attention import AttentionRecognizer
    from ..serving.process import certificate, listen, run_workers
    from ..serving.replicas import deployment, serve_replicas
    from ..serving.requests import Voices
    from ..serving.wyoming import host_and_port

__getattr__ = attributes_of(__name__, __file__)
