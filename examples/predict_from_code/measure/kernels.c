// Small CPU kernels of measure_costs.py. The knobs VW (vector width), IL (interleaved or unrolled
// iterations), TI and TJ (tiles), JB (a register block) and ORDER (of loops) are defined per configuration.
#define TEXT(x) #x
#define PRAGMA(x) _Pragma(TEXT(x))
#define HOT PRAGMA(clang loop vectorize_width(VW) interleave_count(IL))
#define SEQ PRAGMA(clang loop unroll_count(IL) vectorize_width(1))
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define R restrict
typedef long I;

void copy(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[i];
    }
}

void scale(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = 2.5f * a[i];
    }
}

void triad(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[i] + 1.5f * b[i];
    }
}

void axpy_double(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = c[i] * 0.5 + a[i] * 0.3;
    }
}

void relu(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[i] > 1.0f ? a[i] : 0.0f;
    }
}

void softsign(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[i] / (1.0f + __builtin_fabsf(a[i]));
    }
}

void horner(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        float x = a[i];
        c[i] = ((((((0.1f*x+0.2f)*x+0.3f)*x+0.4f)*x+0.5f)*x+0.6f)*x+0.7f)*x+0.8f;
    }
}

void invsqrt(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = 1.0f / __builtin_sqrtf(a[i] + b[i]);
    }
}

void clip(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        float x = a[i] * 3.0f - b[i];
        x = x < 0.2f ? 0.2f : x;
        c[i] = x > 2.0f ? 2.0f : x;
    }
}

void exp_poly(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        float x = a[i];
        float k = (float)(int)(x * 1.442695f);
        float r = x - k * 0.693147f;
        float p = ((((0.0083f*r+0.0416f)*r+0.1666f)*r+0.5f)*r+1.0f)*r+1.0f;
        union {
            int i;
            float f;
        } u;
        u.i = ((int)k + 127) << 23;
        c[i] = p * u.f;
    }
}

void hash_int(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        unsigned x = a[i];
        x ^= x >> 16;
        x *= 0x7feb352du;
        x ^= x >> 15;
        x *= 0x846ca68bu;
        c[i] = x ^ (x >> 16);
    }
}

void complex_multiply(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[2*i] = a[2*i]*b[2*i] - a[2*i+1]*b[2*i+1];
        c[2*i+1] = a[2*i]*b[2*i+1] + a[2*i+1]*b[2*i];
    }
}

void divide_double(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[i] / b[i];
    }
}

void halve_int(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = (a[i] / 3) + (b[i] & 7);
    }
}

void many_streams(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n / 4; i++) {
        I q = n / 4;
        c[i] = a[i] + a[i+q] + a[i+2*q] - a[i+3*q] * b[i];
    }
}

void lerp_table(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        float x = a[i] * 100.0f;
        int k = (int)x;
        c[i] = b[k] + (x - k) * (b[k+1] - b[k]);
    }
}

void sum(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    HOT
    for (I i = 0; i < n; i++) {
        s += a[i];
    }
    c[0] = s;
}

void dot_double(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
    double s = 0;
    HOT
    for (I i = 0; i < n; i++) {
        s += a[i] * b[i];
    }
    c[0] = s;
}

void maximum(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = a[0];
    HOT
    for (I i = 0; i < n; i++) {
        s = a[i] > s ? a[i] : s;
    }
    c[0] = s;
}

void square_norm(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    HOT
    for (I i = 0; i < n; i++) {
        float d = a[i] - b[i];
        s += d * d;
    }
    c[0] = s;
}

void count_if(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    int s = 0;
    HOT
    for (I i = 0; i < n; i++) {
        s += a[i] > b[i];
    }
    c[0] = s;
}

void kahan(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0, e = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        float y = a[i] - e;
        float t = s + y;
        e = (t - s) - y;
        s = t;
    }
    c[0] = s;
}

void argmin(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = a[0];
    I k = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        if (a[i] < s) {
            s = a[i];
            k = i;
        }
    }
    idx[0] = k;
}

