/* One pass over memory for fake quantization and its gradient, for pairs of weights, and for histograms.
 *
 * The arithmetic is that of reference.py, operation for operation: divide, round, clamp, multiply, each in
 * float32. Compile with -ffp-contract=off (no fused multiply-add) and never with -ffast-math; the only sums
 * that may be reordered are the ones marked `omp simd reduction`, the gradients of scale and bounds.
 *
 * A tensor is [outer][channels][inner]; element (o, c, i) has scale[c], lo[c], hi[c]. Work is cut into
 * blocks whose number depends on the shape alone, and each block writes its own partial sums, so results
 * do not depend on the number of threads.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define SMALL 32768 /* below this, starting threads costs more than it saves */
#define BLOCK 4096

enum { HALF_EVEN, HALF_UP, HALF_DOWN, HALF_AWAY, HALF_TOWARD_ZERO, FLOOR, CEIL };
enum { BY_ROUNDED, BY_VALUE };

INLINE float round_to(float v, const int mode) {
    if (mode == HALF_EVEN) return rintf(v);
    if (mode == FLOOR) return floorf(v);
    if (mode == CEIL) return ceilf(v);
    float whole = truncf(v), part = v - whole; /* exact */
    int up = (mode == HALF_UP || mode == HALF_AWAY) ? part >= 0.5f : part > 0.5f;
    int down = (mode == HALF_DOWN || mode == HALF_AWAY) ? part <= -0.5f : part < -0.5f;
    return whole + (float)up - (float)down;
}

/* NaN passes through, as in torch.clamp. */
INLINE float clamp_to(float v, float lo, float hi) { return v < lo ? lo : (v > hi ? hi : v); }

/* Written without && so that loops vectorize. */
INLINE int is_inside(float v, float rounded, float lo, float hi, const int rule) {
    return rule == BY_ROUNDED ? rounded == clamp_to(rounded, lo, hi) : (v > lo) & (v < hi);
}

/* The loops below take rounding and rule as constants; EACH calls one copy for each pair, so that no branch is
 * left inside them. It stands inside the parallel regions, because constants do not reach into those. */
#define EACH_RULE(mode, CALL)                                       \
    case mode:                                                      \
        if (rule == BY_ROUNDED) { CALL(mode, BY_ROUNDED); } else { CALL(mode, BY_VALUE); } \
        break;
#define EACH(CALL)                                                  \
    switch (mode) {                                                 \
        EACH_RULE(HALF_EVEN, CALL)                                  \
        EACH_RULE(HALF_UP, CALL)                                    \
        EACH_RULE(HALF_DOWN, CALL)                                  \
        EACH_RULE(HALF_AWAY, CALL)                                  \
        EACH_RULE(HALF_TOWARD_ZERO, CALL)                           \
        EACH_RULE(FLOOR, CALL)                                      \
        EACH_RULE(CEIL, CALL)                                       \
    }

/* ---- forward: y, and where mask is not NULL, whether the gradient of x passes ---- */

INLINE void forward_loop(const float *restrict x, float *restrict y, uint8_t *restrict mask, int64_t n, float s,
                         float lo, float hi, const int mode, const int rule) {
    if (!mask) {
        for (int64_t i = 0; i < n; i++) y[i] = clamp_to(round_to(x[i] / s, mode), lo, hi) * s;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] / s, r = round_to(v, mode);
        y[i] = clamp_to(r, lo, hi) * s;
        mask[i] = is_inside(v, r, lo, hi, rule);
    }
}

static void forward_run(const float *x, float *y, uint8_t *mask, int64_t n, float s, float lo, float hi, int mode,
                        int rule) {
#define LOOP(m, r) forward_loop(x, y, mask, n, s, lo, hi, m, r)
    EACH(LOOP)
#undef LOOP
}

/* inner == 1: neighbors in memory have different scales */
INLINE void forward_mixed_loop(const float *restrict x, float *restrict y, uint8_t *restrict mask, int64_t channels,
                               const float *restrict s, const float *restrict lo, const float *restrict hi,
                               const int mode, const int rule) {
    for (int64_t c = 0; c < channels; c++) {
        float v = x[c] / s[c], r = round_to(v, mode);
        y[c] = clamp_to(r, lo[c], hi[c]) * s[c];
        if (mask) mask[c] = is_inside(v, r, lo[c], hi[c], rule);
    }
}

static void forward_mixed(const float *x, float *y, uint8_t *mask, int64_t channels, const float *s, const float *lo,
                          const float *hi, int mode, int rule) {
#define LOOP(m, r) forward_mixed_loop(x, y, mask, channels, s, lo, hi, m, r)
    EACH(LOOP)
#undef LOOP
}

