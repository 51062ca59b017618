/* Attention within examples, all heads of an example one after another, where its tokens lie: nothing is gathered,
 * padded or put back. Forward and backward, float32.
 *
 * An example has `num_queries` and `num_keys` tokens in a row of their streams. Of one head: queries Q, keys K, values V,
 * S = scale Q K^T, P = softmax(S), and P V is the answer. Some queries at a time, so that their rows of S stay in the
 * processor's cache; the backward pass computes them again from max(S) and log(sum(exp(S - max))) of each row, which is faster than to
 * read them from memory (Dao 2023, https://arxiv.org/abs/2307.08691, which does so on GPUs).
 *
 * Arguments are buffers; their sizes and contents are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>

#include "_vectors.h"

#define ROWS 6
/* Rows of a tile that is n vectors wide: as many sums as the registers hold. */
#define MOST_ROWS(n) ((n) == 3 ? 9 : (n) == 2 ? 12 : ROWS)
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t places __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Examples: where they begin in their streams, their lengths, and how many keys all of their queries see (a query sees
 * its own number of keys too). */
enum { FIRST_QUERY, NUM_QUERIES, FIRST_KEY, NUM_KEYS, NUM_PREFIX, FIELDS };

/* Floats of S that are worked on at a time, about. */
#define SCORES_AT_A_TIME (1 << 15)

/* rows x 16 n entries of C = A B, or C += A B. Entry l of row i of A is at a + i * row + l * step. */
INLINE void tile(int rows, int n, int64_t depth, const float *a, int64_t row, int64_t step, const float *b,
                 int64_t b_row, float *c, int64_t c_row, int adds) {
    lanes sum[12][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            sum[i][j] = adds ? *(const lanes *)(c + i * c_row + j * LANES) : (lanes){0};
    for (int64_t l = 0; l < depth; l++) {
        lanes part[4];
        for (int j = 0; j < n; j++)
            part[j] = *(const lanes *)(b + l * b_row + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < n; j++)
                sum[i][j] += a[i * row + l * step] * part[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            *(lanes *)(c + i * c_row + j * LANES) = sum[i][j];
}

INLINE void strip(int n, int64_t num_rows, int64_t depth, const float *a, int64_t row, int64_t step, const float *b,
                  int64_t b_row, float *c, int64_t c_row, int adds) {
    int64_t i = 0;
    for (; i + MOST_ROWS(n) <= num_rows; i += MOST_ROWS(n))
        tile(MOST_ROWS(n), n, depth, a + i * row, row, step, b, b_row, c + i * c_row, c_row, adds);
    for (; i + ROWS <= num_rows; i += ROWS)
        tile(ROWS, n, depth, a + i * row, row, step, b, b_row, c + i * c_row, c_row, adds);
    a += i * row, c += i * c_row;
    switch (num_rows - i) {
    case 5: tile(5, n, depth, a, row, step, b, b_row, c, c_row, adds); break;
    case 4: tile(4, n, depth, a, row, step, b, b_row, c, c_row, adds); break;
    case 3: tile(3, n, depth, a, row, step, b, b_row, c, c_row, adds); break;
    case 2: tile(2, n, depth, a, row, step, b, b_row, c, c_row, adds); break;
    case 1: tile(1, n, depth, a, row, step, b, b_row, c, c_row, adds); break;
    }
}

/* C = A B, or C += A B, with num_rows rows and num_columns columns, a multiple of 16. */
INLINE void multiply_for(int wide, int64_t num_rows, int64_t num_columns, int64_t depth, const float *a, int64_t row,
                         int64_t step, const float *b, int64_t b_row, float *c, int64_t c_row, int adds) {
    int64_t j = 0;
    for (; j + wide * LANES <= num_columns; j += wide * LANES)
        strip(wide, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row, adds);
    switch (wide > 1 ? num_columns - j : 0) {
    case 3 * LANES: strip(3, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row, adds); break;
    case 2 * LANES: strip(2, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row, adds); break;
    case LANES: strip(1, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row, adds); break;
    }
}

BY_PROCESSOR(multiply,
             (int64_t num_rows, int64_t num_columns, int64_t depth, const float *a, int64_t row, int64_t step,
              const float *b, int64_t b_row, float *c, int64_t c_row, int adds),
             (num_rows, num_columns, depth, a, row, step, b, b_row, c, c_row, adds))

/* A square of 16 x 16 floats, turned. */
INLINE void turn(int wide, const float *from, int64_t from_row, float *to, int64_t to_row) {
#if defined(__GNUC__) && !defined(__clang__)
    if (wide > 1) { /* a vector is a register */
        lanes rows[LANES], next[LANES];
        for (int i = 0; i < LANES; i++)
            rows[i] = *(const lanes *)(from + i * from_row);
        /* Of two rows the even, then the odd entries, four times: the bits of an entry's place wander by one. */
        const places even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}, odd = even + 1;
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < LANES / 2; i++) {
                next[i] = __builtin_shuffle(rows[2 * i], rows[2 * i + 1], even);
                next[i + LANES / 2] = __builtin_shuffle(rows[2 * i], rows[2 * i + 1], odd);
            }
            for (int i = 0; i < LANES; i++)
                rows[i] = next[i];
        }
        for (int i = 0; i < LANES; i++)
            *(lanes *)(to + i * to_row) = rows[i];
        return;
    }
#endif
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++)
            to[i * to_row + j] = from[j * from_row + i];
}

