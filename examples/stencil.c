/* Smooths a square of N x N numbers, tile by tile; prints how long that took, and a checksum. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    int n = atoi(argv[1]), tile = atoi(argv[2]);
    float *a = malloc(sizeof(float) * n * n), *b = calloc(n * n, sizeof(float));
    for (int i = 0; i < n * n; i++) a[i] = i % 13;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int j0 = 1; j0 < n - 1; j0 += tile)
        for (int i = 1; i < n - 1; i++)
            for (int j = j0; j < j0 + tile && j < n - 1; j++)
                b[i * n + j] = 0.25f * (a[(i - 1) * n + j] + a[(i + 1) * n + j]
                                        + a[i * n + j - 1] + a[i * n + j + 1]);
    clock_gettime(CLOCK_MONOTONIC, &end);
    long sum = 0;
    for (int i = 0; i < n * n; i++) sum += (long)(4 * b[i]);
    printf("elapsed: %.6f ms\n", (end.tv_sec - start.tv_sec) * 1e3
                                 + (end.tv_nsec - start.tv_nsec) * 1e-6);
    printf("checksum %ld\n", sum);
    return 0;
}