void harmonic(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
    double s = 0;
    HOT
    for (I i = 0; i < n; i++) {
        s += 1.0 / (a[i] + b[i]);
    }
    c[0] = s;
}

void variance(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    HOT
    for (I i = 0; i < n; i++) s += a[i];
    float mu = s / n, q = 0;
    HOT
    for (I i = 0; i < n; i++) {
        float d = a[i] - mu;
        q += d * d;
    }
    c[0] = q;
}

void prefix_sum(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        s += a[i];
        c[i] = s;
    }
}

void prefix_int(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    int s = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        s += a[i] * 3;
        c[i] = s;
    }
}

void recurrence(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        s = 0.9f * s + a[i];
        c[i] = s;
    }
}

void biquad(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float y1 = 0, y2 = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        float y = a[i] - 0.5f * y1 - 0.2f * y2;
        c[i] = 0.3f * y + 0.6f * y1 + 0.3f * y2;
        y2 = y1;
        y1 = y;
    }
}

void running_max(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        s = a[i] > s ? a[i] : s;
        c[i] = s;
    }
}

void divide_chain(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    float s = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        s = a[i] / (1.0f + s);
    }
    c[0] = s;
}

void block_scan(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i + 64 <= n; i += 64) {
        float s = 0;
        SEQ
        for (I k = 0; k < 64; k++) {
            s += a[i+k];
            c[i+k] = s;
        }
    }
}

void stencil3(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 1; i < n - 1; i++) {
        c[i] = 0.25f * a[i-1] + 0.5f * a[i] + 0.25f * a[i+1];
    }
}

void fir16(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float s = 0;
        HOT
        for (I k = 0; k < 16; k++) s += a[i+k] * b[k];
        c[i] = s;
    }
}

void fir_outer(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i += 512) {
        for (I k = 0; k < 16; k++) {
            float w = b[k];
            I e = MIN(i + 512, n);
            HOT
            for (I j = i; j < e; j++) c[j] += a[j+k] * w;
        }
    }
}

void stencil5(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 1; i < n-1; i++)
    HOT
    for (I j = 1; j < m-1; j++) c[i*m+j] = 0.2f * (a[i*m+j] + a[(i-1)*m+j] + a[(i+1)*m+j] + a[i*m+j-1] + a[i*m+j+1]);
}

void stencil5_tiled(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I ii = 1; ii < n-1; ii += TI) for (I jj = 1; jj < m-1; jj += TJ) for (I i = ii; i < MIN(ii+TI, n-1); i++) {
        I e = MIN(jj+TJ, m-1);
        HOT
        for (I j = jj; j < e; j++) c[i*m+j] = 0.2f * (a[i*m+j] + a[(i-1)*m+j] + a[(i+1)*m+j] + a[i*m+j-1] + a[i*m+j+1]);
    }
}

void stencil9_double(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
    for (I i = 1; i < n-1; i++)
    HOT
    for (I j = 1; j < m-1; j++) {
        double s = 0;
        for (I p = -1; p <= 1; p++) for (I q = -1; q <= 1; q++) s += a[(i+p)*m+j+q] * b[(p+1)*3+q+1];
        c[i*m+j] = s;
    }
}

void sobel(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 1; i < n-1; i++)
    HOT
    for (I j = 1; j < m-1; j++) {
        float x = a[(i-1)*m+j+1] + 2*a[i*m+j+1] + a[(i+1)*m+j+1] - a[(i-1)*m+j-1] - 2*a[i*m+j-1] - a[(i+1)*m+j-1];
        float y = a[(i+1)*m+j-1] + 2*a[(i+1)*m+j] + a[(i+1)*m+j+1] - a[(i-1)*m+j-1] - 2*a[(i-1)*m+j] - a[(i-1)*m+j+1];
        c[i*m+j] = __builtin_sqrtf(x*x + y*y);
    }
}

void stencil7_3d(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 1; i < n-1; i++) for (I j = 1; j < n-1; j++)
    HOT
    for (I k = 1; k < n-1; k++) {
        I o = (i*n+j)*n+k;
        c[o] = a[o] + 0.1f * (a[o-1] + a[o+1] + a[o-n] + a[o+n] + a[o-n*n] + a[o+n*n]);
    }
}