/* Rows as columns: `num` rows of `width` floats, a multiple of 16, to `width` rows of `stride`, with zeros behind. */
INLINE void transpose_for(int wide, const float *rows, int64_t row, int64_t num, int64_t width, int64_t stride,
                          float *columns) {
    int64_t p = 0;
    for (; p + LANES <= num; p += LANES)
        for (int64_t k = 0; k < width; k += LANES)
            turn(wide, rows + p * row + k, row, columns + k * stride + p, stride);
    for (; p < stride; p += LANES)
        for (int64_t k = 0; k < width; k++)
            for (int j = 0; j < LANES; j++)
                columns[k * stride + p + j] = p + j < num ? rows[(p + j) * row + k] : 0;
}

BY_PROCESSOR(transpose,
             (const float *rows, int64_t row, int64_t num, int64_t width, int64_t stride, float *columns),
             (rows, row, num, width, stride, columns))

INLINE lanes higher(lanes a, lanes b) {
    places is_higher = a > b;
    return (lanes)(((places)a & is_higher) | ((places)b & ~is_higher));
}

/* Which of the 16 entries from number `first` on are below `end`: all bits, or none. */
INLINE places below(int64_t first, int64_t end) {
    const places number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return number + (int32_t)first < (int32_t)end;
}

/* The entries of two halves, side by side, again and again: four steps instead of fifteen. */
INLINE float sum_of(lanes x) {
    float part[LANES];
    memcpy(part, &x, sizeof part);
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            part[j] += part[j + half];
    return part[0];
}

INLINE float highest_of(lanes x) {
    float part[LANES];
    memcpy(part, &x, sizeof part);
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            part[j] = part[j + half] > part[j] ? part[j + half] : part[j];
    return part[0];
}

/* exp(scale x - top - more) of the first `seen` entries of a row, zeros behind; the sum of all. Where scores are large
 * only the first difference is as exact as they are, so both are taken. */
INLINE float exponentials(float *x, int64_t seen, int64_t stride, float scale, float top, float more) {
    lanes sum = {0};
    int64_t p = 0;
    for (; p < seen; p += LANES)
        for (int j = 0; j < LANES; j++)
            x[p + j] = exponential(x[p + j] * scale - top - more);
    for (p = 0; p + LANES <= seen; p += LANES)
        sum += *(const lanes *)(x + p);
    for (; p < stride; p += LANES) {
        lanes rest = (lanes)(*(const places *)(x + p) & below(p, seen));
        *(lanes *)(x + p) = rest;
        sum += rest;
    }
    return sum_of(sum);
}

