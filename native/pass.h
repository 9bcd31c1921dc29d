// The pass with one kind of vectors. pass.c includes this file once for each kind, after it defined:
//
//   NAME(x)    x with the kind's name
//   TARGET     the instructions that the compiler may use
//   vec        a vector of LANES floats, and LOAD, STORE, SET, ADD, SUB, MUL, MAX, MIN, FMA and POWER for it
//   WIDE       how many vectors of queries `product` computes at once
//
// MAX(a, b) and MIN(a, b) are b if a is NaN. Each lane is computed alone and in the same order, so all kinds give the same bits.

// 2^y for y <= 127; 0 below the normal range, NaN for NaN. At most 2 parts in 10 million off.
TARGET static inline vec NAME(exp2)(vec y) {
    y = MAX(SET(LOWEST), y);
    const vec t = ADD(y, SET(ROUND));
    const vec f = SUB(y, SUB(t, SET(ROUND))); // -1/2 to 1/2
    vec p = FMA(SET(C5), f, SET(C4));
    p = FMA(p, f, SET(C3));
    p = FMA(p, f, SET(C2));
    p = FMA(p, f, SET(C1));
    p = FMA(p, f, SET(1.0f));
    return MUL(p, POWER(t));
}

// Compute S[r][j] = k[r] . q[j] for ROWS keys, of which `rows` are there, and QUERIES queries.
TARGET static void NAME(product)(const struct pass *p, const float *q, const float *k, i64 rows, float *S) {
    const float *at[ROWS];
    for (int r = 0; r < ROWS; r++) at[r] = k + (r < rows ? r : rows - 1) * p->k_stride;
    for (i64 first = 0; first < p->size; first += PIECE) { // short sums are more exact
        const i64 last = least(p->size, first + PIECE);
        for (int j = 0; j < QUERIES; j += WIDE * LANES) {
            vec sum[ROWS][WIDE];
            UNROLL for (int r = 0; r < ROWS; r++) {
                UNROLL for (int v = 0; v < WIDE; v++) sum[r][v] = SET(0.0f);
            }
            for (i64 d = first; d < last; d++) {
                vec x[WIDE];
                UNROLL for (int v = 0; v < WIDE; v++) x[v] = LOAD(q + d * QUERIES + j + v * LANES);
                UNROLL for (int r = 0; r < ROWS; r++) {
                    const vec y = SET(at[r][d]);
                    UNROLL for (int v = 0; v < WIDE; v++) sum[r][v] = FMA(x[v], y, sum[r][v]);
                }
            }
            UNROLL for (int r = 0; r < ROWS; r++) {
                float *to = S + r * QUERIES + j;
                UNROLL for (int v = 0; v < WIDE; v++)
                    STORE(to + v * LANES, first ? ADD(LOAD(to + v * LANES), sum[r][v]) : sum[r][v]);
            }
        }
    }
}

// 2^x of a single number.
TARGET static float NAME(exp2_of_one)(float x) {
    float y[LANES];
    STORE(y, NAME(exp2)(SET(x)));
    return y[0];
}

// Move the base of each of LANES queries to its maximum if that is far ahead, and rescale earlier sums.
TARGET static void NAME(move_base)(const struct pass *p, i64 j, i64 columns, float *added) {
    for (const i64 end = j + LANES; j < end; j++) {
        const float peak = p->m[j];
        if (!(peak > p->base[j] + LEAD)) continue;
        const float half = NAME(exp2_of_one)((p->base[j] - peak) * (LOG2_E / 2)); // whole, it could be below all numbers
        p->base[j] = p->off[j] = peak;
        p->total[j] = p->total[j] * half * half;
        added[j] = added[j] * half * half;
        if (p->mean)
            for (i64 c = p->column; c < columns; c++) {
                float *bin = p->bins + c * p->bins_stride + j;
                *bin = *bin * half * half;
            }
    }
}

// Pool the scores of some keys and QUERIES queries.
TARGET static void NAME(pool)(const struct pass *p, const float *S, i64 keys, i64 lanes, i64 before, float *added) {
    const vec log2_e = SET(LOG2_E);
    for (i64 j = 0; j < lanes; j += LANES) {
        vec peak = LOAD(p->m + j);
        for (i64 k = 0; k < keys;) {
            const i64 column = (before + k) / p->width, end = least(keys, (column + 1) * p->width - before);
            float *bin = p->bins + column * p->bins_stride + j;
            vec largest = p->mean ? peak : LOAD(bin);
            for (; k < end; k++) largest = MAX(LOAD(S + k * QUERIES + j), largest);
            if (!p->mean) STORE(bin, largest);
            peak = MAX(largest, peak);
        }
        STORE(p->m + j, peak);
        if (ANY_GREATER(peak, ADD(LOAD(p->base + j), SET(LEAD))))
            NAME(move_base)(p, j, (before + keys - 1) / p->width + 1, added);
        const vec off = LOAD(p->off + j);
        vec sum = SET(0.0f);
        for (i64 k = 0; k < keys;) {
            const i64 column = (before + k) / p->width;
            const i64 end = p->mean ? least(keys, (column + 1) * p->width - before) : keys;
            vec a = SET(0.0f), b = SET(0.0f);
            for (; k + 2 <= end; k += 2) {
                a = ADD(a, NAME(exp2)(MUL(SUB(LOAD(S + k * QUERIES + j), off), log2_e)));
                b = ADD(b, NAME(exp2)(MUL(SUB(LOAD(S + (k + 1) * QUERIES + j), off), log2_e)));
            }
            for (; k < end; k++) a = ADD(a, NAME(exp2)(MUL(SUB(LOAD(S + k * QUERIES + j), off), log2_e)));
            a = ADD(a, b);
            if (p->mean) {
                float *bin = p->bins + column * p->bins_stride + j;
                STORE(bin, ADD(LOAD(bin), a));
            }
            sum = ADD(sum, a);
        }
        STORE(added + j, ADD(LOAD(added + j), sum));
    }
}

