// The exact pass over a head: scores, their maxima or sums in bins, and the softmax, without any (Q, K) matrix.
//
// Scores of a few keys and queries are computed, pooled and summed while they are in the first cache. The softmax is
// that of Milakov & Gimelshein (2018), but the number taken off before exp, the base, follows the maximum only when it
// is far ahead, which is rare. `attnwidget/_engine/fused.py` calls `pass_avx512`, `pass_avx2` or `pass_neon`, and has
// the same struct. There is no library below: tools/native.py compiles this file for every system.
//
// Comparisons with NaN are false: maxima skip it and sums keep it.

typedef long long i64;
typedef unsigned char u8;

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
int DllMainCRTStartup(void *module, unsigned reason, void *reserved) { return module || reason || !reserved; }
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define UNROLL _Pragma("GCC unroll 8")

// 2^x for |x| <= 1/2: the polynomial of degree 5 with p(0) = 1 and the smallest relative error, at most 9.1e-8.
#define C1 0.6931469775578207f
#define C2 0.2402224207698382f
#define C3 0.0555073377765083f
#define C4 0.0096715130223251f
#define C5 0.001326472f
#define LOG2_E 1.4426950408889634f
#define LOWEST -127.0f           // 2^this and less is 0
#define ROUND (12582912.0f + 127) // added and taken off again, leaves an integer; + 127, its bits are 2^n
#define LEAD 60.0f               // how much a score may exceed its base: sums of a million e^60 are normal numbers
#define EMPTY (-__builtin_inff())

enum {
    QUERIES = 64, // that a thread takes at a time
    ROWS = 6,     // keys whose products are computed together
    PANEL = 24,   // keys that are pooled together
    BLOCK = 960,  // keys whose sum is taken before it is added to others
    PIECE = 256,  // numbers of a key that are summed without a break
};
enum { NONE, SOME, ALL };

struct pass {
    const float *q;      // [queries][size]
    const float *k;      // [keys][size]
    const float *scores; // [keys][queries], instead of q and k; or null
    const float *bias;   // added to the score of query i and key j: bias[i * bias_q + j * bias_k]; or null
    const u8 *mask;      // in the same way: not 0 where a cell is allowed, or with `hide` where it is blocked; or null
    float *bins;         // [columns][queries], largest scores or sums of exp(score - base) so far
    float *m;            // [queries] the largest score so far
    float *base;         // [queries] what is taken off before exp; -inf before any key
    float *off;          // [queries] the base, or 0 before any key
    float *total;        // [queries] sums of exp(score - base); like all arrays here, filled up to whole QUERIES
    float *room;         // to compute in, for each thread room_size numbers: [PANEL + 1 + size][QUERIES]
    i64 queries, keys, size;
    i64 q_stride, k_stride, scores_stride, bins_stride;
    i64 bias_q, bias_k, mask_q, mask_k, hide;
    i64 width, before;   // keys in a bin, and how many of them come before the first key
    i64 column;          // the first bin in use
    i64 mean;            // whether to sum
    i64 step;            // from one query to the next
    i64 room_size;
    i64 next, threads;   // 0, 0: which queries are taken, and how many threads have come
    i64 low, high, stop; // query i may attend to key j if i * step + low <= j <= i * step + high and j < stop
    float scale;         // of the products
    float lowest;        // a bias of this and less blocks its cell
};

struct grid {
    const float *bins;   // [columns][queries], as the pass left them
    const float *m;      // [queries], the largest score
    const float *log_l;  // [queries], log of the sum of exp(score - m)
    const float *factor; // [queries], 1 / the sum of exp(score - base)
    float *values;       // [rows][columns], the result
    float *room;         // to compute in, for each thread room_size numbers: [rows][16]
    i64 queries, columns, bins_stride;
    i64 width;           // queries in a row
    i64 mean;            // whether to sum
    i64 room_size;
    i64 next, threads;   // as above
};

// Return a number and count it up, for several threads.
static inline i64 taken(i64 *number) { return __atomic_fetch_add(number, 1, __ATOMIC_RELAXED); }

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

static inline float larger(float a, float b) { return a > b ? a : b; }

