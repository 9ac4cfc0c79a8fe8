"""hf-ngpulm evaluate: figures, comparisons, exit statuses, and users' mistakes."""

import json

import pytest
import soundfile

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.common.cluster import InProcess
from hf_ngpulm.evaluation import evaluating

DEMO = bundled("examples/speech/harbour")
MODEL, CLIPS, ARPA = str(bundled("examples/models/ctc")), str(DEMO / "clips.jsonl"), str(DEMO / "lm.arpa.gz")


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_with_baseline_and_comparison(tmp_path, capsys):
    greedy, beam = str(tmp_path / "greedy.jsonl"), str(tmp_path / "beam.jsonl")
    command = ["evaluate", MODEL, CLIPS, "--device", "cpu", "--lm", ARPA]
    assert run([*command, "--lm-weight", "0.9", "--output", greedy, "--json"]) == 0
    (alone,) = lines(capsys)
    options = ["--lm-weight", "1.0", "--num-beams", "8", "--baseline", "--compare", greedy, "--output", beam]
    assert run([*command, *options, "--json"]) == 0
    with_lm, without, to_baseline, to_greedy = lines(capsys)
    assert with_lm["wer"] < alone["wer"] < without["wer"] and with_lm["words"] == 570
    assert to_baseline["difference"] == pytest.approx(with_lm["wer"] - without["wer"]) and to_baseline["p_value"] < 0.01
    assert to_greedy["compared_with"] == greedy and to_greedy["other_wer"] == pytest.approx(alone["wer"])
    assert with_lm["rtfx_decoder"] > with_lm["rtfx"] > 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "beam.baseline.jsonl", "beam.baseline.summary.json", "beam.jsonl", "beam.summary.json", "greedy.jsonl",
        "greedy.summary.json",
    ]  # fmt: skip
    # Again, as a table: nothing is done anew, so that the figures of the first time stand.
    assert run([*command, *options]) == 0
    shown = capsys.readouterr().out
    assert f"{with_lm['wer']:.2f}" in shown and f"{without['wer']:.2f}" in shown and "Against baseline: WER -" in shown
    assert run([*command, *options, "--no-resume"]) == 2
    assert "beam.jsonl exists" in capsys.readouterr().err
    assert run([*command, "--lm-weight", "0.8", "--output", greedy]) == 2
    assert "lm_weight is 0.9 there and 0.8 here" in capsys.readouterr().err


def few_clips(tmp_path, count):
    clips = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:count]
    rows = [{"audio": str(DEMO / clip["audio"]), "text": clip["text"]} for clip in clips]
    (tmp_path / "few.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path / "few.jsonl")


def test_the_baseline_searches_as_the_run_with_the_lm_does(tmp_path, capsys):
    """With as many beams, also where nobody but the LM says how many; as does what `tune` compares with."""
    data, saved = few_clips(tmp_path, 12), str(tmp_path / "lm")
    assert run(["convert", ARPA, saved, "--tokenizer", MODEL]) == 0
    capsys.readouterr()
    tune = ["tune", MODEL, data, "--lm", saved, "--lm-weight", "1.0", "--num-beams", "3", "--device", "cpu", "--save", "--json"]
    assert run(tune) == 0
    tuned = lines(capsys)[-1]
    command, found = ["evaluate", MODEL, data, "--device", "cpu", "--json"], str(tmp_path / "found.jsonl")
    capsys.readouterr()
    assert run([*command, "--lm", saved, "--baseline", "--output", found]) == 0
    baseline = lines(capsys)[1]
    assert baseline["wer"] == pytest.approx(100 * tuned["baseline"]["wer"])
    assert json.loads((tmp_path / "found.baseline.summary.json").read_text())["settings"]["num_beams"] == 3
    assert run([*command, "--num-beams", "3"]) == 0
    names = ("wer", "cer", "substitutions", "deletions", "insertions")
    (alone,) = lines(capsys)
    assert [alone[name] for name in names] == [baseline[name] for name in names]
    assert run([*command[:-1], "--lm", saved, "--baseline", "--output", found]) == 0
    assert "the same search, num_beams 3" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--strategy", "graph"], ["--phrases", "lighthouse", "--phrase-weight", "2"]])
def test_the_baseline_on_a_cluster(tmp_path, capsys, monkeypatch, more):
    monkeypatch.setattr(evaluating, "cluster_of", lambda _: InProcess())
    command = ["evaluate", MODEL, few_clips(tmp_path, 4), "--lm", ARPA, "--lm-weight", "0.8", "--beta", "0.5", *more]
    command += ["--num-beams", "3"] if "--strategy" not in more else []
    found = []
    for given in ([], ["--ray"]):
        assert run([*command, "--device", "cpu", "--baseline", "--json", *given]) == 0
        found.append([(line["run"], line["wer"], line.get("difference")) for line in lines(capsys)])
    assert found[0] == found[1] and found[0][1][1] > found[0][0][1]


def test_the_baseline_of_a_graph_is_that_graph_without_weights(tmp_path, capsys):
    command = ["evaluate", MODEL, few_clips(tmp_path, 3), "--device", "cpu", "--lm", ARPA, "--strategy", "graph", "--json"]
    assert run([*command, "--lm-weight", "1.0", "--baseline"]) == 0
    _, baseline, _ = lines(capsys)
    assert run([*command, "--lm-weight", "0", "--beta", "0"]) == 0
    assert lines(capsys)[0]["wer"] == baseline["wer"]


def test_the_baseline_subtracts_nothing(tmp_path, capsys):
    command = ["evaluate", MODEL, few_clips(tmp_path, 4), "--device", "cpu", "--lm", ARPA, "--baseline", "--json"]
    assert run([*command, "--source-lm", ARPA, "--source-weight", "0.1"]) == 0
    with_lm, without, _ = lines(capsys)
    assert run(command) == 0
    assert lines(capsys)[1]["wer"] == without["wer"] > with_lm["wer"]


def test_phrases_from_entities_and_a_file(tmp_path, capsys):
    clips = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:6]
    rows = [{"audio": str(DEMO / c["audio"]), "text": c["text"], "names": [" ".join(c["text"].split()[-2:])]} for c in clips]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "phrases.txt").write_text("something else\nnobody said\n")
    command = ["evaluate", MODEL, str(tmp_path / "m.jsonl"), "--device", "cpu", "--entities-field", "names", "--json"]
    options = ["--phrases", "from-entities", "--phrases", str(tmp_path / "phrases.txt"), "--phrase-weight", "2"]
    assert run([*command, *options, "--num-beams", "4", "--baseline"]) == 0
    boosted, plain, _ = lines(capsys)
    assert boosted["entity_words"] == 12 and boosted["entity_recall"] > plain["entity_recall"]
    assert run(["evaluate", MODEL, CLIPS, "--phrases", "from-entities"]) == 2
    assert "no recording has entities" in capsys.readouterr().err


