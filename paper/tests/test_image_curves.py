"""Curves of image scores on made-up numbers: merging, comparison, and the claims made of them."""

import time

import numpy as np
import pytest
from scipy.stats import spearmanr

from alws_paper.images import Cell, Point, architectures, compare, trainer
from alws_paper.images import others as images_others
from alws_paper.images.claims import (
    agreement_claim,
    both_claim,
    grouped,
    likelihood_claim,
    lowest_claim,
    particles_claim,
)
from alws_paper.images.curves import append_point, curve_of, read_points, score_at
from alws_paper.images.figure import figure
from alws_paper.images.grid import Finished, write_table


def points(epochs, seconds, frechet, kernel=None):
    kernel = frechet if kernel is None else kernel
    rows = zip(epochs, seconds, frechet, kernel, strict=True)
    return [Point(round(100 * e), e, s, f, k, 0.1) for e, s, f, k in rows]


def test_curves_are_merged_and_read_back(tmp_path):
    path = tmp_path / "curve.jsonl"
    for point in points([1, 2, 2, 3], [5, 10, 11, 12], [9, 8, 7, np.inf]):
        append_point(path, point)
    with path.open("a") as file:
        file.write('{"steps": 40')
    curve = curve_of(read_points(path))
    np.testing.assert_array_equal(curve.steps, [100, 200, 300])
    np.testing.assert_array_equal(curve.frechet, [9, 7, np.inf])
    append_point(tmp_path / "few.jsonl", Point(1, 1.0, 1.0, np.nan, 2.0, 0.1))
    assert np.isnan(read_points(tmp_path / "few.jsonl")[0].frechet)
    assert [p.steps for p in read_points(path, most_steps=200)] == [100, 200, 200]
    assert read_points(tmp_path / "none.jsonl") == []


SLOW = curve_of(points([5, 10, 17], [30, 60, 100], [50, 40, 30]))
QUICK = curve_of(points([5, 10, 20, 40], [10, 20, 50, 102], [80, 60, 45, 35]))
OTHER = curve_of(points([5, 10, 20, 40], [10, 20, 50, 102], [90, 70, 55, 25]))


def test_comparison_at_equal_epochs_is_at_the_last_common_mark():
    found = compare({"slow": [SLOW], "quick": [QUICK, OTHER]}, "epochs", "frechet")
    assert found.place == 10
    assert found.scores == {"slow": [40], "quick": [60, 70]}
    assert found.medians == {"slow": 40, "quick": 65}
    assert found.best(["slow", "quick"]) == "slow"
    assert found.lower("slow", "quick") is True
    assert found.best(["slow", "absent"]) is None
    apart = curve_of(points([3], [1], [1]))
    nowhere = compare({"slow": [SLOW], "apart": [apart]}, "epochs", "frechet")
    assert np.isnan(nowhere.place)
    assert nowhere.best(["slow", "apart"]) is None


def test_comparison_in_equal_time_is_at_the_shortest_run():
    found = compare({"slow": [SLOW], "quick": [QUICK, OTHER]}, "seconds", "frechet")
    assert found.place == 100
    np.testing.assert_allclose(found.scores["quick"], [35 + 10 * 2 / 52, 25 + 30 * 2 / 52])
    assert found.best(["slow", "quick"]) == "slow"
    assert np.isnan(score_at(SLOW, "seconds", 20.0, "frechet"))
    diverged = curve_of(points([1, 2], [10, 30], [5, np.inf]))
    assert score_at(diverged, "seconds", 20.0, "frechet") == np.inf


def finished(dataset, method, curve, generator="connected", **summary):
    cell = Cell(dataset, generator, method, 0)
    return Finished(cell, curve, np.zeros((100, 1, 32, 32), np.float32), summary)


def likelihoods(value, noise, refitted=False):
    numbers = {"log_likelihood": value, "log_likelihood_error": 0.2, "noise": noise}
    return {f"refitted_{name}": n for name, n in numbers.items()} if refitted else numbers