void gauss_seidel(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 1; i < n-1; i++)
    SEQ
    for (I j = 1; j < m-1; j++) a[i*m+j] = 0.25f * (a[(i-1)*m+j] + a[(i+1)*m+j] + a[i*m+j-1] + a[i*m+j+1]);
}

void max_pool(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n/2; i++)
    HOT
    for (I j = 0; j < m/2; j++) {
        float x = MAX(a[2*i*m+2*j], a[2*i*m+2*j+1]);
        float y = MAX(a[(2*i+1)*m+2*j], a[(2*i+1)*m+2*j+1]);
        c[i*(m/2)+j] = MAX(x, y);
    }
}

void upsample(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++)
    HOT
    for (I j = 0; j < m; j++) c[i*m+j] = a[(i/2)*(m/2) + j/2];
}

void matmul_ikj(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) for (I k = 0; k < n; k++) {
        HOT
        for (I j = 0; j < n; j++) c[i*n+j] += a[i*n+k] * b[k*n+j];
    }
}

void matmul_dot(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) for (I j = 0; j < n; j++) {
        float s = 0;
        HOT
        for (I k = 0; k < n; k++) s += a[i*n+k] * b[k*n+j];
        c[i*n+j] = s;
    }
}

void matmul_transposed(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) for (I j = 0; j < n; j++) {
        float s = 0;
        HOT
        for (I k = 0; k < n; k++) s += a[i*n+k] * b[j*n+k];
        c[i*n+j] = s;
    }
}

void matmul_order(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
#if ORDER == 0
    for (I i = 0; i < n; i++) for (I j = 0; j < n; j++)
    SEQ
    for (I k = 0; k < n; k++)
#elif ORDER == 1
    for (I j = 0; j < n; j++) for (I k = 0; k < n; k++)
    SEQ
    for (I i = 0; i < n; i++)
#elif ORDER == 2
    for (I k = 0; k < n; k++) for (I i = 0; i < n; i++)
    HOT
    for (I j = 0; j < n; j++)
#else
    for (I i = 0; i < n; i++) for (I k = 0; k < n; k++)
    HOT
    for (I j = 0; j < n; j++)
#endif
    c[i*n+j] += a[i*n+k] * b[k*n+j];
}

void matmul_tiled(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I ii = 0; ii < n; ii += TI) for (I kk = 0; kk < n; kk += TJ) for (I i = ii; i < MIN(ii+TI, n); i++) for (I k = kk; k < MIN(kk+TJ, n); k++) {
        HOT
        for (I j = 0; j < n; j++) c[i*n+j] += a[i*n+k] * b[k*n+j];
    }
}

void matmul_register(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i + 4 <= n; i += 4) for (I j = 0; j + JB <= n; j += JB) {
        float s[4][JB] = {0};
        for (I k = 0; k < n; k++) for (int p = 0; p < 4; p++) for (int q = 0; q < JB; q++) s[p][q] += a[(i+p)*n+k] * b[k*n+j+q];
        for (int p = 0; p < 4; p++) for (int q = 0; q < JB; q++) c[(i+p)*n+j+q] = s[p][q];
    }
}

void matvec(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float s = 0;
        HOT
        for (I j = 0; j < m; j++) s += a[i*m+j] * b[j];
        c[i] = s;
    }
}

void matvec_columns(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I j = 0; j < m; j++) {
        float x = b[j];
        HOT
        for (I i = 0; i < n; i++) c[i] += a[j*n+i] * x;
    }
}

void matvec_strided(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I j = 0; j < m; j++) {
        float s = 0;
        SEQ
        for (I i = 0; i < n; i++) s += a[i*m+j] * b[i];
        c[j] = s;
    }
}

void outer_product(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++)
    HOT
    for (I j = 0; j < m; j++) c[i*m+j] += a[i] * b[j];
}

void syrk(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) for (I j = 0; j <= i; j++) {
        double s = 0;
        HOT
        for (I k = 0; k < n; k++) s += a[i*n+k] * a[j*n+k];
        c[i*n+j] = s;
    }
}