/* Of the first `seen` entries of a row. */
INLINE float highest(const float *x, int64_t seen) {
    lanes top = {0};
    int64_t p = 0;
    top += x[0];
    for (; p + LANES <= seen; p += LANES)
        top = higher(*(const lanes *)(x + p), top);
    if (p < seen) {
        places is_seen = below(p, seen);
        lanes rest = (lanes)((*(const places *)(x + p) & is_seen) | ((places)top & ~is_seen));
        top = higher(rest, top);
    }
    return highest_of(top);
}

INLINE int64_t num_seen(int64_t query, int64_t num_keys, int64_t num_prefix) {
    int64_t seen = query + 1 > num_prefix ? query + 1 : num_prefix;
    return seen < num_keys ? seen : num_keys;
}

/* What the next head reads of some arrays, whose rows lie far apart: the processor does not foresee them, so they are
 * called for while this head is worked on, a row of each at a time. First float, floats from row to row, rows. */
#define MOST_ARRAYS 3
typedef struct {
    const float *rows[MOST_ARRAYS];
    int64_t row[MOST_ARRAYS], num[MOST_ARRAYS], width;
} Next;

INLINE void fetch(const Next *next, int64_t number) {
    for (int i = 0; i < MOST_ARRAYS; i++)
        if (number < next->num[i])
            for (int64_t k = 0; k < next->width; k += LANES)
                FETCH(next->rows[i] + number * next->row[i] + k);
}

/* Rows of Q K^T, of the queries from number `first` on, to those of P times their sums, which go to `sums`. */
INLINE void softmax_for(int wide, float *scores, int64_t first, int64_t num_queries, int64_t num_keys,
                        int64_t num_prefix, int64_t stride, float scale, float *sums, float *shifts,
                        const Next *next) {
    (void)wide;
    for (int64_t q = 0; q < num_queries; q++, scores += stride) {
        fetch(next, first + q);
        int64_t seen = num_seen(first + q, num_keys, num_prefix);
        shifts[2 * q] = highest(scores, seen) * scale;
        sums[q] = exponentials(scores, seen, stride, scale, shifts[2 * q], 0);
        shifts[2 * q + 1] = logf(sums[q]);
    }
}

BY_PROCESSOR(softmax,
             (float *scores, int64_t first, int64_t num_queries, int64_t num_keys, int64_t num_prefix, int64_t stride,
              float scale, float *sums, float *shifts, const Next *next),
             (scores, first, num_queries, num_keys, num_prefix, stride, scale, sums, shifts, next))

/* The same to rows of P, by what `softmax` found. */
INLINE void softmax_again_for(int wide, float *scores, int64_t first, int64_t num_queries, int64_t num_keys,
                              int64_t num_prefix, int64_t stride, float scale, const float *shifts,
                              const Next *next) {
    (void)wide;
    for (int64_t q = 0; q < num_queries; q++, scores += stride) {
        fetch(next, first + q);
        exponentials(scores, num_seen(first + q, num_keys, num_prefix), stride, scale, shifts[2 * q], shifts[2 * q + 1]);
    }
}

BY_PROCESSOR(softmax_again,
             (float *scores, int64_t first, int64_t num_queries, int64_t num_keys, int64_t num_prefix, int64_t stride,
              float scale, const float *shifts, const Next *next),
             (scores, first, num_queries, num_keys, num_prefix, stride, scale, shifts, next))

/* Rows of `width` floats, a multiple of 16, divided by `sums`. */
INLINE void divide_for(int wide, float *rows, int64_t row, int64_t num, int64_t width, const float *sums) {
    (void)wide;
    for (int64_t q = 0; q < num; q++, rows += row) {
        float factor = 1 / sums[q];
        for (int64_t k = 0; k < width; k += LANES)
            for (int j = 0; j < LANES; j++)
                rows[k + j] *= factor;
    }
}

BY_PROCESSOR(divide, (float *rows, int64_t row, int64_t num, int64_t width, const float *sums),
             (rows, row, num, width, sums))

