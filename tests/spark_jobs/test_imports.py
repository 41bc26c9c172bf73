"""What a program loads before it does anything: nothing that takes a second and is not needed."""

import subprocess
import sys


def test_the_package_loads_no_pandas():
    loaded = "[name for name in ('pandas', 'pyarrow') if name in sys.modules]"
    script = f"import sys; from floodmark.spark_jobs import *; print({loaded})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
