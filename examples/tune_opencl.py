"""An OpenCL kernel, with Kernel Tuner's names: change the import, and the rest stays.

pip install '.[opencl]'     # brings a runtime for the CPU
python examples/tune_opencl.py [SIZE]
"""

import sys

import numpy as np

from foretune import tune_kernel

SOURCE = """
__kernel void vector_add(__global float *c, __global const float *a, __global const float *b,
                         int n) {
    int first = get_group_id(0) * block_size_x * each + get_local_id(0);
    for (int k = 0; k < each; k++) {
        int i = first + k * block_size_x;
        if (i < n) c[i] = a[i] + b[i];
    }
}
"""

if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    a, b = np.random.default_rng(0).random((2, size), dtype=np.float32)
    results, env = tune_kernel(
        "vector_add",
        SOURCE,
        size,
        [np.zeros_like(a), a, b, np.int32(size)],
        {"block_size_x": [32, 64, 128, 256, 512], "each": [1, 4, 16]},
        grid_div_x=["block_size_x", "each"],
        restrictions=["block_size_x * each <= 2048"],
        answer=[a + b, None, None, None],
        metrics={"GB/s": lambda p: 12 * size / p["time"] * 1e-6},
        strategy_options={"max_fevals": 8},
    )
    print(env["best_config"])
