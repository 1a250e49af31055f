"""What runs beside a fit: its file of metrics after a crash, and what callbacks may be and say."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoint import DATA, SETTINGS, Normal

import alws
from alws.callbacks import Report


class Crash(Exception):
    pass


def fit(path, callbacks, resume=False, steps=8):
    return alws.fit(
        Normal(jnp.array(0.0)),
        DATA,
        key=jax.random.key(0),
        steps=steps,
        settings=alws.Settings(measure_every=1, adapt=alws.ALWS_F, **SETTINGS),
        checkpoint=path,
        checkpoint_every=3,
        callbacks=callbacks,
        resume=resume,
    )


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("again", ["the same object", "a new one"])
def test_metrics_of_steps_done_again_are_written_once(tmp_path, again):
    def crash(report):
        if report.step == 5:
            raise Crash

    files = [alws.MetricsFile(tmp_path / "killed.jsonl"), alws.MetricsFile(tmp_path / "whole")]
    with pytest.raises(Crash):
        fit(tmp_path / "c.npz", [files[0], crash])
    with files[0].path.open("a") as file:
        file.write('{"objective": 1.2, "st')
    assert len(files[0].path.read_text().splitlines()) == 6
    if again == "a new one":
        files[0] = alws.MetricsFile(files[0].path)
    fit(tmp_path / "c.npz", [files[0]], resume=True)
    fit(None, [files[1]])
    assert steps_in(files[0].path) == list(range(1, 9))
    assert files[0].path.read_text() == files[1].path.read_text()


def report(step):
    return Report(step, 10, {"objective": 1.0}, None)


def test_what_another_fit_wrote_stays(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    for _ in range(2):
        file = alws.MetricsFile(path)
        for step in (1, 5, 9):
            file(report(step))
    alws.MetricsFile(path)(report(6))
    assert steps_in(path) == [1, 5, 9, 1, 5, 6]


@pytest.mark.parametrize("content", [b"some notes", b"\xff\xfe\x00", b'{"step": 1}'])
def test_what_is_no_half_line_stays(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    alws.MetricsFile(path)(report(3))
    first, second = path.read_bytes().splitlines()
    assert first == content
    assert json.loads(second)["step"] == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: alws.MetricsFile(3), "`path` must be that of a file, got 3"),
        (lambda: alws.MetricsFile("/"), "`path` must be that of a file, got the folder /"),
        (lambda: alws.MetricsFile("m", trace=3), "`trace` must be a function, of the model"),
        (lambda: alws.EarlyStopping(patience="a"), "`patience` must be a whole number"),
        (lambda: alws.EarlyStopping(patience=0), "`patience` must be a whole number"),
        (lambda: alws.EarlyStopping(window=0), "`window` must be a whole number"),
        (lambda: alws.EarlyStopping(least=np.nan), "`least` must be at least 0, got nan"),
        (lambda: alws.EarlyStopping(score=0.5), "`score` must be a function, of the model"),
    ],
)
def test_bad_settings_of_callbacks_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("answer", ["no", 1, [], np.array([True, False])])
def test_a_callback_answers_yes_no_or_nothing(answer):
    with pytest.raises(TypeError, match="must return True to stop the fit, or False or None"):
        fit(None, [lambda report: answer], steps=1)


@pytest.mark.parametrize("answer", [None, False, np.bool_(False), jnp.array(False)])
def test_a_fit_goes_on_where_a_callback_does_not_stop_it(answer):
    assert fit(None, [lambda report: answer], steps=2).steps == 2


def test_a_trace_is_a_dictionary(tmp_path):
    with pytest.raises(TypeError, match=r"`trace\(model\)` must return a dictionary"):
        alws.MetricsFile(tmp_path / "m", trace=lambda model: 3)(report(1))


def test_a_full_disk_is_told_and_does_not_end_the_fit():
    with pytest.warns(RuntimeWarning, match="/dev/full could not be written .* The fit goes on"):
        assert fit(None, [alws.MetricsFile("/dev/full")], steps=2).steps == 2


@pytest.mark.parametrize("callbacks", [None, print, "stop", [alws.EarlyStopping], [3]])
def test_callbacks_are_a_list_of_functions(callbacks):
    with pytest.raises(TypeError, match="`callbacks` must be"):
        fit(None, callbacks)


def test_what_a_callback_raises_at_the_end_leaves_the_result():
    def fail(report):
        if report.step == report.steps:
            raise Crash("too late")

    with pytest.warns(RuntimeWarning, match="the callback fail must not fail"):
        assert fit(None, [fail], steps=2).steps == 2


@pytest.mark.parametrize("value", [np.ones(3), "high", None, 1j])
def test_what_a_trace_or_a_score_gives_is_one_number(tmp_path, value):
    with pytest.raises(TypeError, match=r"a dictionary of numbers; 'mean' is"):
        alws.MetricsFile(tmp_path / "m.jsonl", lambda model: {"mean": value})(report(1))
    with pytest.raises(TypeError, match=r"`score\(model\)` must return one number, got"):
        alws.EarlyStopping(score=lambda model: value)(report(1))


def test_a_score_that_is_no_number_any_more_is_told():
    stopping = alws.EarlyStopping(score=lambda model: np.nan, patience=2)
    with pytest.warns(RuntimeWarning, match="at step 1 it is NaN, which counts as no rise"):
        assert not stopping(report(1))