void batched_4x4(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I q = 0; q + 16 <= n; q += 16) for (int i = 0; i < 4; i++) {
        HOT
        for (int j = 0; j < 4; j++) {
            float s = 0;
            for (int k = 0; k < 4; k++) s += a[q+i*4+k] * b[q+k*4+j];
            c[q+i*4+j] = s;
        }
    }
}

void triangular_solve(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float s = b[i];
        HOT
        for (I j = 0; j < i; j++) s -= a[i*n+j] * c[j];
        c[i] = s * 0.01f;
    }
}

void nbody(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float x = a[i], y = b[i], s = 0;
        HOT
        for (I j = 0; j < n; j++) {
            float u = a[j] - x, v = b[j] - y;
            float d = u*u + v*v + 0.01f;
            s += u / (d * __builtin_sqrtf(d));
        }
        c[i] = s;
    }
}

void kmeans(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float best = 1e30f;
        int k0 = 0;
        for (int k = 0; k < 16; k++) {
            float s = 0;
            HOT
            for (int d = 0; d < 8; d++) {
                float t = a[i*8+d] - b[k*8+d];
                s += t*t;
            }
            if (s < best) {
                best = s;
                k0 = k;
            }
        }
        idx[i] = k0;
    }
}

void softmax_rows(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float *x = a + i*m, *y = c + i*m;
        float top = x[0];
        HOT
        for (I j = 0; j < m; j++) top = x[j] > top ? x[j] : top;
        float s = 0;
        HOT
        for (I j = 0; j < m; j++) {
            float t = x[j] - top;
            float e = 1.0f + t*(1.0f + t*(0.5f + t*(0.1666f + t*0.0416f)));
            y[j] = e;
            s += e;
        }
        float r = 1.0f / s;
        HOT
        for (I j = 0; j < m; j++) y[j] *= r;
    }
}

void layer_norm(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float *x = a + i*m, *y = c + i*m;
        float s = 0, q = 0;
        HOT
        for (I j = 0; j < m; j++) {
            s += x[j];
            q += x[j]*x[j];
        }
        float mu = s / m, w = 1.0f / __builtin_sqrtf(q / m - mu*mu + 0.1f);
        HOT
        for (I j = 0; j < m; j++) y[j] = (x[j] - mu) * w * b[j];
    }
}

void row_sums(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float s = 0;
        HOT
        for (I j = 0; j < m; j++) s += a[i*m+j];
        c[i] = s;
    }
}

void column_sums(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++)
    HOT
    for (I j = 0; j < m; j++) c[j] += a[i*m+j];
}

void transpose(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I ii = 0; ii < n; ii += TI) for (I jj = 0; jj < m; jj += TJ) for (I i = ii; i < MIN(ii+TI, n); i++)
    SEQ
    for (I j = jj; j < MIN(jj+TJ, m); j++) c[j*n+i] = a[i*m+j];
}

void transpose_order(double *R a, double *R b, double *R c, int *R idx, I n, I m) {
#if ORDER
    for (I i = 0; i < n; i++)
    SEQ
    for (I j = 0; j < m; j++)
#else
    for (I j = 0; j < m; j++)
    SEQ
    for (I i = 0; i < n; i++)
#endif
    c[j*n+i] = a[i*m+j];
}

void gather(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[idx[i]];
    }
}

void gather_local(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[idx[i]] * b[i];
    }
}

void scatter(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    SEQ
    for (I i = 0; i < n; i++) {
        c[idx[i]] = a[i];
    }
}

void stride8_copy(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n / 8; i++) {
        c[i] = a[8*i];
    }
}

void reverse(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = a[n-1-i];
    }
}

void deinterleave(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n / 3; i++) {
        c[i] = a[3*i];
        b[i] = a[3*i+1] + a[3*i+2];
    }
}

void im2col(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n-2; i++) for (I p = 0; p < 3; p++) {
        HOT
        for (I j = 0; j < m-2; j++) c[(i*3+p)*m+j] = a[(i+p)*m+j] ;
    }
}