void fake_quantize_forward(const float *x, float *y, uint8_t *mask, int64_t outer, int64_t channels, int64_t inner,
                           const float *s, const float *lo, const float *hi, int mode, int rule) {
    const int64_t total = outer * channels * inner;
    if (inner == 1 && channels > 1) {
#pragma omp parallel for schedule(static) if (total > SMALL)
        for (int64_t o = 0; o < outer; o++) {
            int64_t at = o * channels;
            forward_mixed(x + at, y + at, mask ? mask + at : 0, channels, s, lo, hi, mode, rule);
        }
        return;
    }
    const int64_t per_row = (inner + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) if (total > SMALL)
    for (int64_t b = 0; b < outer * channels * per_row; b++) {
        int64_t row = b / per_row, c = row % channels, start = (b % per_row) * BLOCK;
        int64_t n = inner - start < BLOCK ? inner - start : BLOCK, at = row * inner + start;
        forward_run(x + at, y + at, mask ? mask + at : 0, n, s[c], lo[c], hi[c], mode, rule);
    }
}

/* ---- floats of few bits: each value is rounded in steps of its own power of two ---- */

INLINE float to_float_grid(float v, float top, int mantissa, int least, const int mode) {
    float held = clamp_to(v, -top, top), step;
    uint32_t bits;
    memcpy(&bits, &held, sizeof bits);
    int exponent = (int)(bits >> 23 & 255) - 127;
    uint32_t of_step = (uint32_t)(127 - mantissa + (exponent < least ? least : exponent)) << 23;
    memcpy(&step, &of_step, sizeof step);
    return copysignf(round_to(held / step, mode) * step, held); /* the quotient is exact */
}

INLINE void float_loop(const float *restrict x, float *restrict y, uint8_t *restrict mask, int64_t n, float s,
                       float top, int mantissa, int least, const int mode) {
    for (int64_t i = 0; i < n; i++) y[i] = to_float_grid(x[i] / s, top, mantissa, least, mode) * s;
    if (mask)
        for (int64_t i = 0; i < n; i++) mask[i] = fabsf(x[i] / s) <= top;
}

void float_quantize_forward(const float *x, float *y, uint8_t *mask, int64_t outer, int64_t channels, int64_t inner,
                            const float *s, float top, int mantissa, int least, int mode) {
    const int rule = BY_ROUNDED;
    const int64_t rows = outer * channels, per_row = (inner + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) if (rows * inner > SMALL)
    for (int64_t b = 0; b < rows * per_row; b++) {
        int64_t row = b / per_row, start = (b % per_row) * BLOCK, at = row * inner + start;
        int64_t n = inner - start < BLOCK ? inner - start : BLOCK;
#define LOOP(m, r) float_loop(x + at, y + at, mask ? mask + at : 0, n, s[row % channels], top, mantissa, least, m)
        EACH(LOOP)
#undef LOOP
    }
}

/* ---- pairs of weights, [rows][pairs][2][inner] with one scale for each row, or one for all: see pairs.py ---- */

/* Whether a row has a pair whose sum is past `limit` codes: half a code more, for what float32 rounds. `first` is 1
 * where a row has the first of a pair, else 0. */
INLINE int is_over(const float *row, int64_t pairs, int64_t inner, float step, const float *first, float limit) {
    const float most = (limit + 0.5f) * step;
    int any = 0;
    for (int64_t j = 0; j < (2 * pairs - 1) * inner; j++) any |= fabsf(row[j] + row[j + inner]) * first[j] > most;
    return any;
}

int any_pair_over(const float *x, int64_t rows, int64_t pairs, int64_t inner, const float *s, int64_t scales,
                  const float *first, float limit) {
    int any = 0;
#pragma omp parallel for schedule(static) reduction(| : any) if (rows * pairs * inner > SMALL)
    for (int64_t row = 0; row < rows; row++)
        any |= is_over(x + row * 2 * pairs * inner, pairs, inner, s[scales == 1 ? 0 : row], first, limit);
    return any;
}

/* In those rows, what a pair is past `limit` codes is taken from both, by equal shares. In place. */
void bound_pairs(float *x, int64_t rows, int64_t pairs, int64_t inner, const float *s, int64_t scales,
                 const float *first, float limit) {
#pragma omp parallel for schedule(static) if (rows * pairs * inner > SMALL)
    for (int64_t row = 0; row < rows; row++) {
        const float step = s[scales == 1 ? 0 : row], most = (limit + 0.5f) * step;
        if (!is_over(x + row * 2 * pairs * inner, pairs, inner, step, first, limit)) continue;
        for (int64_t p = 0; p < pairs; p++) {
            float *a = x + (row * pairs + p) * 2 * inner, *b = a + inner;
            for (int64_t i = 0; i < inner; i++) {
                if (fabsf(a[i] + b[i]) <= most) continue;
                float one = rintf(a[i] / step), other = rintf(b[i] / step), sum = one + other;
                float excess = sum - clamp_to(sum, -limit, limit);
                float share = truncf((excess + copysignf(1.0f, excess)) / 2);
                a[i] = (one - share) * step;
                b[i] = (other - (excess - share)) * step;
            }
        }
    }
}

