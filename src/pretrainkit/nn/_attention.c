/* Attention of many short examples, all heads of an example one after another, where its tokens lie: nothing is
 * gathered, padded or put back. Forward and backward, float32.
 *
 * An example has `num_queries` and `num_keys` tokens in a row of their streams. Of one head: queries Q, keys K, values V,
 * S = scale Q K^T, P = softmax(S), and P V is the answer. Rows of P are kept for the backward pass, each of a multiple of
 * 16 floats: `stride`.
 *
 * Arguments are buffers; their sizes and contents are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>

#include "_vectors.h"

#define ROWS 6
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Examples: where they begin in their streams, their lengths, how many keys all of their queries see (a query sees its
 * own number of keys too), and where their rows of P begin. */
enum { FIRST_QUERY, NUM_QUERIES, FIRST_KEY, NUM_KEYS, NUM_PREFIX, FIRST_SHARE, FIELDS };

/* rows x 16 n entries of C = A B. Entry l of row i of A is at a + i * row + l * step. */
INLINE void tile(int rows, int n, int64_t depth, const float *a, int64_t row, int64_t step, const float *b,
                 int64_t b_row, float *c, int64_t c_row) {
    lanes sum[ROWS][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            sum[i][j] = (lanes){0};
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
                  int64_t b_row, float *c, int64_t c_row) {
    int64_t i = 0;
    for (; i + ROWS <= num_rows; i += ROWS)
        tile(ROWS, n, depth, a + i * row, row, step, b, b_row, c + i * c_row, c_row);
    a += i * row, c += i * c_row;
    switch (num_rows - i) {
    case 5: tile(5, n, depth, a, row, step, b, b_row, c, c_row); break;
    case 4: tile(4, n, depth, a, row, step, b, b_row, c, c_row); break;
    case 3: tile(3, n, depth, a, row, step, b, b_row, c, c_row); break;
    case 2: tile(2, n, depth, a, row, step, b, b_row, c, c_row); break;
    case 1: tile(1, n, depth, a, row, step, b, b_row, c, c_row); break;
    }
}

/* C = A B with num_rows rows and num_columns columns, a multiple of 16. */
INLINE void multiply_for(int wide, int64_t num_rows, int64_t num_columns, int64_t depth, const float *a, int64_t row,
                         int64_t step, const float *b, int64_t b_row, float *c, int64_t c_row) {
    int64_t j = 0;
    for (; j + wide * LANES <= num_columns; j += wide * LANES)
        strip(wide, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row);
    switch (wide > 1 ? num_columns - j : 0) {
    case 3 * LANES: strip(3, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row); break;
    case 2 * LANES: strip(2, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row); break;
    case LANES: strip(1, num_rows, depth, a, row, step, b + j, b_row, c + j, c_row); break;
    }
}

BY_PROCESSOR(multiply,
             (int64_t num_rows, int64_t num_columns, int64_t depth, const float *a, int64_t row, int64_t step,
              const float *b, int64_t b_row, float *c, int64_t c_row),
             (num_rows, num_columns, depth, a, row, step, b, b_row, c, c_row))

/* Rows as columns: `num` rows of `width` floats to `width` rows of `stride`, with zeros behind. */
INLINE void transpose_for(int wide, const float *rows, int64_t row, int64_t num, int64_t width, int64_t stride,
                          float *columns) {
    (void)wide;
    int64_t p = 0;
    for (; p + LANES <= num; p += LANES)
        for (int64_t k = 0; k < width; k++)
            for (int j = 0; j < LANES; j++)
                columns[k * stride + p + j] = rows[(p + j) * row + k];
    for (; p < stride; p += LANES)
        for (int64_t k = 0; k < width; k++)
            for (int j = 0; j < LANES; j++)
                columns[k * stride + p + j] = p + j < num ? rows[(p + j) * row + k] : 0;
}

BY_PROCESSOR(transpose,
             (const float *rows, int64_t row, int64_t num, int64_t width, int64_t stride, float *columns),
             (rows, row, num, width, stride, columns))

/* softmax(scale x) of the first `seen` entries of a row; zeros behind. */
INLINE void softmax_row(float *x, int64_t seen, int64_t stride, float scale) {
    float top[LANES], sum[LANES] = {0};
    int64_t end = (seen + LANES - 1) / LANES * LANES;
    for (int64_t p = seen; p < end; p++)
        x[p] = x[0];
    for (int j = 0; j < LANES; j++)
        top[j] = x[j];
    for (int64_t p = LANES; p < end; p += LANES)
        for (int j = 0; j < LANES; j++)
            top[j] = x[p + j] > top[j] ? x[p + j] : top[j];
    float highest = top[0];
    for (int j = 1; j < LANES; j++)
        highest = top[j] > highest ? top[j] : highest;
    for (int64_t p = 0; p < end; p += LANES)
        for (int j = 0; j < LANES; j++)
            x[p + j] = exponential((x[p + j] - highest) * scale);
    for (int64_t p = seen; p < stride; p++)
        x[p] = 0;
    for (int64_t p = 0; p < end; p += LANES)
        for (int j = 0; j < LANES; j++)
            sum[j] += x[p + j];
    float total = 0;
    for (int j = 0; j < LANES; j++)
        total += sum[j];
    float factor = 1 / total;
    for (int64_t p = 0; p < end; p += LANES)
        for (int j = 0; j < LANES; j++)
            x[p + j] *= factor;
}

INLINE void softmax_for(int wide, float *scores, int64_t num_queries, int64_t num_keys, int64_t num_prefix,
                        int64_t stride, float scale) {
    (void)wide;
    for (int64_t q = 0; q < num_queries; q++) {
        int64_t seen = q + 1 > num_prefix ? q + 1 : num_prefix;
        softmax_row(scores + q * stride, seen < num_keys ? seen : num_keys, stride, scale);
    }
}

BY_PROCESSOR(softmax,
             (float *scores, int64_t num_queries, int64_t num_keys, int64_t num_prefix, int64_t stride, float scale),
             (scores, num_queries, num_keys, num_prefix, stride, scale))

/* What is above P to what is above Q K^T: scale P (x - sum(P x)) of each row. */
INLINE void softmax_back_for(int wide, const float *shares, float *above, int64_t num_queries, int64_t stride,
                             float scale) {
    (void)wide;
    for (int64_t q = 0; q < num_queries; q++, shares += stride, above += stride) {
        float sum[LANES] = {0}, total = 0;
        for (int64_t p = 0; p < stride; p += LANES)
            for (int j = 0; j < LANES; j++)
                sum[j] += shares[p + j] * above[p + j];
        for (int j = 0; j < LANES; j++)
            total += sum[j];
        for (int64_t p = 0; p < stride; p += LANES)
            for (int j = 0; j < LANES; j++)
                above[p + j] = scale * shares[p + j] * (above[p + j] - total);
    }
}

BY_PROCESSOR(softmax_back,
             (const float *shares, float *above, int64_t num_queries, int64_t stride, float scale),
             (shares, above, num_queries, stride, scale))

typedef struct {
    const float *q, *kv, *above; /* `above`: the gradient of the answer */
    float *shares, *mixed, *to_q, *to_kv;
    const int64_t *examples;
    int64_t num_heads, width;
    int64_t q_row, kv_row; /* floats from one token to the next */
    float scale;
} Task;

INLINE int64_t stride_of(const int64_t *one) { return (one[NUM_KEYS] + LANES - 1) / LANES * LANES; }

/* Of one example and head; `room`: width x stride floats. */
static void attend_head(const Task *task, const int64_t *one, int64_t head, float *room) {
    int64_t width = task->width, out_row = task->num_heads * width, stride = stride_of(one);
    int64_t num_queries = one[NUM_QUERIES], num_keys = one[NUM_KEYS];
    const float *q = task->q + one[FIRST_QUERY] * task->q_row + head * width;
    const float *v = task->kv + one[FIRST_KEY] * task->kv_row + (task->kv_row - out_row) + head * width;
    float *shares = task->shares + one[FIRST_SHARE] + head * num_queries * stride;
    transpose(v - out_row, task->kv_row, num_keys, width, stride, room);
    multiply(num_queries, stride, width, q, task->q_row, 1, room, stride, shares, stride);
    softmax(shares, num_queries, num_keys, one[NUM_PREFIX], stride, task->scale);
    multiply(num_queries, width, num_keys, shares, stride, 1, v, task->kv_row,
             task->mixed + one[FIRST_QUERY] * out_row + head * width, out_row);
}

/* Of one example and head; `room`: (width + num_queries) x stride floats. */
static void return_head(const Task *task, const int64_t *one, int64_t head, float *room) {
    int64_t width = task->width, out_row = task->num_heads * width, stride = stride_of(one);
    int64_t num_queries = one[NUM_QUERIES], num_keys = one[NUM_KEYS];
    int64_t q_place = one[FIRST_QUERY] * task->q_row + head * width;
    int64_t v_place = one[FIRST_KEY] * task->kv_row + (task->kv_row - out_row) + head * width;
    int64_t k_place = v_place - out_row;
    const float *shares = task->shares + one[FIRST_SHARE] + head * num_queries * stride;
    const float *above = task->above + one[FIRST_QUERY] * out_row + head * width;
    float *scores = room + width * stride;
    multiply(num_keys, width, num_queries, shares, 1, stride, above, out_row, task->to_kv + v_place, task->kv_row);
    transpose(task->kv + v_place, task->kv_row, num_keys, width, stride, room);
    multiply(num_queries, stride, width, above, out_row, 1, room, stride, scores, stride);
    softmax_back(shares, scores, num_queries, stride, task->scale);
    multiply(num_queries, width, num_keys, scores, stride, 1, task->kv + k_place, task->kv_row, task->to_q + q_place,
             task->q_row);
    multiply(num_keys, width, num_queries, scores, 1, stride, task->q + q_place, task->q_row, task->to_kv + k_place,
             task->kv_row);
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
            if (room != NULL)
                (is_backward ? return_head : attend_head)(task, one, number % task->num_heads, room);
        }
        free(room);
    }
    return is_done;
}