/* What is above P to what is above Q K^T, scale P (x - sum(P x)) of each row; the sums are those of answer and gradient. */
INLINE void softmax_back_for(int wide, const float *shares, float *above, int64_t first, int64_t num_queries,
                             int64_t stride, float scale, const float *mixed, const float *to_mixed, int64_t row,
                             int64_t width, const Next *next) {
    (void)wide;
    for (int64_t q = 0; q < num_queries; q++) {
        fetch(next, first + q);
        lanes sum = {0};
        for (int64_t k = 0; k < width; k += LANES)
            sum += *(const lanes *)(mixed + k) * *(const lanes *)(to_mixed + k);
        float total = sum_of(sum);
        for (int64_t p = 0; p < stride; p += LANES)
            for (int j = 0; j < LANES; j++)
                above[p + j] = scale * shares[p + j] * (above[p + j] - total);
        shares += stride, above += stride, mixed += row, to_mixed += row;
    }
}

BY_PROCESSOR(softmax_back,
             (const float *shares, float *above, int64_t first, int64_t num_queries, int64_t stride, float scale,
              const float *mixed, const float *to_mixed, int64_t row, int64_t width, const Next *next),
             (shares, above, first, num_queries, stride, scale, mixed, to_mixed, row, width, next))

typedef struct {
    const float *q, *kv, *above; /* `above`: the gradient of the answer */
    float *shifts, *mixed, *to_q, *to_kv; /* `shifts`: of each head and query, max(S) and log(sum(exp(S - max))) */
    const int64_t *examples;
    int64_t num_heads, width, num_queries;
    int64_t q_row, kv_row, to_q_row, to_kv_row; /* floats from one token to the next */
    int64_t values; /* floats of a token before its values; its keys are a third or half of that behind the start */
    float scale;
} Task;

INLINE int64_t in_lanes(int64_t num) { return (num + LANES - 1) / LANES * LANES; }

INLINE int64_t stride_of(const int64_t *one) { return in_lanes(one[NUM_KEYS]); }

/* Queries at a time: as many rows of tiles as fit. */
INLINE int64_t queries_at_a_time(const int64_t *one) {
    int64_t some = SCORES_AT_A_TIME / stride_of(one) / 36 * 36;
    some = some < 36 ? 36 : some;
    return some < one[NUM_QUERIES] ? some : one[NUM_QUERIES];
}

/* Floats that one head needs. */
INLINE int64_t room_of(const Task *task, const int64_t *one) {
    return 2 * (task->width + queries_at_a_time(one)) * stride_of(one) + queries_at_a_time(one);
}

enum { INPUTS, ANSWERS, NEXTS };

/* What the work on one example and head reads: of the inputs, and backwards of the answers and their gradient. */
static void expect(const Task *task, const int64_t *one, int64_t head, int is_backward, Next next[NEXTS]) {
    int64_t width = task->width, out_row = task->num_heads * width, answer = one[FIRST_QUERY] * out_row + head * width;
    int64_t num_queries = one[NUM_QUERIES], num_keys = one[NUM_KEYS];
    const float *v = task->kv + one[FIRST_KEY] * task->kv_row + task->values + head * width;
    next[INPUTS] = (Next){{v - out_row, v, task->q + one[FIRST_QUERY] * task->q_row + head * width},
                          {task->kv_row, task->kv_row, task->q_row},
                          {num_keys, num_keys, num_queries},
                          width};
    if (is_backward)
        next[ANSWERS] = (Next){
            {task->above + answer, task->mixed + answer}, {out_row, out_row}, {num_queries, num_queries}, width};
}