// Pool all keys for QUERIES queries from q on.
TARGET static void NAME(pool_all)(const struct pass *whole, i64 q, float *room) {
    float *S = room, *added = S + PANEL * QUERIES, *queries = added + QUERIES;
    struct pass p = *whole;
    p.bins += q, p.m += q, p.base += q, p.off += q, p.total += q;
    const i64 lanes = least(QUERIES, p.queries - q);
    if (!p.scores) copy_queries(&p, q, lanes, queries);
    for (i64 block = 0; block < p.keys; block += BLOCK) { // short sums are more exact
        const i64 stop = least(p.keys, block + BLOCK);
        for (int j = 0; j < QUERIES; j++) added[j] = 0;
        for (i64 k = block; k < stop; k += PANEL) {
            const i64 keys = least(PANEL, stop - k);
            const int covered = coverage(&p, q, lanes, k, keys);
            if (covered == NONE) continue;
            if (p.scores)
                copy_scores(&p, q, lanes, k, keys, S);
            else
                for (i64 r = 0; r < keys; r += ROWS)
                    NAME(product)(&p, queries, p.k + (k + r) * p.k_stride, keys - r, S + r * QUERIES);
            if (p.bias || p.mask) apply_tensors(&p, q, lanes, k, keys, S);
            if (covered == SOME) exclude(&p, q, lanes, k, keys, S);
            NAME(pool)(&p, S, keys, lanes, p.before + k, added);
        }
        for (i64 j = 0; j < lanes; j++) p.total[j] += added[j];
    }
}

// Pool all keys for all queries; several threads call it with the same struct.
TARGET EXPORT void NAME(pass)(struct pass *p) {
    float *room = p->room + taken(&p->threads) * p->room_size;
    for (i64 q; (q = taken(&p->next) * QUERIES) < p->queries;) NAME(pool_all)(p, q, room);
}

// Pool a column of the grid over the queries into rows of 16 numbers: the largest bin - m - log l, or the sum of
// bin * factor. The order of a sum depends only on the place in its row, so it is the same wherever the grid begins.
TARGET static void NAME(finish_column)(const struct grid *g, const float *bin, float *to) {
    const float *m = g->m, *log_l = g->log_l, *factor = g->factor;
    for (i64 j = 0; j < g->queries; to += 16) {
        const i64 end = least(g->queries, j + g->width);
        float found = g->mean ? 0 : EMPTY, x[16];
        for (; j + 16 <= end; j += 16) {
            if (g->mean) {
                for (int v = 0; v < 16; v++) x[v] = bin[j + v] * factor[j + v];
                for (int half = 8; half; half /= 2)
                    for (int v = 0; v < half; v++) x[v] += x[v + half];
                found += x[0];
            } else {
                for (int v = 0; v < 16; v++) x[v] = bin[j + v] - m[j + v] - log_l[j + v];
                for (int half = 8; half; half /= 2)
                    for (int v = 0; v < half; v++) x[v] = larger(x[v], x[v + half]);
                found = larger(x[0], found);
            }
        }
        if (g->mean)
            for (; j < end; j++) found += bin[j] * factor[j];
        else
            for (; j < end; j++) found = larger(bin[j] - m[j] - log_l[j], found);
        *to = found;
    }
}

// Pool all columns of the grid over the queries; several threads call it with the same struct.
TARGET EXPORT void NAME(finish)(struct grid *g) {
    float *room = g->room + taken(&g->threads) * g->room_size;
    const i64 rows = (g->queries + g->width - 1) / g->width;
    for (i64 c; (c = taken(&g->next) * 16) < g->columns;) {
        const i64 columns = least(16, g->columns - c);
        for (i64 i = 0; i < columns; i++) NAME(finish_column)(g, g->bins + (c + i) * g->bins_stride, room + i);
        for (i64 row = 0; row < rows; row++) {
            float *x = room + row * 16;
            if (!g->mean) // above 1 by rounding alone
                for (i64 i = 0; i < 16; i += LANES)
                    STORE(x + i, MIN(SET(1.0f), NAME(exp2)(MUL(LOAD(x + i), SET(LOG2_E)))));
            for (i64 i = 0; i < columns; i++) g->values[row * g->columns + c + i] = x[i];
        }
    }
}

#undef NAME
#undef TARGET
#undef vec
#undef LANES
#undef WIDE
#undef LOAD
#undef STORE
#undef SET
#undef ADD
#undef SUB
#undef MUL
#undef MAX
#undef MIN
#undef FMA
#undef POWER
#undef ANY_GREATER