/* ---- one byte an element for the backward pass, one scale for all: round(v) - v in steps of 1 / RESIDUES, or, where the
 * gradient does not pass, BELOW or ABOVE ---- */

#define RESIDUES 252.0f
#define BELOW -127
#define ABOVE 127

INLINE void residue_loop(const float *restrict x, float *restrict y, int8_t *restrict residue, int64_t n, float s,
                         float lo, float hi, const int mode, const int rule) {
    const float middle = 0.5f * (lo + hi);
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] / s, r = round_to(v, mode);
        y[i] = clamp_to(r, lo, hi) * s;
        float outside = v < middle ? BELOW : ABOVE;
        residue[i] = (int8_t)(int)(is_inside(v, r, lo, hi, rule) ? rintf((r - v) * RESIDUES) : outside);
    }
}

void residue_forward(const float *x, float *y, int8_t *residue, int64_t n, const float *s, const float *lo,
                     const float *hi, int mode, int rule) {
#pragma omp parallel for schedule(static) if (n > SMALL)
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t count = n - start < BLOCK ? n - start : BLOCK;
#define LOOP(m, r) residue_loop(x + start, y + start, residue + start, count, *s, *lo, *hi, m, r)
        EACH(LOOP)
#undef LOOP
    }
}

/* partial: 3 doubles for each block; sums: inside, below, above as in fake_quantize_backward */
void residue_backward(const float *dy, const int8_t *residue, float *dx, int64_t n, double *partial, double *sums) {
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) if (n > SMALL)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t start = b * BLOCK, stop = n - start < BLOCK ? n : start + BLOCK;
        float inside = 0, below = 0, above = 0;
#pragma omp simd reduction(+ : inside, below, above)
        for (int64_t i = start; i < stop; i++) {
            int code = residue[i], in = (code != BELOW) & (code != ABOVE);
            float clipped = in ? 0.0f : dy[i], under = code < 0 ? clipped : 0.0f;
            dx[i] = in ? dy[i] : 0.0f;
            inside += dy[i] * (in ? (float)code / RESIDUES : 0.0f);
            below += under;
            above += clipped - under;
        }
        partial[3 * b] = inside, partial[3 * b + 1] = below, partial[3 * b + 2] = above;
    }
    memset(sums, 0, 3 * sizeof(double));
    for (int64_t b = 0; b < blocks; b++)
        for (int k = 0; k < 3; k++) sums[k] += partial[3 * b + k];
}

/* ---- backward: dx, and the three sums every scale gradient is made of ----
 * inside = sum of dy * (round(v) - v) where the gradient passes, below / above = sum of dy where it clipped. */

INLINE void backward_loop(const float *restrict dy, const float *restrict x, float *restrict dx, int64_t n, float s,
                          float lo, float hi, double *sums, const int mode, const int rule) {
    const float middle = 0.5f * (lo + hi);
    float inside = 0, below = 0, above = 0;
#pragma omp simd reduction(+ : inside, below, above)
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] / s, r = round_to(v, mode), g = dy[i];
        int in = is_inside(v, r, lo, hi, rule);
        float clipped = in ? 0.0f : g, under = v < middle ? clipped : 0.0f;
        dx[i] = in ? g : 0.0f;
        inside += g * (in ? r - v : 0.0f);
        below += under;
        above += clipped - under;
    }
    sums[0] = inside, sums[1] = below, sums[2] = above;
}

static void backward_run(const float *dy, const float *x, float *dx, int64_t n, float s, float lo, float hi,
                         double *sums, int mode, int rule) {
#define LOOP(m, r) backward_loop(dy, x, dx, n, s, lo, hi, sums, m, r)
    EACH(LOOP)
#undef LOOP
}

INLINE void backward_mixed_loop(const float *restrict dy, const float *restrict x, float *restrict dx,
                                int64_t channels, const float *restrict s, const float *restrict lo,
                                const float *restrict hi, double *restrict inside, double *restrict below,
                                double *restrict above, const int mode, const int rule) {
    for (int64_t c = 0; c < channels; c++) {
        float v = x[c] / s[c], r = round_to(v, mode), g = dy[c];
        int in = is_inside(v, r, lo[c], hi[c], rule);
        float clipped = in ? 0.0f : g, under = v < 0.5f * (lo[c] + hi[c]) ? clipped : 0.0f;
        dx[c] = in ? g : 0.0f;
        inside[c] += g * (in ? r - v : 0.0f);
        below[c] += under;
        above[c] += clipped - under;
    }
}