def test_claims_follow_from_the_curves():
    gan = curve_of(points([5, 10], [10, 200], [1, 1]))
    cells = [
        finished("mnist", "ALWS-A", SLOW, **likelihoods(-5.0, 1.0), **likelihoods(-2.0, 0.5, True)),
        finished("mnist", "VAE", QUICK, **likelihoods(-4.0, 0.7), **likelihoods(-3.0, 0.6, True)),
        finished("mnist", "AL-P", OTHER),
        finished("mnist", "WGAN-GP", gan),
    ]
    groups = grouped(cells)
    (group,) = groups
    assert str(group) == "mnist, connected"
    (epochs,) = lowest_claim(group, groups[group], "epochs", "frechet", "paper")
    assert epochs.holds
    assert (
        "median of 1: 40 against VAE's 60 after 10 epochs; 40 against AL-P's 70" in epochs.measured
    )
    (seconds,) = lowest_claim(group, groups[group], "seconds", "frechet", "paper")
    assert seconds.holds is False
    assert (epochs.source, seconds.source) == ("paper", "ours")
    with_both = {"ALWS-F": cells[:1]} | groups[group]
    (both,) = both_claim(group, with_both, "epochs", "frechet", "paper")
    assert both.holds
    assert "lower in 4 of 4 pairs: ALWS-F 40, VAE 60" in both.measured
    assert not both_claim(group, with_both, "seconds", "frechet", "paper")[0].holds
    assert both_claim(group, groups[group], "seconds", "frechet", "paper") == []
    trained, refitted = likelihood_claim(group, groups[group])
    assert not trained.holds
    assert "VAE -4 (σ 0.7), ALWS-A -5 (σ 1); standard" in trained.measured
    assert refitted.holds
    assert "ALWS-A -2 (σ 0.5), VAE -3 (σ 0.6)" in refitted.measured
    (particles,) = particles_claim(groups)
    assert not particles.holds
    assert "25 against 35 after 40 epochs" in particles.measured
    cells[1], cells[2] = finished("mnist", "VAE", OTHER), finished("mnist", "AL-P", QUICK)
    assert particles_claim(grouped(cells))[0].holds
    assert particles_claim({group: {"VAE": cells[1:2]}}) == []
    assert lowest_claim(group, {"VAE": cells[1:2]}, "epochs", "frechet", "") == []


def test_claims_are_undecided_where_seeds_overlap_or_the_budget_is_short():
    near = curve_of(points([5, 10], [10, 20], [50, 41]))
    cells = {"ALWS-A": [SLOW, near], "VAE": [QUICK], "RWS": [OTHER]}
    runs = [finished("mnist", name, curve) for name, of in cells.items() for curve in of]
    groups = grouped(runs)
    (group,) = groups
    (claim,) = lowest_claim(group, groups[group], "epochs", "frechet", "paper")
    assert claim.holds
    lying = curve_of(points([5, 10], [10, 20], [50, 61]))
    (claim,) = lowest_claim(
        group,
        groups[group] | {"ALWS-A": [*groups[group]["ALWS-A"], finished("mnist", "ALWS-A", lying)]},
        "epochs",
        "frechet",
        "paper",
    )
    assert (claim.holds, claim.undecided) == (None, "seeds or standard errors overlap")
    early = [one._replace(curve=curve_of(points([1], [5], [30 + i]))) for i, one in enumerate(runs)]
    (claim,) = lowest_claim(group, grouped(early)[group], "epochs", "frechet", "paper")
    assert claim.holds is None
    assert claim.undecided.startswith("2 % of the paper's budget")
    unshown = [one._replace(curve=curve_of(points([9], [5], [np.nan], [1.0]))) for one in runs]
    assert lowest_claim(group, grouped(unshown)[group], "epochs", "frechet", "paper") == []
    (claim,) = lowest_claim(group, grouped(unshown)[group], "epochs", "kernel", "paper")
    assert claim.holds is None  # all alike
    fixed = [finished("mnist", "ALWS-A", SLOW, adapted_steps=0), *runs[2:]]
    (claim,) = lowest_claim(group, grouped(fixed)[group], "epochs", "frechet", "paper")
    assert claim.undecided == "the run ended before ALWS-A began to adapt"


def test_claims_on_graphs():
    scores = {"direct": 10.0, "skip": 14.0, "merged": 11.0, "feedback": 12.0, "feedback-skip": 13.0}
    curves = {name: curve_of(points([9], [5], [value])) for name, value in scores.items()}
    cells = [finished("mnist", "ALWS-A", curve, name) for name, curve in curves.items()]
    found = architectures.compared(architectures.by_graph(cells, "mnist"), "frechet")
    assert architectures.spread_claim("mnist", found).holds
    assert architectures.order_claim("mnist", found).holds
    worse = found._replace(scores={**found.scores, "direct": [13.5], "skip": [21.0]})
    assert not architectures.spread_claim("mnist", worse).holds
    assert not architectures.order_claim("mnist", worse).holds


def test_the_parts_of_the_other_sets():
    binarised, digits, convolved, *slow = images_others.EXPERIMENT.presets["desk"].parts()
    assert {(c.dataset, c.generator) for c in binarised.cells()} == {("b-mnist", "connected")}
    assert {(c.dataset, c.generator) for c in digits.cells()} == {("mnist", "connected")}
    assert {(c.dataset, c.generator) for c in convolved.cells()} == {("mnist", "dcgan")}
    assert convolved.seconds > digits.seconds
    assert {c.method for plan in slow for c in plan.cells()} == {"ALWS-F", "ALWS-A", "VAE"}
    assert sum(len(plan.cells()) for plan in slow) == 9
    sizes = (60_000, 100_000, 10_000, 9_000)
    waits = [p.adapt(n).after for p, n in zip((digits, *slow), sizes, strict=True)]
    assert waits == [18, 20, 10, 9]