/* Whether examples and buffers fit each other; the floats that one head needs. Queries must not be shared, nor keys. */
static int fits(const Task *task, int64_t num_examples, int64_t num_queries, int64_t num_keys, int64_t num_shares,
                int64_t *room_size) {
    int64_t next_key = 0, next_share = 0;
    *room_size = LANES;
    for (int64_t number = 0; number < num_examples; number++) {
        const int64_t *one = task->examples + number * FIELDS;
        if (one[NUM_QUERIES] < 1 || one[NUM_KEYS] < 1 || one[FIRST_QUERY] < 0 || one[FIRST_KEY] < next_key ||
            one[NUM_QUERIES] > num_queries || one[FIRST_QUERY] > num_queries - one[NUM_QUERIES] ||
            one[NUM_KEYS] > num_keys || one[FIRST_KEY] > num_keys - one[NUM_KEYS] || one[FIRST_SHARE] != next_share)
            return 0;
        next_key = one[FIRST_KEY] + one[NUM_KEYS];
        next_share += one[NUM_QUERIES] * stride_of(one) * task->num_heads;
        int64_t size = (task->width + one[NUM_QUERIES]) * stride_of(one);
        *room_size = size > *room_size ? size : *room_size;
    }
    return next_share <= num_shares;
}

/* Arguments in order: q, kv, examples, shares, then `mixed`, or `above`, `to_q` and `to_kv`. */
static PyObject *call(PyObject *args, int is_backward) {
    Py_buffer view[7];
    Py_ssize_t num_heads, width;
    double scale;
    int num_threads, num_views = is_backward ? 7 : 5;
    if (is_backward ? !PyArg_ParseTuple(args, "y*y*y*w*y*w*w*nndi", &view[0], &view[1], &view[2], &view[3], &view[4],
                                        &view[5], &view[6], &num_heads, &width, &scale, &num_threads)
                    : !PyArg_ParseTuple(args, "y*y*y*w*w*nndi", &view[0], &view[1], &view[2], &view[3], &view[4],
                                        &num_heads, &width, &scale, &num_threads))
        return NULL;
    int is_right = num_heads > 0 && num_heads < 1 << 20 && width > 0 && width < 1 << 20 && width % LANES == 0 &&
                   num_threads > 0 && view[2].itemsize == 8 && view[2].len % (FIELDS * 8) == 0 && scale > 0;
    for (int index = 0; index < num_views; index++)
        is_right = is_right && (index == 2 || view[index].itemsize == 4);
    int is_done = 1;
    if (is_right) {
        int has_queries = view[0].len == 0; /* in kv */
        int64_t out_row = num_heads * width, num_parts = has_queries ? 3 : 2;
        Task task = {.q = has_queries ? view[1].buf : view[0].buf,
                     .kv = view[1].buf,
                     .shares = view[3].buf,
                     .examples = view[2].buf,
                     .num_heads = num_heads,
                     .width = width,
                     .q_row = has_queries ? 3 * out_row : out_row,
                     .kv_row = num_parts * out_row,
                     .scale = (float)scale};
        int64_t num_queries = view[4].len / (out_row * 4), num_keys = view[1].len / (task.kv_row * 4), room_size;
        is_right = view[4].len == num_queries * out_row * 4 && view[1].len == num_keys * task.kv_row * 4 &&
                   (has_queries ? num_queries == num_keys : view[0].len == view[4].len);
        if (is_backward) {
            task.above = view[4].buf;
            task.to_q = has_queries ? view[6].buf : view[5].buf;
            task.to_kv = view[6].buf;
            is_right = is_right && view[5].len == view[0].len && view[6].len == view[1].len;
        } else
            task.mixed = view[4].buf;
        int64_t num_examples = view[2].len / (FIELDS * 8);
        is_right = is_right && fits(&task, num_examples, num_queries, num_keys, view[3].len / 4, &room_size);
        if (is_right) {
            Py_BEGIN_ALLOW_THREADS
            is_done = run(&task, num_examples, room_size, num_threads, is_backward);
            Py_END_ALLOW_THREADS
        }
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
     "forward(q, kv, examples, shares, mixed, num_heads, width, scale, num_threads)\n\n"
     "Writes softmax(scale q k) v into mixed, float32 (T, H, K), and the rows of the softmax into shares, float32. q is\n"
     "float32 (T, H, K) and kv (S, 2, H, K), or q is empty and kv (T, 3, H, K); K is a multiple of 16. examples is int64\n"
     "(E, 6), by rising keys: first query, queries, first key, keys, prefix, first share. ValueError: they do not fit."},
    {"backward", backward, METH_VARARGS,
     "backward(q, kv, examples, shares, above, to_q, to_kv, num_heads, width, scale, num_threads)\n\n"
     "The same backwards: `above` is the gradient of mixed, to_q and to_kv are written where examples are."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_attention", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__attention(void) { return PyModule_Create(&module); }
