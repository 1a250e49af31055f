"""The command line: `alws-paper list`, `run`, `resume`, `publish`, `relabel`, `bench`, `lenet`."""

import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import alws
from alws.checkpoint import CheckpointError
from alws_paper.experiments import EXPERIMENTS, Claim, RunError, resume, start
from alws_paper.gallery import publish, update_readme
from alws_paper.images import (
    DATASETS,
    GENERATORS,
    LOADERS,
    bench_images,
    bench_length,
    save_lenet,
    train_lenet,
)
from alws_paper.relabel import relabel
from alws_paper.shared.files import DataError

app = typer.Typer(
    help="The experiments of Amortised Learning by Wake-Sleep.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Comparisons of the user's own choice.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console()


COLOURED = {True: "{}", False: "[bold red]{}[/]", None: "[yellow]{}[/]"}
"""How the three outcomes are shown."""
LONG = ("run", "resume", "bench")
"""Commands whose work is worth a second start."""


def main() -> None:
    """The console script `alws-paper`."""
    if sys.argv[1:2] and sys.argv[1] in LONG:
        use_large_pages()
    alws.enable_compilation_cache()
    app()


def use_large_pages() -> None:
    """Start this program anew with large pages of memory, if its C library can give them.

    A step asks the system for fresh memory every time; in pages of 2 MiB it comes with a fifth of
    the page faults or less. The C library looks at `GLIBC_TUNABLES` only when a program starts. Set
    it to go without.
    """
    if "GLIBC_TUNABLES" not in os.environ and platform.libc_ver()[0] == "glibc":
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@app.command("list")
def list_experiments() -> None:
    """List the experiments."""
    for experiment in EXPERIMENTS.values():
        console.print(f"{experiment.name:22}{experiment.title}", highlight=False, soft_wrap=True)


@app.command("run")
def run_experiment(
    experiment: Annotated[str, typer.Argument(help="A name from `alws-paper list`.")],
    preset: Annotated[
        str, typer.Option(help="quick: a minute; desk: ten minutes; paper: the paper's settings.")
    ] = "desk",
    seed: Annotated[int, typer.Option(help="Seed of every random number of the run.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; default runs/EXPERIMENT-PRESET-SEED.")
    ] = None,
) -> None:
    """Run an experiment of the paper and check its claims."""
    if experiment not in EXPERIMENTS:
        _fail(f"the experiment must be one of {', '.join(EXPERIMENTS)}; got {experiment!r}.")
    directory = out or Path("runs") / f"{experiment}-{preset}-{seed}"
    with _errors():
        began = time.monotonic()
        if preset == "paper" and EXPERIMENTS[experiment].not_printed:
            console.print(EXPERIMENTS[experiment].not_printed, highlight=False, soft_wrap=True)
        claims = start(EXPERIMENTS[experiment], preset, seed, directory)
        _show(claims, directory, time.monotonic() - began)


@app.command("resume")
def resume_run(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
) -> None:
    """Go on with a run that was stopped, from its last checkpoint."""
    with _errors():
        began = time.monotonic()
        claims = resume(EXPERIMENTS, directory)
        _show(claims, directory, time.monotonic() - began)


@app.command("publish")
def publish_run(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished desk run.")],
    gallery: Annotated[Path, typer.Option(help="Where the gallery is.")] = Path("docs/gallery"),
    readme: Annotated[Path, typer.Option(help="The file that holds the table.")] = Path(
        "paper/README.md"
    ),
) -> None:
    """Copy a run's figure and claims to the gallery, and rebuild the tables of claims."""
    with _errors():
        publish(directory, gallery)
        update_readme(gallery, readme)


@app.command("relabel")
def relabel_gallery(
    gallery: Annotated[Path, typer.Option(help="Where the gallery is.")] = Path("docs/gallery"),
    readme: Annotated[Path, typer.Option(help="The file that holds the table.")] = Path(
        "paper/README.md"
    ),
) -> None:
    """Give stored claims of runs before 0.2 their source and outcome, and rebuild the tables."""
    with _errors():
        for name, number in relabel(gallery, EXPERIMENTS).items():
            console.print(f"{name}: {number} claims relabelled", highlight=False)
        update_readme(gallery, readme)


@bench.command("images")
def compare_images(
    datasets: Annotated[str, typer.Option(help=f"Some of {','.join(DATASETS)}.")] = "mnist,fashion",
    methods: Annotated[str, typer.Option(help="Their names, as in the table of results.")] = "all",
    seeds: Annotated[str, typer.Option(help="One run for each seed.")] = "0,1",
    epochs: Annotated[float | None, typer.Option(help="The most epochs of a run.")] = None,
    seconds: Annotated[float | None, typer.Option(help="The longest training of a run.")] = None,
    generators: Annotated[str, typer.Option(help=f"Some of {','.join(GENERATORS)}.")] = "connected",
    width: Annotated[int, typer.Option(help="Channels of the DCGAN's last hidden layer.")] = 64,
    sleep_samples: Annotated[int, typer.Option(help="Sleep samples of ALWS.")] = 2000,
    extractor: Annotated[
        Path | None,
        typer.Option(help="An ONNX file, given pixels from 0 to 1; its output makes the scores."),
    ] = None,
    likelihood: Annotated[int, typer.Option(help="Test images with a held-out likelihood.")] = 0,
    workers: Annotated[int, typer.Option(help="Runs at the same time, on a core each.")] = 1,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/bench-images"),
) -> None:
    """Compare image methods; the same command again goes on where it was stopped."""
    with _errors():
        began = time.monotonic()
        claims = bench_images(
            datasets.split(","),
            methods.split(","),
            seeds.split(","),
            out,
            generators=generators.split(","),
            epochs=epochs,
            seconds=seconds,
            width=width,
            sleep_samples=sleep_samples,
            extractor=extractor,
            likelihood=likelihood,
            workers=workers,
        )
        _show(claims, out, time.monotonic() - began)


@bench.command("length")
def compare_at_length(
    preset: Annotated[
        str, typer.Option(help="quick: a minute; desk: two hours; paper: thirty hours of one core.")
    ] = "paper",
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory.")] = Path("runs/images-at-length"),
    finished: Annotated[
        bool, typer.Option("--finished", help="Figure and claims of finished runs; run nothing.")
    ] = False,
    gallery: Annotated[
        Path, typer.Option(help="Where the gallery is, whose finished runs are not done again.")
    ] = Path("docs/gallery"),
) -> None:
    """Compare image methods at the paper's length; the same command again goes on."""
    with _errors():
        began = time.monotonic()
        claims = bench_length(preset, seed, out, finished=finished, published=gallery)
        _show(claims, out, time.monotonic() - began)


@app.command("lenet")
def train_features(
    task: Annotated[str, typer.Argument(help="mnist or fashion.")],
    epochs: Annotated[int, typer.Option(help="Passes over the 60,000 images.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of every random number.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to; default lenet-TASK.npz.")] = None,
) -> None:
    """Train the LeNet whose features the scores of grey images are made with."""
    if task not in LOADERS:
        _fail(f"the task must be one of {', '.join(LOADERS)}; got {task!r}.")
    path = out or Path(f"lenet-{task}.npz")
    with _errors():
        network, accuracy = train_lenet(task, key=jax.random.key(seed), epochs=epochs)  # pyright: ignore
        save_lenet(path, network, accuracy)
        console.print(f"test accuracy {accuracy:.2%}; weights: {path}", highlight=False)


def _show(claims: list[Claim], directory: Path, seconds: float) -> None:
    table = Table("claim", "whose", "paper, or bar", "measured", "outcome")
    for claim in claims:
        row = (claim.claim, claim.source, claim.paper, claim.measured)
        table.add_row(*map(escape, row), COLOURED[claim.holds].format(claim.outcome))
    console.print(table)
    for undecided in sorted({claim.undecided for claim in claims} - {""}):
        console.print(f"undecided: {undecided}", highlight=False, soft_wrap=True)
    console.print(f"figure: {directory / 'figure.png'}", highlight=False, soft_wrap=True)
    console.print(f"claims: {directory / 'claims.json'}", highlight=False, soft_wrap=True)
    console.print(f"took {seconds:.0f} s", highlight=False)


def _fail(message: str) -> None:
    Console(stderr=True).print(f"error: {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


class _errors:
    """Turn the errors that a user can put right into one line."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (RunError, CheckpointError, DataError)):
            _fail(str(error))
