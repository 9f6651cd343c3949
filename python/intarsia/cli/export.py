"""`intarsia export`: a model as a Hugging Face directory."""

import argparse
from pathlib import Path

from intarsia.models import EXPORT_DTYPES
from intarsia.models.packages import PACKAGES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("model", help=f"{' or '.join(PACKAGES)}, a .gguf file, or a directory")
    parser.add_argument("directory", help="where to write")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a model that is in the directory"
    )
    parser.add_argument(
        "--dtype",
        choices=EXPORT_DTYPES,
        default=EXPORT_DTYPES[0],
        help="what the weights are written in (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> None:
    """Runs the command."""
    from intarsia.models import export_model, find_model
    from intarsia.models.export import files_there

    if not args.directory:  # as a path it would be the current folder
        raise ValueError("the directory is '', expected a folder to write to")
    directory = Path(args.directory)
    there = files_there(directory)
    if there and not args.overwrite:
        raise ValueError(f"{directory} has {there[0].name} already; --overwrite replaces it")
    export_model(find_model(args.model), directory, dtype=args.dtype)
    print(f"{directory}: {args.model} in {args.dtype}")
