"""A function in C++ with a block size, an order of loops and a compiler's option as knobs.

    python examples/tune_c.py [N]

Writes ``product.h``, which a program includes.
"""

import sys

import numpy as np

import foretune as ft

SOURCE = """
void product(float *c, const float *a, const float *b, int n) {
    for (int i = 0; i < n * n; i++) c[i] = 0;
    for (int k0 = 0; k0 < n; k0 += block)
        for (int i = 0; i < n; i++)
#if k_first
            for (int k = k0; k < k0 + block && k < n; k++)
                for (int j = 0; j < n; j++) c[i * n + j] += a[i * n + k] * b[k * n + j];
#else
            for (int j = 0; j < n; j++)
                for (int k = k0; k < k0 + block && k < n; k++)
                    c[i * n + j] += a[i * n + k] * b[k * n + j];
#endif
}
"""

if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng = np.random.default_rng(0)
    a, b = (rng.random((n, n), dtype=np.float32) for _ in range(2))
    best = ft.tune_kernel(
        "product",
        SOURCE,
        n,
        [np.zeros_like(a), a, b, np.int32(n)],
        {"block": [8, 32, 128], "k_first": [0, 1], "opt": ["-O2", "-O3"]},
        answer=[a @ b, None, None, None],
        atol=1e-2,
        lang="C",
        compiler_options=["{opt}"],
        budget=8,
    )
    print(best.config, f"{best.speedup:.2f}× the default's speed")
    print(best.export("product.h").read_text())