def test_agreement_is_the_rank_correlation():
    names = ("ALWS-A", "VAE", "AL-P", "SIVI")
    scores = {"connected": (10, 20, 30, 40), "dcgan": (5, 80, 60, 90)}
    cells = [
        finished("mnist", name, curve_of(points([1], [5], [value])), generator)
        for generator, values in scores.items()
        for name, value in zip(names, values, strict=True)
    ]
    expected = spearmanr(scores["connected"], scores["dcgan"]).statistic  # pyright: ignore
    for claim in agreement_claim(grouped(cells)):
        assert f"rank correlation {expected:.2g};" in claim.measured
        assert claim.holds
    for worse in agreement_claim(grouped([*cells[:7], cells[7]._replace(curve=SLOW)])):
        assert not worse.holds
    assert agreement_claim(grouped(cells[:4])) == []
    early = [50 + value / 10 for value in scores["dcgan"]]  # the same order, all near the start
    untrained = [
        one._replace(curve=curve_of(points([1], [5], [value])))
        for one, value in zip(cells[4:], early, strict=True)
    ]
    for claim in agreement_claim(grouped([*cells[:4], *untrained])):
        assert claim.holds is None
        assert "not measured: of the DCGAN after" in claim.measured


def test_methods_never_scored_at_the_same_epoch_are_said_to_be_so():
    apart = curve_of(points([3], [10], [5]))
    cells = [
        finished("mnist", method, curve, generator)
        for generator in ("connected", "dcgan")
        for method, curve in (("ALWS-A", SLOW), ("VAE", QUICK), ("RWS", apart))
    ]
    groups = grouped(cells)
    group = next(iter(groups))
    (lowest,) = lowest_claim(group, groups[group], "epochs", "frechet", "paper")
    assert lowest.holds is None
    assert lowest.undecided == "methods were never scored at equal epochs"
    assert "no epoch at which both it and RWS were scored" in lowest.measured
    agreement, in_time = agreement_claim(groups)
    assert agreement.holds is None
    assert "rank correlation" in in_time.measured
    assert agreement.measured.startswith("not measured")


def test_the_table_has_a_line_for_each_cell(tmp_path):
    last = {"steps": 10, "epochs": 0.5, "seconds": 3.0, "frechet": None, "kernel": 1.25}
    cells = [
        finished("mnist", "VAE", SLOW, **last, kernel_error=0.5, log_likelihood=-4.0),
        finished("mnist", "AL-P", OTHER, **last, kernel_error=0.5),
    ]
    write_table(cells, tmp_path / "scores.csv")
    head, first, second = (tmp_path / "scores.csv").read_text().splitlines()
    assert head.startswith("dataset,generator,method,seed,steps,epochs,seconds,frechet,kernel,")
    assert head.endswith(",kernel_error,log_likelihood")
    assert first == "mnist,connected,VAE,0,10,0.5,3,,1.25,0.5,-4"
    assert second == "mnist,connected,AL-P,0,10,0.5,3,,1.25,0.5,"


def test_the_figure_shows_every_dot_and_names_the_network():
    cells = [
        finished("mnist", method, curve, extractor="LeNet (mnist)")
        for method, curve in (("ALWS-A", SLOW), ("AL-P", QUICK), ("VAE", OTHER))
    ]
    data = {"mnist": np.zeros((20, 1, 32, 32), np.float32)}
    drawn = figure(grouped(cells), data, "the setting")
    assert drawn.get_suptitle() == "the setting"
    top, bottom = drawn.subfigs
    assert "LeNet (mnist)" in top.get_suptitle()
    for place in top.axes:
        assert place.get_ylabel().endswith("distance")
        low, high = place.get_ylim()
        dots = np.concatenate([line.get_ydata() for line in place.get_lines()])
        assert low < dots.min()
        assert high > dots.max() + 0.02 * (high - low)
    assert [text.get_text() for text in top.legends[0].get_texts()] == ["ALWS-A", "AL-P", "VAE"]
    assert [place.get_ylabel() for place in bottom.axes] == ["data", "ALWS-A", "AL-P", "VAE"]


@pytest.mark.parametrize(("cores", "clock"), [({3}, "process_time"), ({0, 1}, "perf_counter")])
def test_a_process_held_to_one_core_counts_its_work(cores, clock, monkeypatch):
    monkeypatch.setattr(trainer.os, "sched_getaffinity", lambda pid: cores, raising=False)
    assert trainer.Stopwatch().clock is getattr(time, clock)