void rotate_rows(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++)
    HOT
    for (I j = 0; j < m; j++) c[i*m+j] = a[(n-1-i)*m+j];
}

void histogram(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    SEQ
    for (I i = 0; i < n; i++) {
        c[idx[i]]++;
    }
}

void weighted_histogram(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    SEQ
    for (I i = 0; i < n; i++) {
        c[idx[i]] += a[i];
    }
}

void translate(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        c[i] = b[a[i] & 255];
    }
}

void pointer_chase(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    I k = 0;
    SEQ
    for (I i = 0; i < n; i++) {
        k = idx[k];
    }
    c[0] = k;
}

void spmv(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float s = 0;
        HOT
        for (I k = i*8; k < i*8+8; k++) s += a[k] * b[idx[k]];
        c[i] = s;
    }
}

void binary_search(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < 1024; i++) {
        int x = (int)((i * 2654435761u) >> 2);
        I lo = 0, len = n;
        while (len > 1) {
            I h = len / 2;
            lo += idx[lo + h - 1] < x ? h : 0;
            len -= h;
        }
        c[i] = lo;
    }
}

void odd_even_sort(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i + 16 <= n; i += 16) {
        float s[16];
        for (int k = 0; k < 16; k++) s[k] = a[i+k];
        for (int r = 0; r < 16; r++)
        SEQ
        for (int k = r & 1; k + 1 < 16; k += 2) {
            float x = MIN(s[k], s[k+1]), y = MAX(s[k], s[k+1]);
            s[k] = x;
            s[k+1] = y;
        }
        for (int k = 0; k < 16; k++) c[i+k] = s[k];
    }
}

void insertion_sort(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i + 16 <= n; i += 16) {
        for (int k = 0; k < 16; k++) c[i+k] = a[i+k];
        for (int k = 1; k < 16; k++) {
            float x = c[i+k];
            int j = k - 1;
            while (j >= 0 && c[i+j] > x) {
                c[i+j+1] = c[i+j];
                j--;
            }
            c[i+j+1] = x;
        }
    }
}

void mandelbrot(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I i = 0; i < n; i++) {
        float x = 0, y = 0, u = a[i] - 1.0f, v = b[i] - 1.0f;
        int k = 0;
        SEQ
        for (k = 0; k < 64; k++) {
            float t = x*x - y*y + u;
            y = 2*x*y + v;
            x = t;
        }
        c[i] = x;
    }
}

void edit_distance(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    for (I j = 0; j <= m; j++) c[j] = j;
    for (I i = 1; i <= n; i++) {
        int d = c[0];
        c[0] = i;
        SEQ
        for (I j = 1; j <= m; j++) {
            int s = d + (a[i-1] != b[j-1]);
            d = c[j];
            int t = MIN(c[j], c[j-1]) + 1;
            c[j] = MIN(s, t);
        }
    }
}

void floyd(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I k = 0; k < n; k++) for (I i = 0; i < n; i++) {
        float w = a[i*n+k];
        HOT
        for (I j = 0; j < n; j++) {
            float x = w + b[k*n+j];
            c[i*n+j] = x < c[i*n+j] ? x : c[i*n+j];
        }
    }
}

void fft_stage(float *R a, float *R b, float *R c, int *R idx, I n, I m) {
    for (I s = 1; s < m; s *= 2) for (I i = 0; i < n; i += 2*s)
    HOT
    for (I j = 0; j < s; j++) {
        float x = a[i+j], y = a[i+j+s] * b[j];
        a[i+j] = 0.5f * (x + y);
        a[i+j+s] = 0.5f * (x - y);
    }
}

void bit_count(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    int s = 0;
    HOT
    for (I i = 0; i < n; i++) {
        s += __builtin_popcount(a[i]);
    }
    c[0] = s;
}

void saturate(int *R a, int *R b, int *R c, int *R idx, I n, I m) {
    HOT
    for (I i = 0; i < n; i++) {
        int x = a[i] * 5 + b[i];
        x = MIN(x, 127);
        c[i] = MAX(x, -128);
    }
}