/* Of one example and head. */
static void attend_head(const Task *task, const int64_t *one, int64_t head, const Next next[NEXTS], float *room) {
    int64_t width = task->width, out_row = task->num_heads * width, stride = stride_of(one);
    int64_t num_keys = one[NUM_KEYS], some = queries_at_a_time(one);
    const float *q = task->q + one[FIRST_QUERY] * task->q_row + head * width;
    const float *v = task->kv + one[FIRST_KEY] * task->kv_row + task->values + head * width;
    float *shifts = task->shifts + 2 * (head * task->num_queries + one[FIRST_QUERY]);
    float *mixed = task->mixed + one[FIRST_QUERY] * out_row + head * width;
    float *shares = room + width * stride, *sums = shares + some * stride;
    transpose(v - out_row, task->kv_row, num_keys, width, stride, room);
    for (int64_t first = 0; first < one[NUM_QUERIES]; first += some) {
        int64_t num = one[NUM_QUERIES] - first < some ? one[NUM_QUERIES] - first : some;
        int64_t seen = num_seen(first + num - 1, num_keys, one[NUM_PREFIX]), columns = in_lanes(seen);
        multiply(num, columns, width, q + first * task->q_row, task->q_row, 1, room, stride, shares, columns, 0);
        softmax(shares, first, num, num_keys, one[NUM_PREFIX], columns, task->scale, sums, shifts + 2 * first,
                next + INPUTS);
        multiply(num, width, seen, shares, columns, 1, v, task->kv_row, mixed + first * out_row, out_row, 0);
        divide(mixed + first * out_row, out_row, num, width, sums);
    }
}

/* C = A^T B, which is added to the first `num_done` rows of C. */
static void gather(int64_t num_rows, int64_t num_columns, int64_t depth, const float *a, int64_t a_row, const float *b,
                   int64_t b_row, float *c, int64_t c_row, int64_t num_done) {
    multiply(num_done, num_columns, depth, a, 1, a_row, b, b_row, c, c_row, 1);
    multiply(num_rows - num_done, num_columns, depth, a + num_done, 1, a_row, b, b_row, c + num_done * c_row, c_row, 0);
}

/* Of one example and head. */
static void return_head(const Task *task, const int64_t *one, int64_t head, const Next next[NEXTS], float *room) {
    int64_t width = task->width, out_row = task->num_heads * width, stride = stride_of(one);
    int64_t num_keys = one[NUM_KEYS], some = queries_at_a_time(one), kv_row = task->kv_row, q_row = task->q_row;
    int64_t to_row = task->to_kv_row;
    float *to_v = task->to_kv + one[FIRST_KEY] * to_row + task->values + head * width, *to_k = to_v - out_row;
    int64_t v_place = one[FIRST_KEY] * kv_row + task->values + head * width, k_place = v_place - out_row;
    float *keys = room, *values = keys + width * stride, *shares = values + width * stride;
    float *scores = shares + some * stride;
    int64_t num_done = 0;
    transpose(task->kv + k_place, kv_row, num_keys, width, stride, keys);
    transpose(task->kv + v_place, kv_row, num_keys, width, stride, values);
    for (int64_t first = 0; first < one[NUM_QUERIES]; first += some) {
        int64_t num = one[NUM_QUERIES] - first < some ? one[NUM_QUERIES] - first : some;
        int64_t query = one[FIRST_QUERY] + first, q_place = query * q_row + head * width;
        const float *above = task->above + query * out_row + head * width;
        const float *shifts = task->shifts + 2 * (head * task->num_queries + query);
        int64_t seen = num_seen(first + num - 1, num_keys, one[NUM_PREFIX]), columns = in_lanes(seen);
        multiply(num, columns, width, task->q + q_place, q_row, 1, keys, stride, shares, columns, 0);
        softmax_again(shares, first, num, num_keys, one[NUM_PREFIX], columns, task->scale, shifts,
                      next + INPUTS);
        multiply(num, columns, width, above, out_row, 1, values, stride, scores, columns, 0);
        gather(seen, width, num, shares, columns, above, out_row, to_v, to_row, num_done);
        softmax_back(shares, scores, first, num, columns, task->scale, task->mixed + query * out_row + head * width,
                     above, out_row, width, next + ANSWERS);
        multiply(num, width, seen, scores, columns, 1, task->kv + k_place, kv_row, task->to_q + query * task->to_q_row + head * width,
                 task->to_q_row, 0);
        gather(seen, width, num, scores, columns, task->q + q_place, q_row, to_k, to_row, num_done);
        num_done = seen;
    }
    for (int64_t p = num_done; p < num_keys; p++) { /* no query sees them */
        memset(to_k + p * to_row, 0, (size_t)width * 4);
        memset(to_v + p * to_row, 0, (size_t)width * 4);
    }
}