static void backward_mixed(const float *dy, const float *x, float *dx, int64_t channels, const float *s,
                           const float *lo, const float *hi, double *sums, int mode, int rule) {
#define LOOP(m, r) \
    backward_mixed_loop(dy, x, dx, channels, s, lo, hi, sums, sums + channels, sums + 2 * channels, m, r)
    EACH(LOOP)
#undef LOOP
}

/* sums: [3][channels]. partial: 3 doubles for each block; for inner == 1, 3 * channels for each of `parts` runs
 * of rows. */
void fake_quantize_backward(const float *dy, const float *x, float *dx, int64_t outer, int64_t channels,
                            int64_t inner, const float *s, const float *lo, const float *hi, double *partial,
                            int64_t parts, double *sums, int mode, int rule) {
    const int64_t total = outer * channels * inner;
    memset(sums, 0, 3 * channels * sizeof(double));
    if (inner == 1 && channels > 1) {
#pragma omp parallel for schedule(static) if (total > SMALL)
        for (int64_t p = 0; p < parts; p++) {
            double *mine = partial + p * 3 * channels;
            memset(mine, 0, 3 * channels * sizeof(double));
            for (int64_t o = outer * p / parts; o < outer * (p + 1) / parts; o++) {
                int64_t at = o * channels;
                backward_mixed(dy + at, x + at, dx + at, channels, s, lo, hi, mine, mode, rule);
            }
        }
        for (int64_t p = 0; p < parts; p++)
            for (int64_t k = 0; k < 3 * channels; k++) sums[k] += partial[p * 3 * channels + k];
        return;
    }
    const int64_t per_row = (inner + BLOCK - 1) / BLOCK, blocks = outer * channels * per_row;
#pragma omp parallel for schedule(static) if (total > SMALL)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t row = b / per_row, c = row % channels, start = (b % per_row) * BLOCK;
        int64_t n = inner - start < BLOCK ? inner - start : BLOCK, at = row * inner + start;
        backward_run(dy + at, x + at, dx + at, n, s[c], lo[c], hi[c], partial + 3 * b, mode, rule);
    }
    for (int64_t b = 0; b < blocks; b++) {
        int64_t c = b / per_row % channels;
        for (int k = 0; k < 3; k++) sums[k * channels + c] += partial[3 * b + k];
    }
}

/* Biases on the scales of their accumulators: codes have up to 32 bits, so they are computed in double, and y is what
 * they stand for. The mask is whether the code is in range. */
void accumulator_forward(const float *restrict x, float *restrict y, uint8_t *restrict mask, int64_t n,
                         const float *restrict s, int64_t scales, double lo, double hi) {
    for (int64_t i = 0; i < n; i++) {
        float step = s[scales == 1 ? 0 : i];
        double code = rint((double)x[i] / (double)step), held = code < lo ? lo : (code > hi ? hi : code);
        y[i] = (float)held * step;
        mask[i] = code == held;
    }
}

void apply_mask(const float *dy, const uint8_t *mask, float *dx, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n > SMALL)
    for (int64_t i = 0; i < n; i++) dx[i] = mask[i] ? dy[i] : 0.0f;
}

/* counts[floor(x * inv_width) + half] += 1. `inv_width` is a power of two, so the product is exact, unless it is too
 * small for a float: a negative one then still counts below zero. The caller has made sure that every index lies in [0, 2 * half). `scratch` holds parts * 2 * half counters of 32 bits, so a
 * part has fewer than 2^32 values. */
void histogram(const float *x, int64_t n, float inv_width, int64_t half, int64_t *counts, uint32_t *scratch,
               int64_t parts) {
    const int64_t bins = 2 * half;
#pragma omp parallel for schedule(static) if (parts > 1)
    for (int64_t p = 0; p < parts; p++) {
        uint32_t *mine = scratch + p * bins;
        memset(mine, 0, bins * sizeof(uint32_t));
        for (int64_t i = n * p / parts; i < n * (p + 1) / parts; i++) {
            float place = x[i] * inv_width;
            mine[(int32_t)floorf(place) - ((place == 0.0f) & (x[i] < 0.0f)) + half]++;
        }
    }
    for (int64_t p = 0; p < parts; p++)
        for (int64_t b = 0; b < bins; b++) counts[b] += scratch[p * bins + b];
}
