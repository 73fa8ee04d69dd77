"""Spark forks its Python processes from one that has imported everything. Python imports this module at its start.

Spark starts `python -m pyspark.daemon MODULE`, and the processes that it forks would import pandas, Arrow and the
sources, half a second each, hundreds of times. The garbage collector passes over what has been imported: each process
collects all garbage after each task.
"""

import gc
import importlib
import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    for name in ("pandas", "pyarrow.parquet", "barnabas.pipeline.sources", *sys.orig_argv[3:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