// Say whether none, some or all cells of a panel are allowed.
static int coverage(const struct pass *p, i64 q, i64 queries, i64 k, i64 keys) {
    const i64 first = q * p->step, last = (q + queries - 1) * p->step;
    if (k >= p->stop || k > last + p->high || k + keys - 1 < first + p->low) return NONE;
    const int all = k + keys <= p->stop && k + keys - 1 <= first + p->high && k >= last + p->low;
    return all ? ALL : SOME;
}

// Write -inf into the cells of a panel that are not allowed.
static void exclude(const struct pass *p, i64 q, i64 queries, i64 k, i64 keys, float *S) {
    for (i64 j = 0; j < queries; j++) {
        const i64 at = (q + j) * p->step - k, from = at + p->low, to = least(at + p->high, p->stop - k - 1);
        for (i64 r = 0; r < keys; r++)
            if (r < from || r > to) S[r * QUERIES + j] = EMPTY;
    }
}

// Copy scaled queries so that numbers of QUERIES queries lie side by side, [size][QUERIES]; the last ones filled up with 0.
static void copy_queries(const struct pass *p, i64 q, i64 queries, float *to) {
    for (i64 j = 0; j < QUERIES; j++)
        for (i64 d = 0; d < p->size; d++)
            to[d * QUERIES + j] = j < queries ? p->q[(q + j) * p->q_stride + d] * p->scale : 0;
}

static void copy_scores(const struct pass *p, i64 q, i64 queries, i64 k, i64 keys, float *S) {
    for (i64 r = 0; r < keys; r++)
        for (i64 j = 0; j < QUERIES; j++)
            S[r * QUERIES + j] = j < queries ? p->scores[(k + r) * p->scores_stride + q + j] : 0;
}

// Add the bias to a panel, and write -inf where it or the mask blocks a cell.
static void apply_tensors(const struct pass *p, i64 q, i64 queries, i64 k, i64 keys, float *S) {
    for (i64 j = 0; p->bias && j < queries; j++) {
        const float *bias = p->bias + (q + j) * p->bias_q + k * p->bias_k;
        for (i64 r = 0; r < keys; r++) {
            const float added = bias[r * p->bias_k];
            S[r * QUERIES + j] = added <= p->lowest ? EMPTY : S[r * QUERIES + j] + added; // NaN is added, so that it shows
        }
    }
    for (i64 j = 0; p->mask && j < queries; j++) {
        const u8 *mask = p->mask + (q + j) * p->mask_q + k * p->mask_k;
        for (i64 r = 0; r < keys; r++)
            if ((mask[r * p->mask_k] != 0) == p->hide) S[r * QUERIES + j] = EMPTY;
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f")))
#define vec __m512
#define LANES 16
#define WIDE 4
#define LOAD(from) _mm512_loadu_ps(from)
#define STORE(to, x) _mm512_storeu_ps(to, x)
#define SET(x) _mm512_set1_ps(x)
#define ADD(a, b) _mm512_add_ps(a, b)
#define SUB(a, b) _mm512_sub_ps(a, b)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define MIN(a, b) _mm512_min_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define POWER(t) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23))
#define ANY_GREATER(a, b) (_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0)
#include "pass.h"

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define vec __m256
#define LANES 8
#define WIDE 2
#define LOAD(from) _mm256_loadu_ps(from)
#define STORE(to, x) _mm256_storeu_ps(to, x)
#define SET(x) _mm256_set1_ps(x)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUB(a, b) _mm256_sub_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define MIN(a, b) _mm256_min_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define POWER(t) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23))
#define ANY_GREATER(a, b) (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0)
#include "pass.h"

#elif defined(__aarch64__)
#include <arm_neon.h>

#define NAME(x) x##_neon
#define TARGET
#define vec float32x4_t
#define LANES 4
#define WIDE 4
#define LOAD(from) vld1q_f32(from)
#define STORE(to, x) vst1q_f32(to, x)
#define SET(x) vdupq_n_f32(x)
#define ADD(a, b) vaddq_f32(a, b)
#define SUB(a, b) vsubq_f32(a, b)
#define MUL(a, b) vmulq_f32(a, b)
#define MAX(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define MIN(a, b) vbslq_f32(vcltq_f32(a, b), a, b)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define POWER(t) vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23))
#define ANY_GREATER(a, b) (vmaxvq_u32(vcgtq_f32(a, b)) != 0)
#include "pass.h"

#endif
