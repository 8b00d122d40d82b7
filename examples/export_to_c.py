"""Export a model as a C library, build a program with it, and compare its output.

python examples/export_to_c.py
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import small_model

import superopt

PROGRAM = r"""
#include <stdio.h>
#include "model.h"

static float x[MODEL_INPUT_0_BYTES / 4], y[MODEL_OUTPUT_0_BYTES / 4];

int main(void)
{
    int error;
    const void *inputs[] = {x};
    void *outputs[] = {y};
    model_model *model = model_open("out/model.weights", &error);
    if (fread(x, sizeof x, 1, stdin) != 1)
        return 1;
    if (model != NULL)
        error = model_run(model, inputs, outputs);
    model_close(model);
    fwrite(y, sizeof y, 1, stdout);
    return error;
}
"""


def main() -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    exe = superopt.compile(small_model.write(), shapes={"batch": 8})
    Path("out").mkdir(exist_ok=True)
    for file, size in exe.export("out/model", shapes={"batch": 8}).files:
        print(f"{file}: {size:,} bytes")

    Path("main.c").write_text(PROGRAM)
    build = [compiler, "main.c", "-Iout", "-Lout", "-lmodel", "-Wl,-rpath,out", "-o", "main"]
    subprocess.run(build, check=True)
    feeds = small_model.inputs(8)
    done = subprocess.run(["./main"], input=feeds["x"].tobytes(), capture_output=True, check=True)
    result = np.frombuffer(done.stdout, np.float32).reshape(8, 64)
    print("equal to the compiled model:", np.array_equal(result, exe.run(feeds)["y"]))


if __name__ == "__main__":
    main()