/* Every head of every example, by `num_threads` threads. 0 where there is no memory. */
static int run(const Task *task, int64_t num_examples, int64_t room_size, int num_threads, int is_backward) {
    int is_done = 1;
    (void)num_threads;
#pragma omp parallel num_threads(num_threads)
    {
        float *room = aligned_alloc(64, (size_t)(room_size * 4 + 63) / 64 * 64);
        if (room == NULL) {
#pragma omp atomic write
            is_done = 0;
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t number = 0; number < num_examples * task->num_heads; number++) {
            const int64_t *one = task->examples + number / task->num_heads * FIELDS;
            int64_t after = number + 1;
            Next next[NEXTS] = {0};
            if (after < num_examples * task->num_heads)
                expect(task, task->examples + after / task->num_heads * FIELDS, after % task->num_heads, is_backward, next);
            if (room != NULL)
                (is_backward ? return_head : attend_head)(task, one, number % task->num_heads, next, room);
        }
        free(room);
    }
    return is_done;
}

/* Whether examples and buffers fit each other; the floats that one head needs. Queries must not be shared, nor keys. */
static int fits(const Task *task, int64_t num_examples, int64_t num_queries, int64_t num_keys, int64_t *room_size) {
    int64_t next_key = 0;
    *room_size = LANES;
    for (int64_t number = 0; number < num_examples; number++) {
        const int64_t *one = task->examples + number * FIELDS;
        if (one[NUM_QUERIES] < 1 || one[NUM_KEYS] < 1 || one[FIRST_QUERY] < 0 || one[FIRST_KEY] < next_key ||
            one[NUM_QUERIES] > num_queries || one[FIRST_QUERY] > num_queries - one[NUM_QUERIES] ||
            one[NUM_KEYS] > num_keys || one[FIRST_KEY] > num_keys - one[NUM_KEYS])
            return 0;
        next_key = one[FIRST_KEY] + one[NUM_KEYS];
        int64_t size = room_of(task, one);
        *room_size = size > *room_size ? size : *room_size;
    }
    return 1;
}

