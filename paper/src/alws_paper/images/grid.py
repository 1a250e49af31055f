"""Run the cells of a plan, each in a folder of its own, so that a run can stop and go on anywhere.

A cell's folder holds `curve.jsonl` (a line for each score), `checkpoint.npz`, and when it is
finished `samples.npz`, `samples.png` and `done.json`. Finished cells are not run again; one that
was stopped goes on from its checkpoint, and the seconds it has had count towards its budget. Time
spent on scores, checkpoints and compilation is no part of the budget. What is read of a finished
cell, its curve, pictures and summary, is small enough to be kept beside the code.

With several workers each has one core, so that all cells have the same machine, and its budget is
that core's time: on a quiet machine the same as wall-clock time, on a busy one still fair.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
from jaxtyping import Float

import alws
from alws import checkpoint as checkpoints
from alws.regressions.base import one_lapack_thread
from alws_paper.images.curves import Curve, Point, append_point, curve_of, read_points, write_points
from alws_paper.images.data.images import Images, images
from alws_paper.images.likelihood import COLUMNS, held_out
from alws_paper.images.plan import Cell, Marks, Plan, has_likelihood, method_of
from alws_paper.images.scorer import Scorer, draw_pictures
from alws_paper.images.trainer import Trained, train
from alws_paper.run import commit

SHOWN = 100
"""Pictures kept of each cell."""
Notice = Callable[[Cell, Point], None]
Progress = Callable[[int, int], None]
Task = tuple[Cell, Plan]
POLL = 1.0
IMAGES = "training_images"
"""In the summary: the size of the data set."""
ADAPTED = "adapted_steps"
"""In the summary of ALWS-A: how many steps its kernel was adapted in."""


class Finished(NamedTuple):
    """A finished cell: its curve, its pictures (black 0, white 1) and what `done.json` says."""

    cell: Cell
    curve: Curve
    samples: Float[np.ndarray, "pictures channels height width"]
    summary: dict[str, Any]


def run_cell(cell: Cell, plan: Plan, directory: Path, notice: Notice | None = None) -> Finished:
    """Train and score one cell, or go on with it, or read it if it is finished.

    Example: `run_cell(Cell("mnist", "connected", "VAE", 0), plan, Path("runs/mine"))`.
    """
    folder = directory / cell.name
    if (folder / "done.json").exists():
        return read_cell(cell, directory)
    folder.mkdir(parents=True, exist_ok=True)
    data = images(cell.dataset, train=plan.data_size)  # pyright: ignore
    method = method_of(cell, plan, data)
    scorer = Scorer(
        data, number=plan.pictures(cell.dataset), cache=directory, extractor=plan.extractor
    )
    train_key, score_key, likelihood_key = jax.random.split(jax.random.key(cell.seed), 3)
    curve, checkpoint = folder / "curve.jsonl", folder / "checkpoint.npz"
    steps, seconds = _reached(checkpoint)
    write_points(curve, read_points(curve, most_steps=steps))
    number = len(data.train)

    def score(trained: Trained) -> None:
        frechet, kernel = scorer(method.generator(trained.state), score_key)
        epochs = trained.steps / plan.per_epoch(number)
        point = Point(trained.steps, epochs, trained.seconds, frechet, *kernel)
        append_point(curve, point)
        if notice is not None:
            notice(cell, point)

    fit = partial(
        train,
        method,
        jnp.asarray(data.train),
        key=train_key,
        batch_size=plan.batch_size,
        checkpoint=checkpoint,
    )
    if steps and steps not in (point.steps for point in read_points(curve)):
        with one_lapack_thread():  # it was stopped between checkpoint and score
            score(fit(steps=steps))
    trained = fit(
        steps=plan.steps(number, cell.method),
        seconds=plan.seconds,
        when=Marks(plan, number, steps, seconds),
        report=score,
    )
    model = method.generator(trained.state)
    _save_samples(folder, draw_pictures(model, score_key, SHOWN), data)
    summary = read_points(curve)[-1]._asdict()
    summary = {k: v if np.isfinite(v) else None for k, v in summary.items()}
    summary |= {"extractor": scorer.name, "note": data.note, IMAGES: number, "commit": commit()}
    if cell.method == "ALWS-A":
        summary[ADAPTED] = max(0, trained.steps - plan.adapt(number).after)
    if plan.annealed and has_likelihood(cell):
        summary |= held_out(model, data, plan, likelihood_key)
    _write(folder / "done.json", json.dumps(summary, indent=2))
    return read_cell(cell, directory)


def read_cell(cell: Cell, directory: Path) -> Finished:
    """A finished cell from its folder."""
    folder = directory / cell.name
    with np.load(folder / "samples.npz", allow_pickle=False) as archive:
        samples = archive["samples"].astype(np.float32) / 255
    summary = json.loads((folder / "done.json").read_text())
    return Finished(cell, curve_of(read_points(folder / "curve.jsonl")), samples, summary)


def run_grid(
    plans: Sequence[Plan],
    directory: Path,
    *,
    notice: Notice | None = None,
    progress: Progress | None = None,
    finished_only: bool = False,
) -> list[Finished]:
    """Run every cell of the plans that is not finished; all of them, in the plans' order.

    `progress(finished, cells)` is called whenever a cell ends; `notice(cell, point)` at every
    score, if there is one worker. With `finished_only` nothing is run.

    Example: `run_grid([plan], Path("runs/mine"))`, and the same again after it was stopped.
    """
    tasks = tasks_of(plans)
    if finished_only:
        return [read_cell(cell, directory) for cell, _ in tasks if is_done(cell, directory)]
    for dataset in dict.fromkeys(cell.dataset for cell, _ in tasks):
        images(dataset, train=1, test=1)  # pyright: ignore  # say at once that data are missing
    left = [task for task in tasks if not is_done(task[0], directory)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    workers = min(max(plan.workers for plan in plans), len(cores), len(left))

    def tell() -> None:
        if progress is not None:
            progress(sum(is_done(cell, directory) for cell, _ in tasks), len(tasks))

    tell()
    if workers > 1:
        share(left, directory, cores[:workers], tell)
    else:
        for cell, plan in left:
            run_cell(cell, plan, directory, notice)
            _let_go()
            tell()
    return [read_cell(cell, directory) for cell, _ in tasks]


def tasks_of(plans: Sequence[Plan]) -> list[Task]:
    """Every cell with its plan, in the plans' order.

    Example: `[cell.name for cell, _ in tasks_of([plan])]`.
    """
    return [(cell, plan) for plan in plans for cell in plan.cells()]


def is_done(cell: Cell, directory: Path) -> bool:
    """Whether a cell is finished.

    Example: `is_done(Cell("mnist", "connected", "VAE", 0), Path("runs/mine"))`.
    """
    return (directory / cell.name / "done.json").exists()


def share(tasks: list[Task], directory: Path, cores: list[int], tell: Callable[[], None]) -> None:
    """Let one process on each core take tasks until there are none left."""
    context = multiprocessing.get_context("spawn")
    queue, allowed = context.Queue(), os.sched_getaffinity(0)
    for task in (*tasks, *(None for _ in cores)):
        queue.put(task)
    workers = []
    for core in cores:
        os.sched_setaffinity(0, {core})  # inherited, before the process starts any thread
        arguments = (queue, directory, os.getpid())
        workers.append(context.Process(target=_work, args=arguments, daemon=True))
        workers[-1].start()
        os.sched_setaffinity(0, allowed)
    while any(worker.is_alive() for worker in workers):
        for worker in workers:
            worker.join(timeout=POLL)
        tell()
    left = [task[0].name for task in tasks if not is_done(task[0], directory)]
    if left:
        raise RuntimeError(
            f"a worker stopped before {len(left)} runs were finished, such as {left[0]}; what it "
            "printed says why. The same command goes on from there."
        )


def _work(queue: Any, directory: Path, parent: int) -> None:
    """Take tasks from the queue; stop at the next score once the parent is gone."""

    def notice(cell: Cell, point: Point) -> None:
        if os.getppid() != parent:
            raise SystemExit("the process that shared out the runs is gone")

    alws.enable_compilation_cache()
    while (task := queue.get()) is not None:
        cell, plan = task
        run_cell(cell, plan, directory, notice)
        _let_go()


def _let_go() -> None:
    """Drop what was compiled for a cell; the next has other shapes or another method."""
    eqx.clear_caches()
    jax.clear_caches()


def examples(dataset: str, number: int = SHOWN) -> Float[np.ndarray, "n channels height width"]:
    """Some test images, black 0 and white 1.

    Example: `examples("mnist", 20).shape == (20, 1, 32, 32)`.
    """
    data = images(dataset, train=1, test=number)  # pyright: ignore
    shown = (data.test[:number] - data.black) / (data.white - data.black)
    return np.clip(np.asarray(shown, np.float32), 0, 1)


def _reached(checkpoint: Path) -> tuple[int, float]:
    if not checkpoint.exists():
        return 0, 0.0
    header = checkpoints.header(checkpoint)
    return header["steps"], header["seconds"]


def _save_samples(folder: Path, pictures: np.ndarray, data: Images) -> None:
    """As bytes in `samples.npz`, and as one picture of ten rows."""
    shown = np.nan_to_num((pictures - data.black) / (data.white - data.black))
    whole = np.round(255 * np.clip(shown, 0, 1)).astype(np.uint8)
    np.savez_compressed(folder / "samples.npz", samples=whole)
    matplotlib.image.imsave(folder / "samples.png", mosaic(whole, 10), cmap="gray")


def mosaic(pictures: np.ndarray, columns: int) -> np.ndarray:
    """Pictures side by side, row by row: [h, w] for grey ones, [h, w, 3] for coloured.

    Example: `mosaic(np.zeros((20, 1, 32, 32)), 10).shape == (64, 320)`.
    """
    rows = len(pictures) // columns
    _, channels, height, width = pictures.shape
    tiles = pictures[: rows * columns].reshape(rows, columns, channels, height, width)
    whole = tiles.transpose(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels)
    return whole[:, :, 0] if channels == 1 else whole


def write_table(finished: Sequence[Finished], path: Path) -> None:
    """A line for each cell: what it is, its last scores, its held-out likelihood if any has one.

    Example: `write_table(run_grid([plan], directory), directory / "scores.csv")`.
    """
    likelihood = [name for name in COLUMNS if any(name in one.summary for one in finished)]
    columns = (*Point._fields, *likelihood)
    rows = [",".join(("dataset", "generator", "method", "seed", *columns))]
    for cell, _, _, summary in finished:
        values = [summary.get(name) for name in columns]
        numbers = ["" if value is None else f"{value:.6g}" for value in values]
        rows.append(",".join((cell.dataset, cell.generator, cell.method, str(cell.seed), *numbers)))
    _write(path, "\n".join(rows) + "\n")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text)
    os.replace(temporary, path)


__all__ = [
    "Finished",
    "examples",
    "is_done",
    "mosaic",
    "read_cell",
    "run_cell",
    "run_grid",
    "share",
    "tasks_of",
    "write_table",
]