def test_exit_status_says_that_audio_was_skipped(tmp_path, capsys):
    audio, rate = soundfile.read(DEMO / "clips" / "00.flac")
    for name in ("a", "b", "c"):
        soundfile.write(tmp_path / f"{name}.wav", audio, rate)
        (tmp_path / f"{name}.txt").write_text("set a course for the old lighthouse and go half speed")
    (tmp_path / "b.wav").write_bytes(b"RIFF....WAVE broken")
    (tmp_path / "c.txt").unlink()
    command = ["evaluate", MODEL, str(tmp_path), "--device", "cpu"]
    assert run([*command, "--json"]) == 3
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert figures["unreadable"] == ["b.wav"] and figures["scored"] == figures["without_transcript"] == 1
    assert "b.wav: can't be read as audio" in err and "1 of 3 recordings could not be read" in err
    assert run(command) == 3
    table = capsys.readouterr().out
    assert "unreadable, skipped" in table and "without transcript" in table


def test_transcripts_that_cannot_be_written(tmp_path, capsys):
    row = {"audio": str(DEMO / "clips" / "00.flac"), "text": "SET A COURSE"}
    (tmp_path / "m.jsonl").write_text(json.dumps(row))
    assert run(["evaluate", MODEL, str(tmp_path / "m.jsonl"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["wer"] >= 100 and "100% of the letters" in err and "normalisation" in err
    for normalise in ("basic", "english", "lower"):
        assert run(["evaluate", MODEL, str(tmp_path / "m.jsonl"), "--json", "--normalise", normalise]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["substitutions"] == 0 and not err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline"], "--baseline leaves out language model"),
        (["--lm-weight", "0.5"], "lm_weight given without lm="),
        (["--strategy", "alsd"], "strategy"),
        (["--beta", "1"], "beta"),
        (["--confidence", "95"], "--confidence should lie between 0 and 1"),
        (["--normalise", "klingon"], "normalise should be"),
        (["--dtype", "int8"], "dtype should be float32"),
        (["--compare", "/no/such.jsonl"], "/no/such.jsonl"),
        (["--split", "test"], "no split"),
        (["--text-field", "words"], "no field 'words'"),
        (["--no-resume"], "--no-resume without --output"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert run(["evaluate", MODEL, CLIPS, *arguments]) == 2
    _, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1


def test_no_data(tmp_path, capsys):
    assert run(["evaluate", MODEL, str(tmp_path / "gone.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert run(["evaluate", MODEL, str(tmp_path)]) == 2
    assert "holds no recordings" in capsys.readouterr().err