/* Arguments in order: q, kv, examples, shifts, mixed, and backwards `above`, `to_q` and `to_kv`. */
static PyObject *call(PyObject *args, int is_backward) {
    Py_buffer view[8];
    Py_ssize_t num_heads, width, q_row = 0, kv_row = 0;
    double scale;
    int num_threads, num_views = is_backward ? 8 : 5;
    if (is_backward ? !PyArg_ParseTuple(args, "y*y*y*y*y*y*w*w*nndi|nn", &view[0], &view[1], &view[2], &view[3], &view[4],
                                        &view[5], &view[6], &view[7], &num_heads, &width, &scale, &num_threads,
                                        &q_row, &kv_row)
                    : !PyArg_ParseTuple(args, "y*y*y*w*w*nndi|nn", &view[0], &view[1], &view[2], &view[3], &view[4],
                                        &num_heads, &width, &scale, &num_threads, &q_row, &kv_row))
        return NULL;
    int is_right = num_heads > 0 && num_heads < 1 << 20 && width > 0 && width < 1 << 20 && width % LANES == 0 && q_row >= 0 && kv_row >= 0 &&
                   num_threads > 0 && num_threads <= MOST_THREADS && view[2].itemsize == 8 && view[2].len % (FIELDS * 8) == 0 && scale > 0;
    for (int index = 0; index < num_views; index++)
        is_right = is_right && (index == 2 || view[index].itemsize == 4);
    int is_done = 1;
    if (is_right) {
        int has_queries = view[0].len == 0; /* in kv */
        int64_t out_row = num_heads * width, num_parts = has_queries ? 3 : 2;
        Task task = {.q = has_queries ? view[1].buf : view[0].buf,
                     .kv = view[1].buf,
                     .shifts = view[3].buf,
                     .mixed = view[4].buf,
                     .num_heads = num_heads,
                     .width = width,
                     .kv_row = kv_row ? kv_row : num_parts * out_row,
                     .values = (num_parts - 1) * out_row,
                     .scale = (float)scale};
        task.q_row = has_queries ? task.kv_row : q_row ? q_row : out_row;
        int64_t num_queries = view[4].len / (out_row * 4), num_keys = view[1].len / 4 / task.kv_row, room_size;
        is_right = view[4].len == num_queries * out_row * 4 && view[1].len / 4 == num_keys * task.kv_row &&
                   task.kv_row >= num_parts * out_row && task.q_row >= out_row &&
                   (has_queries ? num_queries == num_keys
                                : view[0].len / 4 / task.q_row == num_queries && view[0].len / 4 % task.q_row == 0) &&
                   view[3].len == 2 * num_heads * num_queries * 4;
        task.num_queries = num_queries;
        if (is_backward) {
            task.above = view[5].buf;
            task.to_q = has_queries ? view[7].buf : view[6].buf;
            task.to_kv = view[7].buf;
            task.to_kv_row = num_keys ? view[7].len / (num_keys * 4) : 0;
            task.to_q_row = has_queries ? task.to_kv_row : num_queries ? view[6].len / (num_queries * 4) : 0;
            is_right = is_right && view[5].len == view[4].len && task.to_kv_row >= num_parts * out_row &&
                       view[7].len == num_keys * task.to_kv_row * 4 && task.to_q_row >= out_row &&
                       (has_queries ? view[6].len == 0 : view[6].len == num_queries * task.to_q_row * 4);
        }
        int64_t num_examples = view[2].len / (FIELDS * 8);
        int64_t *examples = malloc((size_t)view[2].len + 8); /* what was checked: the caller's may lie where we write */
        is_done = examples != NULL;
        if (is_done) {
            task.examples = memcpy(examples, view[2].buf, (size_t)view[2].len);
            is_right = is_right && fits(&task, num_examples, num_queries, num_keys, &room_size);
        }
        if (is_right && is_done) {
            Py_BEGIN_ALLOW_THREADS
            is_done = run(&task, num_examples, room_size, num_threads, is_backward);
            Py_END_ALLOW_THREADS
        }
        free(examples);
    }
    for (int index = 0; index < num_views; index++)
        PyBuffer_Release(&view[index]);
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
        return NULL;
    }
    if (!is_done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *forward(PyObject *module, PyObject *args) { return call(args, 0); }

static PyObject *backward(PyObject *module, PyObject *args) { return call(args, 1); }

static PyMethodDef methods[] = {
    {"forward", forward, METH_VARARGS,
     "forward(q, kv, examples, shifts, mixed, num_heads, width, scale, num_threads, q_row=0, kv_row=0)\n\n"
     "Writes softmax(scale q k) v into mixed, float32 (T, H, K), and of each row of scores the highest, and the logarithm of\n"
     "the sum of exp of what is less, into shifts, float32 (H, T, 2). q is float32 (T, H, K) and kv (S, 2, H, K), or q is empty and kv\n"
     "(T, 3, H, K); K is a multiple of 16. examples is int64 (E, 5), by rising keys: first query, queries, first key,\n"
     "keys, prefix. q_row and kv_row: floats from one token to the next, where not side by side. ValueError: they do not fit."},
    {"backward", backward, METH_VARARGS,
     "backward(q, kv, examples, shifts, mixed, above, to_q, to_kv, num_heads, width, scale, num_threads, q_row=0, kv_row=0)\n\n"
     "The same backwards: `above` is the gradient of mixed, to_q and to_kv are written where examples are. Their rows may\n"
     "be longer than those of q and kv: the rest of them is not touched."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_attention", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__attention(void) { return made_of(&module); }
