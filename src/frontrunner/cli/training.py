"""Commands before and after a replay: prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from frontrunner.cli import options as opt
from frontrunner.evaluators.text.prepare import Prepared, PrepareSettings
from frontrunner.evaluators.text.prepare import prepare as prepare_files
from frontrunner.text import counted


@click.command()
@click.argument("files", nargs=-1, required=True, type=opt.FILE)
@click.option("--out", type=opt.FILE, required=True, metavar="FILE.bin", help="The token file to write.")
@click.option("--tokenizer", type=opt.FILE, metavar="FILE", help="A model's tokenizer.json (Hugging Face tokenizers).")
@click.option("--train-vocabulary", type=int, metavar="SIZE", help="Train a byte-level BPE of this size on the files.")
@click.option("--text-key", default="text", show_default=True, help="The key, or column, of the text.")
@click.option("--end-of-document", metavar="TOKEN", help="The token after each document [default: the tokenizer's].")
@click.option(
    "--validation", type=float, default=0.005, show_default=True, help="The share of tokens held out for evaluation."
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Draws what is held out.")
@click.option("--threads", type=int, help="Threads that tokenize [default: one per processor].")
@opt.json_option
def prepare(files: tuple[Path, ...], *, as_json: bool, **settings: Any) -> None:
    """Tokenize FILES into one token file for `[data] path`: text, .jsonl or .parquet, also as .txt.gz and .jsonl.gz.

    A line of a .jsonl file and a row of a .parquet file is a document; a text file is one, or several with NUL between
    them. Beside the token file are written its tokenizer and its description, with which campaigns read it. A mistake
    is reported with file and line, and leaves no file.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    chosen = PrepareSettings(**settings)  # the options are named after its fields
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    passes = ("training the tokenizer", "tokenizing") if chosen.train_vocabulary else ("tokenizing",)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = [progress.add_task(name, start=False, total=None) for name in passes]

        def on_read(read: int, size: int) -> None:
            if len(tasks) > 1 and read < progress.tasks[0].completed:
                progress.update(tasks.pop(0), completed=size)
            progress.start_task(tasks[0])
            progress.update(tasks[0], completed=read, total=size)

        found = prepare_files(files, chosen, on_read)
    opt.show(found, _print_prepared, as_json=as_json)


def _print_prepared(found: Prepared) -> None:
    about = found.description
    empty = f"; {counted(found.empty_documents, 'document')} without text left out" if found.empty_documents else ""
    click.echo(
        f"{found.path}: {about.tokens:,} tokens ({about.dtype}) of {counted(about.documents, 'document')}, "
        f"{about.held_out_tokens:,} of them held out for evaluation{empty}"
    )
    click.echo(f"tokenizer: {found.tokenizer}")
    click.echo(f'in the campaign file: [model] vocabulary = {about.vocabulary} or more, [data] path = "{found.path}"')
