"""The stage that reads a table."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import InputPath, StageContext, StageInputError, arg, stage
from stoker.cookbooks.tabular.bundled import BundledName
from stoker.cookbooks.tabular.kinds import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArgs:
    """Either a bundled set or a file."""

    bundled: BundledName | None = arg(None, help="a data set that ships inside scikit-learn")
    file: InputPath | None = arg(None, help="a CSV or Parquet file")


@stage("tabular/load", version=1, uses=("scikit-learn", "pandas", "pyarrow"))
def load(job: StageContext, args: LoadArgs) -> Table:
    """Read a table from a CSV or Parquet file, or take a bundled one."""
    from pathlib import Path

    from stoker.cookbooks.tabular.table_files import read_bundled, read_file

    if args.file is not None:
        frame, origin = read_file(Path(args.file))
    elif args.bundled is not None:
        frame, origin = read_bundled(args.bundled)
    else:
        raise StageInputError("neither a bundled set nor a file was given", hint="data=NAME or data=FILE")
    job.log(f"{origin['rows']} rows, {origin['columns']} columns")
    return job.save(Table, (frame, origin))
